// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The place of a page in DRAM, as the kernel has it: filled, protected, read, freed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::advice::advise_many;
use crate::context::BATCH_PAGES;
use crate::fatal;
use crate::futex::yield_now;
use crate::page::PageIndex;
use crate::pager::Pager;
use crate::region::PAGE_BYTES;
use crate::syscall;
use crate::uffd::Moved;

impl Pager {
    /// Fills claimed pages with copies.
    pub fn fill(&self, page: PageIndex, contents: *const u8, pages: usize, protect: bool) {
        self.fill_at(self.table.address(page), contents, pages, protect);
    }

    /// Fills missing pages at an address with copies.
    pub fn fill_at(&self, address: usize, contents: *const u8, pages: usize, protect: bool) {
        debug_assert!(pages <= BATCH_PAGES);
        if let Err(stopped) = self.uffd.copy(address, contents, pages, protect) {
            self.copy_failed(address, contents, pages, protect, stopped);
        }
    }

    #[cold]
    fn copy_failed(
        &self,
        address: usize,
        contents: *const u8,
        pages: usize,
        protect: bool,
        stopped: Moved,
    ) {
        match stopped.errno {
            // The pages lie in more than one kernel mapping. Those that were filled before the
            // kernel met its end are there.
            libc::ENOENT if pages > 1 => {
                for page in stopped.pages..pages {
                    // SAFETY: inside the contents, which have as many pages.
                    let part = unsafe { contents.add(page * PAGE_BYTES) };
                    let to = address + page * PAGE_BYTES;
                    if let Err(stopped) = self.uffd.copy(to, part, 1, protect) {
                        self.copy_failed(to, part, 1, protect, stopped);
                    }
                }
            }
            libc::ENOMEM => fatal!(
                "the kernel has no memory for page {address:#x}; next: lower --dram or free memory"
            ),
            // The process is ending around us.
            libc::ESRCH => loop {
                yield_now();
            },
            errno => fatal!(
                "cannot map {pages} pages at {address:#x} (error {errno}); next: report this with the program's name"
            ),
        }
    }

    /// Lets the program write to claimed pages.
    pub fn unprotect(&self, first: PageIndex, pages: usize) {
        let address = self.table.address(first);
        if let Err(errno) = self.uffd.protect(address, pages, false) {
            fatal!(
                "cannot make {pages} pages at {address:#x} writable (error {errno}); next: report this"
            );
        }
    }

    /// Copies a page that the program may have made unreadable.
    pub fn copy_out(&self, address: usize, into: *mut u8) {
        let file = self.memory_file.load(Ordering::Relaxed);
        let read = if file >= 0 {
            // SAFETY: reads a page of ours through the kernel into a page of a buffer.
            unsafe {
                syscall::call(
                    libc::SYS_pread64,
                    [file as usize, into as usize, PAGE_BYTES, address, 0, 0],
                )
            }
        } else {
            // Does the same for what the program may read.
            crate::together::read_own(address, into)
        };
        if read != PAGE_BYTES as isize {
            fatal!(
                "cannot read page {address:#x} (result {read}); next: mount /proc, and let the process open its /proc/self/mem"
            );
        }
    }

    /// Frees the memory of pages, counted from `base` and ascending, in one call if the kernel
    /// can: its price is the flush of the TLB on all processors. Not of those in between:
    /// another thread may be filling one.
    pub fn drop_pages(&self, base: usize, pages: &[u32], vectors: &mut [libc::iovec]) {
        let mut runs = 0;
        for run in pages.chunk_by(|page, next| page + 1 == *next) {
            vectors[runs] = libc::iovec {
                iov_base: (base + run[0] as usize * PAGE_BYTES) as *mut _,
                iov_len: run.len() * PAGE_BYTES,
            };
            runs += 1;
        }
        let mut left = &vectors[..runs];
        if runs > 1 {
            left = &left[drop_many(left)..];
        }
        for run in left {
            self.drop_memory(run.iov_base as usize, run.iov_len / PAGE_BYTES);
        }
    }

    /// Frees the memory behind present pages.
    pub fn drop_memory(&self, address: usize, pages: usize) {
        // SAFETY: the contents are written out or not wanted.
        let result = unsafe {
            syscall::call(
                libc::SYS_madvise,
                [
                    address,
                    pages * PAGE_BYTES,
                    libc::MADV_DONTNEED as usize,
                    0,
                    0,
                    0,
                ],
            )
        };
        if result < 0 {
            fatal!(
                "cannot free {pages} pages at {address:#x} (error {}); next: report this",
                -result
            );
        }
    }
}

/// Frees the memory of several ranges of this process. Returns how many were done: all or none.
fn drop_many(ranges: &[libc::iovec]) -> usize {
    static REFUSED: AtomicBool = AtomicBool::new(false);
    if REFUSED.load(Ordering::Relaxed) {
        return 0;
    }
    // The contents are written out or not wanted.
    let done = advise_many(ranges, libc::MADV_DONTNEED);
    let wanted: usize = ranges.iter().map(|range| range.iov_len).sum();
    if done == wanted as isize {
        return ranges.len();
    }
    if done < 0 {
        REFUSED.store(true, Ordering::Relaxed);
    }
    // Freeing twice what is claimed changes nothing.
    0
}
