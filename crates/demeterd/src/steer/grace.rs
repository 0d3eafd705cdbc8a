// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest has touched of its balloon, as the host sees it, whatever the guest says. It pays
//! for that as for the rest of what it has, beyond what an honest one may seem to have for a
//! moment: the size, and what is allocated, are of two moments.

/// So much is let pass, as time at twice its share: a liar has it once, and ...
const GRACE_S: f64 = 30.0;
/// ... this part of its share for ever, which with all of an account is less than a hundredth of
/// a day.
const FORGOTTEN_PART: f64 = 1.0 / 512.0;

/// What is remembered of one guest. Times are of one at twice its share.
#[derive(Debug, Default)]
pub struct Grace {
    /// Seen at the last decision.
    before_pages: u64,
    /// Let pass, less what is forgotten.
    passed_s: f64,
    /// Of that, since nothing was seen last.
    unpaid_s: f64,
}

impl Grace {
    /// Pages that it pays for of `kept_pages`, that it has now of its balloon, for the time that
    /// has passed since the last decision.
    pub fn charge(&mut self, kept_pages: u64, share_pages: u64, passed_s: f64) -> u64 {
        // Nobody looks in between. The mean of both ends is right for whoever does not know when
        // somebody looks, and whoever lets go at every other look has no more by it.
        let mean_pages = (self.look(kept_pages) as f64 + kept_pages as f64) / 2.0;
        let share = share_pages.max(1) as f64;
        self.passed_s = (self.passed_s - passed_s * FORGOTTEN_PART).max(0.0);
        let kept_s = mean_pages / share * passed_s;
        let free_s = kept_s.min(GRACE_S - self.passed_s).max(0.0);
        self.passed_s += free_s;
        self.unpaid_s = if kept_pages == 0 {
            0.0
        } else {
            // What is forgotten is owed no more: a little for days would come to all of an account.
            (self.unpaid_s + free_s).min(self.passed_s)
        };
        if passed_s > 0.0 {
            ((kept_s - free_s) * share / passed_s).round() as u64
        } else {
            0
        }
    }

    /// It has that now, and pays for it by another reckoning. What it had before.
    pub fn look(&mut self, kept_pages: u64) -> u64 {
        std::mem::replace(&mut self.before_pages, kept_pages)
    }

    /// It turns out that what was let pass was its own, and it pays for that: so it has not been
    /// let pass.
    pub fn take_unpaid_s(&mut self) -> f64 {
        let unpaid_s = std::mem::take(&mut self.unpaid_s);
        self.passed_s = (self.passed_s - unpaid_s).max(0.0);
        unpaid_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE_PAGES: u64 = 1000;
    const DAY_S: u32 = 86_400;

    /// A second each. What is paid, as time at twice the share.
    fn paid_s(grace: &mut Grace, kept_pages: impl IntoIterator<Item = u64>) -> f64 {
        let pages = |kept_pages| grace.charge(kept_pages, SHARE_PAGES, 1.0);
        kept_pages.into_iter().map(pages).sum::<u64>() as f64 / SHARE_PAGES as f64
    }

    #[test]
    fn who_keeps_its_balloon_pays_for_all_but_a_little() {
        for kept_pages in [100, 1000, 3000] {
            let kept_s = f64::from(DAY_S) * kept_pages as f64 / SHARE_PAGES as f64;
            let day = std::iter::repeat_n(kept_pages, DAY_S as usize);
            let free_s = kept_s - paid_s(&mut Grace::default(), day);
            // A whole account is 600 s; a hundredth of a day are 864 s.
            assert!((150.0..=210.0).contains(&free_s), "{kept_pages}: {free_s}");
        }
    }

    #[test]
    fn who_lets_go_now_and_then_has_no_more_of_it() {
        for period in [2, 10, 120] {
            let kept = |at: u32| if at % period < period / 2 { 3000 } else { 0 };
            let kept_s = 1.5 * f64::from(DAY_S);
            let free_s = kept_s - paid_s(&mut Grace::default(), (0..DAY_S).map(kept));
            assert!((150.0..=210.0).contains(&free_s), "{period}: {free_s}");
        }
    }

    #[test]
    fn a_moment_now_and_then_costs_nothing() {
        let mut grace = Grace::default();
        // Half of its share, seen once in ten minutes.
        let hours = (0..36_000).map(|at| if at % 600 == 300 { 500 } else { 0 });
        assert_eq!(paid_s(&mut grace, hours), 0.0);
        assert_eq!(grace.take_unpaid_s(), 0.0);
        // More at once, after ten hours of that.
        assert_eq!(paid_s(&mut grace, [20_000, 0]), 0.0);
    }

    #[test]
    fn what_was_let_pass_is_its_own_until_it_is_given_back() {
        let mut grace = Grace::default();
        assert_eq!(paid_s(&mut grace, [500; 11]), 0.0);
        let unpaid_s = grace.take_unpaid_s();
        assert!((5.2..=5.25).contains(&unpaid_s), "{unpaid_s}");
        assert_eq!(grace.take_unpaid_s(), 0.0);
        assert_eq!(paid_s(&mut grace, [500, 500, 0]), 0.0);
        assert_eq!(grace.take_unpaid_s(), 0.0);
    }

    #[test]
    fn no_more_is_owed_than_was_let_pass() {
        // Less than what is forgotten, for a month.
        let mut grace = Grace::default();
        let month = std::iter::repeat_n(1, 30 * DAY_S as usize);
        assert_eq!(paid_s(&mut grace, month), 0.0);
        assert!(grace.take_unpaid_s() < 0.01);
        // More, for days: what is owed is let pass anew once it is paid.
        for _ in 0..2 {
            let days = std::iter::repeat_n(1000, 3 * DAY_S as usize);
            let free_s = 3.0 * f64::from(DAY_S) - paid_s(&mut grace, days);
            assert!((530.0..560.0).contains(&free_s), "{free_s}");
            let unpaid_s = grace.take_unpaid_s();
            assert!((29.0..=30.0).contains(&unpaid_s), "{unpaid_s}");
        }
    }

    #[test]
    fn without_a_share_or_time_nothing_breaks() {
        let mut grace = Grace::default();
        assert_eq!(grace.charge(u64::MAX, 0, 0.0), 0);
        assert!(grace.charge(u64::MAX, 0, 1.0) > 0);
        assert!(grace.charge(u64::MAX, u64::MAX, f64::MAX) > 0);
        grace.look(0);
        assert_eq!(grace.charge(0, 0, 1.0), 0);
    }
}
