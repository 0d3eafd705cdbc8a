// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bits of the table, read and cleared at intervals: what RAMinate, HeteroVisor and HeteroOS have
//! in common, with a knob for each thing in which they differ.
//!
//! - **Bit.** Dirty (RAMinate, which cares for writes to SMEM) or accessed.
//! - **Rank.** How often it was found set in the last eight intervals, or how recently.
//! - **Move.** Two pages change places by one operation; or one goes first, then the other comes.
//! - **Trap.** HeteroVisor and HeteroOS see bits of the guest's own tables by keeping those
//!   write-protected: each write there is an exit, also the walker's when it marks an entry.
//!
//! Their intervals are not known to us, nor their limits: these are knobs.

use super::ept::{Mark, Page, Tier};
use super::pairs::{Pair, RankedPage, Sorter};
use super::pool::Standing;
use super::{GuestMemory, Host, HypervisorConfig, PS_PER_MS, Policy, Work};

/// See the module.
#[derive(Clone, Debug)]
pub struct Abit {
    bit: Mark,
    by_frequency: bool,
    exchange: bool,
    trap: bool,
    moves: u64,
    interval_ps: u64,
    due_ps: u64,
    /// By page: whether its bit was set, the last interval in the highest bit.
    history: Vec<u8>,
    sorter: Sorter,
}

impl Abit {
    /// For so many pages.
    pub fn new(config: &HypervisorConfig, pages: Page) -> Self {
        let interval_ps = config.interval_ms * PS_PER_MS;
        Self {
            bit: if config.dirty_bit == 0 {
                Mark::Accessed
            } else {
                Mark::Dirty
            },
            by_frequency: config.by_frequency != 0,
            exchange: config.exchange != 0,
            trap: config.trap_table_writes != 0,
            moves: config.interval_moves,
            interval_ps,
            due_ps: interval_ps,
            history: vec![0; pages as usize],
            sorter: Sorter::new(),
        }
    }

    fn rank(&self, page: Page) -> u8 {
        let history = self.history.get(page as usize).copied().unwrap_or(0);
        if self.by_frequency {
            history.count_ones() as u8
        } else {
            history
        }
    }

    /// Reads and clears the bits of all pages, with one flush.
    fn look(&mut self, host: &mut Host) {
        let (mut looked, mut any) = (0, false);
        for page in 0..host.ept.pages() {
            if !host.ept.is_managed(page) {
                continue;
            }
            let set = host.take(page, self.bit);
            looked += 1;
            any |= set;
            if let Some(history) = self.history.get_mut(page as usize) {
                *history = *history >> 1 | u8::from(set) << 7;
            }
        }
        host.charge_host(Work::Scan, looked * host.costs.scan_page_ps);
        if any {
            host.flush_for_scan();
        }
    }

    fn moves(&mut self, host: &Host) -> Vec<Pair> {
        let managed = (0..host.ept.pages()).filter(|&page| host.ept.is_managed(page));
        let ranked = managed.map(|page| RankedPage {
            rank: self.rank(page),
            page,
        });
        let ranked: Vec<RankedPage> = ranked.collect();
        (self.sorter).plan(&host.ept, ranked.into_iter(), self.moves)
    }
}

impl Policy for Abit {
    fn first_touch(&self, host: &Host) -> Tier {
        host.fmem_while_there_is_some()
    }

    fn accessed(&mut self, host: &mut Host, _: Page) {
        // The walker marks the guest's entry.
        if self.trap {
            host.table_write_exit();
        }
    }

    fn table_stored(&mut self, host: &mut Host) {
        if self.trap {
            host.table_write_exit();
        }
    }

    fn run(&mut self, host: &mut Host, _: &dyn GuestMemory, until_ps: u64) {
        if until_ps < self.due_ps {
            return;
        }
        self.look(host);
        for Pair { up, down } in self.moves(host) {
            if let (Some(up), Some(down), true) = (up, down, self.exchange) {
                host.exchange(up.page, down.page);
                continue;
            }
            if let Some(down) = down {
                host.put_down(down.page);
                host.flush_for_move();
            }
            if let Some(up) = up {
                host.put_up(up.page);
                host.flush_for_move();
            }
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
    use super::super::cost::Manager;
    use super::super::tests::{PAGE, hypervisor_of};
    use super::super::{Hypervisor, NoMemory};
    use super::*;

    const MS: u64 = 1_000_000;

    /// Ten pages of FMEM, 40 touched in their order; a look each 10 ms.
    fn full(set: &[(&str, u64)]) -> Hypervisor {
        let base = [("interval_ms", 10), ("steal_permille", 0)];
        let mut hypervisor = hypervisor_of(Manager::Abit, 10, &[&base[..], set].concat());
        for page in 0..40 {
            hypervisor.resident(page * PAGE);
            for mark in [Mark::Accessed, Mark::Dirty] {
                hypervisor.host.ept.put(page as Page, mark, false);
            }
        }
        hypervisor
    }

    /// Pages 20 to 24 are read, 30 to 34 written, then the host looks.
    fn interval(hypervisor: &mut Hypervisor, number: u64) {
        for page in 20..25 {
            hypervisor.walked(page * PAGE, true, false);
            hypervisor.walked((page + 10) * PAGE, true, true);
        }
        hypervisor.run(number * 10 * MS, &NoMemory);
    }

    fn fast(hypervisor: &Hypervisor) -> Vec<u64> {
        let fast = (0..40).filter(|page| hypervisor.node(page * PAGE) == 0);
        fast.collect()
    }

    #[test]
    fn raminate_brings_what_is_written() {
        let mut hypervisor = full(&[("dirty_bit", 1), ("by_frequency", 1), ("exchange", 1)]);
        assert!(hypervisor.follows_stores());
        assert_eq!(fast(&hypervisor), (0..10).collect::<Vec<_>>());
        interval(&mut hypervisor, 1);
        assert_eq!(fast(&hypervisor), (5..10).chain(30..35).collect::<Vec<_>>());
        let counters = hypervisor.counters();
        assert_eq!((counters.promoted_pages, counters.demoted_pages), (5, 5));
        // One for the look, one for each pair.
        assert_eq!((counters.flush_scan, counters.flush_move), (1, 5));
        assert_eq!(counters.host_scan_ps, 40 * 50_000 + 1_000_000);
        // Two copies and two remappings, an IPI awaited.
        let copy_ps = 64 * (11_037 + 4_293);
        let each = 2 * (2_500_000 + copy_ps) + 1_000_000;
        assert_eq!(counters.host_promotion_ps, 5 * each);
        // Nobody of the guest waits, and nothing is unmapped.
        assert_eq!((counters.violations, counters.violation_ps), (0, 0));
    }

    #[test]
    fn an_accessed_bit_tells_reads_too() {
        let mut hypervisor = full(&[]);
        assert!(!hypervisor.follows_stores());
        interval(&mut hypervisor, 1);
        assert_eq!(
            fast(&hypervisor),
            (20..25).chain(30..35).collect::<Vec<_>>()
        );
        let counters = hypervisor.counters();
        assert_eq!(counters.flush_move, 20, "one goes, another comes");
        // It stays so: who is there ranks no lower.
        interval(&mut hypervisor, 2);
        assert_eq!(hypervisor.counters().promoted_pages, 10);
    }

    #[test]
    fn recency_or_frequency() {
        for (by_frequency, stays) in [(0, false), (1, true)] {
            let mut hypervisor = full(&[("by_frequency", by_frequency)]);
            for number in 1..4 {
                for page in 0..10 {
                    hypervisor.walked(page * PAGE, true, false);
                }
                hypervisor.run(number * 10 * MS, &NoMemory);
            }
            interval(&mut hypervisor, 4);
            assert_eq!(hypervisor.node(0) == 0, stays);
        }
    }

    #[test]
    fn moves_are_limited_and_none_only_watches() {
        for moves in [0, 3] {
            let mut hypervisor = full(&[("interval_moves", moves)]);
            interval(&mut hypervisor, 1);
            let counters = hypervisor.counters();
            assert_eq!(counters.promoted_pages, moves);
            assert_eq!((counters.aged_pages, counters.young_pages), (40, 10));
        }
    }

    #[test]
    fn writes_to_the_guests_tables_are_exits() {
        let mut hypervisor = full(&[("trap_table_writes", 1)]);
        assert!(hypervisor.follows_stores());
        // The walker's, once until the bit is cleared.
        let exit_ps = 2_000_000;
        assert_eq!(hypervisor.walked(20 * PAGE, true, false), exit_ps);
        assert_eq!(hypervisor.walked(20 * PAGE, true, false), 0);
        // The kernel's, to a table that a walk has read; other pages are not protected.
        hypervisor.tables_read(0, 20 * PAGE, &[0x60_0000, 0x60_1008], false);
        assert_eq!(hypervisor.stored(0x60_1010), exit_ps);
        assert_eq!(hypervisor.stored(0x60_2010), 0);
        let counters = hypervisor.counters();
        assert_eq!(counters.table_write_exits, 2);
        assert_eq!(counters.violation_ps, 2 * exit_ps);
        let mut free = full(&[]);
        assert_eq!(free.walked(20 * PAGE, true, false), 0);
    }
}
