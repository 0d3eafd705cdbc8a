// SPDX-License-Identifier: GPL-2.0-or-later
//! vCPUs on QEMU's single TCG thread.
//!
//! QEMU runs the vCPUs in turn; a turn ends with the next timer, with
//! `cpu_exit`, or when the guest spins (`pause`) or halts. Two things about it
//! have to change before a model may look on:
//!
//! - With several vCPUs translated code is shared, and QEMU builds the number of
//!   the vCPU that it was translated for into its callbacks. The flag
//!   `CF_PARALLEL`, which QEMU itself sets where several vCPUs run at once, makes
//!   it load the number.
//! - QEMU's RCU thread ends a turn when a grace period takes long, which is a
//!   matter of the host's clock. Then the next vCPU runs earlier than it would
//!   have, and even with a single one timers that fell due by time charged since
//!   the last turn run earlier. Without that wish turns depend on the guest
//!   alone; grace periods then wait for the turn to end, at most until the next
//!   timer of the guest.
//!
//! Both touch QEMU's inside: what is found there is checked first, and that
//! callbacks name the vCPU that runs is checked throughout.

use std::ffi::c_void;
use std::ptr;

use crate::qemu::{QemuError, symbol};

/// `CF_PARALLEL`, QEMU 6 to 11.
const CF_PARALLEL: u32 = 0x8000;
/// Offset of `force_rcu`, a list's head, in `struct rcu_reader_data`.
const FORCE_RCU_OFFSET: usize = 0x20;

/// `Notifier`.
#[repr(C)]
struct Notifier {
    notify: *mut c_void,
    next: *mut Notifier,
    /// Address of what points at this one.
    previous: *mut *mut Notifier,
}

/// Makes callbacks on `cpu` be told which vCPU runs; before it runs any code.
pub fn name_the_vcpu(cpu: *mut c_void) -> Result<(), QemuError> {
    let set = symbol(c"tcg_cflags_set")?;
    let has = symbol(c"tcg_cflags_has")?;
    // SAFETY: QEMU's functions of these types; `cpu` is one of its vCPUs.
    let taken = unsafe {
        let set: unsafe extern "C" fn(*mut c_void, u32) = std::mem::transmute(set);
        let has: unsafe extern "C" fn(*mut c_void, u32) -> bool = std::mem::transmute(has);
        set(cpu, CF_PARALLEL);
        has(cpu, CF_PARALLEL)
    };
    if taken {
        Ok(())
    } else {
        Err(QemuError::RoundRobin("the flag for parallel code"))
    }
}

/// Stops QEMU's RCU thread from ending turns; on the TCG thread, once.
pub fn keep_turns() -> Result<(), QemuError> {
    const WHAT: &str = "the list of who is told of RCU's haste";
    let reader = symbol(c"get_ptr_rcu_reader")?;
    let remove = symbol(c"rcu_remove_force_rcu_notifier")?;
    let (here, top) = stack().ok_or(QemuError::RoundRobin(WHAT))?;
    // SAFETY: QEMU's functions of these types. `force_rcu` lies in the calling
    // thread's `rcu_reader_data`. What is found there is followed only into that thread's
    // own stack, where the function that runs the vCPUs keeps the entry, and removed only
    // if it is the only one and points back at the head, as a list of this kind does.
    unsafe {
        let reader: unsafe extern "C" fn() -> *mut u8 = std::mem::transmute(reader);
        let remove: unsafe extern "C" fn(*mut Notifier) = std::mem::transmute(remove);
        let head = reader().add(FORCE_RCU_OFFSET).cast::<*mut Notifier>();
        let entry = *head;
        if !lies_in(entry, here, top) || (*entry).previous != head || !(*entry).next.is_null() {
            return Err(QemuError::RoundRobin(WHAT));
        }
        remove(entry);
        if !(*head).is_null() {
            return Err(QemuError::RoundRobin(WHAT));
        }
    }
    Ok(())
}

/// From about where the calling function is to the end of the calling thread's stack.
fn stack() -> Option<(usize, usize)> {
    let here = 0_u8;
    let mut attributes = std::mem::MaybeUninit::uninit();
    let (mut start, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: the calling thread and places for what is asked for; attributes that were
    // filled in are read, then given back.
    let known = unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let known =
            libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        known == 0
    };
    known.then_some((&raw const here as usize, start as usize + bytes))
}

/// Whether a whole entry lies at `entry`, aligned, between the two.
fn lies_in(entry: *const Notifier, from: usize, to: usize) -> bool {
    let end = (entry as usize).checked_add(size_of::<Notifier>());
    entry.is_aligned() && entry as usize >= from && end.is_some_and(|end| end <= to)
}

/// QEMU's own idea of the vCPU that runs.
pub struct Running(*const *mut c_void);

impl Running {
    /// Finds it; on the TCG thread, as it is a variable of each thread.
    pub fn find() -> Result<Self, QemuError> {
        Ok(Self(symbol(c"current_cpu")?.cast_const().cast()))
    }

    /// Whether `cpu` runs.
    #[inline]
    pub fn is(&self, cpu: *mut c_void) -> bool {
        // SAFETY: the calling thread's `current_cpu`, which lives as long as the thread.
        ptr::eq(unsafe { self.0.read_volatile() }, cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn stack_below() -> (usize, usize) {
        stack().unwrap()
    }

    #[test]
    fn only_what_lies_on_the_stack_is_followed() {
        let entry = Notifier {
            notify: ptr::null_mut(),
            next: ptr::null_mut(),
            previous: ptr::null_mut(),
        };
        let (here, top) = stack_below();
        assert!(lies_in(&raw const entry, here, top));
        let heap = Box::new(entry);
        for wrong in [
            0,
            0x20,
            0x7000_0000_0000,
            usize::MAX & !7,
            here - 64,
            top - 16,
            top,
        ] {
            assert!(!lies_in(wrong as *const Notifier, here, top), "{wrong:#x}");
        }
        assert!(!lies_in(&raw const *heap, here, top));
        assert!(!lies_in((top - 25) as *const Notifier, here, top));
    }
}
