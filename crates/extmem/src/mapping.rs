// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mappings in the arena: made, protected, dropped, moved, taken away.
//!
//! There is no list of mappings. What is mapped, and how, is in the page words; free
//! address space is in the extents. A mapping taken away in the middle is therefore
//! nothing special.

use crate::compressed::Handle;
use crate::context::{BATCH_PAGES, Context};
use crate::copies::NO_PAYLOAD;
use crate::fatal;
use crate::page::{BLOCK_PAGES, Entry, Flag, PageIndex, State};
use crate::pager::Pager;
use crate::policy::{Arrival, abi};
use crate::region::PAGE_BYTES;
use crate::swap::Slot;
use crate::syscall;

/// A range of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// First.
    pub first: PageIndex,
    /// How many.
    pub count: u32,
}

impl Pages {
    pub(crate) fn iter(self) -> std::ops::Range<u32> {
        self.first..self.first + self.count
    }

    /// One past the last.
    pub fn end(self) -> PageIndex {
        self.first + self.count
    }

    /// Bytes.
    pub fn bytes(self) -> usize {
        self.count as usize * PAGE_BYTES
    }
}

/// Whose a page of the arena is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Managed.
    Pager,
    /// Another mapping, made over managed memory.
    Kernel,
    /// Managed, and only reserved: no page of it has a word of its own.
    Reserved,
    /// Not mapped.
    Nobody,
}

pub(crate) type Errno = i32;

impl Pager {
    /// The pages that `[address, address + bytes)` touches, if all lie in the arena.
    pub fn pages_in(&self, address: usize, bytes: usize) -> Option<Pages> {
        let first = self.table.page_of(address)?;
        let last = self
            .table
            .page_of(address.checked_add(bytes.checked_sub(1)?)?)?;
        Some(Pages {
            first,
            count: last - first + 1,
        })
    }

    /// Makes reserved (or just emptied) pages a mapping of zeroes.
    pub fn map(&self, pages: Pages, protection: i32) -> Result<(), Errno> {
        let promise = promised_by(pages.count, protection);
        if !self.promise(promise) {
            return Err(libc::ENOMEM);
        }
        self.map_promised(pages, protection)
            .inspect_err(|_| self.budget.release(promise))
    }

    /// The same where the promise has been made. It stays with the caller if this fails.
    pub fn map_promised(&self, pages: Pages, protection: i32) -> Result<(), Errno> {
        if protection != libc::PROT_NONE {
            self.arm(pages, protection)?;
        }
        let entry = protect_entry(Entry::new(State::Untouched), protection);
        let mut page = pages.first;
        while page < pages.end() {
            let is_block = page.is_multiple_of(BLOCK_PAGES) && pages.end() - page >= BLOCK_PAGES;
            if is_block && entry == Entry::FRESH && self.table.map_fresh(page) {
                page += BLOCK_PAGES;
                continue;
            }
            let old = self.table.seize(page);
            debug_assert_eq!(old.state(), State::Unmapped);
            self.table.publish(page, entry);
            page += 1;
        }
        self.charge_table();
        self.policy.mapped(pages.first, pages.count);
        Ok(())
    }

    /// The page table's own pages count as DRAM from the first word on that is written in
    /// them; the policy's are charged as pages arrive.
    pub fn charge_table(&self) {
        let more = self.table.take_newly_used();
        if more > 0 {
            self.budget.charge_overhead(more.into());
        }
    }

    /// Makes taken address space a mapping that cannot be accessed. It promises nothing; of a
    /// large one the words are left alone until some of it is made accessible, so that it
    /// costs nothing.
    pub fn map_inaccessible(&self, pages: Pages) -> Result<(), Errno> {
        let end = pages.first + pages.count;
        let first = pages.first.div_ceil(BLOCK_PAGES) * BLOCK_PAGES;
        let last = end / BLOCK_PAGES * BLOCK_PAGES;
        if last <= first {
            return self.map(pages, libc::PROT_NONE);
        }
        self.table.reserve(first, last - first);
        for (first, end) in [(pages.first, first), (last, end)] {
            if end > first {
                let count = end - first;
                self.map(Pages { first, count }, libc::PROT_NONE)?;
            }
        }
        Ok(())
    }

    /// Gives the pages of a range words of their own where they are only reserved.
    pub fn materialize(&self, pages: Pages) {
        self.split(pages, |pager, run, reserved| {
            if reserved {
                pager.materialize_blocks(run);
            }
        });
    }

    fn materialize_blocks(&self, run: Pages) {
        let first = run.first / BLOCK_PAGES * BLOCK_PAGES;
        let end = (run.first + run.count).next_multiple_of(BLOCK_PAGES);
        for block in (first..end).step_by(BLOCK_PAGES as usize) {
            let pages = Pages {
                first: block,
                count: BLOCK_PAGES,
            };
            let _turn = self.extents.lock();
            // Another thread may have been here while this one waited.
            if self.table.is_reserved(block) {
                // Inaccessible memory promises nothing, so this cannot fail.
                let _ = self.map(pages, libc::PROT_NONE);
                self.table.unreserve(block, BLOCK_PAGES);
            }
        }
    }

    /// Calls `work` with the runs of a range that are reserved in whole blocks, and with what
    /// lies between them; what is reserved and only touched by the range is given words first.
    pub fn split(&self, pages: Pages, mut work: impl FnMut(&Self, Pages, bool)) {
        let end = pages.first + pages.count;
        let ragged = |page: PageIndex| !page.is_multiple_of(BLOCK_PAGES);
        for page in [pages.first, end] {
            if ragged(page) && self.table.is_reserved(page - 1) && self.table.is_reserved(page) {
                self.materialize_blocks(Pages {
                    first: page,
                    count: 1,
                });
            }
        }
        let mut page = pages.first;
        while page < end {
            let reserved = self.table.is_reserved(page);
            let next = self.table.alike_until(page, end, reserved);
            let run = Pages {
                first: page,
                count: next - page,
            };
            work(self, run, reserved);
            page = next;
        }
    }

    /// Maps `PROT_NONE` over the pages.
    pub fn reserve_address_space(&self, pages: Pages) {
        let flags =
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED)
                as usize;
        let address = self.table.address(pages.first);
        // SAFETY: pages of the arena whose contents are gone.
        let result = unsafe {
            syscall::call(
                libc::SYS_mmap,
                [
                    address,
                    pages.bytes(),
                    libc::PROT_NONE as usize,
                    flags,
                    usize::MAX,
                    0,
                ],
            )
        };
        if result < 0 {
            fatal!(
                "cannot reserve {} bytes at {address:#x} (error {}); next: raise vm.max_map_count, and let the program set no limit on its address space (RLIMIT_AS)",
                pages.bytes(),
                -result
            );
        }
        // SAFETY: advice; failure changes nothing.
        unsafe {
            syscall::call(
                libc::SYS_madvise,
                [
                    address,
                    pages.bytes(),
                    libc::MADV_NOHUGEPAGE as usize,
                    0,
                    0,
                    0,
                ],
            );
        }
    }

    /// Throws the contents of pages away: they read as zeroes from now on.
    pub fn discard(&self, pages: Pages, context: &mut Context) {
        let mut page = pages.first;
        let end = pages.first + pages.count;
        while page < end {
            let count = ((end - page) as usize).min(BATCH_PAGES);
            self.discard_batch(page, count, context);
            page += count as u32;
        }
    }

    fn discard_batch(&self, first: PageIndex, count: usize, context: &mut Context) {
        let scratch = context.scratch();
        let mut resident = 0;
        let mut claimed = 0;
        for page in first..first + count as u32 {
            let entry = loop {
                let entry = self.table.load(page);
                match entry.state() {
                    State::Unmapped | State::Untouched | State::Foreign => break None,
                    State::Busy => self.table.wait(page, entry),
                    _ if self.table.claim(page, entry) => break Some(entry),
                    _ => {}
                }
            };
            let Some(entry) = entry else { continue };
            match entry.state() {
                State::Clean | State::Unpacked | State::Guarded | State::Dirty => {
                    resident += 1;
                    self.free_copy(entry);
                }
                State::Compressed | State::Swapped => self.free_copy(entry),
                State::Victim => {
                    let slot = self.victims.slot(entry.payload());
                    if slot != NO_PAYLOAD {
                        self.free_slots(Slot(slot), 1);
                    }
                    self.victims.desert(entry.payload());
                }
                _ => {}
            }
            scratch.pages[claimed] = page;
            scratch.entries[claimed] = entry;
            claimed += 1;
        }
        if resident > 0 {
            self.drop_pages(
                self.table.address(0),
                &scratch.pages[..claimed],
                &mut scratch.vectors,
            );
        }
        for at in 0..claimed {
            let entry = scratch.entries[at]
                .with_state(State::Untouched)
                .with_payload(0)
                .with(Flag::PredictDirty, false)
                .with(Flag::Prefetched, false)
                .with(Flag::Stream, false);
            self.table.publish(scratch.pages[at], entry);
        }
        self.budget.give(resident);
        if claimed > 0 {
            self.policy.unmapped(first, count as u32);
            self.charge_tier();
        }
    }

    /// Changes the protection of managed pages. The caller has the places: two changes at once
    /// would both be promised, and the kernel might follow one and the words the other.
    pub fn protect(&self, pages: Pages, protection: i32) -> Result<(), Errno> {
        let accessible = protection != libc::PROT_NONE;
        let (mut more, mut less) = (0u64, 0u64);
        for page in pages.iter() {
            let entry = self.table.load(page);
            match entry.state() {
                State::Unmapped => return Err(libc::ENOMEM),
                State::Foreign => {}
                // Busy pages keep their flags.
                _ => match (entry.has(Flag::Accessible), accessible) {
                    (false, true) => more += 1,
                    // Contents stay: only what was never touched gives its promise back.
                    (true, false) if entry.state() == State::Untouched => less += 1,
                    _ => {}
                },
            }
        }
        if !self.promise(more) {
            return Err(libc::ENOMEM);
        }
        let result = if more > 0 {
            self.arm(pages, protection)
        } else {
            self.kernel_protect(pages, protection)
        };
        if let Err(errno) = result {
            self.budget.release(more);
            return Err(errno);
        }
        let mut released = 0;
        for page in pages.iter() {
            let entry = self.table.settled(page);
            if entry.state() == State::Foreign || protect_entry(entry, protection) == entry {
                continue;
            }
            let entry = self.table.seize(page);
            let keeps =
                !accessible && entry.has(Flag::Accessible) && entry.state() != State::Untouched;
            if !accessible && entry.has(Flag::Accessible) && !keeps {
                released += 1;
            }
            let next = protect_entry(entry, protection);
            let next = next.with(Flag::Accessible, accessible || keeps);
            self.table.publish(page, next);
        }
        self.charge_table();
        debug_assert!(released <= less + u64::from(pages.count));
        self.budget.release(released);
        Ok(())
    }

    /// Sets the kernel's protection and makes the pages fault to us.
    fn arm(&self, pages: Pages, protection: i32) -> Result<(), Errno> {
        self.kernel_protect(pages, protection)?;
        self.uffd
            .register(self.table.address(pages.first), pages.bytes())
    }

    /// What may be executed only may be read, too, as on a processor without protection keys, of
    /// which the kernel would take one: the pager reads pages that move or leave.
    fn kernel_protect(&self, pages: Pages, protection: i32) -> Result<(), Errno> {
        let protection = match protection {
            libc::PROT_EXEC => libc::PROT_EXEC | libc::PROT_READ,
            other => other,
        };
        // SAFETY: pages of the arena.
        let result = unsafe {
            syscall::call(
                libc::SYS_mprotect,
                [
                    self.table.address(pages.first),
                    pages.bytes(),
                    protection as usize,
                    0,
                    0,
                    0,
                ],
            )
        };
        if result < 0 {
            Err(-result as i32)
        } else {
            Ok(())
        }
    }

    /// Marks pages as somebody else's mapping (made over them by the caller).
    pub fn mark_foreign(&self, pages: Pages) {
        for page in pages.iter() {
            self.table.seize(page);
            self.table.publish(page, Entry::new(State::Foreign));
        }
        self.charge_table();
    }

    /// Whether every page of the range is a managed one.
    pub fn is_managed(&self, pages: Pages) -> bool {
        pages.iter().all(|page| {
            !matches!(
                self.table.load(page).state(),
                State::Unmapped | State::Foreign
            )
        })
    }

    /// Whether all pages of the range have the protection of the first.
    pub fn is_uniform(&self, pages: Pages) -> bool {
        let protection = self.protection_of(pages.first);
        pages
            .iter()
            .all(|page| self.protection_of(page) == protection)
    }

    /// The protection a page was given (what the pager knows of it).
    pub fn protection_of(&self, page: PageIndex) -> i32 {
        let entry = self.table.load(page);
        match (entry.has(Flag::Accessible), entry.has(Flag::Writable)) {
            (false, _) => libc::PROT_NONE,
            (true, false) => libc::PROT_READ,
            (true, true) => libc::PROT_READ | libc::PROT_WRITE,
        }
    }

    /// Locks pages into DRAM, or lets them go. False if too much would be locked.
    pub fn set_locked(&self, pages: Pages, on: bool) -> bool {
        use std::sync::atomic::Ordering;
        let most = self.budget.limit_pages() / 4;
        let count = i64::from(pages.count);
        if on && self.locked_pages.fetch_add(count, Ordering::Relaxed) + count > most {
            self.locked_pages.fetch_sub(count, Ordering::Relaxed);
            return false;
        }
        let mut changed = 0;
        for page in pages.iter() {
            let mut operation = self.enter();
            changed += i64::from(self.set_page_locked(page, on, &mut operation.context));
        }
        let less = if on { count - changed } else { changed };
        self.locked_pages.fetch_sub(less, Ordering::Relaxed);
        true
    }

    /// The same of one page, which may be written from then on without a fault: the kernel
    /// does not wait for one where it pushes the frame of a signal. Whether it was not so before.
    fn set_page_locked(&self, page: PageIndex, on: bool, context: &mut Context) -> bool {
        loop {
            let access = crate::fault::Access {
                write: self.table.load(page).has(Flag::Writable),
                pin: false,
                thread: 0,
            };
            if on && self.accessible(page) {
                self.resolve(page, access, context);
            }
            let entry = self.table.load(page);
            if entry.has(Flag::Locked) == on
                || matches!(entry.state(), State::Unmapped | State::Foreign)
            {
                return false;
            }
            if entry.state() == State::Busy {
                self.table.wait(page, entry);
                continue;
            }
            let is_ready = entry.is_resident() && !(access.write && entry.is_protected());
            if on && !is_ready && entry.has(Flag::Accessible) {
                continue;
            }
            let next = entry.with(Flag::Locked, on);
            if on {
                if self.table.change(page, entry, next) {
                    return true;
                }
                continue;
            }
            // Held over the change: whose stack it is about to be looks at the page afterwards.
            let stacks = self.stacks.lock();
            if stacks.meet(self.table.address(page), PAGE_BYTES) {
                return false;
            }
            let done = self.table.change(page, entry, next);
            drop(stacks);
            if done {
                // Who evicts does not tell the policy of locked pages again.
                if entry.is_resident() {
                    self.policy.returned(&[page]);
                }
                return true;
            }
        }
    }

    /// Locks an alternate signal stack into DRAM. False if too much would be locked.
    pub fn lock_stack(&self, start: usize, bytes: usize) -> bool {
        let Some(pages) = self.pages_in(start, bytes) else {
            return false;
        };
        let is_new = {
            let _operation = self.enter();
            let mut stacks = self.stacks.lock();
            stacks.add(start, bytes)
        };
        let locked = self.set_locked(pages, true);
        if !locked && is_new {
            let _operation = self.enter();
            self.stacks.lock().remove(start, bytes);
        }
        locked
    }

    /// It is nobody's stack any more.
    pub fn unlock_stack(&self, start: usize, bytes: usize) {
        if let Some(pages) = self.pages_in(start, bytes) {
            {
                let _operation = self.enter();
                self.stacks.lock().remove(start, bytes);
            }
            self.set_locked(pages, false);
        }
    }

    /// Whose a page is.
    pub fn ownership(&self, page: PageIndex) -> Ownership {
        // Before its word, which it has by the time that it is only reserved no more.
        let reserved = self.table.is_reserved(page);
        match self.table.load(page).state() {
            State::Unmapped if reserved => Ownership::Reserved,
            State::Unmapped => Ownership::Nobody,
            State::Foreign => Ownership::Kernel,
            _ => Ownership::Pager,
        }
    }

    /// Whether the program may touch the page.
    pub fn accessible(&self, page: PageIndex) -> bool {
        let entry = self.table.load(page);
        entry.has(Flag::Accessible) && entry.state() != State::Foreign
    }

    /// Moves the contents of `from` to `to`, freshly mapped pages of the same count.
    pub fn relocate(&self, from: Pages, to: Pages, context: &mut Context) {
        for step in 0..from.count {
            self.relocate_page(from.first + step, to.first + step, context);
        }
    }

    /// Claims a page of a fresh mapping. A thread that walks through the mapping below may
    /// have filled it ahead already.
    fn seize_untouched(&self, page: PageIndex, context: &mut Context) -> Entry {
        loop {
            let entry = self.table.seize(page);
            if entry.state() == State::Untouched {
                return entry;
            }
            self.table.publish(page, entry);
            let pages = Pages {
                first: page,
                count: 1,
            };
            self.discard(pages, context);
        }
    }

    fn relocate_page(&self, from: PageIndex, to: PageIndex, context: &mut Context) {
        loop {
            let entry = self.table.load(from);
            match entry.state() {
                State::Busy => {
                    self.table.wait(from, entry);
                    continue;
                }
                State::Unmapped | State::Foreign | State::Untouched => return,
                // It will be resident where it goes; frames come before claims.
                State::Compressed => self.take_frames(1, context),
                _ => {}
            }
            // The goal first: who empties the victim cache holds pages of it and waits for
            // the next, so nobody may hold one and wait; an untouched page is none of them.
            let target = self.seize_untouched(to, context);
            if !self.table.claim(from, entry) {
                self.table.publish(to, target);
                if entry.state() == State::Compressed {
                    self.budget.give(1);
                }
                continue;
            }
            let entry = entry.unguarded();
            let carried = target
                .with_state(entry.state())
                .with_payload(entry.payload())
                .with(Flag::PredictDirty, entry.has(Flag::PredictDirty))
                .with(Flag::Locked, entry.has(Flag::Locked));
            let (source, goal) = (self.table.address(from), self.table.address(to));
            let mut landed = carried;
            match entry.state() {
                State::Victim => self.victims.rename(entry.payload(), to),
                State::Compressed => {
                    let buffer = self.buffer(context, 1);
                    self.unpack(from, Handle(entry.payload()), buffer);
                    self.fill(to, buffer, 1, false);
                    landed = self.without_copy(carried);
                }
                State::Clean | State::Unpacked | State::Dirty => {
                    let moved = self.uffd.transplant(goal, source, 1).pages == 1;
                    // A moved page is writable, and an object belongs to one address.
                    if moved || entry.state() == State::Unpacked {
                        landed = self.without_copy(carried);
                    }
                    if !moved {
                        let buffer = self.buffer(context, 1);
                        if entry.state() == State::Dirty {
                            let _ = self.uffd.protect(source, 1, true);
                        }
                        self.copy_out(source, buffer);
                        self.fill(to, buffer, 1, landed.state() == State::Clean);
                        self.drop_memory(source, 1);
                    }
                }
                _ => {}
            }
            self.table.publish(to, landed);
            self.table.publish(
                from,
                entry
                    .with_state(State::Untouched)
                    .with_payload(0)
                    .with(Flag::Locked, false)
                    .without_pins(),
            );
            if landed.is_resident() {
                self.tell_arrived(&mut [Arrival {
                    page: to,
                    source: abi::FIRST_TOUCH,
                    flags: abi::WRITE,
                    ..Arrival::default()
                }]);
            }
            return;
        }
    }
}

/// Pages that a mapping of so many promises.
pub fn promised_by(pages: u32, protection: i32) -> u64 {
    if protection == libc::PROT_NONE {
        0
    } else {
        u64::from(pages)
    }
}

fn protect_entry(entry: Entry, protection: i32) -> Entry {
    entry
        .with(Flag::Accessible, protection != libc::PROT_NONE)
        .with(Flag::Writable, protection & libc::PROT_WRITE != 0)
}
