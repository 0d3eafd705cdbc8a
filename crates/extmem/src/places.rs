// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Address space of the arena, taken for mappings and given back.
//!
//! Who maps at an exact place, protects, moves or takes away a mapping holds
//! [`Pager::places`] from the first look at what is there until the words say what is there
//! now. Nobody who holds a busy page waits for it, so its owner may wait for pages; it comes
//! before the lock of the extents, and is taken inside the gate, so the child of a fork finds
//! it free. A mapping of any free place needs it not: what it takes out of the extents nobody
//! else has.

use std::sync::atomic::Ordering;

use crate::context::Context;
use crate::mapping::{Errno, Pages};
use crate::page::{BLOCK_PAGES, Entry, Flag, PageIndex, State};
use crate::pager::Pager;
use crate::syscall;

/// What a part of a range is to who takes it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Its pages have words.
    Mapped,
    /// Only reserved, in whole blocks.
    Reserved,
    /// Nobody's.
    Free,
}

/// Pages that a new mapping in the place of another promises.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promise {
    /// In all.
    pub pages: u64,
    /// Of these, promised by a mapping elsewhere that will soon be gone.
    pub lent: u64,
}

impl Pager {
    /// Finds room for a mapping, at `hint` if that is free.
    pub fn reserve_pages(&self, count: u32, hint: Option<PageIndex>) -> Option<Pages> {
        let mut extents = self.extents.lock();
        let first = match hint {
            Some(hint) if extents.take_at(hint, count) => hint,
            _ => extents.take(count)?,
        };
        Some(Pages { first, count })
    }

    /// Takes exactly these pages out of the free address space.
    pub fn reserve_exactly(&self, pages: Pages) -> bool {
        self.extents.lock().take_at(pages.first, pages.count)
    }

    /// Gives taken pages back to the free address space.
    pub fn give_place(&self, pages: Pages) {
        if pages.count > 0 {
            self.extents.lock().give(pages.first, pages.count);
        }
    }

    /// Takes pages away: contents, promise and address space. The caller has the places.
    pub fn unmap(&self, pages: Pages, context: &mut Context) {
        self.each_part(pages, |pager, part, kind| {
            // Nothing is there, or somebody is just mapping something: hands off.
            if kind != Part::Free {
                let promised = pager.empty(part, kind, context);
                pager.budget.release(promised);
                pager.give_place(part);
            }
        });
    }

    /// Takes pages for a new mapping in the place of what is there, and promises what it
    /// needs. They are not free in between, or another thread would be given them. If it is
    /// refused, nothing has changed: there is no swap for so much, or another thread is just
    /// mapping something there. The caller has the places.
    pub fn take_over(
        &self,
        pages: Pages,
        promise: Promise,
        context: &mut Context,
    ) -> Result<(), Errno> {
        let lent = promise.lent + self.promised_in(pages);
        let asked = promise.pages.saturating_sub(lent);
        if !self.promise(asked) {
            return Err(libc::ENOMEM);
        }
        if !self.reserve_free_parts(pages) {
            self.budget.release(asked);
            return Err(libc::ENOMEM);
        }
        let mut promised = asked;
        self.each_part(pages, |pager, part, kind| {
            promised += pager.empty(part, kind, context);
        });
        self.budget
            .take_promise(promise.pages.saturating_sub(promised));
        self.budget.release(promised.saturating_sub(promise.pages));
        Ok(())
    }

    /// Parts mappings from what the kernel holds in one with them, before anything of them is
    /// given up: for what lies on either side it may need mappings that a process cannot have
    /// any more (`vm.max_map_count`). False if so; then all is as it was.
    pub fn part_from_neighbours(&self, pages: Pages) -> bool {
        let mut parted = true;
        self.each_part(pages, |pager, part, kind| {
            // Others are only given back: the kernel need not do anything.
            if kind == Part::Mapped && parted {
                parted = pager.advise(part, libc::MADV_DONTDUMP) != -(libc::EAGAIN as isize);
            }
        });
        if !parted {
            self.advise(pages, libc::MADV_DODUMP);
        }
        parted
    }

    /// Whether a core dump has it is of no account for what is about to go. `EAGAIN` is the
    /// kernel's word for a mapping too many, any other is of holes, which need no parting.
    fn advise(&self, pages: Pages, advice: i32) -> isize {
        let address = self.table.address(pages.first);
        // SAFETY: changes no contents.
        unsafe {
            syscall::call(
                libc::SYS_madvise,
                [address, pages.bytes(), advice as usize, 0, 0, 0],
            )
        }
    }

    /// What could not be mapped in the place of something else stays the program's: it cannot
    /// be accessed, and nobody else is given it.
    pub fn keep_inaccessible(&self, pages: Pages) {
        // The kernel may have made a hole of it, or something half way.
        self.reserve_address_space(pages);
        // Inaccessible memory promises nothing, so this cannot fail.
        let _ = self.map_inaccessible(pages);
    }

    /// Makes zeroes of memory that may be accessed before as after: another thread that is at
    /// it notices nothing else. None when not all of it is such memory. The caller has the
    /// places.
    pub fn renew(
        &self,
        pages: Pages,
        protection: i32,
        context: &mut Context,
    ) -> Option<Result<(), Errno>> {
        let stays = |page| {
            let entry = self.table.settled(page);
            !matches!(entry.state(), State::Unmapped | State::Foreign)
                && entry.has(Flag::Accessible)
                && !entry.has(Flag::Locked)
        };
        if protection == libc::PROT_NONE || !pages.iter().all(stays) {
            return None;
        }
        if protection & libc::PROT_WRITE == 0 {
            // No write may come between: nobody could have written to the new mapping.
            let result = self.protect(pages, protection);
            if result.is_ok() {
                self.discard(pages, context);
            }
            return Some(result);
        }
        self.discard(pages, context);
        Some(self.protect(pages, protection))
    }

    /// Takes what is free of a range; all or nothing.
    fn reserve_free_parts(&self, pages: Pages) -> bool {
        let mut failed = None;
        self.each_part(pages, |pager, part, kind| {
            if kind == Part::Free && failed.is_none() && !pager.reserve_exactly(part) {
                failed = Some(part.first);
            }
        });
        let Some(end) = failed else {
            return true;
        };
        if end > pages.first {
            let taken = Pages {
                first: pages.first,
                count: end - pages.first,
            };
            self.each_part(taken, |pager, part, kind| {
                if kind == Part::Free {
                    pager.give_place(part);
                }
            });
        }
        false
    }

    /// Pages of a range that count as promised.
    fn promised_in(&self, pages: Pages) -> u64 {
        let mut promised = 0;
        self.table
            .known_runs(pages.first, pages.end(), |first, count| {
                let run = Pages { first, count };
                let accessible = |&page: &PageIndex| self.table.load(page).has(Flag::Accessible);
                promised += run.iter().filter(accessible).count() as u64;
            });
        promised
    }

    /// Empties a part of a range; its address space stays taken. Returns how many of its pages
    /// were promised: the caller has that promise now.
    fn empty(&self, part: Pages, kind: Part, context: &mut Context) -> u64 {
        match kind {
            Part::Free => 0,
            Part::Reserved => self.empty_reserved(part, context),
            Part::Mapped => self.vacate(part, context),
        }
    }

    /// Reserved blocks, unless another thread gives them words first.
    fn empty_reserved(&self, part: Pages, context: &mut Context) -> u64 {
        let mut promised = 0;
        let mut first = part.first;
        while first < part.end() {
            let (run, reserved) = {
                // Blocks are given words under this lock.
                let _turn = self.extents.lock();
                let reserved = self.table.is_reserved(first);
                let count = self.table.alike_until(first, part.end(), reserved) - first;
                if reserved {
                    self.table.unreserve(first, count);
                }
                (Pages { first, count }, reserved)
            };
            if !reserved {
                promised += self.vacate(run, context);
            }
            first = run.end();
        }
        promised
    }

    /// Calls `work` with the parts of a range, each of one kind, in order.
    fn each_part(&self, pages: Pages, mut work: impl FnMut(&Self, Pages, Part)) {
        self.split(pages, |pager, run, reserved| {
            if reserved {
                work(pager, run, Part::Reserved);
                return;
            }
            let mut part = |first: PageIndex, end: PageIndex, kind| {
                let count = end - first;
                if count > 0 {
                    work(pager, Pages { first, count }, kind);
                }
            };
            let mut behind = run.first;
            // Large holes are passed over.
            pager
                .table
                .known_runs(run.first, run.end(), |first, count| {
                    part(behind, first, Part::Free);
                    behind = first + count;
                    let mut page = first;
                    while page < behind {
                        let (kind, end) = pager.part_at(page, behind);
                        part(page, end, kind);
                        page = end;
                    }
                });
            part(behind, run.end(), Part::Free);
        });
    }

    /// Whether a page with a word is mapped, and where that ends before `end`.
    fn part_at(&self, page: PageIndex, end: PageIndex) -> (Part, PageIndex) {
        let kind_of = |page| match self.table.settled(page).state() {
            State::Unmapped => Part::Free,
            _ => Part::Mapped,
        };
        let kind = kind_of(page);
        let next = (page + 1..end).find(|&next| kind_of(next) != kind);
        (kind, next.unwrap_or(end))
    }

    /// Empties pages and turns their address space back into reserved space; it stays taken.
    /// Returns how many of them were promised. The caller has the places.
    pub fn vacate(&self, pages: Pages, context: &mut Context) -> u64 {
        let (mut promised, mut unlocked) = (self.unmap_fresh(pages), 0);
        (self.stacks.lock()).forget(self.table.address(pages.first), pages.bytes());
        let mut replace = |next: &dyn Fn(Entry) -> Entry| {
            (self.table).known_runs(pages.first, pages.end(), |first, count| {
                for page in first..first + count {
                    let entry = self.table.seize(page);
                    let next = next(entry);
                    // Again each time: another thread may have locked it in between.
                    promised += u64::from(entry.has(Flag::Accessible));
                    unlocked += i64::from(entry.has(Flag::Locked) && !next.has(Flag::Locked));
                    self.table.publish(page, next);
                }
            });
        };
        // First of all: a thread that walks through a mapping below fills pages ahead of it,
        // but none that are not accessible.
        replace(&|entry| entry.with(Flag::Accessible, false));
        self.discard(pages, context);
        replace(&|entry| match entry.state() {
            State::Unmapped => Entry::new(State::Unmapped),
            _ => Entry::new(State::Untouched),
        });
        // A fresh reservation over it: drops what is left, registration included.
        self.reserve_address_space(pages);
        replace(&|_| Entry::new(State::Unmapped));
        self.charge_table();
        self.locked_pages.fetch_sub(unlocked, Ordering::Relaxed);
        promised
    }

    /// Unmaps whole blocks of a range that nobody has touched: they have no words, and get none
    /// by this. Returns how many pages that were.
    fn unmap_fresh(&self, pages: Pages) -> u64 {
        let first = pages.first.next_multiple_of(BLOCK_PAGES);
        let blocks = (first..pages.end()).step_by(BLOCK_PAGES as usize);
        let whole = blocks.filter(|block| pages.end() - block >= BLOCK_PAGES);
        let unmapped = whole.filter(|&block| self.table.unmap_fresh(block));
        unmapped.count() as u64 * u64::from(BLOCK_PAGES)
    }
}
