// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work for the prefetch threads: a bounded ring of page windows.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::futex;
use crate::lock::Lock;
use crate::page::PageIndex;

/// Pages somebody will want soon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// First page.
    pub first: PageIndex,
    /// How many.
    pub pages: u32,
    /// They will be written.
    pub write: bool,
}

const ROOM: usize = 256;

#[derive(Debug)]
struct Ring {
    windows: [Window; ROOM],
    head: usize,
    used: usize,
}

/// The ring. What does not fit is dropped: a hint, not a promise.
#[derive(Debug)]
pub struct WindowQueue {
    ring: Lock<Ring>,
    ticket: AtomicU32,
}

impl Default for WindowQueue {
    fn default() -> Self {
        Self {
            ring: Lock::new(Ring {
                windows: [Window::default(); ROOM],
                head: 0,
                used: 0,
            }),
            ticket: AtomicU32::new(0),
        }
    }
}

impl WindowQueue {
    /// Adds a window and wakes a thread. Signals must be blocked.
    pub fn push(&self, window: Window) -> bool {
        {
            let mut ring = self.ring.lock();
            if ring.used == ROOM {
                return false;
            }
            let at = (ring.head + ring.used) % ROOM;
            ring.windows[at] = window;
            ring.used += 1;
        }
        self.ticket.fetch_add(1, Ordering::Release);
        futex::wake(&self.ticket, 1);
        true
    }

    /// Takes the oldest window.
    pub fn pop(&self) -> Option<Window> {
        let mut ring = self.ring.lock();
        if ring.used == 0 {
            return None;
        }
        let window = ring.windows[ring.head];
        ring.head = (ring.head + 1) % ROOM;
        ring.used -= 1;
        Some(window)
    }

    /// A number that changes with every push: read it before `pop`, sleep on it after.
    pub fn ticket(&self) -> u32 {
        self.ticket.load(Ordering::Acquire)
    }

    /// Sleeps until something is pushed after `ticket` was read.
    pub fn sleep(&self, ticket: u32) {
        futex::wait(&self.ticket, ticket, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_and_bounded() {
        let queue = WindowQueue::default();
        let window = |first| Window {
            first,
            pages: 4,
            write: false,
        };
        for first in 0..ROOM as u32 {
            assert!(queue.push(window(first)));
        }
        assert!(!queue.push(window(9999)));
        for first in 0..ROOM as u32 {
            assert_eq!(queue.pop(), Some(window(first)));
        }
        assert_eq!(queue.pop(), None);
    }
}
