// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Access to a ring while it runs.
//!
//! Events of our own (a wake, a timer) come at any time: before the monitor has said where
//! a ring lies, when its address is still zero, and after it has stopped the ring, whose
//! memory the guest may use for something else by then. So whatever reads or writes a ring
//! does it under the lock under which the ring was seen to be set up and enabled, or answers what
//! it has taken out before the monitor may say that the ring is stopped (`Backend::serving`).
//! Nothing is missed: a ring that is enabled is served then.

use std::sync::atomic::Ordering;

use vhost_user_backend::{VringRwLock, VringState, VringT};
use virtio_queue::{DescriptorChain, Error, QueueOwnedT, QueueT};
use vm_memory::{GuestMemoryLoadGuard, GuestMemoryMmap};

/// A buffer of a guest.
pub type Chain = DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>;

/// What `act` made of a ring that runs; none if it does not.
pub fn running<R>(vring: &VringRwLock, act: impl FnOnce(&mut VringState) -> R) -> Option<R> {
    let mut state = vring.get_mut();
    let runs = state.is_enabled() && state.get_queue().ready();
    runs.then(|| act(&mut state))
}

/// Takes the next buffer out. Where the word that names it lies outside guest memory, the queue
/// crate answers as if there were none, and stays where it is: whoever asks for more then is told
/// for ever that there is some. Here that is an error, as a ring that makes no sense.
pub fn next_chain(
    state: &mut VringState,
    memory: &GuestMemoryLoadGuard<GuestMemoryMmap>,
) -> Result<Option<Chain>, Error> {
    let queue = state.get_queue_mut();
    // Before the queue crate reads the same: a driver only goes on, so that it sees as many.
    let offered = queue.avail_idx(&**memory, Ordering::Acquire);
    let chain = queue.iter(memory.clone())?.next();
    if chain.is_none() && offered?.0 != queue.next_avail() {
        return Err(Error::InvalidAvailRingIndex);
    }
    Ok(chain)
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
