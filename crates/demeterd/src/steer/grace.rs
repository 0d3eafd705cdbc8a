// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest has touched of its balloon, as the host sees it, whatever the guest says. It pays
//! for that as for the rest of what it has, beyond what an honest one may seem to have for a
//! moment: the size, and what is allocated, are of two moments.

/// So much is let pass, as time at twice its share: a liar has it once, and ...
const GRACE_S: f64 = 30.0;
/// ... this part of its share for ever, which with all of an account is less than a hundredth of
/// a day.
const FORGOTTEN_PART: f64 = 1.0 / 512.0;

/// What is remembered of one guest.
#[derive(Debug, Default)]
pub struct Grace {
    /// Seen at the last decision.
    before_pages: u64,
    /// Let pass, less what is forgotten.
    passed_s: f64,
    /// Let pass since nothing was seen last.
    unpaid_page_s: f64,
}

impl Grace {
    /// Pages that it pays for of `kept_pages`, that it has now of its balloon, for the time that
    /// has passed since the last decision.
    pub fn charge(&mut self, kept_pages: u64, share_pages: u64, passed_s: f64) -> u64 {
        // What it kept it had at both ends of that time, however long that was.
        let kept_pages_then = self.look(kept_pages).min(kept_pages);
        if kept_pages == 0 {
            self.unpaid_page_s = 0.0;
        }
        let share = share_pages.max(1) as f64;
        self.passed_s = (self.passed_s - passed_s * FORGOTTEN_PART).max(0.0);
        let kept_s = kept_pages_then as f64 / share * passed_s;
        let free_s = kept_s.min(GRACE_S - self.passed_s).max(0.0);
        self.passed_s += free_s;
        self.unpaid_page_s += free_s * share;
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

    /// It turns out that what was let pass was its own: pages by seconds.
    pub fn take_unpaid(&mut self) -> f64 {
        std::mem::take(&mut self.unpaid_page_s)
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
        // Who lets go every other minute has no more of it.
        let day = (0..DAY_S).map(|at| if at / 60 % 2 == 0 { 3000 } else { 0 });
        let free_s = f64::from(DAY_S) * 1.5 - paid_s(&mut Grace::default(), day);
        // Of each minute the first second was not seen at both ends.
        let unseen_s = 3.0 * f64::from(DAY_S) / 120.0;
        assert!(free_s - unseen_s <= 210.0, "{free_s}");
    }

    #[test]
    fn a_moment_costs_nothing_however_seldom_somebody_looks() {
        let mut grace = Grace::default();
        for _ in 0..1000 {
            assert_eq!(grace.charge(50 * SHARE_PAGES, SHARE_PAGES, 3600.0), 0);
            assert_eq!(grace.charge(0, SHARE_PAGES, 3600.0), 0);
        }
        assert_eq!(grace.take_unpaid(), 0.0);
        // Half of its share for three seconds of each ten minutes.
        let hours = (0..36_000).map(|at| if at % 600 < 3 { 500 } else { 0 });
        assert_eq!(paid_s(&mut grace, hours), 0.0);
    }

    #[test]
    fn what_was_let_pass_is_its_own_until_it_is_given_back() {
        let mut grace = Grace::default();
        assert_eq!(paid_s(&mut grace, [500; 11]), 0.0);
        assert_eq!(grace.take_unpaid(), 5000.0);
        assert_eq!(grace.take_unpaid(), 0.0);
        assert_eq!(paid_s(&mut grace, [500, 500, 0]), 0.0);
        assert_eq!(grace.take_unpaid(), 0.0);
    }

    #[test]
    fn without_a_share_or_time_nothing_breaks() {
        let mut grace = Grace::default();
        assert_eq!(grace.charge(u64::MAX, 0, 0.0), 0);
        assert!(grace.charge(u64::MAX, 0, 1.0) > 0);
        assert!(grace.charge(u64::MAX, u64::MAX, f64::MAX) > 0);
        assert_eq!(grace.charge(0, 0, 1.0), 0);
    }
}
