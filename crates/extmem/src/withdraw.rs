// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty pages leave with one flush of the TLBs, wherever they lie.
//!
//! A page may be copied only once nobody can write it. To protect it, or to move it away,
//! flushes the TLBs of all processors that run the program, for each page: an interrupt,
//! which costs more than all the rest. So pages are not protected. A pipe takes hold of them
//! (`vmsplice`), the kernel unmaps them all by one call, and then they are read from the pipe:
//! with all that the program wrote until they went.
//!
//! A page that the program has in common with another process is given its own copy by its
//! next write; the pipe would not have that one. So each page is made the program's own
//! first (`MADV_POPULATE_WRITE`), and none is held where the kernel looks for equal pages to
//! share (`PR_SET_MEMORY_MERGE`; what is advised page by page never comes to the kernel).

use std::ops::Range;

use crate::advice::makes_own;
use crate::context::{BATCH_PAGES, Context};
use crate::fatal;
use crate::lock::Guard;
use crate::page::{Flag, State};
use crate::pager::Pager;
use crate::pipes::{Pipe, page_at};
use crate::region::PAGE_BYTES;
use crate::syscall;
use crate::together::Marks;

/// Pages that a pipe holds, and that are still in their places. [`Pager::read_held`] must follow,
/// once they are gone from there: whoever has the pipe next would read them.
pub struct Held<'a> {
    pipe: Guard<'a, Pipe>,
    /// Which positions of the batch.
    pub marks: Marks,
    count: usize,
}

impl Pager {
    /// Takes hold of those claimed pages at the positions of scratch whose contents are wanted,
    /// dirty or guarded, as far as the program may write them. None if that cannot be done with
    /// all of them, and nothing is held then.
    pub fn hold(&self, positions: Range<usize>, context: &mut Context) -> Option<Held<'_>> {
        if !self.pipes.are_usable() {
            return None;
        }
        let scratch = context.scratch();
        let mut marks = Marks::default();
        let mut marked = 0;
        // Guarded pages cannot be written, so nobody can get another copy.
        let mut dirty = 0;
        for at in positions.clone() {
            let entry = scratch.entries[at];
            let is_dirty = entry.state() == State::Dirty;
            if entry.has(Flag::Writable) && (is_dirty || entry.state() == State::Guarded) {
                marks.set(at);
                marked += 1;
                if is_dirty {
                    scratch.vectors[dirty] = page_at(self.table.address(scratch.pages[at]));
                    dirty += 1;
                }
            }
        }
        if marked == 0 || !self.is_this_process() {
            return None;
        }
        let pipe = self.pipes.take()?;
        if marked > pipe.pages {
            return None;
        }
        if dirty > 0 && !makes_own(&scratch.vectors[..dirty]) {
            return None;
        }
        for (to, at) in positions.filter(|&at| marks.has(at)).enumerate() {
            scratch.vectors[to] = page_at(self.table.address(scratch.pages[at]));
        }
        let held = pipe.hold(&scratch.vectors[..marked]).max(0) as usize;
        if held == 0 {
            return None;
        }
        let held = Held {
            pipe,
            marks,
            count: held.div_ceil(PAGE_BYTES),
        };
        // The kernel may have made one page of two that were equal; not while a pipe holds them.
        let shares = kernel_shares_pages();
        if shares {
            self.pipes.rest();
        }
        // Or the program one that cannot be read.
        if shares || held.count < marked {
            let buffer = self.buffer(context, held.count);
            held.forget(buffer, &mut context.scratch().vectors);
            return None;
        }
        Some(held)
    }

    /// Reads pages that were held, and are gone from their places, into the context's buffer,
    /// each to its position there.
    pub fn read_held(&self, held: &Held<'_>, context: &mut Context) {
        let Some(last) = (0..BATCH_PAGES).rev().find(|&at| held.marks.has(at)) else {
            return;
        };
        let buffer = self.buffer(context, last + 1);
        let vectors = &mut context.scratch().vectors;
        let marked = (0..=last).filter(|&at| held.marks.has(at));
        for (to, at) in marked.enumerate() {
            vectors[to] = page_at(buffer as usize + at * PAGE_BYTES);
        }
        held.read_into(&vectors[..held.count]);
    }
}

impl Held<'_> {
    /// Empties the pipe, by way of memory for so many pages.
    fn forget(&self, buffer: *mut u8, vectors: &mut [libc::iovec]) {
        for (at, vector) in vectors[..self.count].iter_mut().enumerate() {
            *vector = page_at(buffer as usize + at * PAGE_BYTES);
        }
        self.read_into(&vectors[..self.count]);
    }

    fn read_into(&self, vectors: &[libc::iovec]) {
        // SAFETY: pages of a context's buffer.
        let read = unsafe { self.pipe.read(vectors) };
        if read != (self.count * PAGE_BYTES) as isize {
            fatal!(
                "{} pages cannot be read from the pipe that holds them (result {read}); next: report this",
                self.count
            );
        }
    }
}

/// Whether the kernel may look for equal pages of this process, to make one of them.
fn kernel_shares_pages() -> bool {
    const PR_GET_MEMORY_MERGE: usize = 68;
    // SAFETY: no pointers.
    let shares = unsafe { syscall::call(libc::SYS_prctl, [PR_GET_MEMORY_MERGE, 0, 0, 0, 0, 0]) };
    // Kernels that do not know it do not share; others that do not say may.
    shares != 0 && shares != -(libc::EINVAL as isize)
}
