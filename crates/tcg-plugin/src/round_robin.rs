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
    // SAFETY: QEMU's functions of these types. `force_rcu` lies in the calling
    // thread's `rcu_reader_data`; the entry is removed only if it is the only
    // one and points back at the head, as a list of this kind does.
    unsafe {
        let reader: unsafe extern "C" fn() -> *mut u8 = std::mem::transmute(reader);
        let remove: unsafe extern "C" fn(*mut Notifier) = std::mem::transmute(remove);
        let head = reader().add(FORCE_RCU_OFFSET).cast::<*mut Notifier>();
        let entry = *head;
        if entry.is_null() || (*entry).previous != head || !(*entry).next.is_null() {
            return Err(QemuError::RoundRobin(WHAT));
        }
        remove(entry);
        if !(*head).is_null() {
            return Err(QemuError::RoundRobin(WHAT));
        }
    }
    Ok(())
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
