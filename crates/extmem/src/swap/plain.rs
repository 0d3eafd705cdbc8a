// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transfers by `preadv` and `pwritev`: one page faults at no more cost than by
//! io_uring, it works where io_uring is refused, and it finishes what a ring left.

use std::os::fd::RawFd;

use super::backing::Backing;
use super::{Direction, SLOT_BYTES, SwapError, Transfer};
use crate::syscall;

/// Does the whole transfer or says which slot stopped it.
///
/// # Safety
/// The transfer's memory must be valid for its direction.
pub unsafe fn run(backing: &Backing, transfer: &Transfer) -> Result<(), SwapError> {
    let offset = transfer.byte_offset(backing.start_bytes);
    // SAFETY: the caller vouches for the memory.
    let moved = unsafe {
        vectored(
            backing.descriptor(),
            transfer.direction,
            transfer.memory,
            transfer.count,
            offset,
        )
    };
    // SAFETY: as above.
    unsafe { finish(backing, transfer, moved) }
}

/// Carries on where `moved` (bytes, or `-errno`) left a transfer.
///
/// # Safety
/// The transfer's memory must be valid for its direction.
pub unsafe fn finish(
    backing: &Backing,
    transfer: &Transfer,
    moved: isize,
) -> Result<(), SwapError> {
    let descriptor = backing.descriptor();
    let total = transfer.total_bytes();
    if moved == total as isize {
        return Ok(());
    }
    // What is transient is tried again below, from the first byte or where it stopped.
    let again = [libc::EAGAIN, libc::EINTR].map(|errno| -(errno as isize));
    if moved < 0 && !again.contains(&moved) {
        return Err(transfer.failed(backing, 0, -moved as i32));
    }
    let mut done = moved.max(0) as u64 / SLOT_BYTES as u64 * SLOT_BYTES as u64;
    let mut begins = 0u64;
    for index in 0..transfer.count as usize {
        // SAFETY: `memory` has `count` entries.
        let piece = unsafe { *transfer.memory.add(index) };
        let ends = begins + piece.iov_len as u64;
        while done < ends {
            let inside = (done - begins) as usize;
            let rest = libc::iovec {
                // SAFETY: inside the piece.
                iov_base: unsafe { piece.iov_base.cast::<u8>().add(inside) }.cast(),
                iov_len: piece.iov_len - inside,
            };
            let offset = transfer.byte_offset(backing.start_bytes) + done;
            // SAFETY: `rest` lies in the caller's memory.
            let now =
                unsafe { vectored(descriptor, transfer.direction, &raw const rest, 1, offset) };
            if again.contains(&now) {
                continue;
            }
            if now < 0 {
                return Err(transfer.failed(backing, done, -now as i32));
            }
            if (now as usize) < SLOT_BYTES.min(rest.iov_len) {
                return Err(transfer.short(backing, done, now as u32));
            }
            done += now as u64 / SLOT_BYTES as u64 * SLOT_BYTES as u64;
        }
        begins = ends;
    }
    Ok(())
}

/// `preadv` or `pwritev`: bytes or `-errno`.
unsafe fn vectored(
    descriptor: RawFd,
    direction: Direction,
    memory: *const libc::iovec,
    count: u32,
    offset: u64,
) -> isize {
    let number = match (direction, count) {
        (Direction::Read, 1) => libc::SYS_pread64,
        (Direction::Write, 1) => libc::SYS_pwrite64,
        (Direction::Read, _) => libc::SYS_preadv,
        (Direction::Write, _) => libc::SYS_pwritev,
    };
    let (first, second) = if count == 1 {
        // SAFETY: there is one entry.
        let only = unsafe { *memory };
        (only.iov_base as usize, only.iov_len)
    } else {
        (memory as usize, count as usize)
    };
    // SAFETY: the caller vouches for the memory. The last argument is the high half of
    // the offset where registers are narrow, else ignored.
    unsafe {
        syscall::call(
            number,
            [descriptor as usize, first, second, offset as usize, 0, 0],
        )
    }
}
