// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that know nothing of each other for a while, on all processors.

use std::thread;

use demeter_recording::Window;

/// Does `each` with all guests, a window for each thread.
///
/// # Errors
/// What `each` says of the first guest with which it cannot go on.
pub fn side_by_side<G: Send, E: Send>(
    guests: &mut [G],
    each: impl Fn(&mut G, &mut Window) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let part = guests.len().div_ceil(threads).max(1);
    let play = |guests: &mut [G]| {
        let mut window = Window::default();
        guests
            .iter_mut()
            .try_for_each(|guest| each(guest, &mut window))
    };
    if guests.len() <= 1 {
        return play(guests);
    }
    let play = &play;
    let played = thread::scope(|scope| {
        let running: Vec<_> = (guests.chunks_mut(part))
            .map(|guests| scope.spawn(move || play(guests)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(played) => played,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        running.into_iter().map(join).collect::<Vec<_>>()
    });
    played.into_iter().collect()
}
