// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pager's file descriptors, out of the program's way.
//!
//! Programs close what they did not open (`closefrom`, `close_range`, loops), and
//! count on low numbers. So the pager's descriptors go to the top of the table, one
//! contiguous block, and the block refuses to be closed.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::futex::yield_now;
use crate::syscall;

use demeter_extmem_tree::DESCRIPTORS as BLOCK;

static LOWEST: AtomicI32 = AtomicI32::new(0);
/// Which numbers of the block are in use.
static KEPT: AtomicU64 = AtomicU64::new(0);
/// Which of these the next program image inherits.
static HANDED_ON: AtomicU64 = AtomicU64::new(0);
/// Those that are to be inherited by a number outside of the block, where nobody keeps the program
/// from closing them, and the copy of each in the block. Of 0 there is none.
static BESIDE: [[AtomicI32; 2]; 16] = [const { [const { AtomicI32::new(0) }; 2] }; 16];
/// The limit on numbers is raised for a moment.
static RAISED: AtomicBool = AtomicBool::new(false);
/// The folder /proc, for processes that see another or none; -1 without.
static PROC: AtomicI32 = AtomicI32::new(-1);

/// First descriptor of the block: below the soft limit when this was first called.
pub fn lowest() -> RawFd {
    let known = LOWEST.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills one rlimit.
    let got = unsafe {
        syscall::call(
            libc::SYS_prlimit64,
            [
                0,
                libc::RLIMIT_NOFILE as usize,
                0,
                &raw mut limit as usize,
                0,
                0,
            ],
        )
    };
    let soft = if got < 0 { 1024 } else { limit.rlim_cur };
    let lowest = demeter_extmem_tree::lowest_descriptor(soft);
    LOWEST.store(lowest, Ordering::Relaxed);
    lowest
}

/// The identity of what is not open.
const CLOSED: [u64; 2] = [0; 2];

/// Device and inode of what is open; of a block device its own numbers.
pub fn identity(fd: RawFd) -> [u64; 2] {
    // SAFETY: zero is a stat.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fills it.
    unsafe {
        syscall::call(
            libc::SYS_fstat,
            [fd as usize, &raw mut about as usize, 0, 0, 0, 0],
        )
    };
    match about.st_mode & libc::S_IFMT {
        libc::S_IFBLK => [about.st_rdev, 0],
        _ => [about.st_dev, about.st_ino],
    }
}

/// The numbers the program may not close.
pub fn block() -> std::ops::Range<RawFd> {
    lowest()..lowest() + BLOCK
}

/// Moves a descriptor into the block, close-on-exec. When the block is full it
/// stays where it is.
pub fn keep(fd: RawFd) -> RawFd {
    // SAFETY: plain descriptors.
    let moved = unsafe {
        syscall::call(
            libc::SYS_fcntl,
            [
                fd as usize,
                libc::F_DUPFD_CLOEXEC as usize,
                lowest() as usize,
                0,
                0,
                0,
            ],
        )
    };
    if moved < 0 {
        return fd;
    }
    // SAFETY: the old number, which nobody else has.
    unsafe { syscall::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
    let moved = moved as RawFd;
    if block().contains(&moved) {
        KEPT.fetch_or(1 << (moved - lowest()), Ordering::Relaxed);
    }
    moved
}

/// Closes a descriptor that was kept.
pub fn dispose(fd: RawFd) {
    if block().contains(&fd) {
        KEPT.fetch_and(!(1 << (fd - lowest())), Ordering::Relaxed);
    }
    // SAFETY: the pager's own.
    unsafe { syscall::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Protects a descriptor that is in the block already.
pub fn adopt(fd: RawFd) {
    if block().contains(&fd) {
        KEPT.fetch_or(1 << (fd - lowest()), Ordering::Relaxed);
    }
}

/// Whether the program must leave this number alone.
pub fn is_kept(fd: RawFd) -> bool {
    block().contains(&fd) && KEPT.load(Ordering::Relaxed) & 1 << (fd - lowest()) != 0
}

/// Takes a descriptor that was handed on over an exec, and that the next image is to have
/// as well. Returns the one to use: where the limit on numbers has changed meanwhile, a copy
/// in the block, for the number itself cannot be protected.
pub fn inherit(fd: RawFd) -> RawFd {
    if block().contains(&fd) {
        KEPT.fetch_or(1 << (fd - lowest()), Ordering::Relaxed);
        HANDED_ON.fetch_or(1 << (fd - lowest()), Ordering::Relaxed);
        return fd;
    }
    // SAFETY: plain descriptors.
    let copy = unsafe { syscall::call(libc::SYS_dup, [fd as usize, 0, 0, 0, 0, 0]) };
    if copy < 0 {
        return fd;
    }
    let copy = keep(copy as RawFd);
    let place =
        (BESIDE.iter()).find(|[number, _]| [0, fd].contains(&number.load(Ordering::Relaxed)));
    if let Some([number, held]) = place {
        number.store(fd, Ordering::Relaxed);
        held.store(copy, Ordering::Relaxed);
    }
    copy
}

/// In the child of a fork, where nobody is at it.
pub fn after_fork_in_child() {
    RAISED.store(false, Ordering::Relaxed);
}

/// Before an exec: what is handed on stays open over it, whatever somebody made of that.
pub fn hand_on() {
    let mut bits = HANDED_ON.load(Ordering::Relaxed);
    while bits != 0 {
        let fd = lowest() + bits.trailing_zeros() as RawFd;
        bits &= bits - 1;
        outlives_exec(fd);
    }
    for [number, copy] in &BESIDE {
        let (number, copy) = (number.load(Ordering::Relaxed), copy.load(Ordering::Relaxed));
        if number == 0 {
            continue;
        }
        match identity(number) {
            // The program's own, if it is there, stays.
            CLOSED => _ = place(copy, number, 0),
            there if there == identity(copy) => outlives_exec(number),
            _ => {}
        }
    }
}

fn outlives_exec(fd: RawFd) {
    // SAFETY: plain descriptors.
    unsafe {
        syscall::call(
            libc::SYS_fcntl,
            [fd as usize, libc::F_SETFD as usize, 0, 0, 0, 0],
        );
    }
}

/// Keeps /proc within reach, whatever root directory the program will have.
pub fn keep_proc() {
    // SAFETY: a constant path.
    let folder = unsafe {
        syscall::call(
            libc::SYS_openat,
            [
                libc::AT_FDCWD as usize,
                c"/proc".as_ptr() as usize,
                (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize,
                0,
                0,
                0,
            ],
        )
    };
    if folder >= 0 {
        PROC.store(keep(folder as RawFd), Ordering::Relaxed);
    }
}

/// Opens a file of /proc; `name` is a path below it, with a zero byte at its end. `-errno`
/// on failure.
pub fn open_in_proc(name: &[u8], flags: libc::c_int) -> isize {
    debug_assert!(name.last() == Some(&0));
    if PROC.load(Ordering::Relaxed) < 0 {
        keep_proc();
    }
    let folder = PROC.load(Ordering::Relaxed);
    if folder < 0 {
        return -(libc::ENOENT as isize);
    }
    // SAFETY: a path that ends.
    unsafe {
        syscall::call(
            libc::SYS_openat,
            [
                folder as usize,
                name.as_ptr() as usize,
                (flags | libc::O_CLOEXEC) as usize,
                0,
                0,
                0,
            ],
        )
    }
}

/// What a file of /proc holds, as far as there is room; empty where it cannot be read.
pub fn read_in_proc<'a>(name: &[u8], room: &'a mut [u8]) -> &'a [u8] {
    let Ok(file) = RawFd::try_from(open_in_proc(name, libc::O_RDONLY)) else {
        return &[];
    };
    if file < 0 {
        return &[];
    }
    // SAFETY: bytes of that room, and a descriptor opened above.
    let length = unsafe {
        let into = room.as_mut_ptr() as usize;
        let length = syscall::call(libc::SYS_read, [file as usize, into, room.len(), 0, 0, 0]);
        syscall::call(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]);
        length
    };
    &room[..usize::try_from(length).unwrap_or(0)]
}

/// The file behind a descriptor once more, with a description of its own.
pub fn open_again(fd: RawFd) -> Option<RawFd> {
    RawFd::try_from(open_in_proc(&name_in_proc(fd)?, libc::O_RDWR))
        .ok()
        .filter(|&opened| opened >= 0)
}

/// The path of the file behind a descriptor, as far as there is room; empty where /proc does
/// not say it.
pub fn path(fd: RawFd, room: &mut [u8]) -> &[u8] {
    // Opened by its own name, without following what it leads to.
    let link = name_in_proc(fd).map_or(-1, |name| {
        open_in_proc(&name, libc::O_PATH | libc::O_NOFOLLOW)
    });
    if link < 0 {
        return &[];
    }
    // SAFETY: a path that ends, empty for the link itself, and memory of that length.
    let length = unsafe {
        syscall::call(
            libc::SYS_readlinkat,
            [
                link as usize,
                c"".as_ptr() as usize,
                room.as_mut_ptr() as usize,
                room.len(),
                0,
                0,
            ],
        )
    };
    // SAFETY: opened above.
    unsafe { syscall::call(libc::SYS_close, [link as usize, 0, 0, 0, 0, 0]) };
    usize::try_from(length)
        .ok()
        .and_then(|length| room.get(..length))
        .unwrap_or(&[])
}

/// Where /proc has a descriptor of this process, with zero bytes at the end.
fn name_in_proc(fd: RawFd) -> Option<[u8; 20]> {
    const BEFORE: &[u8] = b"self/fd/";
    let mut name = [0u8; 20];
    name[..BEFORE.len()].copy_from_slice(BEFORE);
    let mut rest = u32::try_from(fd).ok()?;
    let mut digits = [0u8; 10];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let number = &digits[first..];
    name[BEFORE.len()..][..number.len()].copy_from_slice(number);
    Some(name)
}

/// Makes a copy of `fd` by a number that is known; `-errno` on failure.
fn place(fd: RawFd, number: RawFd, flags: libc::c_int) -> isize {
    let place = || {
        // SAFETY: plain descriptors.
        unsafe {
            syscall::call(
                libc::SYS_dup3,
                [fd as usize, number as usize, flags as usize, 0, 0, 0],
            )
        }
    };
    match place() {
        placed if placed == -(libc::EBADF as isize) => with_highest_limit(&place),
        placed => placed,
    }
}

/// Puts `fd` in the place of a kept descriptor; returns the number it has then. That is the
/// same, unless a limit on numbers has been set meanwhile that cannot be lifted.
pub fn replace(kept: RawFd, fd: RawFd) -> RawFd {
    if fd == kept {
        return kept;
    }
    let placed = place(fd, kept, libc::O_CLOEXEC);
    let close = |fd: RawFd| {
        // SAFETY: plain descriptors.
        unsafe { syscall::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) }
    };
    if placed >= 0 {
        close(fd);
        kept
    } else {
        close(kept);
        fd
    }
}

/// Does something under the hard limit on descriptors. Not where somebody else is at it for long:
/// the limit that is put back must be the one of before.
fn with_highest_limit(work: &dyn Fn() -> isize) -> isize {
    const ATTEMPTS: usize = 1000;
    let is_mine = || !RAISED.swap(true, Ordering::Acquire);
    let mut attempts = 0;
    while !is_mine() {
        attempts += 1;
        if attempts == ATTEMPTS {
            return -(libc::EBADF as isize);
        }
        yield_now();
    }
    let result = under_highest_limit(work);
    RAISED.store(false, Ordering::Release);
    result
}

fn under_highest_limit(work: &dyn Fn() -> isize) -> isize {
    let change = |new: *const libc::rlimit, old: *mut libc::rlimit| {
        // SAFETY: null or one rlimit each.
        unsafe {
            syscall::call(
                libc::SYS_prlimit64,
                [
                    0,
                    libc::RLIMIT_NOFILE as usize,
                    new as usize,
                    old as usize,
                    0,
                    0,
                ],
            )
        }
    };
    let mut before = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    if change(std::ptr::null(), &raw mut before) < 0 {
        return -(libc::EBADF as isize);
    }
    let highest = libc::rlimit {
        rlim_cur: before.rlim_max,
        ..before
    };
    change(&raw const highest, std::ptr::null_mut());
    let result = work();
    change(&raw const before, std::ptr::null_mut());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_to_the_top() {
        // SAFETY: opens a file; the result is closed below.
        let fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
        let kept = keep(fd);
        assert!(block().contains(&kept) && is_kept(kept));
        keep_proc();
        let again = open_again(kept).unwrap_or(-1);
        assert!(again >= 0 && again != kept);
        let mut room = [0; 64];
        assert_eq!(path(kept, &mut room), b"/dev/null");
        assert_eq!(path(kept, &mut room[..4]), b"/dev");
        assert_eq!(path(1 << 20, &mut room), b"");
        // Under a limit that does not allow the number, it keeps its place all the same.
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: one rlimit; no other test counts on more descriptors than it has.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            let lower = libc::rlimit {
                rlim_cur: kept as libc::rlim_t,
                ..limit
            };
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const lower);
        }
        assert_eq!(replace(kept, again), kept);
        // SAFETY: ours.
        unsafe {
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            libc::close(kept);
        }
    }
}
