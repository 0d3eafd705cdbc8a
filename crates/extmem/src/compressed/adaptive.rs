// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Is compressing worth it just now?
//!
//! Trying costs a microsecond or two a page. When fewer than a quarter of a window's
//! pages shrank enough, the tier goes off and then only tries one page in
//! [`PROBE_PERIOD`]; when half of a short window of probes shrank, it is on again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const WINDOW: u32 = 256;
const PROBE_WINDOW: u32 = 16;
const PROBE_PERIOD: u32 = 64;

/// The switch. Races between threads cost a vote, nothing else.
#[derive(Debug)]
pub struct Adaptive {
    always: bool,
    on: AtomicBool,
    passed: AtomicU32,
    tried: AtomicU32,
    accepted: AtomicU32,
}

impl Adaptive {
    /// On; for good if `always`.
    pub fn new(always: bool) -> Self {
        Self {
            always,
            on: AtomicBool::new(true),
            passed: AtomicU32::new(0),
            tried: AtomicU32::new(0),
            accepted: AtomicU32::new(0),
        }
    }

    /// Whether the next page is to be tried.
    pub fn tries_next(&self) -> bool {
        self.is_on()
            || self
                .passed
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(PROBE_PERIOD)
    }

    /// A page was tried.
    pub fn tried(&self, accepted: bool) {
        let accepted = self
            .accepted
            .fetch_add(u32::from(accepted), Ordering::Relaxed)
            + u32::from(accepted);
        let tried = self.tried.fetch_add(1, Ordering::Relaxed) + 1;
        let on = self.on.load(Ordering::Relaxed);
        if tried >= if on { WINDOW } else { PROBE_WINDOW } {
            self.tried.store(0, Ordering::Relaxed);
            self.accepted.store(0, Ordering::Relaxed);
            let stays = if on {
                accepted * 4 >= tried
            } else {
                accepted * 2 >= tried
            };
            self.on.store(stays, Ordering::Relaxed);
        }
    }

    /// The state now.
    pub fn is_on(&self) -> bool {
        self.always || self.on.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_off_probes_rarely_and_comes_back() {
        let switch = Adaptive::new(false);
        let mut tries = 0;
        for _ in 0..10_000 {
            if switch.tries_next() {
                tries += 1;
                switch.tried(false);
            }
        }
        assert!(!switch.is_on());
        assert!((256..600).contains(&tries), "{tries}");
        let mut pages = 0;
        while !switch.is_on() {
            pages += 1;
            if switch.tries_next() {
                switch.tried(true);
            }
        }
        assert!(pages <= PROBE_WINDOW * PROBE_PERIOD * 2, "{pages}");
    }

    #[test]
    fn always_is_always() {
        let switch = Adaptive::new(true);
        (0..1000).for_each(|_| switch.tried(false));
        assert!(switch.is_on() && switch.tries_next());
    }
}
