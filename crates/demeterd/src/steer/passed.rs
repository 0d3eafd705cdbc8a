// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time that guests pay for: by the host's clock, or, for guests of a simulation, by theirs.

use std::collections::BTreeMap;
use std::time::Duration;

use demeter_balloon::view::PolicyClock;

use super::{AHEAD, Orders, PATIENCE};

/// What has gone by on the guests' clocks.
#[derive(Debug, Default)]
pub struct Passed {
    /// By guest, since it came: one that comes begins where the others are.
    told_s: BTreeMap<String, f64>,
    /// So much of it has been paid for.
    charged_s: f64,
}

impl Passed {
    /// Since the last decision, `since` on the host's clock: decisions are late, early, or come
    /// when one guest is ahead. `told_s` is what those who speak say has gone by since then.
    /// However long nobody looked, it is bounded. A simulation may be faster than its host, so
    /// that the host's clock is no bound there.
    pub fn next<'a>(
        &mut self,
        orders: &Orders,
        since: Duration,
        told_s: impl Iterator<Item = (&'a str, f64)>,
    ) -> f64 {
        let most_s = AHEAD as f64 * orders.interval_ms as f64 / 1000.0;
        // Whoever falls silent begins anew: it would hold up the others when it is back.
        let before = std::mem::take(&mut self.told_s);
        for (name, s) in told_s {
            let all_s = before.get(name).unwrap_or(&self.charged_s) + s;
            self.told_s.insert(name.to_owned(), all_s);
        }
        // The middle one's, of all time: guests speak one after another, so that in one
        // decision the middle one often has nothing to say. One clock that stands still or runs
        // ahead changes nothing where there are three; of two the slower one counts, since
        // credit comes back with time.
        let mut all_s: Vec<f64> = self.told_s.values().copied().collect();
        all_s.sort_by(f64::total_cmp);
        let middle_s = (all_s.get(all_s.len().saturating_sub(1) / 2))
            .map_or(self.charged_s, |s| s.max(self.charged_s));
        let passed_s = middle_s - self.charged_s;
        self.charged_s = middle_s;
        match orders.clock {
            PolicyClock::Host => since.as_secs_f64().min(most_s.max(PATIENCE.as_secs_f64())),
            PolicyClock::Guests => passed_s.min(most_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(clock: PolicyClock, interval_ms: u64) -> Orders {
        Orders {
            policy: None,
            fmem_pool_bytes: 0,
            interval_ms,
            clock,
            generation: 0,
        }
    }

    fn guests(passed: &mut Passed, told_s: &[f64]) -> f64 {
        let names = ["a", "b", "c", "d"];
        let told_s = names.into_iter().zip(told_s.iter().copied());
        let orders = orders(PolicyClock::Guests, 1000);
        passed.next(&orders, Duration::from_secs(50), told_s)
    }

    #[test]
    fn credit_is_spent_by_the_time_that_has_passed() {
        let host = |seconds: f64, interval_ms| {
            let since = Duration::from_secs_f64(seconds);
            let orders = orders(PolicyClock::Host, interval_ms);
            Passed::default().next(&orders, since, [("a", 9.0)].into_iter())
        };
        // A decision that came late, or early.
        assert_eq!(host(1.25, 250), 1.25);
        assert_eq!(host(0.01, 1000), 0.01);
        // Nobody looked for a day.
        assert_eq!(host(86_400.0, 250), 60.0);
        assert_eq!(host(86_400.0, 60_000), 240.0);
        let once = |told_s: &[f64]| guests(&mut Passed::default(), told_s);
        assert_eq!(once(&[]), 0.0);
        assert_eq!(once(&[1.1]), 1.1);
        // Whose clock stands still pays as the others do, and who runs ahead makes nobody pay.
        assert_eq!(once(&[1.0, 0.0, 1.0]), 1.0);
        assert_eq!(once(&[1.0, 1e9, 1.2]), 1.2);
        assert_eq!(once(&[1.0, 1e9]), 1.0);
        assert_eq!(once(&[1e9]), 4.0);
    }

    #[test]
    fn guests_that_speak_one_after_another_pay_for_all_of_it() {
        let mut passed = Passed::default();
        for rounds in 0..10 {
            let mut all_s = 0.0;
            for at in 0..4 {
                let mut told_s = [0.0; 4];
                told_s[at] = 1.0;
                all_s += guests(&mut passed, &told_s);
            }
            assert_eq!(all_s, 1.0, "{rounds}");
        }
    }

    #[test]
    fn a_clock_that_runs_fast_makes_no_time_pass() {
        let mut passed = Passed::default();
        let all_s: f64 = (0..1000)
            .map(|at| guests(&mut passed, &[f64::from(at % 2), 4.0]))
            .sum();
        assert_eq!(all_s, 500.0);
    }

    #[test]
    fn who_comes_or_falls_silent_holds_up_nobody() {
        let mut passed = Passed::default();
        for _ in 0..10 {
            guests(&mut passed, &[1.0]);
        }
        // Two that come, one of them without a word yet.
        assert_eq!(guests(&mut passed, &[1.0, 1.0, 0.0]), 1.0);
        for _ in 0..100 {
            assert_eq!(guests(&mut passed, &[1.0, 1.0]), 1.0);
        }
        // Back after its silence.
        assert_eq!(guests(&mut passed, &[1.0, 1.0, 0.0]), 1.0);
        assert_eq!(guests(&mut passed, &[1.0, 1.0, 1.0]), 1.0);
    }
}
