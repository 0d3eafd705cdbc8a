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

mod abit;
pub mod cost;
pub mod ept;
mod pairs;
pub mod pool;
mod ranks;
mod share;
mod tpp;
mod vtmm;

pub use cost::{HypervisorConfig, HypervisorCounters, Manager};

use crate::config::MachineConfig;
use crate::layout::MemoryLayout;
use abit::Abit;
use cost::Costs;
use ept::{Ept, Mark, Page, Tier};
use pool::{Meeting, Standing};
use share::Share;
use tpp::Tpp;
use vtmm::Vtmm;

const PS_PER_MS: u64 = 1_000_000_000;

/// A page table of the guest's that maps pages of user addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestTable {
    /// Top of the tables through which it was reached: CR3.
    pub root: u64,
    /// An address that it translates.
    pub va: u64,
    /// Where it lies.
    pub table: u64,
}

/// The guest's memory, as far as a host reads its page tables.
pub trait GuestMemory {
    /// Clears the accessed bits of the entries that map pages, and tells of each that had one: the
    /// page's address and size. False, and nothing is changed, if the table is no longer there.
    fn take_accessed(&self, at: &GuestTable, each: &mut dyn FnMut(u64, u64)) -> bool;
}

/// For hosts that do not look.
#[derive(Clone, Copy, Debug)]
pub struct NoMemory;

impl GuestMemory for NoMemory {
    fn take_accessed(&self, _: &GuestTable, _: &mut dyn FnMut(u64, u64)) -> bool {
        false
    }
}

/// Decides where pages go. Costs and counters are kept by what it does through [`Host`].
trait Policy {
    /// The guest waits for a page that the table does not map; it is mapped afterwards.
    fn violation(&mut self, _: &mut Host, _: Page) {}

    /// A walk found the accessed bit of a page clear.
    fn accessed(&mut self, _: &mut Host, _: Page) {}

    /// A walk for a user address read a page table of the guest's that lies in `page`; `maps`:
    /// the entry that maps the address.
    fn table_read(&mut self, _: &mut Host, _page: Page, _: GuestTable, _maps: bool) {}

    /// The guest stored to a page table.
    fn table_stored(&mut self, _: &mut Host) {}

    /// Where a page goes that is touched first.
    fn first_touch(&self, host: &Host) -> Tier;

    /// The host's threads run up to `until_ps`.
    fn run(&mut self, host: &mut Host, memory: &dyn GuestMemory, until_ps: u64);

    /// Likewise while the guest sleeps: without what its own threads do in the host's kernel.
    fn run_asleep(&mut self, host: &mut Host, memory: &dyn GuestMemory, until_ps: u64) {
        self.run(host, memory, until_ps);
    }

    /// What others of the pool have to know of its pages, beside their number.
    fn stand(&self, _: &mut Standing) {}

    /// How all others of the pool stand, together.
    fn met(&mut self, host: &Host, others: &Standing);
}

#[derive(Clone, Debug)]
enum Chosen {
    Tpp(Tpp),
    Abit(Abit),
    Vtmm(Vtmm),
}

impl Chosen {
    fn policy(&mut self) -> &mut dyn Policy {
        match self {
            Self::Tpp(tpp) => tpp,
            Self::Abit(abit) => abit,
            Self::Vtmm(vtmm) => vtmm,
        }
    }
}

/// A thread of the host at work.
#[derive(Clone, Copy, Debug)]
enum Work {
    Scan,
    Ageing,
    Demotion,
    Promotion,
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
    /// First touches since the last meeting, and what had been promoted or refused until then.
    touched_pages: u64,
    asked_pages: u64,
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
            Work::Promotion => &mut counters.host_promotion_ps,
        } += ps;
        let stolen_ps = ps * self.costs.steal_permille / 1000;
        counters.stolen_ps += stolen_ps;
        self.owed_ps += stolen_ps;
    }

    /// How far the guest's clock goes while kswapd works for it for `ps`: it is one thread, for all
    /// guests of the pool that it has to look after.
    const fn beside_ps(&self, ps: u64) -> u64 {
        ps * self.vcpus * 1000 / self.ept.kswapd_permille()
    }

    /// Takes the young bit of a page; whether it was set.
    fn age(&mut self, page: Page) -> bool {
        self.take(page, Mark::Accessed)
    }

    /// Takes the bit by which a page tells that it was used; whether it was set.
    fn take(&mut self, page: Page, bit: Mark) -> bool {
        let young = self.ept.put(page, bit, false);
        self.counters.aged_pages += 1;
        self.counters.young_pages += u64::from(young);
        young
    }

    /// Pages that came to FMEM, or found no room there.
    const fn asked_so_far(&self) -> u64 {
        let counters = &self.counters;
        (counters.promoted_pages + counters.refused_pages) / self.ept.small_pages()
    }

    /// Asks for a flush after bits were cleared or pages taken out by a scan.
    fn flush_for_scan(&mut self) {
        self.counters.flush_scan += 1;
        self.due_flushes += 1;
        self.charge_host(Work::Scan, self.costs.exit_ps);
    }

    /// Asks for a flush before or after moving by a thread of the host, which waits for it.
    fn flush_for_move(&mut self) {
        self.counters.flush_move += 1;
        self.due_flushes += 1;
        self.charge_host(Work::Promotion, self.costs.exit_ps);
    }

    /// The guest has written to one of its page tables, which is protected: an exit, and the
    /// host writes in its stead.
    fn table_write_exit(&mut self) {
        self.counters.table_write_exits += 1;
        self.charge_guest(self.costs.exit_ps + self.costs.violation_ps);
    }

    /// Where a page goes that is touched first, of hosts that keep no place free.
    fn fmem_while_there_is_some(&self) -> Tier {
        if self.ept.free_pages() > 0 {
            Tier::Fmem
        } else {
            Tier::Smem
        }
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
        self.count_promoted(page);
        true
    }

    fn count_promoted(&mut self, page: Page) {
        let pages = self.ept.small_pages();
        self.counters.promoted_pages += pages;
        if self.ept.put(page, Mark::Demoted, false) {
            self.counters.promoted_again_pages += pages;
        }
    }

    fn count_demoted(&mut self, page: Page) {
        self.ept.put(page, Mark::Demoted, true);
        self.counters.demoted_pages += self.ept.small_pages();
    }

    /// Moves a page to SMEM by a thread of the host, and leaves it unmapped; the time that took.
    fn demote(&mut self, page: Page) -> u64 {
        let mapped = self.unmap_to_move(page);
        self.ept.relocate(page);
        self.count_demoted(page);
        let wait_ps = if mapped { self.costs.exit_ps } else { 0 };
        let ps = self.costs.move_ps + wait_ps;
        self.charge_host(Work::Demotion, ps);
        ps
    }

    /// Moves a page to FMEM by a thread of the host, which maps it there; flushes apart.
    fn put_up(&mut self, page: Page) {
        if self.ept.relocate(page) {
            self.count_promoted(page);
            self.charge_host(Work::Promotion, self.costs.move_ps);
        }
    }

    /// Moves a page to SMEM likewise.
    fn put_down(&mut self, page: Page) {
        self.ept.relocate(page);
        self.count_demoted(page);
        self.charge_host(Work::Demotion, self.costs.move_ps);
    }

    /// Two pages change places by a thread of the host: one operation, one flush.
    fn exchange(&mut self, up: Page, down: Page) {
        self.ept.relocate(down);
        self.count_demoted(down);
        if self.ept.relocate(up) {
            self.count_promoted(up);
        }
        self.charge_host(Work::Promotion, 2 * self.costs.move_ps);
        self.flush_for_move();
    }
}

/// What a vCPU is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushes {
    count: u64,
    /// For all of them.
    pub ps: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Hypervisor {
    host: Host,
    chosen: Chosen,
    follows_stores: bool,
    follows_tables: bool,
    traps_stores: bool,
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
        let ept = Ept::new(layout, config.pool_bytes(), config.page_bytes());
        let chosen = match config.manager {
            Manager::Tpp => Chosen::Tpp(Tpp::new(config, &ept)),
            Manager::Abit => Chosen::Abit(Abit::new(config, ept.pages())),
            Manager::Vtmm => Chosen::Vtmm(Vtmm::new(config, ept.pages())),
        };
        let abit = config.manager == Manager::Abit;
        let traps_stores = abit && config.trap_table_writes != 0;
        Self {
            host: Host {
                ept,
                costs: Costs::new(config, machine),
                counters: HypervisorCounters::default(),
                owed_ps: 0,
                due_flushes: 0,
                vcpus: vcpus.max(1) as u64,
                touched_pages: 0,
                asked_pages: 0,
            },
            chosen,
            follows_stores: traps_stores || (abit && config.dirty_bit != 0),
            follows_tables: traps_stores || config.manager == Manager::Vtmm,
            traps_stores,
            absent_ps: 0,
            paused_ps: Some(0),
        }
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> HypervisorCounters {
        let ept = &self.host.ept;
        HypervisorCounters {
            fmem_pages: ept.used_pages() * ept.small_pages(),
            ..self.host.counters
        }
    }

    /// Memory at `pa` was touched before the model was on, by user code.
    pub fn resident(&mut self, pa: u64) {
        if let Some(page) = self.host.ept.page(pa) {
            self.place(page);
            self.host.ept.put(page, Mark::Accessed, true);
        }
    }

    /// FMEM is one pool for so many guests, of which none has anything yet.
    pub fn share_among(&mut self, guests: u64) {
        self.host.ept.share_among(guests);
    }

    /// Pages of FMEM that the guests share.
    #[must_use]
    pub const fn capacity_pages(&self) -> u64 {
        self.host.ept.capacity_pages()
    }

    /// How it stands, for the others of its pool.
    #[must_use]
    pub fn standing(&mut self) -> Standing {
        let host = &self.host;
        let mut standing = Standing {
            fmem_pages: host.ept.used_pages(),
            asked_pages: host.asked_so_far() - host.asked_pages + host.touched_pages,
            demoted_pages: host.counters.demoted_pages,
            refused_pages: host.counters.refused_pages,
            ..Standing::default()
        };
        self.chosen.policy().stand(&mut standing);
        standing
    }

    /// Hears how all guests stand that share FMEM, at one time for all; this one is in place `at`
    /// of them, and has not gone on since.
    pub fn meet(&mut self, at: usize, meeting: &Meeting) {
        let others = meeting.others(at);
        let host = &mut self.host;
        let own_pages = host.ept.used_pages();
        // kswapd's time is divided as lists are long, as Linux looks at cgroups.
        let looked_after = own_pages.max(1) + others.kswapd_pages;
        host.ept.share(Share::met(
            meeting.guests().max(1),
            [others.fmem_pages, own_pages],
            meeting.part_pages(at),
            own_pages.max(1) * 1000 / looked_after,
        ));
        host.asked_pages = host.asked_so_far();
        host.touched_pages = 0;
        self.chosen.policy().met(&self.host, &others);
    }

    fn place(&mut self, page: Page) {
        if !self.host.ept.is_managed(page) {
            self.host.touched_pages += 1;
            let tier = self.chosen.policy().first_touch(&self.host);
            if !self.host.ept.manage(page, tier) {
                self.host.ept.manage(page, Tier::Smem);
            }
        }
    }

    /// A walk for `pa`, at a user address or not; what the guest has to wait for. A page
    /// that is touched first is mapped without: its memory is taken to be there.
    #[cold]
    pub fn walked(&mut self, pa: u64, user_address: bool, store: bool) -> u64 {
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
        if !self.host.ept.put(page, Mark::Accessed, true) {
            self.chosen.policy().accessed(&mut self.host, page);
        }
        if store {
            self.host.ept.put(page, Mark::Dirty, true);
        }
        std::mem::take(&mut self.host.owed_ps)
    }

    /// Whether stores are to be told ([`Self::stored`]), all of them by the kernel and by
    /// others at least the first to a page since a flush.
    #[must_use]
    pub const fn follows_stores(&self) -> bool {
        self.follows_stores
    }

    /// Whether each store by the kernel is to be told.
    #[must_use]
    pub(crate) const fn traps_stores(&self) -> bool {
        self.traps_stores
    }

    /// Whether walks' reads of the guest's tables are to be told ([`Self::tables_read`]).
    #[must_use]
    pub(crate) const fn follows_tables(&self) -> bool {
        self.follows_tables
    }

    /// A walk for the user address `va` read these entries of the tables below `root`, the
    /// last of which maps a page, a large one or not; what the guest has to wait for.
    #[cold]
    pub(crate) fn tables_read(&mut self, root: u64, va: u64, entries: &[u64], large: bool) -> u64 {
        for (level, &entry) in entries.iter().enumerate() {
            let Some(page) = self.host.ept.page(entry) else {
                continue;
            };
            self.host.ept.put(page, Mark::Table, true);
            let at = GuestTable {
                root,
                va,
                table: entry & !0xfff,
            };
            let maps = level + 1 == entries.len() && (large || level == 3);
            self.chosen
                .policy()
                .table_read(&mut self.host, page, at, maps);
        }
        std::mem::take(&mut self.host.owed_ps)
    }

    /// A store to `pa`; what the guest has to wait for.
    #[cold]
    pub(crate) fn stored(&mut self, pa: u64) -> u64 {
        let Some(page) = self.host.ept.page(pa) else {
            return 0;
        };
        self.host.ept.put(page, Mark::Dirty, true);
        if self.host.ept.is_managed(page) {
            // User code has it now: it is no table any more.
            self.host.ept.put(page, Mark::Table, false);
        } else if self.host.ept.has(page, Mark::Table) {
            self.chosen.policy().table_stored(&mut self.host);
        }
        std::mem::take(&mut self.host.owed_ps)
    }

    /// A line at `pa` became dirty in the L1.
    pub(crate) fn count_store_line(&mut self, pa: u64) {
        let counters = &mut self.host.counters;
        match self.host.ept.page(pa).map(|page| self.host.ept.tier(page)) {
            Some(Tier::Smem) => counters.smem_store_lines += 1,
            Some(Tier::Fmem) => counters.fmem_store_lines += 1,
            None => {}
        }
    }

    /// Node of memory that serves `pa`, which lies in guest memory: 0 is FMEM.
    #[cold]
    #[must_use]
    pub fn node(&self, pa: u64) -> usize {
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
    pub fn run(&mut self, now_ns: u64, memory: &dyn GuestMemory) -> (u64, Option<Flushes>) {
        let until_ps = self.beside_ps(now_ns);
        self.chosen.policy().run(&mut self.host, memory, until_ps);
        self.owed()
    }

    /// Likewise, of a time in which the guest slept.
    pub fn run_asleep(&mut self, now_ns: u64, memory: &dyn GuestMemory) -> (u64, Option<Flushes>) {
        let until_ps = self.beside_ps(now_ns);
        let policy = self.chosen.policy();
        policy.run_asleep(&mut self.host, memory, until_ps);
        self.owed()
    }

    /// What they steal is no time in which they run beside the guest: else they would steal all
    /// of it.
    const fn beside_ps(&self, now_ns: u64) -> u64 {
        let stolen_ps = self.host.counters.stolen_ps;
        (now_ns * 1000).saturating_sub(stolen_ps + self.absent_ps)
    }

    fn owed(&mut self) -> (u64, Option<Flushes>) {
        let count = std::mem::take(&mut self.host.due_flushes);
        let costs = &self.host.costs;
        let flushes = (count > 0).then_some(Flushes {
            count,
            ps: count * (costs.exit_ps + costs.invept_ps),
        });
        (std::mem::take(&mut self.host.owed_ps), flushes)
    }

    /// A vCPU has carried them out.
    pub fn flushed(&mut self, flushes: Flushes) {
        self.host.counters.invept += flushes.count;
        self.host.counters.invept_ps += flushes.ps;
    }

    /// A vCPU that had halted enters the guest again, and carries out all that was asked of
    /// it meanwhile by one INVEPT; it had left the guest anyhow. What that takes.
    pub(crate) fn flushed_on_entry(&mut self) -> u64 {
        let ps = self.host.costs.invept_ps;
        self.host.counters.invept += 1;
        self.host.counters.invept_ps += ps;
        ps
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
        hypervisor_of(Manager::Tpp, fmem_pages, set)
    }

    /// With another manager.
    pub fn hypervisor_of(manager: Manager, fmem_pages: u64, set: &[(&str, u64)]) -> Hypervisor {
        let mut config = HypervisorConfig {
            manager,
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
        hypervisor.run(900_400_000, &NoMemory);
        assert_eq!(hypervisor.counters().flush_scan, 0);
        hypervisor.run(900_500_000, &NoMemory);
        assert_eq!(hypervisor.counters().flush_scan, 1);
    }
}
