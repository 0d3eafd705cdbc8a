// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU's helpers, the functions that translated code calls: how one is replaced.
//!
//! Each has a descriptor, which the translator looks at whenever it emits a call. Its
//! first two words are the function and the name; both are checked before the first
//! is changed.

use std::ffi::{CStr, c_char, c_void};

use crate::qemu::{QemuError, symbol};

/// Head of QEMU's `TCGHelperInfo`.
#[repr(C)]
struct Descriptor {
    function: *mut c_void,
    name: *const c_char,
}

/// A helper by the names that QEMU gives to its parts.
pub struct Helper {
    /// What translated code knows it by.
    pub name: &'static CStr,
    /// The symbol of its descriptor.
    pub descriptor: &'static CStr,
    /// The symbol of its function.
    pub function: &'static CStr,
}

/// Names a helper and its symbols.
macro_rules! helper {
    ($name:literal) => {
        $crate::helpers::Helper {
            name: $crate::helpers::c_str(concat!($name, "\0")),
            descriptor: $crate::helpers::c_str(concat!("helper_info_", $name, "\0")),
            function: $crate::helpers::c_str(concat!("helper_", $name, "\0")),
        }
    };
}
pub(crate) use helper;

/// `text`, which ends in its only NUL.
pub const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name with a NUL inside"),
    }
}

impl Helper {
    /// Has code that is translated from now on call `function` instead; QEMU's own.
    ///
    /// # Safety
    /// `function` has the type of the helper, and no code is being translated.
    ///
    /// # Errors
    /// QEMU does not export it, or describes it otherwise.
    pub unsafe fn replace(&self, function: *mut c_void) -> Result<*mut c_void, QemuError> {
        let descriptor = symbol(self.descriptor)?.cast::<Descriptor>();
        let original = symbol(self.function)?;
        // SAFETY: QEMU's descriptor of this name, in data that it may write.
        unsafe { self.replace_in(descriptor, original, function) }
    }

    /// As above, in a descriptor that has been found.
    ///
    /// # Safety
    /// As above; `descriptor` may be read and written.
    unsafe fn replace_in(
        &self,
        descriptor: *mut Descriptor,
        original: *mut c_void,
        function: *mut c_void,
    ) -> Result<*mut c_void, QemuError> {
        // SAFETY: the caller's promise. The name is followed only where the function is the
        // one that belongs to it: then this is such a descriptor.
        unsafe {
            let known = (*descriptor).function == original
                && !(*descriptor).name.is_null()
                && CStr::from_ptr((*descriptor).name) == self.name;
            if !known {
                return Err(QemuError::Helper(self.name.to_str().unwrap_or("?")));
            }
            (*descriptor).function = function;
        }
        Ok(original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Helper = helper!("pause");

    #[test]
    fn a_helper_is_replaced_once_and_only_where_its_name_is() {
        assert_eq!(PAUSE.descriptor, c"helper_info_pause");
        assert_eq!(PAUSE.function, c"helper_pause");
        let [original, ours] = [0x1000, 0x2000].map(std::ptr::without_provenance_mut::<c_void>);
        let mut descriptor = Descriptor {
            function: original,
            name: c"hlt".as_ptr(),
        };
        let replace = |descriptor: &mut Descriptor| {
            // SAFETY: ours.
            unsafe { PAUSE.replace_in(descriptor, original, ours) }
        };
        let error = replace(&mut descriptor).unwrap_err().to_string();
        assert!(error.contains("`pause`"), "{error}");
        descriptor.name = std::ptr::null();
        assert!(replace(&mut descriptor).is_err());
        assert_eq!(descriptor.function, original);
        descriptor.name = c"pause".as_ptr();
        assert_eq!(replace(&mut descriptor).unwrap(), original);
        assert_eq!(descriptor.function, ours);
        assert!(replace(&mut descriptor).is_err());
    }
}
