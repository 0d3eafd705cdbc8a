// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long to leave alone what was tried in vain.
//!
//! Whether another part of a file can be had costs system calls for each part that is not
//! ours, and every allocation asks for it as long as the file is not all ours. What was in
//! vain is therefore repeated after a pause only, which is doubled each time, but not without
//! end: what comes free meanwhile is found, a moment later.

use std::sync::atomic::{AtomicU64, Ordering};

use super::obstacle::Obstacle;

/// The first pause.
const LEAST_NS: u64 = 1_000_000;
/// Doubled up to this one.
const MOST_NS: u64 = 128_000_000;
/// A pause is so many times as long as what was in vain took, …
const TIMES: u64 = 32;
/// … but no longer than this: who was set aside in a try knows nothing of what it took.
const MOST_BY_TIME_NS: u64 = 1_000_000_000;
/// Longer where a disk was full: there each call may wait for the disk, and one that was
/// full seldom has room a moment later.
const MOST_BY_TIME_FULL_NS: u64 = 8_000_000_000;

/// When to try again. Each process of a family has its own.
#[derive(Debug, Default)]
pub struct Backoff {
    /// Not before.
    due_ns: AtomicU64,
    /// The last pause; 0 after a try that was not in vain.
    pause_ns: AtomicU64,
}

impl Backoff {
    /// Whether the pause is over, or there is none.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns.load(Ordering::Relaxed)
    }

    /// A try from one time to another was in vain, because of this if it is known.
    pub fn was_in_vain(&self, begun_ns: u64, now_ns: u64, obstacle: Option<Obstacle>) {
        let took_ns = now_ns.saturating_sub(begun_ns);
        let most_ns = match obstacle {
            Some(Obstacle::Disk) => MOST_BY_TIME_FULL_NS,
            _ => MOST_BY_TIME_NS,
        };
        let by_time_ns = took_ns.saturating_mul(TIMES).min(most_ns);
        let doubled_ns = self.pause_ns.load(Ordering::Relaxed).saturating_mul(2);
        let pause_ns = doubled_ns.clamp(LEAST_NS, MOST_NS).max(by_time_ns);
        self.pause_ns.store(pause_ns, Ordering::Relaxed);
        self.due_ns
            .store(now_ns.saturating_add(pause_ns), Ordering::Relaxed);
    }

    /// A try was not in vain.
    pub fn was_good(&self) {
        self.pause_ns.store(0, Ordering::Relaxed);
        self.due_ns.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries as often as it may for so long, each try taking that long; how many tries.
    fn tries(backoff: &Backoff, from_ns: u64, for_ns: u64, took_ns: u64) -> u32 {
        let (mut now_ns, mut count) = (from_ns, 0);
        while now_ns < from_ns + for_ns {
            if backoff.is_due(now_ns) {
                backoff.was_in_vain(now_ns, now_ns + took_ns, None);
                now_ns += took_ns;
                count += 1;
            }
            now_ns += 1_000_000;
        }
        count
    }

    #[test]
    fn pauses_grow_and_end() {
        const SECOND_NS: u64 = 1_000_000_000;
        let backoff = Backoff::default();
        assert!(backoff.is_due(0));
        // Some while the pause grows, then eight a second.
        let count = tries(&backoff, 0, 10 * SECOND_NS, 1000);
        assert!((70..100).contains(&count), "{count}");
        // Long ones take one part in so many of the time.
        let count = tries(&backoff, 20 * SECOND_NS, 32 * SECOND_NS, 20_000_000);
        assert!((45..55).contains(&count), "{count}");
        // None is waited for for ever.
        backoff.was_in_vain(60 * SECOND_NS, 100 * SECOND_NS, None);
        assert!(!backoff.is_due(100 * SECOND_NS) && backoff.is_due(101 * SECOND_NS));
        backoff.was_in_vain(0, SECOND_NS / 8, Some(Obstacle::Disk));
        assert!(!backoff.is_due(4 * SECOND_NS) && backoff.is_due(5 * SECOND_NS));
        backoff.was_in_vain(0, SECOND_NS, Some(Obstacle::Disk));
        assert!(!backoff.is_due(8 * SECOND_NS) && backoff.is_due(9 * SECOND_NS));
        backoff.was_good();
        assert!(backoff.is_due(0));
        backoff.was_in_vain(0, 1, None);
        assert!(!backoff.is_due(LEAST_NS) && backoff.is_due(LEAST_NS + 1));
    }
}
