// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TPP on the address space of the virtual machine monitor, as Linux 5.15 with KVM does it.
//!
//! - **Scan.** A range of memory at a time loses the host's mappings of its pages of SMEM.
//!   KVM hears of the range, not of the pages: it takes all of it out of its table, and
//!   flushes once.
//! - **Violation.** Where the host's own mapping is still there, KVM puts the page back.
//!   Else it is a hint fault: a page on the active list is promoted while the guest
//!   waits, any other is marked accessed, and the fault repeats until it is active.
//! - **Reclaim.** While less than the mark is free, kswapd looks at the oldest pages of FMEM:
//!   it takes the young bit, of which KVM makes a whole flush, or none since 6.13. Young pages
//!   stay, others are demoted. Priorities, batches and giving up are Linux's. Where guests share
//!   FMEM, one kswapd looks at the lists of each in turn, as at those of memory cgroups.

use super::ept::{Ept, Mark, Page, Tier};
use super::pool::Standing;
use super::{GuestMemory, Host, HypervisorConfig, PS_PER_MS, Policy, Work};

/// Linux's `DEF_PRIORITY`: a look at a 4096th of each list, then at twice as much.
const FIRST_PRIORITY: u32 = 12;
/// Linux's `MAX_RECLAIM_RETRIES`: looks at everything that found nothing, one after the other.
const MAX_FAILURES: u32 = 16;
/// How many times as much is walked where nothing needs to be changed.
const EMPTY_SCANS: u64 = 8;

/// See the module.
#[derive(Clone, Debug)]
pub struct Tpp {
    repeat_faults: u64,
    ageing_flush: bool,
    /// Below this many free pages the host demotes.
    mark_pages: u64,
    scan_pages: u64,
    period_min_ps: u64,
    period_max_ps: u64,
    period_ps: u64,
    scan_due_ps: u64,
    hint_faults_before: u64,
    next_page: Page,
    /// Not 0 before the first scan, which begins at a page drawn from it.
    scan_seed: u64,
    kswapd: Kswapd,
    wake_ps: u64,
    /// Of other guests, up to the last meeting: pages demoted, and without room.
    others_demoted_pages: u64,
    others_refused_pages: u64,
}

/// The reclaimer of FMEM.
#[derive(Clone, Debug, Default)]
struct Kswapd {
    /// Up to where it has used its time.
    clock_ps: u64,
    asleep_until_ps: u64,
    running: bool,
    priority: u32,
    active_left: u64,
    inactive_left: u64,
    /// In this run, and at this priority of it.
    demoted: bool,
    demoted_now: bool,
    failures: u32,
    /// The last run ended as nothing seemed to lack.
    did_its_part: bool,
}

impl Tpp {
    /// For this table.
    pub fn new(config: &HypervisorConfig, ept: &Ept) -> Self {
        let mark_pages = ept.capacity_pages() * config.demote_basis_points / 10_000;
        // A huge page needs one free as a whole.
        let least_pages = u64::from(config.is_large() && config.demote_basis_points > 0);
        Self {
            repeat_faults: config.repeat_faults,
            ageing_flush: config.ageing_flush != 0,
            mark_pages: mark_pages.max(least_pages),
            scan_pages: (config.scan_size_mb << 20) / config.page_bytes(),
            period_min_ps: config.scan_period_min_ms * PS_PER_MS,
            period_max_ps: config.scan_period_max_ms * PS_PER_MS,
            period_ps: config.scan_period_min_ms * PS_PER_MS,
            scan_due_ps: config.scan_delay_ms * PS_PER_MS,
            hint_faults_before: 0,
            next_page: 0,
            scan_seed: config.scan_seed,
            kswapd: Kswapd::default(),
            wake_ps: config.wake_ms * PS_PER_MS,
            others_demoted_pages: 0,
            others_refused_pages: 0,
        }
    }

    /// One call of the scanner.
    fn scan(&mut self, host: &mut Host) {
        let mut left = self.scan_pages;
        let mut walked_left = self.scan_pages * EMPTY_SCANS;
        let mut unseen = host.ept.pages();
        while left > 0 && walked_left > 0 && unseen > 0 {
            let (mut range, mut hinted, mut zapped) = (0, 0, false);
            while range < left.min(walked_left) && unseen > 0 {
                let page = self.next_page;
                unseen -= 1;
                self.next_page = if page + 1 == host.ept.pages() {
                    0
                } else {
                    page + 1
                };
                if self.next_page == 0 {
                    // The end of the address space ends a call, too.
                    unseen = 0;
                }
                if !host.ept.is_managed(page) {
                    continue;
                }
                range += 1;
                zapped |= host.unmap(page);
                if host.ept.tier(page) == Tier::Smem {
                    hinted += u64::from(!host.ept.put(page, Mark::Hint, true));
                }
            }
            host.charge_host(Work::Scan, range * host.costs.scan_page_ps);
            host.due_flushes += u64::from(zapped);
            host.counters.flush_scan += u64::from(zapped);
            walked_left -= range;
            if hinted > 0 {
                left -= range;
            }
        }
    }

    fn scan_when_due(&mut self, host: &mut Host, until_ps: u64) {
        if until_ps < self.scan_due_ps {
            return;
        }
        let faults = host.counters.hint_faults;
        self.period_ps = if faults > self.hint_faults_before {
            self.period_min_ps
        } else {
            (self.period_ps * 2).min(self.period_max_ps)
        };
        self.hint_faults_before = faults;
        if self.scan_seed != 0 {
            self.next_page = first_page(std::mem::take(&mut self.scan_seed), &host.ept);
        }
        self.scan(host);
        self.scan_due_ps = until_ps + self.period_ps;
    }

    fn wants_room(&self, host: &Host) -> bool {
        host.ept.free_pages() < self.mark_pages
    }

    /// kswapd uses its time.
    fn reclaim(&mut self, host: &mut Host, until_ps: u64) {
        if !self.kswapd.running {
            let hopeless = self.kswapd.failures >= MAX_FAILURES;
            if hopeless || until_ps < self.kswapd.asleep_until_ps || !self.wants_room(host) {
                return;
            }
            self.kswapd = Kswapd {
                clock_ps: until_ps,
                running: true,
                priority: FIRST_PRIORITY,
                failures: self.kswapd.failures,
                ..Kswapd::default()
            };
            self.begin_priority(host);
        }
        while self.kswapd.running && self.kswapd.clock_ps < until_ps {
            self.step(host);
        }
    }

    fn begin_priority(&mut self, host: &Host) {
        let share = |active| host.ept.list_pages(Tier::Fmem, active) >> self.kswapd.priority;
        // Below 1 GiB Linux wants both lists to be as long.
        let long = host.ept.list_pages(Tier::Fmem, true) > host.ept.list_pages(Tier::Fmem, false);
        let (active, inactive) = (if long { share(true) } else { 0 }, share(false));
        self.kswapd.active_left = active;
        self.kswapd.inactive_left = inactive;
        self.kswapd.demoted_now = false;
    }

    /// A page, or the end of a priority.
    fn step(&mut self, host: &mut Host) {
        let enough = !self.wants_room(host);
        let kswapd = &mut self.kswapd;
        if enough {
            self.end_run();
            self.kswapd.did_its_part = true;
        } else if kswapd.inactive_left > 0 && kswapd.inactive_left >= kswapd.active_left {
            kswapd.inactive_left -= 1;
            self.look_at_inactive(host);
        } else if kswapd.active_left > 0 {
            kswapd.active_left -= 1;
            if let Some(page) = host.ept.oldest(Tier::Fmem, true) {
                self.age(host, page);
                host.ept.enlist(page, false);
            }
        } else {
            self.end_priority(host);
        }
    }

    fn end_priority(&mut self, host: &Host) {
        if !self.kswapd.demoted_now {
            self.kswapd.priority -= 1;
        }
        if self.kswapd.priority > 0 {
            self.begin_priority(host);
        } else {
            self.end_run();
        }
    }

    fn end_run(&mut self) {
        let kswapd = &mut self.kswapd;
        kswapd.failures = if kswapd.demoted {
            0
        } else {
            kswapd.failures + 1
        };
        kswapd.running = false;
        kswapd.asleep_until_ps = kswapd.clock_ps + self.wake_ps;
    }

    fn look_at_inactive(&mut self, host: &mut Host) {
        let Some(page) = host.ept.oldest(Tier::Fmem, false) else {
            self.kswapd.inactive_left = 0;
            return;
        };
        if self.age(host, page) {
            let before = host.ept.put(page, Mark::Referenced, true);
            if before {
                host.ept.put(page, Mark::Referenced, false);
            }
            host.ept.enlist(page, before);
            return;
        }
        host.ept.put(page, Mark::Referenced, false);
        let ps = host.demote(page);
        self.kswapd.clock_ps += host.beside_ps(ps);
        self.kswapd.demoted = true;
        self.kswapd.demoted_now = true;
    }

    /// Takes the young bit, and what KVM makes of it; whether it was set.
    fn age(&mut self, host: &mut Host, page: Page) -> bool {
        let young = host.age(page);
        let flush = young && self.ageing_flush;
        host.counters.flush_ageing += u64::from(flush);
        host.due_flushes += u64::from(flush);
        // Whoever asks waits until vCPUs have left the guest.
        let wait_ps = if flush { host.costs.exit_ps } else { 0 };
        let ps = host.costs.age_page_ps + wait_ps;
        host.charge_host(Work::Ageing, ps);
        self.kswapd.clock_ps += host.beside_ps(ps);
        young
    }

    /// Whether a page whose hint fault this is may be promoted now.
    fn activated(&self, host: &mut Host, page: Page) -> bool {
        if host.ept.has(page, Mark::Active) {
            return true;
        }
        let referenced = host.ept.put(page, Mark::Referenced, true);
        if self.repeat_faults > 0 {
            // One more to be marked, then as many as fill the batch.
            let faults = self.repeat_faults + u64::from(!referenced);
            host.counters.repeat_faults += faults;
            host.charge_guest(faults * host.costs.repeat_fault_ps);
        }
        if self.repeat_faults > 0 || referenced {
            host.ept.put(page, Mark::Referenced, false);
            host.ept.enlist(page, true);
        }
        self.repeat_faults > 0
    }
}

/// A number below `among`, drawn from the seed (Fibonacci hashing).
const fn drawn(seed: u64, among: u64) -> u64 {
    let drawn = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (drawn * among) >> 32
}

/// A page drawn from the seed among those that are scanned.
fn first_page(seed: u64, ept: &Ept) -> Page {
    let managed = || (0..ept.pages()).filter(|&page| ept.is_managed(page));
    let skipped = drawn(seed, managed().count() as u64);
    managed().nth(skipped as usize).unwrap_or(0)
}

impl Policy for Tpp {
    fn violation(&mut self, host: &mut Host, page: Page) {
        if !host.ept.put(page, Mark::Hint, false) {
            return;
        }
        host.counters.hint_faults += 1;
        host.charge_guest(host.costs.hint_fault_ps);
        if !self.activated(host, page) {
            return;
        }
        // As in the guest: above two thirds of the mark.
        let room = host.ept.free_pages() > self.mark_pages * 2 / 3;
        if !room || !host.promote(page) {
            host.counters.refused_pages += host.ept.small_pages();
            self.kswapd.asleep_until_ps = 0;
        }
    }

    fn first_touch(&self, host: &Host) -> Tier {
        // And down to one.
        if host.ept.free_pages() > self.mark_pages / 3 {
            Tier::Fmem
        } else {
            Tier::Smem
        }
    }

    fn run(&mut self, host: &mut Host, _: &dyn GuestMemory, until_ps: u64) {
        self.scan_when_due(host, until_ps);
        self.reclaim(host, until_ps);
    }

    fn run_asleep(&mut self, host: &mut Host, _: &dyn GuestMemory, until_ps: u64) {
        // A thread scans its own address space when it runs.
        self.reclaim(host, until_ps);
    }

    fn stand(&self, standing: &mut Standing) {
        if self.kswapd.running {
            standing.kswapd_pages = standing.fmem_pages;
        }
    }

    fn met(&mut self, host: &Host, others: &Standing) {
        let kswapd = &mut self.kswapd;
        // One kswapd goes through the lists of all: what it found elsewhere it has found.
        if others.demoted_pages > self.others_demoted_pages {
            kswapd.failures = 0;
            kswapd.demoted = true;
            kswapd.demoted_now = true;
        }
        // Whoever finds no room wakes it. Nor does it sleep where this guest has done its part, and
        // the others have not.
        let lacks = host.ept.sharers() > 1 && host.ept.free_pages() < self.mark_pages;
        if others.refused_pages > self.others_refused_pages || (kswapd.did_its_part && lacks) {
            kswapd.asleep_until_ps = 0;
        }
        self.others_demoted_pages = others.demoted_pages;
        self.others_refused_pages = others.refused_pages;
    }
}

#[cfg(test)]
mod tests {
    use super::super::ept::{Mark, Page};
    use super::super::tests::{PAGE, hypervisor};
    use super::super::{Hypervisor, HypervisorCounters, NoMemory};
    use super::drawn;

    const MS: u64 = 1_000_000;

    /// 100 pages of FMEM, 200 touched in their order, the young bits clear.
    fn full(set: &[(&str, u64)]) -> Hypervisor {
        let mut hypervisor = hypervisor(100, set);
        for page in 0..200 {
            hypervisor.resident(page * PAGE);
            hypervisor.host.ept.put(page as Page, Mark::Accessed, false);
        }
        hypervisor
    }

    fn walk(hypervisor: &mut Hypervisor, page: u64) -> u64 {
        hypervisor.walked(page * PAGE, true, false)
    }

    fn fast_pages(hypervisor: &Hypervisor) -> usize {
        let fast = (0..200).filter(|page| hypervisor.node(page * PAGE) == 0);
        fast.count()
    }

    #[test]
    fn a_scan_zaps_the_range_and_flushes_once() {
        let mut hypervisor = full(&[("steal_permille", 0)]);
        assert_eq!(walk(&mut hypervisor, 3), 0);
        assert_eq!(hypervisor.run(99 * MS, &NoMemory), (0, None));
        let (owed_ps, flushes) = hypervisor.run(100 * MS, &NoMemory);
        assert_eq!((owed_ps, flushes.map(|all| all.ps)), (0, Some(1_106_000)));
        let counters = hypervisor.counters();
        assert_eq!((counters.flush_scan, counters.flushes()), (1, 1));
        assert_eq!(counters.host_scan_ps, 200 * 50_000);
        // The whole range waits, FMEM too; what lies there comes back without more.
        assert_eq!(walk(&mut hypervisor, 3), 2_000_000);
        assert_eq!(walk(&mut hypervisor, 3), 0);
        let counters = hypervisor.counters();
        assert_eq!((counters.violations, counters.hint_faults), (1, 0));
    }

    #[test]
    fn a_scan_begins_where_the_seed_says() {
        let places: Vec<_> = (1..=64).map(|seed| drawn(seed, 200)).collect();
        assert!(places.iter().all(|&place| place < 200));
        // Every quarter is drawn, none much more often than the others.
        for quarter in 0..4 {
            let times = places.iter().filter(|&&place| place / 50 == quarter);
            let times = times.count();
            assert!((8..=24).contains(&times), "{quarter}: {times}");
        }
        // What lies before waits until the scan comes round; memory that nobody uses is not drawn.
        let (seed, first) = (2, drawn(2, 200));
        assert!((1..200).contains(&first));
        let mut hypervisor = full(&[("scan_seed", seed), ("steal_permille", 0)]);
        let hypervisor = &mut hypervisor;
        hypervisor.run(100 * MS, &NoMemory);
        assert_eq!(hypervisor.counters().host_scan_ps, (200 - first) * 50_000);
        assert_eq!(walk(hypervisor, first - 1), 0);
        assert!(walk(hypervisor, first) > 0);
        hypervisor.run(300 * MS, &NoMemory);
        assert!(walk(hypervisor, first - 1) > 0);
    }

    #[test]
    fn huge_pages_of_the_host_move_whole() {
        // Two of FMEM, of four; one has to be free.
        let set = [("host_page_kib", 2048), ("steal_permille", 0)];
        let mut hypervisor = hypervisor(1024, &set);
        let tier = |hypervisor: &Hypervisor, page: u64| hypervisor.node(page * 512 * PAGE);
        for page in 0..2048 {
            hypervisor.resident(page * PAGE);
        }
        let fast = |hypervisor: &Hypervisor| [0, 1, 2, 3].map(|page| tier(hypervisor, page));
        assert_eq!(fast(&hypervisor), [0, 0, 1, 1]);
        for page in 0..4 {
            hypervisor.host.ept.put(page, Mark::Accessed, false);
        }
        // kswapd makes room for a whole one.
        hypervisor.run(MS, &NoMemory);
        hypervisor.run(2 * MS, &NoMemory);
        assert_eq!(hypervisor.counters().demoted_pages, 512);
        hypervisor.run(100 * MS, &NoMemory);
        let ps = walk(&mut hypervisor, 3 * 512 + 7);
        let copy_ps = 32768 * (11_037 + 4_293);
        assert_eq!(ps, 1_000_000 * 2 + 683_000 + 2_500_000 + copy_ps);
        assert_eq!(
            (tier(&hypervisor, 3), hypervisor.counters().promoted_pages),
            (0, 512)
        );
        // A scan of 10 MiB is all of it.
        assert_eq!(hypervisor.counters().host_scan_ps, 4 * 50_000);
    }

    #[test]
    fn a_hint_fault_promotes_while_the_guest_waits() {
        // Room for one above two thirds of the mark.
        let mut hypervisor = full(&[("demote_basis_points", 0), ("steal_permille", 0)]);
        assert_eq!(fast_pages(&hypervisor), 100);
        let demoted = hypervisor.host.demote(0);
        assert!(demoted > 0);
        hypervisor.run(100 * MS, &NoMemory);
        let before = hypervisor.counters();
        let ps = walk(&mut hypervisor, 150);
        // Exit, violation, fault, the path of moving, 64 lines from SMEM and to FMEM.
        let copy_ps = 64 * (11_037 + 4_293);
        assert_eq!(ps, 1_000_000 * 2 + 683_000 + 2_500_000 + copy_ps);
        let counters = hypervisor.counters();
        assert_eq!(counters.promoted_pages, 1);
        assert_eq!(counters.repeat_faults, 16);
        assert_eq!(hypervisor.node(150 * PAGE), 0);
        assert_eq!(counters.violation_ps - before.violation_ps, ps);
        // Full again: refused, and back in the table.
        walk(&mut hypervisor, 151);
        assert_eq!(hypervisor.counters().refused_pages, 1);
        assert_eq!(hypervisor.node(151 * PAGE), 1);
        assert_eq!(walk(&mut hypervisor, 151), 0);
        assert_eq!(fast_pages(&hypervisor), 100);
    }

    #[test]
    fn repeated_faults_are_charged_where_they_cost() {
        let cost = |set: &[(&str, u64)]| {
            let mut hypervisor = full(set);
            hypervisor.run(100 * MS, &NoMemory);
            walk(&mut hypervisor, 150)
        };
        let free = cost(&[]);
        assert_eq!(cost(&[("repeat_fault_ns", 700)]), free + 16 * 700_000);
    }

    #[test]
    fn without_repeated_faults_the_third_promotes() {
        let set = [
            ("repeat_faults", 0),
            ("demote_basis_points", 0),
            ("steal_permille", 0),
        ];
        let mut hypervisor = full(&set);
        hypervisor.host.demote(0);
        let mut at_ms = 100;
        for promoted in [0, 0, 1] {
            hypervisor.run(at_ms * MS, &NoMemory);
            walk(&mut hypervisor, 150);
            assert_eq!(hypervisor.counters().promoted_pages, promoted);
            at_ms += 10_000;
        }
        assert_eq!(hypervisor.counters().repeat_faults, 0);
    }

    /// A mark of ten pages, of which three are free: kswapd runs.
    fn ageing(flush: u64) -> HypervisorCounters {
        let mut hypervisor = full(&[
            ("demote_basis_points", 1000),
            ("ageing_flush", flush),
            ("scan_delay_ms", 1_000_000),
            ("steal_permille", 0),
        ]);
        for page in 0..100 {
            walk(&mut hypervisor, page);
        }
        // A look at every page, rest, and another one.
        for at_ms in [1, 2, 20, 21] {
            hypervisor.run(at_ms * MS, &NoMemory);
            assert!(fast_pages(&hypervisor) <= 100);
        }
        hypervisor.counters()
    }

    #[test]
    fn ageing_flushes_for_each_young_page_or_never() {
        let old = ageing(1);
        assert!(old.young_pages > 0 && old.aged_pages > old.young_pages);
        assert_eq!(old.flush_ageing, old.young_pages);
        let new = ageing(0);
        assert!(new.young_pages > 0);
        assert_eq!(new.flush_ageing, 0);
        // Moving flushes either way.
        assert!(new.demoted_pages > 0);
        assert_eq!(new.flush_move, new.demoted_pages);
    }

    #[test]
    fn what_is_not_touched_goes_and_what_is_stays() {
        let mut hypervisor = full(&[
            ("demote_basis_points", 1000),
            ("scan_delay_ms", 1_000_000),
            ("steal_permille", 0),
        ]);
        for at_us in 1..2000 {
            for page in 0..50 {
                walk(&mut hypervisor, page);
            }
            hypervisor.run(MS + at_us * 1000, &NoMemory);
        }
        let counters = hypervisor.counters();
        assert_eq!(counters.demoted_pages, 7, "up to the mark");
        assert!((0..50).all(|page| hypervisor.node(page * PAGE) == 0));
        // Demoted and touched again: mapped anew, and promoted again one day.
        let demoted = (50..97).find(|page| hypervisor.node(page * PAGE) == 1);
        assert!(walk(&mut hypervisor, demoted.unwrap()) >= 2_000_000);
    }

    #[test]
    fn reclaim_that_finds_nothing_gives_up() {
        let mut hypervisor = full(&[
            ("demote_basis_points", 1000),
            ("ageing_flush", 0),
            ("scan_delay_ms", 1_000_000),
            ("steal_permille", 0),
        ]);
        let mut aged = 0;
        for at_us in 0..1_000_000 {
            if at_us % 10 == 0 {
                for page in 0..100 {
                    walk(&mut hypervisor, page);
                }
            }
            hypervisor.run(at_us * 1000, &NoMemory);
            if at_us == 500_000 {
                aged = hypervisor.counters().aged_pages;
            }
        }
        let counters = hypervisor.counters();
        assert_eq!(counters.demoted_pages, 0);
        assert!(aged > 0);
        assert_eq!(counters.aged_pages, aged, "still looking");
    }

    #[test]
    fn stolen_time_leaves_the_guest_half() {
        let mut hypervisor = full(&[
            ("demote_basis_points", 1000),
            ("ageing_flush", 0),
            ("age_page_ns", 1000),
            ("scan_delay_ms", 1_000_000),
        ]);
        // The guest's own time, and with what it is charged.
        let (mut own_us, mut clock_ns) = (0, 0);
        while own_us < 80 {
            for page in 0..100 {
                walk(&mut hypervisor, page);
            }
            own_us += 1;
            clock_ns += 1000 + hypervisor.run(clock_ns, &NoMemory).0 / 1000;
        }
        let stolen_us = hypervisor.counters().stolen_ps / 1_000_000;
        assert!((60..=85).contains(&stolen_us), "{stolen_us}");
    }
}
