// SPDX-License-Identifier: GPL-2.0-or-later
//! Who skips idle time, and when.
//!
//! When all vCPUs are idle, QEMU's main thread puts the clock forward to the next
//! timer and wakes the thread that runs the vCPUs. It does so whenever it comes by and
//! finds them idle, and it comes by for many reasons: the two threads meet at a moment
//! that the host chooses. Three such moments change what the guest does next:
//!
//! - A vCPU that halts is found idle before what it executed is counted: the clock is
//!   too early, the skip too long.
//! - It is found idle when that is counted, but its thread has not gone to sleep. The
//!   thread then goes on with the vCPU after it, not with the first one, and within the
//!   budget of the turn before.
//! - The thread has been woken by a skip and has not run the timers that are due: it is
//!   woken once more, which ends the first turn of every vCPU.
//!
//! With one vCPU the last two come to the same; with several, the order of turns follows
//! the host. So skipping takes leave: the vCPUs' thread gives it when it has found all
//! of them idle, which it does with QEMU's big lock held until it sleeps; a skip uses it
//! up; and so does whatever else wakes that thread, when it first looks at the clock.
//! The main thread asks with the same lock held.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use crate::qemu::{Api, QemuError};

thread_local! {
    static RUNS_VCPUS: Cell<bool> = const { Cell::new(false) };
}

/// The vCPU that QEMU asks about last when it asks about all.
static LAST_VCPU: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// Whether QEMU has asked about a vCPU.
static ASKED: AtomicBool = AtomicBool::new(false);
/// Whether idle time may be skipped; changed with QEMU's big lock held.
static LEAVE: AtomicBool = AtomicBool::new(false);

/// A vCPU exists; on the thread that runs it, in the order in which QEMU lists them.
pub fn vcpu_exists(cpu: *mut c_void) {
    RUNS_VCPUS.set(true);
    LAST_VCPU.store(cpu, Relaxed);
}

/// Whether the calling thread is the one that runs the vCPUs.
pub fn runs_vcpus() -> bool {
    RUNS_VCPUS.get()
}

/// Whether QEMU has asked the hook; once the guest has halted, as each does while it boots.
///
/// # Errors
/// It has not: idle time would be skipped at moments that the host chooses.
pub fn check() -> Result<(), QemuError> {
    if ASKED.load(Relaxed) {
        Ok(())
    } else {
        Err(QemuError::Hook("QEMU does not ask about idle vCPUs"))
    }
}

/// The clock is looked at; by the thread that runs the vCPUs that means that it is awake.
#[inline]
pub fn clock_looked_at() {
    if LEAVE.load(Relaxed) && RUNS_VCPUS.get() {
        LEAVE.store(false, Relaxed);
    }
}

/// QEMU asks this of each vCPU in turn that has halted and has nothing to do, until one is
/// not idle; with its big lock held.
pub extern "C" fn is_idle(cpu: *mut c_void) -> bool {
    ASKED.store(true, Relaxed);
    // SAFETY: a vCPU of QEMU's.
    let counted = unsafe { Api::budget(cpu) } == 0;
    answer(counted, LAST_VCPU.load(Relaxed) == cpu)
}

/// Leave is asked for, and given, where all the others have been found idle.
fn answer(counted: bool, last: bool) -> bool {
    if !counted || !last {
        return counted;
    }
    let here = RUNS_VCPUS.get();
    LEAVE.swap(here, Relaxed) || here
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What another thread, QEMU's main one, finds of two vCPUs.
    fn main_thread_skips() -> bool {
        std::thread::spawn(|| answer(true, false) && answer(true, true))
            .join()
            .unwrap()
    }

    #[test]
    fn idle_time_is_skipped_once_each_time_the_vcpus_sleep() {
        vcpu_exists(ptr::null_mut());
        // Both have halted, but their thread has not found out.
        assert!(!main_thread_skips());
        // It has; of the second one not all is counted.
        assert!(answer(true, false) && !answer(false, true));
        assert!(!main_thread_skips());
        assert!(answer(true, false) && answer(true, true));
        assert!(main_thread_skips());
        // The thread is about to run timers, and halts again.
        assert!(!main_thread_skips());
        assert!(answer(true, false) && answer(true, true));
        // A device has woken it before the main thread came by.
        clock_looked_at();
        assert!(!main_thread_skips());
        assert!(answer(true, false) && answer(true, true));
        // The clock is read elsewhere too.
        std::thread::spawn(clock_looked_at).join().unwrap();
        assert!(main_thread_skips());
    }
}
