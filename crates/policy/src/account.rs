// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest may have beyond its share because it says that it needs it.
//!
//! Nobody can check what a guest says of its accesses, so a rank that rests on it
//! is worth a bounded amount: who is ahead of its share spends credit, who is
//! behind it earns some. Guests whose load changes lend to each other and come out
//! even. One that always claims to be the busiest has what its credit buys, once,
//! and then its share: half a day later that is less than 2 % more than without
//! the lie, and after a day less than 1 %.

use std::time::Duration;

/// Most credit, and that of a new guest: time at twice its share.
pub const CREDIT_S: f64 = 600.0;
/// A guest whose credit was gone is believed again from here on.
const REGAINED_S: f64 = 60.0;

/// One guest's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Account {
    credit_s: f64,
    spent: bool,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            credit_s: CREDIT_S,
            spent: false,
        }
    }
}

impl Account {
    /// It had `size_pages` for that time where `share_pages` were its part.
    pub fn settle(&mut self, size_pages: u64, share_pages: u64, elapsed_s: f64) {
        let share = share_pages.max(1) as f64;
        let ahead = (size_pages as f64 - share) / share;
        // No debts: what nobody else wants is anybody's.
        self.credit_s = (self.credit_s - ahead * elapsed_s).clamp(0.0, CREDIT_S);
        if self.credit_s == 0.0 {
            self.spent = true;
        } else if self.credit_s >= REGAINED_S {
            self.spent = false;
        }
    }

    /// As it was kept somewhere: whatever that says, with no more than an account holds.
    #[must_use]
    pub fn restored(credit: Duration, spent: bool) -> Self {
        let credit_s = credit.as_secs_f64().min(CREDIT_S);
        let mut account = Self { credit_s, spent };
        account.earn(0.0);
        account
    }

    /// Whoever is not there earns as whoever has nothing.
    pub fn earn(&mut self, passed_s: f64) {
        self.settle(0, 1, passed_s);
    }

    /// Time at twice its share that is left.
    #[must_use]
    pub fn credit(&self) -> Duration {
        Duration::try_from_secs_f64(self.credit_s).unwrap_or_default()
    }

    /// Nothing has been spent, or all of it is back.
    pub fn is_new(&self) -> bool {
        *self == Self::default()
    }

    /// May it be given more than its share because of what it says?
    pub fn may_borrow(&self) -> bool {
        !self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_ahead_pays_and_who_is_behind_earns() {
        let mut account = Account::default();
        account.settle(200, 100, CREDIT_S - 1.0);
        assert!(account.may_borrow());
        account.settle(200, 100, 1.0);
        assert!(!account.may_borrow());
        account.settle(50, 100, REGAINED_S);
        assert!(!account.may_borrow(), "too early");
        account.settle(50, 100, REGAINED_S);
        assert!(account.may_borrow() && !account.is_new());
        account.settle(0, 100, CREDIT_S);
        assert!(account.is_new());
    }

    #[test]
    fn what_was_kept_goes_on_as_it_was() {
        let mut account = Account::default();
        account.settle(3, 2, 400.0);
        assert_eq!(
            Account::restored(account.credit(), !account.may_borrow()),
            account
        );
        assert_eq!(account.credit(), Duration::from_secs(400));
        // On its way back from nothing.
        account.settle(4, 1, CREDIT_S);
        account.earn(REGAINED_S - 1.0);
        let mut again = Account::restored(account.credit(), !account.may_borrow());
        assert_eq!(again, account);
        again.earn(1.0);
        assert!(!account.may_borrow() && again.may_borrow());
    }

    #[test]
    fn what_cannot_have_been_kept_is_no_credit() {
        assert!(Account::restored(Duration::MAX, true).is_new());
        assert!(!Account::restored(Duration::ZERO, false).may_borrow());
    }

    #[test]
    fn without_a_share_nothing_breaks() {
        let mut account = Account::default();
        account.settle(u64::MAX, 0, 1.0);
        assert!(!account.may_borrow());
        account.settle(0, 0, f64::MAX);
        assert!(account.may_borrow());
    }
}
