// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals of the program itself, on alternate stacks that lie in paged memory:
//! timer and user signals whose handler reads paged memory, access errors that
//! a handler mends, and a SIGBUS that is the program's own.

use std::fmt::Write;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::mapping::PAGE;
use super::trouble::{Check, Trouble};
use crate::page::{Contents, WORDS};

/// Pages that handlers read: enough that some have been evicted.
const WATCHED_PAGES: usize = 4096;
/// A roomy alternate stack.
const STACK_BYTES: usize = 128 << 10;
const CONTENTS: Contents = Contents {
    entropy_percent: 100,
    whole_page: true,
    seed: 77,
};

static WATCHED: AtomicPtr<u64> = AtomicPtr::new(null_mut());
static HANDLED: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static MENDED: AtomicU64 = AtomicU64::new(0);

/// What the access-error handler may mend, one entry a thread: address, bytes.
static MENDABLE: [(AtomicUsize, AtomicUsize); 64] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 64];

/// Signals handled, words found wrong in handlers, access errors mended.
pub fn counts() -> (u64, u64, u64) {
    (
        HANDLED.load(Ordering::Relaxed),
        WRONG.load(Ordering::Relaxed),
        MENDED.load(Ordering::Relaxed),
    )
}

extern "C" fn on_signal(_: i32) {
    let turn = HANDLED.fetch_add(1, Ordering::Relaxed) as usize;
    let page = turn * 1_103 % WATCHED_PAGES;
    let watched = WATCHED.load(Ordering::Relaxed);
    // SAFETY: a page of the region that `install` filled and nobody changes.
    let wrong = unsafe { CONTENTS.wrong_words(watched.add(page * WORDS), page as u64, 1) };
    WRONG.fetch_add(wrong, Ordering::Relaxed);
}

extern "C" fn on_access_error(signal: i32, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a filled siginfo_t.
    let (address, code) = unsafe { ((*about).si_addr() as usize, (*about).si_code) };
    let mut refused = 0;
    for (first, bytes) in &MENDABLE {
        let (first, bytes) = (first.load(Ordering::Acquire), bytes.load(Ordering::Acquire));
        if address.wrapping_sub(first) < bytes {
            MENDED.fetch_add(1, Ordering::Relaxed);
            let start = first as *mut libc::c_void;
            // SAFETY: a range that its thread published to be mended.
            let mended = unsafe {
                if signal == libc::SIGBUS {
                    libc::mmap(
                        start,
                        bytes,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                        -1,
                        0,
                    ) == start
                } else {
                    libc::mprotect(start, bytes, libc::PROT_READ | libc::PROT_WRITE) == 0
                }
            };
            if mended {
                return;
            }
            // SAFETY: this thread's errno.
            refused = unsafe { *libc::__errno_location() };
        }
    }
    // Enough to tell an access of the program from what the kernel could not do: signal 11 with
    // code 128 and address 0 is a stack that a signal did not fit on.
    let mut line = Line::default();
    let _ = writeln!(
        line,
        "demeter-workloads: error: torture: unexpected access error: signal {signal}, code {code}, \
         address {address:#x}, mending refused with error {refused}; \
         next: run it without the pager to see whose it is"
    );
    // SAFETY: bytes of this stack; both calls are safe in a handler.
    unsafe {
        libc::write(2, line.bytes.as_ptr().cast(), line.length);
        libc::_exit(3);
    }
}

/// A line on the stack: nothing may allocate in a handler. What does not fit is cut off.
struct Line {
    bytes: [u8; 320],
    length: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            bytes: [0; 320],
            length: 0,
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let count = text.len().min(self.bytes.len() - self.length);
        self.bytes[self.length..self.length + count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

fn handle(signal: i32, handler: usize, flags: i32) -> Check<()> {
    // SAFETY: all-zero is a value of this plain C structure.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the structure is complete; the handlers are safe in signal context.
    match unsafe { libc::sigaction(signal, &raw const action, null_mut()) } {
        0 => Ok(()),
        _ => Err(Trouble::of_call("sigaction")),
    }
}

/// Installs all handlers and fills what they read.
pub fn install() -> Check<()> {
    let bytes = WATCHED_PAGES * PAGE;
    let watched = anonymous(bytes)?.cast::<u64>();
    for page in 0..WATCHED_PAGES {
        // SAFETY: inside the new mapping.
        unsafe { CONTENTS.write(watched.add(page * WORDS), page as u64, 1) };
    }
    WATCHED.store(watched, Ordering::Relaxed);
    let plain = on_signal as extern "C" fn(i32) as usize;
    handle(libc::SIGUSR1, plain, 0)?;
    handle(libc::SIGALRM, plain, 0)?;
    let mending =
        on_access_error as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    handle(libc::SIGSEGV, mending, libc::SA_SIGINFO)?;
    handle(libc::SIGBUS, mending, libc::SA_SIGINFO)
}

fn anonymous(bytes: usize) -> Check<*mut u8> {
    // SAFETY: a new mapping.
    let base = unsafe {
        libc::mmap(
            null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(Trouble::of_call("mmap"));
    }
    Ok(base.cast())
}

/// SIGALRM every few milliseconds, to any thread.
pub fn start_timer() -> Check<()> {
    let period = libc::timeval {
        tv_sec: 0,
        tv_usec: 7_000,
    };
    let timer = libc::itimerval {
        it_interval: period,
        it_value: period,
    };
    // SAFETY: the structure outlives the call. libc names no setitimer here.
    match unsafe {
        libc::syscall(
            libc::SYS_setitimer,
            libc::ITIMER_REAL,
            &raw const timer,
            null_mut::<libc::itimerval>(),
        )
    } {
        0 => Ok(()),
        _ => Err(Trouble::of_call("setitimer")),
    }
}

/// An alternate stack inside a large anonymous mapping, for this thread.
pub struct AlternateStack(*mut u8);

/// Large, so that it counts as memory to be paged.
const STACK_MAP_BYTES: usize = 8 << 20;

impl AlternateStack {
    /// Maps it and gives it to this thread.
    pub fn new() -> Check<Self> {
        let base = anonymous(STACK_MAP_BYTES)?;
        let stack = libc::stack_t {
            ss_sp: base.wrapping_add(3 << 20).cast(),
            ss_flags: 0,
            ss_size: STACK_BYTES,
        };
        // SAFETY: the stack stays mapped until this thread has given it up.
        match unsafe { libc::sigaltstack(&raw const stack, null_mut()) } {
            0 => Ok(Self(base)),
            _ => Err(Trouble::of_call("sigaltstack")),
        }
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        let none = libc::stack_t {
            ss_sp: null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        // SAFETY: this thread runs on its ordinary stack, and signals come there
        // after the first call; the mapping is this value's.
        unsafe {
            libc::sigaltstack(&raw const none, null_mut());
            libc::munmap(self.0.cast(), STACK_MAP_BYTES);
        }
    }
}

/// Signals another thread of this process.
pub fn poke(thread: libc::pid_t) {
    // SAFETY: a signal with a handler; a thread that has ended gives ESRCH.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
}

/// Number of this thread as the kernel counts.
pub fn thread_id() -> libc::pid_t {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// Runs `work` with every signal blocked that can be.
pub fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: sigfillset and pthread_sigmask fill the sets they are given.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let outcome = work();
    // SAFETY: the set that the call above filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    outcome
}

/// Lets the handlers mend a range while `work` runs; an error if that was not
/// needed once, or what `work` found wrong.
pub fn mending(
    thread: usize,
    start: *mut u8,
    bytes: usize,
    work: impl FnOnce() -> Check<()>,
) -> Check<()> {
    let before = MENDED.load(Ordering::Relaxed);
    // The length comes last: until then the range is empty.
    MENDABLE[thread].0.store(start as usize, Ordering::Release);
    MENDABLE[thread].1.store(bytes, Ordering::Release);
    let outcome = work();
    MENDABLE[thread].1.store(0, Ordering::Release);
    outcome?;
    if MENDED.load(Ordering::Relaxed) == before {
        return Err(Trouble::Wrong(
            "an access error did not reach the program's handler",
        ));
    }
    Ok(())
}

/// Reads a page of a file mapping beyond the end of the file: the program's own
/// SIGBUS, which its handler mends with a page of zeros.
pub fn own_bus_error(thread: usize) -> Check<()> {
    // SAFETY: the name is a constant; the descriptor is closed below.
    let file = unsafe { libc::memfd_create(c"torture".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(Trouble::of_call("memfd_create"));
    }
    // SAFETY: a new mapping of that file.
    let page = unsafe { libc::mmap(null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, file, 0) };
    // SAFETY: the mapping keeps the file.
    unsafe { libc::close(file) };
    if page == libc::MAP_FAILED {
        return Err(Trouble::of_call("mmap of a memfd"));
    }
    let outcome = mending(thread, page.cast(), PAGE, || {
        // SAFETY: the handler puts a page there before the read ends.
        match unsafe { page.cast::<u8>().read_volatile() } {
            0 => Ok(()),
            other => Err(Trouble::Mended(other)),
        }
    });
    // SAFETY: mapped above.
    unsafe { libc::munmap(page, PAGE) };
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_fits() {
        let mut line = Line::default();
        let _ = write!(line, "signal {}, code {}", 11, 128);
        assert_eq!(&line.bytes[..line.length], b"signal 11, code 128");
        let _ = write!(line, "{}", "x".repeat(1000));
        assert_eq!(line.length, line.bytes.len());
    }
}
