// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread of the guest's kernel that works, sleeps, and works again.

/// A tick of Debian's kernel.
const TICK_NS: u64 = 4_000_000;
/// Sleeps of so many ticks and more end on multiples of 8 (`kernel/time/timer.c`).
const FINE_TICKS: u64 = 63;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    sleep_ps: u64,
    /// When it next wakes.
    pub due_ps: u64,
}

impl Thread {
    /// It has just gone to sleep for the first time.
    pub fn new(sleep_ns: u64) -> Self {
        let sleep_ps = slept_ns(sleep_ns) * 1000;
        Self {
            sleep_ps,
            due_ps: sleep_ps,
        }
    }

    /// It woke, took so long, and sleeps.
    pub fn worked(&mut self, cost_ns: u64) {
        self.due_ps += cost_ns * 1000 + self.sleep_ps;
    }
}

/// How long a sleep is: whole ticks and, as Linux never wakes anybody early, another one; of
/// long ones half of eight more, on the mean.
fn slept_ns(asked_ns: u64) -> u64 {
    let ticks = asked_ns.div_ceil(TICK_NS);
    let more = if ticks < FINE_TICKS { 1 } else { 4 };
    (ticks + more) * TICK_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_of_whole_ticks() {
        let ms = |asked_us: u64| slept_ns(asked_us * 1000) / 1_000_000;
        assert_eq!([1, 2000, 10_000, 50_000].map(ms), [8, 8, 16, 56]);
        assert_eq!(ms(500_000), 516);
        let mut thread = Thread::new(10_000_000);
        thread.worked(500);
        assert_eq!(thread.due_ps, 32_000_500_000);
    }
}
