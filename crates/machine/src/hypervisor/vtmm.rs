// SPDX-License-Identifier: Apache-2.0 OR MIT
//! After vTMM (Sha et al., EuroSys 2023): its mechanisms as its abstract has them. Its
//! intervals, weights and queues are not known to us: what is here are knobs and our choices.
//!
//! - **Log.** A walk counts as a write to each page table that it reads (SDM vol. 3, 29.3.5),
//!   so page-modification logging names the tables in use. Full logs make the vCPU exit.
//! - **Queues.** Of tables: what was in use each time moves to a queue that is looked at half as
//!   often, and is not logged in between; what was not starts again.
//! - **Temperature.** The host reads the logged tables, and takes their accessed bits. How many
//!   intervals a page was used in is added to half of what it had.
//! - **Sort.** Pages go into buckets by temperature; the hottest change places with the coldest.
//! - **Move.** In the background, by batches: one flush arms the log for the pages of a batch,
//!   one maps them anew. That a page is written meanwhile, and copied again, is left out.

use std::collections::BTreeMap;

use super::ept::{Mark, Page, Tier};
use super::pairs::{RankedPage, Sorter};
use super::pool::Standing;
use super::{GuestMemory, GuestTable, Host, HypervisorConfig, PS_PER_MS, Policy, Work};

/// Pages that are moved together.
const BATCH_PAGES: usize = 512;
/// Buckets are so many degrees wide, of 256.
const BUCKET_SHIFT: u32 = 3;
/// Heat of a page that was used in every interval: half of it is lost at each sort.
const FULL_HEAT: u64 = 128;

#[derive(Clone, Copy, Debug)]
struct Table {
    at: GuestTable,
    /// It maps pages, not only tables.
    maps: bool,
    queue: u32,
    logged: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Vtmm {
    interval_ps: u64,
    due_ps: u64,
    moves: u64,
    log_entries: u64,
    queues: u32,
    round: u64,
    /// Entries in the log since it was last full.
    in_log: u64,
    tables: BTreeMap<Page, Table>,
    /// By page: intervals in which it was used since the last sort, and its temperature.
    used: Vec<u16>,
    heat: Vec<u8>,
    sorter: Sorter,
}

impl Vtmm {
    /// For so many pages.
    pub fn new(config: &HypervisorConfig, pages: Page) -> Self {
        let interval_ps = config.interval_ms * PS_PER_MS;
        Self {
            interval_ps,
            due_ps: interval_ps,
            moves: config.interval_moves,
            log_entries: config.log_entries,
            queues: config.queues.clamp(1, 8) as u32,
            round: 0,
            in_log: 0,
            tables: BTreeMap::new(),
            used: vec![0; pages as usize],
            heat: vec![0; pages as usize],
            sorter: Sorter::new(),
        }
    }

    /// Looks at the queues that are due.
    fn look(&mut self, host: &mut Host, memory: &dyn GuestMemory) {
        let (round, last, used) = (self.round, self.queues - 1, &mut self.used);
        let mut looked = 0;
        self.tables.retain(|&page, table| {
            let intervals = 1_u64 << table.queue;
            if !table.maps || !round.is_multiple_of(intervals) {
                return true;
            }
            if !std::mem::take(&mut table.logged) {
                table.queue = 0;
                return true;
            }
            looked += 1;
            host.ept.put(page, Mark::Dirty, false);
            table.queue = (table.queue + 1).min(last);
            memory.take_accessed(&table.at, &mut |pa, bytes| {
                for at in (pa..pa + bytes).step_by(4096) {
                    let Some(page) = host.ept.page(at) else {
                        continue;
                    };
                    if let Some(used) = used.get_mut(page as usize) {
                        *used = used.saturating_add(intervals as u16);
                    }
                }
            })
        });
        host.charge_host(Work::Scan, looked * host.costs.table_ps);
        if looked > 0 {
            host.flush_for_scan();
        }
    }

    /// How many intervals lie between two sorts: every queue has been looked at then.
    fn sort_intervals(&self) -> u64 {
        1 << (self.queues - 1)
    }

    fn sort(&mut self, host: &mut Host) {
        let intervals = self.sort_intervals();
        let mut ranked = Vec::new();
        for page in 0..host.ept.pages() {
            if !host.ept.is_managed(page) {
                continue;
            }
            let (used, heat) = (&mut self.used[page as usize], &mut self.heat[page as usize]);
            let used = u64::from(std::mem::take(used)).min(intervals);
            host.counters.aged_pages += 1;
            host.counters.young_pages += u64::from(used > 0);
            *heat = (u64::from(*heat / 2) + used * FULL_HEAT / intervals).min(255) as u8;
            let rank = *heat >> BUCKET_SHIFT;
            ranked.push(RankedPage { rank, page });
        }
        host.charge_host(Work::Scan, ranked.len() as u64 * host.costs.scan_page_ps);
        let pairs = (self.sorter).plan(&host.ept, ranked.into_iter(), self.moves);
        for batch in pairs.chunks(BATCH_PAGES) {
            host.flush_for_move();
            for pair in batch {
                if let Some(down) = pair.down {
                    host.put_down(down.page);
                }
                if let Some(up) = pair.up {
                    host.put_up(up.page);
                }
            }
            host.flush_for_move();
        }
    }
}

impl Policy for Vtmm {
    fn first_touch(&self, host: &Host) -> Tier {
        host.fmem_while_there_is_some()
    }

    fn table_read(&mut self, host: &mut Host, page: Page, at: GuestTable, maps: bool) {
        if host.ept.put(page, Mark::Dirty, true) {
            if maps && let Some(table) = self.tables.get_mut(&page) {
                // A table of larger pages and of tables.
                table.maps = true;
            }
            return;
        }
        host.counters.logged_tables += 1;
        self.in_log += 1;
        if self.in_log == self.log_entries {
            self.in_log = 0;
            host.counters.log_exits += 1;
            host.charge_guest(host.costs.exit_ps);
        }
        let table = self.tables.entry(page).or_insert(Table {
            at,
            maps: false,
            queue: 0,
            logged: false,
        });
        // The page may have become another table since.
        table.at = at;
        table.maps |= maps;
        table.logged = true;
    }

    fn run(&mut self, host: &mut Host, memory: &dyn GuestMemory, until_ps: u64) {
        if until_ps < self.due_ps {
            return;
        }
        self.round += 1;
        self.look(host, memory);
        if self.round.is_multiple_of(self.sort_intervals()) {
            self.sort(host);
        }
        self.due_ps = until_ps + self.interval_ps;
    }

    fn stand(&self, standing: &mut Standing) {
        self.sorter.stand(standing);
    }

    fn met(&mut self, _: &Host, others: &Standing) {
        self.sorter.met(&others.ranked);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::cost::Manager;
    use super::super::tests::{PAGE, hypervisor_of};
    use super::super::{Hypervisor, NoMemory};
    use super::*;

    const MS: u64 = 1_000_000;
    /// Where the guest has the table of pages 0 to 511.
    const TABLE: u64 = 0x60_0000;
    const ROOT: u64 = 0x70_0000;

    /// A guest with one table, entry N for page N.
    struct Guest {
        /// Pages whose entries are marked.
        marked: RefCell<Vec<u64>>,
        gone: bool,
    }

    impl GuestMemory for Guest {
        fn take_accessed(&self, at: &GuestTable, each: &mut dyn FnMut(u64, u64)) -> bool {
            assert_eq!((at.root, at.table), (ROOT, TABLE));
            if self.gone {
                return false;
            }
            for page in self.marked.borrow_mut().drain(..) {
                each(page * PAGE, PAGE);
            }
            true
        }
    }

    fn full(set: &[(&str, u64)]) -> Hypervisor {
        let base = [("interval_ms", 10), ("steal_permille", 0)];
        let mut hypervisor = hypervisor_of(Manager::Vtmm, 10, &[&base[..], set].concat());
        assert!(!hypervisor.follows_stores());
        for page in 0..40 {
            hypervisor.resident(page * PAGE);
        }
        hypervisor
    }

    fn walk(hypervisor: &mut Hypervisor, guest: &Guest, page: u64) -> u64 {
        guest.marked.borrow_mut().push(page);
        let entries = [ROOT, 0x71_0000, 0x72_0000, TABLE + page * 8];
        let ps = hypervisor.tables_read(ROOT, page * PAGE, &entries, false);
        ps + hypervisor.walked(page * PAGE, true, false)
    }

    fn guest() -> Guest {
        Guest {
            marked: RefCell::default(),
            gone: false,
        }
    }

    #[test]
    fn what_logged_tables_tell_is_sorted_and_moved() {
        let (mut hypervisor, guest) = (full(&[]), guest());
        for round in 1..=4 {
            for page in 20..30 {
                walk(&mut hypervisor, &guest, page);
            }
            hypervisor.run(round * 10 * MS, &guest);
            let promoted = hypervisor.counters().promoted_pages;
            // When all three queues have been looked at.
            assert_eq!(promoted, if round < 4 { 0 } else { 10 });
        }
        assert!((20..30).all(|page| hypervisor.node(page * PAGE) == 0));
        let counters = hypervisor.counters();
        // Four levels once, the last one again after the first look and the second.
        assert_eq!(counters.logged_tables, 6);
        // In the queue of every round, every second one, every fourth one.
        assert_eq!(counters.flush_scan, 3);
        assert_eq!(counters.flush_move, 2, "a batch");
        assert_eq!((counters.log_exits, counters.violation_ps), (0, 0));
        assert_eq!(counters.host_scan_ps, 3 * 2_000_000 + 40 * 50_000);
    }

    #[test]
    fn a_full_log_is_an_exit() {
        let (mut hypervisor, guest) = (full(&[("log_entries", 3)]), guest());
        assert_eq!(walk(&mut hypervisor, &guest, 0), 1_000_000);
        assert_eq!(walk(&mut hypervisor, &guest, 1), 0, "logged already");
        assert_eq!(hypervisor.counters().log_exits, 1);
    }

    #[test]
    fn what_cools_gives_way() {
        let (mut hypervisor, guest) = (full(&[("queues", 1)]), guest());
        for round in 1..=12 {
            let first = if round <= 6 { 20 } else { 30 };
            for page in first..first + 10 {
                walk(&mut hypervisor, &guest, page);
            }
            hypervisor.run(round * 10 * MS, &guest);
        }
        assert!((30..40).all(|page| hypervisor.node(page * PAGE) == 0));
        assert!((20..30).all(|page| hypervisor.node(page * PAGE) == 1));
        let counters = hypervisor.counters();
        assert_eq!((counters.promoted_pages, counters.demoted_pages), (20, 20));
    }

    #[test]
    fn a_table_that_is_gone_is_forgotten() {
        let (mut hypervisor, mut guest) = (full(&[("queues", 1)]), guest());
        walk(&mut hypervisor, &guest, 20);
        guest.gone = true;
        hypervisor.run(10 * MS, &guest);
        assert_eq!(hypervisor.counters().promoted_pages, 0);
        assert_eq!(hypervisor.counters().flush_scan, 1);
        // It would be asked for again if it had been kept.
        hypervisor.run(20 * MS, &NoMemory);
        assert_eq!(hypervisor.counters().flush_scan, 1);
    }
}
