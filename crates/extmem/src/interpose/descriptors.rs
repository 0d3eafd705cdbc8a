// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Closing: the pager's descriptors look as if they did not exist.

use libc::c_long;

use crate::descriptor;
use crate::syscall;

/// close, dup2, dup3 onto a descriptor of the block.
pub fn touch(number: c_long, arguments: [usize; 6]) -> isize {
    let fd = match number {
        libc::SYS_close => arguments[0],
        _ => arguments[1],
    };
    if descriptor::is_kept(fd as i32) {
        return -(libc::EBADF as isize);
    }
    // SAFETY: the program's own call.
    unsafe { syscall::call(number, arguments) }
}

/// close_range, around the kept descriptors.
pub fn close_range(arguments: [usize; 6]) -> isize {
    let [first, last, flags, ..] = arguments;
    let (first, last) = (first as u32, last as u32);
    const UNSHARE: usize = 2;
    const CLOEXEC: usize = 4;
    if first > last {
        return -(libc::EINVAL as isize);
    }
    // Ours are close-on-exec already but for those handed on; an unshared table has them too.
    if flags & CLOEXEC != 0 {
        // SAFETY: the program's own call.
        let result = unsafe { syscall::call(libc::SYS_close_range, arguments) };
        descriptor::hand_on();
        return result;
    }
    if flags & UNSHARE != 0 {
        // SAFETY: no pointers.
        let result = unsafe {
            syscall::call(
                libc::SYS_unshare,
                [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0],
            )
        };
        if result < 0 {
            return result;
        }
    }
    let close = |from: u32, to: u32| {
        if from > to {
            return 0;
        }
        // SAFETY: no pointers.
        unsafe {
            syscall::call(
                libc::SYS_close_range,
                [from as usize, to as usize, 0, 0, 0, 0],
            )
        }
    };
    let block = descriptor::block();
    let (start, end) = (block.start as u32, block.end as u32);
    if last < start || first >= end {
        return close(first, last);
    }
    if first < start {
        close(first, start - 1);
    }
    for fd in first.max(start)..=last.min(end - 1) {
        if !descriptor::is_kept(fd as i32) {
            // SAFETY: a descriptor the program wants closed.
            unsafe { syscall::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
        }
    }
    if last >= end {
        close(end, last);
    }
    0
}
