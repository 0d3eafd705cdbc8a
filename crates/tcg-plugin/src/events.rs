// SPDX-License-Identifier: GPL-2.0-or-later
//! `pause` without QEMU's scheduler.
//!
//! QEMU ends a vCPU's turn at `pause`. With several vCPUs that is right: whoever
//! holds the lock gets to run. With one it only makes the host look at all its
//! timers again, which came to 70 % of its work in a program that spins. So the
//! helper behind `pause` is replaced, while the model is on, by one that goes on
//! with the next instruction. What `pause` costs the guest is charged elsewhere.

use std::ffi::c_void;
use std::sync::OnceLock;

use crate::helpers::helper;
use crate::qemu::QemuError;

type Pause = unsafe extern "C" fn(*mut c_void);

static ORIGINAL: OnceLock<Pause> = OnceLock::new();

unsafe extern "C" fn pause(env: *mut c_void) {
    let observer = crate::observer();
    if let Some(cpu) = observer.only_vcpu() {
        // SAFETY: the running vCPU. Translated code has put the next instruction's
        // address in its place and ends here, as QEMU's helper does not return either;
        // this leaves it for QEMU's inner loop, not for the scheduler.
        unsafe { (observer.api.cpu_loop_exit_noexc)(cpu) }
    }
    if let Some(original) = ORIGINAL.get() {
        // SAFETY: QEMU's own call, passed on.
        unsafe { original(env) }
    }
}

/// Replaces the helper; before any code is translated.
///
/// # Errors
/// QEMU's helper is not described as expected.
pub fn hook_pause() -> Result<(), QemuError> {
    // SAFETY: QEMU's helper of this type, as is what it is replaced by; nothing runs yet.
    let original = unsafe {
        let original = helper!("pause").replace(pause as *mut c_void)?;
        std::mem::transmute::<*mut c_void, Pause>(original)
    };
    ORIGINAL
        .set(original)
        .map_err(|_| QemuError::Helper("pause"))
}
