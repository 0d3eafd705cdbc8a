// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hypervisor that decides which tier the guest's pages lie in.
//!
//! The guest has one node of memory and knows nothing of tiers. Guest-physical addresses
//! do not change and bytes never move: the table ([`ept`]) says in which tier a page lies,
//! and line fills are served by that. A modelled walk that finds the page unmapped there
//! is a *violation*: the guest waits for the host. Whatever takes translations away
//! asks for a *whole flush* (INVEPT) on every vCPU, which empties TLBs and the caches of
//! walks, in both dimensions; what it costs beyond the exit are the walks that follow.
//!
//! Time has two owners. The guest pays for what its vCPUs wait for: exits, violations,
//! promotions, flushes. What the host's own threads do (scans, ageing, demotion) is counted
//! apart, and charged by the share that [`HypervisorConfig::steal_permille`] says.

pub mod cost;
pub mod ept;
mod tpp;

pub use cost::{HypervisorConfig, HypervisorCounters, Manager};

use crate::config::MachineConfig;
use crate::layout::MemoryLayout;
use cost::Costs;
use ept::{Ept, Mark, Page, Tier};
use tpp::Tpp;

/// Decides where pages go. Costs and counters are kept by what it does through [`Host`].
trait Policy {
    /// The guest waits for a page that the table does not map; it is mapped afterwards.
    fn violation(&mut self, host: &mut Host, page: Page);

    /// Where a page goes that is touched first.
    fn first_touch(&self, host: &Host) -> Tier;

    /// The host's threads run up to `until_ps`.
    fn run(&mut self, host: &mut Host, until_ps: u64);
}

#[derive(Clone, Debug)]
enum Chosen {
    Tpp(Tpp),
}

impl Chosen {
    fn policy(&mut self) -> &mut dyn Policy {
        match self {
            Self::Tpp(tpp) => tpp,
        }
    }
}

/// A thread of the host at work.
#[derive(Clone, Copy, Debug)]
enum Work {
    Scan,
    Ageing,
    Demotion,
}

/// What policies act on.
#[derive(Clone, Debug)]
struct Host {
    ept: Ept,
    costs: Costs,
    counters: HypervisorCounters,
    /// What the guest has still to be charged.
    owed_ps: u64,
    /// Flushes that vCPUs have not carried out yet. Who asks waits for each, so they are as
    /// many as were asked for.
    due_flushes: u64,
    /// The guest's clock is the sum over its vCPUs: a thread of the host that works for a
    /// while lets so many times of it pass.
    vcpus: u64,
}

impl Host {
    /// The guest waits.
    fn charge_guest(&mut self, ps: u64) {
        self.counters.violation_ps += ps;
        self.owed_ps += ps;
    }

    /// A thread of the host works.
    fn charge_host(&mut self, work: Work, ps: u64) {
        let counters = &mut self.counters;
        *match work {
            Work::Scan => &mut counters.host_scan_ps,
            Work::Ageing => &mut counters.host_ageing_ps,
            Work::Demotion => &mut counters.host_demotion_ps,
        } += ps;
        let stolen_ps = ps * self.costs.steal_permille / 1000;
        counters.stolen_ps += stolen_ps;
        self.owed_ps += stolen_ps;
    }

    /// Takes the young bit of a page; whether it was set.
    fn age(&mut self, page: Page) -> bool {
        let young = self.ept.put(page, Mark::Accessed, false);
        self.counters.aged_pages += 1;
        self.counters.young_pages += u64::from(young);
        young
    }

    /// Takes a page out of the table; whether that needs a flush.
    fn unmap(&mut self, page: Page) -> bool {
        self.ept.put(page, Mark::Present, false)
    }

    /// Asks for a flush after a page was taken out of the table to be moved.
    fn unmap_to_move(&mut self, page: Page) -> bool {
        let mapped = self.unmap(page);
        self.counters.flush_move += u64::from(mapped);
        self.due_flushes += u64::from(mapped);
        mapped
    }

    /// Moves a page to FMEM while the guest waits; false if there is no room.
    fn promote(&mut self, page: Page) -> bool {
        if !self.ept.relocate(page) {
            return false;
        }
        self.unmap_to_move(page);
        self.charge_guest(self.costs.move_ps);
        self.counters.promoted_pages += 1;
        let again = self.ept.put(page, Mark::Demoted, false);
        self.counters.promoted_again_pages += u64::from(again);
        true
    }

    /// Moves a page to SMEM by a thread of the host; the time that took.
    fn demote(&mut self, page: Page) -> u64 {
        let mapped = self.unmap_to_move(page);
        self.ept.relocate(page);
        self.ept.put(page, Mark::Demoted, true);
        self.counters.demoted_pages += 1;
        let wait_ps = if mapped { self.costs.exit_ps } else { 0 };
        let ps = self.costs.move_ps + wait_ps;
        self.charge_host(Work::Demotion, ps);
        ps
    }
}

/// What a vCPU is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flushes {
    count: u64,
    /// For all of them.
    pub ps: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Hypervisor {
    host: Host,
    chosen: Chosen,
    /// Guest clock up to which time without the model is left out.
    absent_ps: u64,
    paused_ps: Option<u64>,
}

impl Hypervisor {
    /// `config` should have passed [`HypervisorConfig::validate`].
    #[must_use]
    pub fn new(
        config: &HypervisorConfig,
        machine: &MachineConfig,
        layout: MemoryLayout,
        vcpus: usize,
    ) -> Self {
        let ept = Ept::new(layout, config.pool_bytes());
        let chosen = match config.manager {
            Manager::Tpp => Chosen::Tpp(Tpp::new(config, ept.capacity_pages())),
        };
        Self {
            host: Host {
                ept,
                costs: Costs::new(config, machine),
                counters: HypervisorCounters::default(),
                owed_ps: 0,
                due_flushes: 0,
                vcpus: vcpus.max(1) as u64,
            },
            chosen,
            absent_ps: 0,
            paused_ps: Some(0),
        }
    }

    /// What it did so far.
    #[must_use]
    pub const fn counters(&self) -> HypervisorCounters {
        self.host.counters
    }

    /// Memory at `pa` was touched before the model was on, by user code.
    pub fn resident(&mut self, pa: u64) {
        if let Some(page) = self.host.ept.page(pa) {
            self.place(page);
            self.host.ept.put(page, Mark::Accessed, true);
        }
    }

    fn place(&mut self, page: Page) {
        if !self.host.ept.is_managed(page) {
            let tier = self.chosen.policy().first_touch(&self.host);
            if !self.host.ept.manage(page, tier) {
                self.host.ept.manage(page, Tier::Smem);
            }
        }
    }

    /// A walk for `pa`, at a user address or not; what the guest has to wait for. A page
    /// that is touched first is mapped without: its memory is taken to be there.
    #[cold]
    pub(crate) fn walked(&mut self, pa: u64, user_address: bool, store: bool) -> u64 {
        let Some(page) = self.host.ept.page(pa) else {
            return 0;
        };
        if !self.host.ept.is_managed(page) {
            if !user_address {
                return 0;
            }
            self.place(page);
        }
        if !self.host.ept.has(page, Mark::Present) {
            self.host.counters.violations += 1;
            let costs = self.host.costs;
            self.host.charge_guest(costs.exit_ps + costs.violation_ps);
            self.chosen.policy().violation(&mut self.host, page);
            self.host.ept.put(page, Mark::Present, true);
        }
        self.host.ept.put(page, Mark::Accessed, true);
        if store {
            self.host.ept.put(page, Mark::Dirty, true);
        }
        std::mem::take(&mut self.host.owed_ps)
    }

    /// Node of memory that serves `pa`, which lies in guest memory: 0 is FMEM.
    #[cold]
    pub(crate) fn node(&self, pa: u64) -> usize {
        let page = self.host.ept.page(pa);
        page.map_or(0, |page| self.host.ept.tier(page) as usize)
    }

    /// The model is switched on at `now_ns`: hosts do nothing in between.
    pub fn resume(&mut self, now_ns: u64) {
        if let Some(paused_ps) = self.paused_ps.take() {
            self.absent_ps += (now_ns * 1000).saturating_sub(paused_ps);
        }
    }

    /// The model is switched off at `now_ns`.
    pub fn pause(&mut self, now_ns: u64) {
        self.paused_ps = Some(now_ns * 1000);
    }

    /// The host's threads run up to `now_ns`; what the guest has to be charged for it, and
    /// for the flushes that each vCPU has to carry out now, if there are any.
    pub(crate) fn run(&mut self, now_ns: u64) -> (u64, Option<Flushes>) {
        // What they steal is no time in which they run beside the guest: else they would
        // steal all of it.
        let stolen_ps = self.host.counters.stolen_ps + self.absent_ps;
        let until_ps = (now_ns * 1000).saturating_sub(stolen_ps);
        self.chosen.policy().run(&mut self.host, until_ps);
        let count = std::mem::take(&mut self.host.due_flushes);
        let costs = &self.host.costs;
        let flushes = (count > 0).then_some(Flushes {
            count,
            ps: count * (costs.exit_ps + costs.invept_ps),
        });
        (std::mem::take(&mut self.host.owed_ps), flushes)
    }

    /// A vCPU has carried them out.
    pub(crate) fn flushed(&mut self, flushes: Flushes) {
        self.host.counters.invept += flushes.count;
        self.host.counters.invept_ps += flushes.ps;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::Preset;

    const MIB: u64 = 1 << 20;
    pub const PAGE: u64 = 4096;

    /// Of a guest of 8 MiB.
    pub fn hypervisor(fmem_pages: u64, set: &[(&str, u64)]) -> Hypervisor {
        let mut config = HypervisorConfig {
            fmem_bytes: fmem_pages * PAGE,
            ..HypervisorConfig::default()
        };
        for (name, value) in set {
            assert!(config.set(name, *value), "{name}");
        }
        config.validate().unwrap();
        let machine = MachineConfig::preset(Preset::Pmem);
        let mut hypervisor =
            Hypervisor::new(&config, &machine, MemoryLayout::new(4 * MIB, 4 * MIB), 1);
        hypervisor.resume(0);
        hypervisor
    }

    #[test]
    fn the_kernel_has_fmem_and_never_waits() {
        let mut hypervisor = hypervisor(1000, &[("fmem_permille", 1000)]);
        assert_eq!(hypervisor.walked(7 * MIB, false, true), 0);
        assert_eq!(hypervisor.node(7 * MIB), 0);
        assert!(!hypervisor.host.ept.is_managed((7 * MIB / PAGE) as Page));
        assert_eq!(hypervisor.walked(1 << 40, true, true), 0);
        assert_eq!(hypervisor.node(1 << 40), 0);
    }

    #[test]
    fn marks_are_set_by_walks_only() {
        let mut hypervisor = hypervisor(1000, &[]);
        hypervisor.resident(0x5000);
        let has = |hypervisor: &Hypervisor, mark| hypervisor.host.ept.has(5, mark);
        assert!(has(&hypervisor, Mark::Accessed), "touched before");
        assert!(hypervisor.host.age(5) && !hypervisor.host.age(5));
        assert_eq!(hypervisor.node(0x5000), 0);
        assert!(!has(&hypervisor, Mark::Accessed));
        hypervisor.walked(0x5008, true, false);
        assert!(has(&hypervisor, Mark::Accessed) && !has(&hypervisor, Mark::Dirty));
        hypervisor.walked(0x5008, true, true);
        assert!(has(&hypervisor, Mark::Dirty));
    }

    #[test]
    fn fmem_first_then_smem() {
        let mut hypervisor = hypervisor(300, &[]);
        for page in 0..400 {
            hypervisor.resident(page * PAGE);
        }
        // A third of the mark of 2 % stays free.
        let fast = (0..400).filter(|page| hypervisor.node(page * PAGE) == 0);
        assert_eq!(fast.count(), 298);
        assert_eq!((hypervisor.node(0), hypervisor.node(399 * PAGE)), (0, 1));
    }

    #[test]
    fn host_time_is_charged_by_its_share() {
        for (permille, share) in [(0, 0), (250, 25), (1000, 100)] {
            let mut hypervisor = hypervisor(100, &[("steal_permille", permille)]);
            hypervisor.host.charge_host(Work::Scan, 100);
            assert_eq!(hypervisor.host.counters.host_scan_ps, 100);
            assert_eq!(hypervisor.host.counters.stolen_ps, share);
            assert_eq!(hypervisor.host.owed_ps, share);
        }
    }

    #[test]
    fn time_without_the_model_is_nobodys() {
        let mut hypervisor = hypervisor(100, &[("scan_delay_ms", 1)]);
        for page in 0..200 {
            hypervisor.resident(page * PAGE);
        }
        hypervisor.pause(500_000);
        hypervisor.resume(900_000_000);
        hypervisor.run(900_400_000);
        assert_eq!(hypervisor.counters().flush_scan, 0);
        hypervisor.run(900_500_000);
        assert_eq!(hypervisor.counters().flush_scan, 1);
    }
}
