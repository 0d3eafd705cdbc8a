// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Advice to the kernel about many ranges at once (`process_madvise` of this process).

use crate::region::PAGE_BYTES;
use crate::syscall;

/// Gives advice about several ranges of this process, in turn. Bytes that it was followed for,
/// or `-errno`, as of all kernels that take it for other processes only (before 6.13) or want a
/// descriptor for it (before 6.15).
pub fn advise_many(ranges: &[libc::iovec], advice: libc::c_int) -> isize {
    /// `PIDFD_SELF_THREAD`: the number of the whole process was another one before 6.17, and is
    /// of no use once the first thread has ended.
    const THIS_THREAD: isize = -10_000;
    // SAFETY: what is done to the ranges is the caller's to answer for: they are the pager's.
    unsafe {
        syscall::call(
            libc::SYS_process_madvise,
            [
                THIS_THREAD as usize,
                ranges.as_ptr() as usize,
                ranges.len(),
                advice as usize,
                0,
                0,
            ],
        )
    }
}

/// Makes pages the program's own, as a write to each would.
pub fn makes_own(pages: &[libc::iovec]) -> bool {
    advise_many(pages, libc::MADV_POPULATE_WRITE) == (pages.len() * PAGE_BYTES) as isize
}
