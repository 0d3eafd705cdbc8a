// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two guests, `a` and `b`, with the same share of FMEM, for tests of accounts.

use super::*;

use crate::policy::Account;

/// Beside all that `a` could have the other one has room for its kernel. Whoever has all of its
/// FMEM is six tenths ahead of its share, which is 36 s of credit a minute.
pub const POOL_PAGES: u64 = TIER_PAGES[0] / 4 * 5;
pub const SHARE_PAGES: u64 = POOL_PAGES / 2;

/// With their daemon.
pub struct Two {
    pub directory: tempfile::TempDir,
    pub host: Host,
    pub guests: [Model; 2],
}

impl Two {
    /// Under `guaranteed`, which goes by what they say.
    pub fn of(fmem_pool_pages: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut host = Host::new(fmem_pool_pages);
        host.orders.interval_ms = 60_000;
        host.orders.policy = policy::by_name("guaranteed").unwrap();
        let guests = ["a", "b"].map(|name| Model::new(directory.path(), name, true, ""));
        Self {
            directory,
            host,
            guests,
        }
    }

    /// All of the FMEM of each is twice its share.
    pub fn of_whom_each_has_twice_its_share() -> Self {
        Self::of(ALL_PAGES / 4)
    }

    pub fn account(&self, name: &str) -> Account {
        self.host.coordinator.memories[name].account
    }

    pub fn set_account(&mut self, name: &str, account: Account) {
        let memory = self.host.coordinator.memories.get_mut(name);
        memory.unwrap().account = account;
    }

    /// The host sees the guests, `a` as `changed` has it, and decides.
    fn decide(&mut self, there: &[usize], changed: impl Fn(&mut VmView)) {
        // By the guests' clocks one that says nothing makes time stand still for two.
        self.host.orders.clock = if self.guests.iter().any(|guest| guest.is_mute) {
            self.host.coordinator.decided = Instant::now().checked_sub(Duration::from_secs(60));
            PolicyClock::Host
        } else {
            PolicyClock::Guests
        };
        for &at in there {
            let guest = &mut self.guests[at];
            guest.now_s += 60.0;
            if guest.pair.vm.view().stage == Stage::Driven && !guest.is_mute {
                guest.tell();
            }
        }
        let seen = |&at: &usize| {
            let vm = &self.guests[at].pair.vm;
            let mut view = vm.view();
            if at == 0 {
                changed(&mut view);
            }
            (vm.clone(), view)
        };
        let seen = there.iter().map(seen).collect();
        assert!((self.host.coordinator).decide(seen, &self.host.orders));
    }

    /// Minutes with a decision each, which nobody obeys, for those who are there.
    pub fn unmoved_minutes(&mut self, there: &[usize], count: u32) {
        for _ in 0..count {
            self.decide(there, |_| {});
        }
    }

    /// Minutes in which `a` looks like that and obeys nobody, and `b` does as it is told.
    pub fn minutes(&mut self, count: u32, a: impl Fn(&mut VmView)) {
        for _ in 0..count {
            self.decide(&[0, 1], &a);
            self.guests[1].obey();
        }
    }
}

/// Half of an account.
pub fn half() -> Account {
    Account::restored(Duration::from_secs(300), false)
}

/// Two guests that have their share each; `a` has half an account.
pub fn settled() -> Two {
    let mut two = Two::of(POOL_PAGES);
    two.minutes(2, allocated(SHARE_PAGES));
    two.guests[0].obey();
    two.minutes(1, allocated(SHARE_PAGES));
    two.set_account("a", half());
    assert_eq!(TIER_PAGES[0] - two.guests[0].balloon[0], SHARE_PAGES);
    two
}

/// The host has allocated so much FMEM for it, page by page as it touched that.
pub fn allocated(pages: u64) -> impl Fn(&mut VmView) {
    move |view| {
        let tier = &mut view.tiers[0];
        let bytes = pages << PAGE_SHIFT;
        tier.backing_bytes = Some(bytes);
        tier.kept_bytes = Some(bytes.saturating_sub(tier.size_bytes));
    }
}

/// The same in huge pages, so that nobody knows who touched what.
pub fn allocated_in_huge_pages(pages: u64) -> impl Fn(&mut VmView) {
    move |view| view.tiers[0].backing_bytes = Some(pages << PAGE_SHIFT)
}
