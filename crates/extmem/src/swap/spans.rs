// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several files and devices as one row of slots.
//!
//! Each has a span of the numbers, with tables, locks and disk space of its own, as if it
//! were alone. They are tried in the order given: the next one takes what finds no room in
//! those before it. Between two spans lies a gap, so that no run of slots crosses from one
//! to the next, nor do transfers that are made one.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use demeter_extmem_tree::{MOST_SLOTS, SWAP_VARIABLES};

use super::backing::Backing;
use super::checks::Checks;
use super::family::Ticket;
use super::obstacle::Obstacle;
use super::slots::Slots;
use super::{SLOT_BYTES, Slot, SwapError};
use crate::clock;
use crate::futex::pause;
use crate::region::Region;

/// Files and devices of one store.
pub const MOST_PLACES: usize = SWAP_VARIABLES.len();
/// Numbers between two spans, and what each begins at a multiple of.
const GAP_SLOTS: u64 = 64;
/// Looks for a part of a file that somebody gave back, before there is none.
const TRIES: u32 = 25;
/// Time between those looks.
const PAUSE_NS: u32 = 20_000_000;
/// Time of all of them: a look may wait for a full disk, and the program hears no signal …
const MOST_TRIES_NS: u64 = 2_000_000_000;
/// … but so many in any case, as a thread may be set aside.
const LEAST_TRIES: u32 = 3;
/// What relatives ask for is waited for so long.
const MOST_WAIT_NS: u64 = 60_000_000_000;

/// One file or device.
#[derive(Debug)]
pub struct Span {
    /// Number of its first slot.
    first: u32,
    /// Among those of the store.
    pub index: usize,
    /// The file or device.
    pub backing: Backing,
    /// Its slots, counted from 0.
    pub(super) slots: Slots,
    /// What they hold.
    pub checks: Checks,
}

impl Span {
    /// All slots.
    pub fn capacity(&self) -> u64 {
        self.slots.capacity()
    }

    /// Slots not taken.
    pub fn free_slots(&self) -> u64 {
        self.slots.free_slots()
    }
}

/// All of them.
#[derive(Debug)]
pub struct Spans {
    spans: Vec<Span>,
    promised: AtomicU64,
}

/// A child's place among those who hold slots, in each span.
#[derive(Debug, Clone, Copy)]
pub struct Tickets([Option<Ticket>; MOST_PLACES]);

/// Where the spans begin.
pub fn lay_out(backings: &[Backing]) -> Result<Vec<u32>, SwapError> {
    let mut next = 0;
    let mut firsts = Vec::new();
    for backing in backings {
        if next + backing.slots > MOST_SLOTS {
            let together: u64 = backings.iter().map(|one| one.slots).sum();
            return Err(SwapError::TooMany {
                together_bytes: together * SLOT_BYTES as u64,
            });
        }
        // Below `MOST_SLOTS`, which has 31 bits.
        firsts.push(next as u32);
        next = (next + backing.slots).next_multiple_of(GAP_SLOTS) + GAP_SLOTS;
    }
    Ok(firsts)
}

impl Spans {
    /// Bytes of tables.
    pub fn footprint_bytes(backings: &[Backing]) -> usize {
        backings
            .iter()
            .map(|one| Slots::footprint_bytes(one.slots) + Checks::footprint_bytes(one.slots))
            .sum()
    }

    /// Where [`lay_out`] says. The region should be shared memory.
    pub fn new(
        backings: Vec<Backing>,
        firsts: &[u32],
        region: &mut Region,
    ) -> Result<Self, SwapError> {
        let spans = backings
            .into_iter()
            .zip(firsts)
            .enumerate()
            .map(|(index, (backing, &first))| {
                let slots = Slots::new(&backing, region)?;
                let checks = Checks::new(backing.slots, region)?;
                Ok(Span {
                    first,
                    index,
                    backing,
                    slots,
                    checks,
                })
            })
            .collect::<Result<_, SwapError>>()?;
        Ok(Self {
            spans,
            promised: AtomicU64::new(0),
        })
    }

    /// Each file or device, in the order given.
    pub fn iter(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter()
    }

    /// Where a slot is, and its number there.
    pub fn of(&self, slot: Slot) -> (&Span, Slot) {
        let after = self.spans.partition_point(|span| span.first <= slot.0);
        // The first one begins at 0.
        let span = &self.spans[after.saturating_sub(1)];
        (span, Slot(slot.0 - span.first))
    }

    /// Descriptors of the files and devices.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.spans.iter().map(|span| span.backing.descriptor())
    }

    /// All slots.
    pub fn capacity(&self) -> u64 {
        self.spans.iter().map(Span::capacity).sum()
    }

    /// Slots not taken.
    pub fn free_slots(&self) -> u64 {
        self.spans.iter().map(Span::free_slots).sum()
    }

    /// What keeps one of them from growing, if that is not its size.
    pub fn obstacle(&self) -> Option<Obstacle> {
        self.spans.iter().find_map(|span| span.slots.obstacle())
    }

    /// Promises `slots` to somebody; false when that many are not left to promise.
    pub fn reserve(&self, slots: u64) -> bool {
        let capacity = self.capacity();
        self.promised
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |promised| {
                promised.checked_add(slots).filter(|&sum| sum <= capacity)
            })
            .is_ok()
    }

    /// Takes a promise back.
    pub fn unreserve(&self, slots: u64) {
        let _ = self
            .promised
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |promised| {
                Some(promised.saturating_sub(slots))
            });
    }

    /// A contiguous run of at most `want` slots, as long as there is one near; None when all
    /// are taken or none are wanted.
    pub fn allocate(&self, want: u32) -> Option<(Slot, u32)> {
        if want == 0 {
            return None;
        }
        // Small gaps are left alone while there is more to take, here or further on.
        let last = self.spans.len() - 1;
        let found = self.each(|span| span.slots.take(want, span.index < last));
        // Of what is ours every gap, before each look for more costs system calls.
        let found = found.or_else(|| self.each(|span| span.slots.take_rest(want)));
        if found.is_some() {
            return found;
        }
        // Somebody else may give a part or some space back.
        let begun_ns = clock::now_ns();
        let until_ns = begun_ns.saturating_add(MOST_WAIT_NS);
        for tries in 1..=TRIES {
            let found = self.each(|span| span.slots.take_at_last(want));
            if found.is_some() {
                return found;
            }
            let found = self.wait_for_relatives(want, until_ns);
            if found.is_some() {
                return found;
            }
            let late =
                tries >= LEAST_TRIES && clock::now_ns().saturating_sub(begun_ns) > MOST_TRIES_NS;
            if late || !self.spans.iter().any(|span| span.slots.may_grow()) {
                break;
            }
            pause(PAUSE_NS);
        }
        // Relatives that were killed may still hold some.
        let found = self.each(|span| span.slots.take_swept(want));
        // What the last one of them was refused, or was killed over, has not been asked for since.
        found
            .or_else(|| self.each(|span| span.slots.take_at_last(want)))
            // Somebody may have begun to ask during that look, ...
            .or_else(|| self.wait_for_relatives(want, until_ns))
            // ... or have got a part between ours and the question whether anybody asks.
            .or_else(|| self.each(|span| span.slots.take_rest(want)))
    }

    /// What another thread or relative asks for will be of use to us all, and its disk may take its
    /// time. We ask for nothing meanwhile, so that a full disk comes to a turn of each and an end.
    /// One that is stopped is not waited for without an end: who would let it go on may be we.
    fn wait_for_relatives(&self, want: u32, until_ns: u64) -> Option<(Slot, u32)> {
        while clock::now_ns() < until_ns && self.spans.iter().any(|span| span.slots.is_asked_for())
        {
            pause(PAUSE_NS);
            let found = self.each(|span| span.slots.take_rest(want));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn each(&self, take: impl Fn(&Span) -> Option<(Slot, u32)>) -> Option<(Slot, u32)> {
        self.spans.iter().find_map(|span| {
            let (slot, slots) = take(span)?;
            Some((Slot(span.first + slot.0), slots))
        })
    }

    /// Gives slots back. Those that were not taken stay free; those that relatives hold
    /// too stay theirs.
    pub fn free(&self, first: Slot, slots: u32) {
        let (span, first) = self.of(first);
        span.slots.free(first, slots);
    }

    /// Pages of DRAM that tables took since this was asked last.
    pub fn grown_pages(&self) -> u32 {
        self.spans
            .iter()
            .map(|span| span.checks.grown_pages())
            .sum()
    }

    /// Before a fork, while no other thread uses the store: the child gets a reference
    /// to every slot of this process. None when there are too many relatives.
    pub fn fork_begin(&self) -> Option<Tickets> {
        let mut tickets = Tickets([None; MOST_PLACES]);
        for span in &self.spans {
            let Some(ticket) = span.slots.fork_begin() else {
                self.fork_ended(tickets, false);
                return None;
            };
            tickets.0[span.index] = Some(ticket);
        }
        Some(tickets)
    }

    /// In the parent, after the fork.
    pub fn fork_ended(&self, tickets: Tickets, forked: bool) {
        for (span, ticket) in self.spans.iter().zip(tickets.0) {
            if let Some(ticket) = ticket {
                span.slots.fork_ended(ticket, forked);
            }
        }
    }

    /// In the child, after the fork.
    pub fn after_fork_in_child(&self, tickets: Tickets) {
        for (span, ticket) in self.spans.iter().zip(tickets.0) {
            if let Some(ticket) = ticket {
                span.slots.after_fork_in_child(ticket);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use proptest::prelude::*;

    fn spans(capacities: &[u64]) -> Spans {
        let backings: Vec<_> = (capacities.iter())
            .map(|&slots| Backing::for_tests(slots))
            .collect();
        let firsts = lay_out(&backings).unwrap();
        let mut region = Region::map_shared(Spans::footprint_bytes(&backings)).unwrap();
        Spans::new(backings, &firsts, &mut region).unwrap()
    }

    fn slots(capacity: u64) -> Spans {
        spans(&[capacity])
    }

    #[test]
    fn the_next_takes_what_finds_no_room() {
        let spans = spans(&[100, 64, 200]);
        assert_eq!((spans.capacity(), spans.free_slots()), (364, 364));
        let mut runs = Vec::new();
        while let Some((first, run)) = spans.allocate(256) {
            let (span, local) = spans.of(first);
            assert!(u64::from(local.0 + run) <= span.backing.slots);
            runs.push((span.index, first, run));
        }
        let taken = |index| -> u32 {
            (runs.iter())
                .filter(|run| run.0 == index)
                .map(|run| run.2)
                .sum()
        };
        assert_eq!([taken(0), taken(1), taken(2)], [100, 64, 200]);
        // All of the first before any of the last, but for gaps too small to be worth it.
        assert_eq!(runs[0].0, 0);
        // What comes free in the first is taken before the others.
        let first = runs.iter().find(|run| run.0 == 0 && run.2 >= 24).unwrap();
        let last = runs.iter().find(|run| run.0 == 2).unwrap();
        spans.free(last.1, last.2);
        spans.free(first.1, first.2);
        let again = spans.allocate(64).unwrap();
        assert_eq!(spans.of(again.0).0.index, 0);
    }

    #[test]
    fn what_has_no_numbers_left_is_refused() {
        let lay_out = |slots: &[u64]| {
            let backings: Vec<_> = slots.iter().map(|&one| Backing::for_tests(one)).collect();
            super::lay_out(&backings)
        };
        assert_eq!(lay_out(&[MOST_SLOTS]).unwrap(), [0]);
        let firsts = lay_out(&[MOST_SLOTS - 1024, 700]).unwrap();
        assert!(u64::from(firsts[1]) + 700 <= MOST_SLOTS);
        let told = lay_out(&[MOST_SLOTS - 1024, 5000]).unwrap_err().to_string();
        assert!(
            told.starts_with(
                "the swap places have 8192 GiB together where 8 TiB can be used; next: "
            ),
            "{told}"
        );
        assert!(lay_out(&[MOST_SLOTS - 1, 1, 1]).is_err());
    }

    #[test]
    fn an_empty_store_gives_long_runs_in_order() {
        let slots = slots(1000);
        let mut expected = 0;
        while let Some((first, run)) = slots.allocate(256) {
            assert_eq!(first.0, expected);
            expected += run;
            assert!(run == 256 || expected == 1000, "{run}");
        }
        assert_eq!(expected, 1000);
        assert_eq!(slots.free_slots(), 0);
    }

    #[test]
    fn neighbours_stay_adjacent_when_every_other_page_was_freed() {
        let slots = slots(64 * 64);
        while slots.allocate(64).is_some() {}
        // Half of the words full of holes, half wholly free.
        for word in 0..64u32 {
            if word % 2 == 0 {
                slots.free(Slot(word * 64), 64);
            } else {
                (0..32).for_each(|hole| slots.free(Slot(word * 64 + hole * 2), 1));
            }
        }
        for _ in 0..32 {
            assert_eq!(slots.allocate(64).unwrap().1, 64);
        }
        assert_eq!(slots.allocate(64).unwrap().1, 1);
    }

    #[test]
    fn promises_end_at_the_capacity() {
        let slots = slots(100);
        assert!(slots.reserve(60) && !slots.reserve(41) && slots.reserve(40));
        assert!(!slots.reserve(u64::MAX));
        slots.unreserve(1);
        assert!(slots.reserve(1) && !slots.reserve(1));
    }

    #[test]
    fn threads_never_share_a_slot() {
        let slots = slots(64 * 128);
        let owners: Vec<AtomicU32> = (0..64 * 128).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 1..=4u32 {
                let (slots, owners) = (&slots, &owners);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for turn in 0..20_000u32 {
                        if let Some((first, run)) = slots.allocate(1 + turn % 100) {
                            for slot in first.0..first.0 + run {
                                assert_eq!(owners[slot as usize].swap(thread, Ordering::SeqCst), 0);
                            }
                            held.push((first, run));
                        }
                        if turn % 3 != 0 && !held.is_empty() {
                            let (first, run) = held.swap_remove((turn as usize * 7) % held.len());
                            for slot in first.0..first.0 + run {
                                owners[slot as usize].store(0, Ordering::SeqCst);
                            }
                            slots.free(first, run);
                        }
                    }
                });
            }
        });
    }

    proptest! {
        #[test]
        fn counts_and_runs_agree_with_a_model(
            capacities in proptest::collection::vec(1u64..300, 1..4),
            steps in proptest::collection::vec((any::<bool>(), 0u32..300, any::<prop::sample::Index>()), 1..200),
        ) {
            let slots = spans(&capacities);
            let numbers = slots.iter().map(|span| u64::from(span.first) + span.backing.slots);
            let mut model = vec![true; numbers.max().unwrap() as usize];
            for span in slots.iter() {
                model[span.first as usize..][..span.backing.slots as usize].fill(false);
            }
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (allocate, want, index) in steps {
                if allocate || held.is_empty() {
                    match slots.allocate(want) {
                        Some((first, run)) => {
                            prop_assert!(run >= 1 && run <= want);
                            for slot in first.0..first.0 + run {
                                prop_assert!(!std::mem::replace(&mut model[slot as usize], true));
                            }
                            held.push((first.0, run));
                        }
                        None => prop_assert!(want == 0 || model.iter().all(|&taken| taken)),
                    }
                } else {
                    let (first, run) = held.swap_remove(index.index(held.len()));
                    slots.free(Slot(first), run);
                    model[first as usize..(first + run) as usize].fill(false);
                }
                let free = model.iter().filter(|&&taken| !taken).count() as u64;
                prop_assert_eq!(slots.free_slots(), free);
            }
        }
    }
}
