// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lock for code that runs inside signal handlers.
//!
//! It spins briefly, then sleeps on a futex; it neither allocates nor poisons
//! nor uses thread-local storage. Whoever takes it must have all signals blocked:
//! a handler that interrupted its owner could wait for itself.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::futex;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody sleeps.
const CONTENDED: u32 = 2;
const SPINS: u32 = 200;

/// Mutual exclusion over a `T`. All bits zero is an unlocked lock over a zero `T`.
#[derive(Debug, Default)]
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: owning the lock is owning the value.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    /// An open lock.
    pub const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock. Signals must be blocked.
    pub fn lock(&self) -> Guard<'_, T> {
        for _ in 0..SPINS {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            std::hint::spin_loop();
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            futex::wait(&self.state, CONTENDED, None);
        }
        self.guard()
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| self.guard())
    }

    /// Opens the lock whoever held it: for the child of a fork, where the
    /// threads that held locks do not exist.
    ///
    /// # Safety
    /// No guard may be alive, and the value must be usable as it was left.
    pub unsafe fn reset(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    fn guard(&self) -> Guard<'_, T> {
        Guard {
            lock: self,
            bound: PhantomData,
        }
    }
}

/// Access to what the lock protects, until dropped.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Stays in its thread.
    bound: PhantomData<*mut T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and it is borrowed alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Ordering::Release) == CONTENDED {
            futex::wake(&self.lock.state, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
