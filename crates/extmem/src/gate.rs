// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many may work, or one may fork.
//!
//! Every operation of the pager runs inside the gate. A fork closes it and waits
//! until nobody is inside: then no page is half way between two states, no lock of
//! the pager is held, and the child's copy of all of it is whole.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::futex;

const CLOSED: u32 = 1 << 31;

/// Counts who is inside; the top bit keeps others out.
#[derive(Debug, Default)]
pub struct Gate {
    word: AtomicU32,
}

/// Being inside. Never waits for a closed gate while holding one of these.
#[derive(Debug)]
pub struct Pass<'a>(&'a Gate);

impl Gate {
    /// Goes in, waiting while the gate is closed.
    pub fn enter(&self) -> Pass<'_> {
        loop {
            // Nothing is written to a closed gate: those who wait would wake each other.
            let seen = self.word.load(Ordering::Relaxed);
            if seen & CLOSED != 0 {
                futex::wait(&self.word, seen, None);
            } else if self
                .word
                .compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return Pass(self);
            }
        }
    }

    /// Closes the gate and waits until all are out.
    pub fn close(&self) {
        loop {
            let seen = self.word.fetch_or(CLOSED, Ordering::Acquire);
            if seen & CLOSED == 0 {
                break;
            }
            futex::wait(&self.word, seen, None);
        }
        loop {
            let seen = self.word.load(Ordering::Acquire);
            if seen == CLOSED {
                return;
            }
            futex::wait(&self.word, seen, None);
        }
    }

    /// Opens it again; in the child of a fork too, where nobody else is inside.
    pub fn open(&self) {
        self.word.fetch_and(!CLOSED, Ordering::Release);
        futex::wake(&self.word, futex::ALL);
    }

    /// In the child of a fork: open, and empty.
    pub fn reset(&self) {
        self.word.store(0, Ordering::SeqCst);
    }

    fn leave(&self) {
        let left = self.word.fetch_sub(1, Ordering::Release) - 1;
        if left & CLOSED != 0 {
            futex::wake(&self.word, futex::ALL);
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn nobody_is_inside_while_it_is_closed() {
        let gate = Gate::default();
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..3000 {
                        let _pass = gate.enter();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..200 {
                gate.close();
                assert_eq!(inside.load(Ordering::SeqCst), 0);
                gate.open();
            }
        });
    }
}
