// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Access to a ring while it runs.
//!
//! Events of our own (a wake, a timer) come at any time: before the monitor has said where
//! a ring lies, when its address is still zero, and after it has stopped the ring, whose
//! memory the guest may use for something else by then. So whatever reads or writes a ring
//! does it under the lock under which the ring was seen to be set up and enabled, or answers what
//! it has taken out before the monitor may say that the ring is stopped (`Backend::serving`).
//! Nothing is missed: a ring that is enabled is served then.

use vhost_user_backend::{VringRwLock, VringState, VringT};
use virtio_queue::QueueT;

/// What `act` made of a ring that runs; none if it does not.
pub fn running<R>(vring: &VringRwLock, act: impl FnOnce(&mut VringState) -> R) -> Option<R> {
    let mut state = vring.get_mut();
    let runs = state.is_enabled() && state.get_queue().ready();
    runs.then(|| act(&mut state))
}

/// Gives a buffer back that was taken out of a ring which ran then, and tells the driver, if it
/// wants to be told. A monitor that has stopped it meanwhile waits for this. Fails for a head
/// outside the ring, which nobody waits for.
pub fn answer(vring: &VringRwLock, head: u16, written: u32) {
    let mut state = vring.get_mut();
    let _ = state.add_used(head, written);
    if state.needs_notification().unwrap_or(true) {
        let _ = state.signal_used_queue();
    }
}
