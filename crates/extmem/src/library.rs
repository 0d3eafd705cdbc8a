// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the C library's code lies in this process.

use std::ffi::{CStr, c_int, c_void};

struct Search {
    text: Option<(usize, usize)>,
}

/// First and one past the last byte of libc.so.6's executable segment.
pub fn text() -> Option<(usize, usize)> {
    let mut search = Search { text: None };
    // SAFETY: the callback gets what we pass, and each object while it is loaded.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast::<c_void>()) };
    search.text
}

unsafe extern "C" fn look(
    object: *mut libc::dl_phdr_info,
    _bytes: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr's promises; `search` is the caller's.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    if object.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a C string of the loader.
    let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
    let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    if file != b"libc.so.6" {
        return 0;
    }
    for index in 0..usize::from(object.dlpi_phnum) {
        // SAFETY: inside the object's table.
        let header = unsafe { &*object.dlpi_phdr.add(index) };
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0 {
            let start = object.dlpi_addr as usize + header.p_vaddr as usize;
            search.text = Some((start, start + header.p_memsz as usize));
            return 1;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    #[test]
    fn finds_the_library() {
        let (start, end) = super::text().unwrap();
        assert!(start < end);
    }
}
