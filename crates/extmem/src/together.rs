// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty pages of one block leave together, where no pipe can hold them (`withdraw.rs`).
//!
//! A dirty page may be copied only while nobody can write it. To protect it by itself, or
//! to move it away, costs a flush of the TLBs of all processors that run the program: an
//! interrupt each. A block is protected by one call, whatever lies between the pages that
//! leave, and what stays of it becomes writable again by another one. For as long as that
//! takes all pages of the block are claimed, so that nobody meets a page that is protected
//! though its word says that it can be written.

use demeter_extmem_policy::BLOCK_PAGES;

use crate::context::{BATCH_PAGES, Context, Scratch};
use crate::page::{Entry, Flag, PageIndex, State};
use crate::pager::Pager;
use crate::region::PAGE_BYTES;
use crate::syscall;

/// Runs of dirty pages that must leave a block at a time to be worth it. What lies side by
/// side is moved by one call, and not copied.
const LEAST_RUNS: usize = 4;
/// Pages between those that leave, of all blocks of a batch.
const MOST_BETWEEN: usize = 512;
/// Blocks of a batch: each has some that leave.
const MOST_BLOCKS: usize = BATCH_PAGES / LEAST_RUNS;

/// A block's pages from the first that leaves to the last, and which of those between.
#[derive(Clone, Copy, Default)]
struct Block {
    first: PageIndex,
    end: PageIndex,
    between: usize,
    between_end: usize,
}

/// Blocks of a batch that are protected.
struct Blocks {
    between: [(PageIndex, Entry); MOST_BETWEEN],
    blocks: [Block; MOST_BLOCKS],
    count: usize,
}

/// A set of positions in a batch.
#[derive(Clone, Copy, Default)]
pub struct Marks([u64; BATCH_PAGES / 64]);

impl Marks {
    /// Puts a position into the set.
    pub fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    /// Whether a position is in the set.
    pub fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }
}

fn block_of(page: PageIndex) -> PageIndex {
    page / BLOCK_PAGES
}

/// Whether a page may be protected for a moment. Not one that is locked: the kernel pushes the
/// frames of signals on it at any time (an alternate stack), and would end the program.
fn joins(entry: Entry) -> bool {
    !entry.has(Flag::Locked)
        && entry.has(Flag::Accessible)
        && entry.has(Flag::Writable)
        && entry.pins() == 0
        && !matches!(
            entry.state(),
            State::Busy | State::Unmapped | State::Foreign
        )
}

fn dirty_runs(scratch: &Scratch, range: std::ops::Range<usize>) -> usize {
    let is_dirty =
        |at: &usize| scratch.entries[*at].state() == State::Dirty && joins(scratch.entries[*at]);
    let starts_run = |at: &usize| {
        *at == range.start
            || !is_dirty(&(at - 1))
            || scratch.pages[at - 1] + 1 != scratch.pages[*at]
    };
    (range.clone().filter(is_dirty).filter(starts_run)).count()
}

/// Calls `found` with the range of each block with enough runs of dirty pages among the
/// first `count`, which are sorted.
fn each_block(scratch: &Scratch, count: usize, mut found: impl FnMut(std::ops::Range<usize>)) {
    let mut at = 0;
    while at < count {
        let block = block_of(scratch.pages[at]);
        let is_other = |&next: &usize| block_of(scratch.pages[next]) != block;
        let end = (at..count).find(is_other).unwrap_or(count);
        if dirty_runs(scratch, at..end) >= LEAST_RUNS {
            found(at..end);
        }
        at = end;
    }
}

/// Dirty pages among the first `count` that lie close enough together.
pub fn dirty_in_blocks(scratch: &Scratch, count: usize) -> Marks {
    let mut marks = Marks::default();
    each_block(scratch, count, |range| {
        for at in range {
            if scratch.entries[at].state() == State::Dirty {
                marks.set(at);
            }
        }
    });
    marks
}

impl Blocks {
    fn new() -> Self {
        Self {
            between: [(0, Entry::new(State::Untouched)); MOST_BETWEEN],
            blocks: [Block::default(); MOST_BLOCKS],
            count: 0,
        }
    }

    /// Pages between those that leave, of all blocks so far.
    fn between_count(&self) -> usize {
        let last = self.blocks[..self.count].last();
        last.map_or(0, |block| block.between_end)
    }
}

impl Pager {
    /// Copies dirty pages among the first `count` claimed ones of scratch into the context's
    /// buffer, each to its position there, and frees all of them. Not inlined: its tables are
    /// large, and the stack may be a thread's of the program.
    #[inline(never)]
    pub fn take_protected(&self, count: usize, context: &mut Context) {
        let mut blocks = Blocks::new();
        let marks = self.protect_blocks(context.scratch(), count, &mut blocks);
        self.copy_marked(&marks, count, context);
        self.copy_rest(&marks, count, context);
        let scratch = context.scratch();
        let arena = self.table.address(0);
        self.drop_pages(arena, &scratch.pages[..count], &mut scratch.vectors);
        self.release_blocks(&blocks);
    }

    /// Protects blocks with enough runs of dirty pages among the first `count` claimed ones of
    /// scratch. Which of those are protected. [`Self::release_blocks`] follows, when they
    /// are not mapped any more.
    fn protect_blocks(&self, scratch: &Scratch, count: usize, blocks: &mut Blocks) -> Marks {
        let mut marks = Marks::default();
        each_block(scratch, count, |range| {
            let Some(block) = self.claim_block(scratch, range.clone(), blocks) else {
                return;
            };
            let (start, pages) = (self.table.address(block.first), block.end - block.first);
            if self.uffd.protect(start, pages as usize, true).is_err() {
                // More than one kernel mapping, on an old kernel. Some may be protected now.
                let leaving = range.map(|at| (scratch.pages[at], scratch.entries[at]));
                let between = &blocks.between[block.between..block.between_end];
                for (page, entry) in leaving.chain(between.iter().copied()) {
                    if entry.state() == State::Dirty {
                        let _ = self.uffd.protect(self.table.address(page), 1, false);
                    }
                }
                self.give_back(block, blocks);
                return;
            }
            blocks.blocks[blocks.count] = block;
            blocks.count += 1;
            for at in range {
                if scratch.pages[at] < block.end && scratch.entries[at].state() == State::Dirty {
                    marks.set(at);
                }
            }
        });
        marks
    }

    /// Claims what lies between the pages of a range that leave. None when something in
    /// the way must not be touched.
    fn claim_block(
        &self,
        scratch: &Scratch,
        range: std::ops::Range<usize>,
        blocks: &mut Blocks,
    ) -> Option<Block> {
        let first = scratch.pages[range.start];
        let between = blocks.between_count();
        let mut claimed = between;
        let mut block = Block {
            first,
            end: first,
            between,
            between_end: between,
        };
        let mut next = range.start;
        for page in first..=scratch.pages[range.end - 1] {
            if scratch.pages[next] == page {
                if !scratch.entries[next].has(Flag::Writable) {
                    break;
                }
                if scratch.entries[next].state() == State::Dirty {
                    block.end = page + 1;
                    block.between_end = claimed;
                }
                next += 1;
                continue;
            }
            let entry = self.table.load(page);
            if claimed == MOST_BETWEEN || !joins(entry) || !self.table.claim(page, entry) {
                break;
            }
            blocks.between[claimed] = (page, entry);
            claimed += 1;
        }
        let protected = range.start..next;
        let is_worth_it =
            dirty_runs(scratch, protected) >= LEAST_RUNS && blocks.count < MOST_BLOCKS;
        if !is_worth_it {
            block.between_end = between;
        }
        for &(page, entry) in &blocks.between[block.between_end..claimed] {
            self.table.publish(page, entry);
        }
        is_worth_it.then_some(block)
    }

    /// Lets the program write again what stays of the blocks, and ends the claims.
    fn release_blocks(&self, blocks: &Blocks) {
        for &block in &blocks.blocks[..blocks.count] {
            let between = &blocks.between[block.between..block.between_end];
            // What is protected by its word stays so; of those that left nothing is there.
            for run in between.split(|(_, entry)| entry.is_protected()) {
                let mut dirty = run
                    .iter()
                    .filter(|(_, entry)| entry.state() == State::Dirty)
                    .map(|&(page, _)| page);
                if let Some(first) = dirty.next() {
                    let last = dirty.next_back().unwrap_or(first);
                    self.unprotect(first, (last - first) as usize + 1);
                }
            }
            self.give_back(block, blocks);
        }
    }

    fn give_back(&self, block: Block, blocks: &Blocks) {
        for &(page, entry) in &blocks.between[block.between..block.between_end] {
            self.table.publish(page, entry);
        }
    }

    /// Copies protected pages among the first `count` of scratch into the context's buffer,
    /// each to its position there.
    fn copy_marked(&self, marks: &Marks, count: usize, context: &mut Context) {
        let Some(last) = (0..count).rev().find(|&at| marks.has(at)) else {
            return;
        };
        let buffer = self.buffer(context, last + 1);
        let scratch = context.scratch();
        let mut pieces = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: PAGE_BYTES,
        }; BATCH_PAGES];
        let mut marked = 0;
        for at in (0..=last).filter(|&at| marks.has(at)) {
            scratch.vectors[marked] = libc::iovec {
                iov_base: self.table.address(scratch.pages[at]) as *mut _,
                iov_len: PAGE_BYTES,
            };
            // SAFETY: the buffer has as many pages as the scratch arrays.
            pieces[marked].iov_base = unsafe { buffer.add(at * PAGE_BYTES) }.cast();
            marked += 1;
        }
        // SAFETY: pages of the buffer.
        let copied = unsafe { syscall::read_own(&scratch.vectors[..marked], &pieces[..marked]) };
        // The program may have made one unreadable, and a container may refuse the call.
        let done = copied.max(0) as usize / PAGE_BYTES;
        for (from, to) in scratch.vectors[..marked].iter().zip(&pieces).skip(done) {
            self.copy_out(from.iov_base as usize, to.iov_base.cast());
        }
    }
}

/// Reads a page of this process through the kernel; bytes, or `-errno`.
pub fn read_own(address: usize, into: *mut u8) -> isize {
    let piece = |base: *mut u8| libc::iovec {
        iov_base: base.cast(),
        iov_len: PAGE_BYTES,
    };
    let (to, from) = (piece(into), piece(address as *mut u8));
    // SAFETY: the caller's page.
    unsafe { syscall::read_own(&[from], &[to]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_page_is_not_protected_with_its_neighbours() {
        let dirty = Entry::FRESH.with_state(State::Dirty);
        assert!(joins(dirty) && joins(Entry::FRESH));
        assert!(!joins(dirty.with(Flag::Locked, true)) && !joins(dirty.pinned()));
    }
}
