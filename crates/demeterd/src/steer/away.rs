// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accounts of guests that are gone. A guest that was removed and is added again shall not get
//! a new one for it: whoever may start and stop a machine could have twice its share for ever.

use std::collections::BTreeMap;

use crate::policy::Account;

/// By the names that they had.
#[derive(Debug, Default)]
pub struct Away(BTreeMap<String, Account>);

impl Away {
    /// Of all whom an earlier daemon knew: until they come nobody is there.
    pub fn new(accounts: BTreeMap<String, Account>) -> Self {
        Self(accounts)
    }

    /// A guest goes. What is as a new one's need not be kept.
    pub fn leave(&mut self, name: &str, account: Account) {
        if !account.is_new() {
            self.0.insert(name.to_owned(), account);
        }
    }

    /// Whoever is away earns as whoever has nothing, so that all are forgotten in the time that
    /// an account takes to fill.
    pub fn pass(&mut self, passed_s: f64) {
        self.0.retain(|_, account| {
            account.earn(passed_s);
            !account.is_new()
        });
    }

    /// All of them.
    pub fn accounts(&self) -> &BTreeMap<String, Account> {
        &self.0
    }

    /// Of a guest that comes: its own, or a new one.
    pub fn back(&mut self, name: &str) -> Account {
        self.0.remove(name).unwrap_or_default()
    }
}
