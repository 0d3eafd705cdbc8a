// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pager of this process: its parts, and how an operation enters it.

use std::ffi::c_void;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering,
};

use crate::budget::Budget;
use crate::compressed::CompressedTier;
use crate::config::Mode;
use crate::context::{Context, Contexts, call_on_stack};
use crate::crowd::CrowdTurns;
use crate::extents::Extents;
use crate::forecast::Forecast;
use crate::gate::{Gate, Pass};
use crate::lock::Lock;
use crate::neighbours::Neighbours;
use crate::page::PageTable;
use crate::pipes::Pipes;
use crate::policy::Policy;
use crate::queue::WindowQueue;
use crate::region::PAGE_BYTES;
use crate::signal_stacks::{Process, SignalStacks};
use crate::stacks::Stacks;
use crate::statistics::{Counters, Log, Statistics};
use crate::stream::Streams;
use crate::swap::SwapStore;
use crate::syscall;
use crate::uffd::Uffd;
use crate::victim::VictimCache;
use crate::worker::Seat;

/// Where the arena lies: an address that neither the kernel nor the run-time systems we
/// know of choose by themselves, above the program's own break (the C library refuses one that
/// moves down), and the same in every process, so that one filter fits all.
pub const ARENA_BASE: usize = 0x6d00_0000_0000;
/// The filter watches this much from the base on, however small the arena is. Page numbers
/// have 32 bits.
pub const ARENA_MOST_BYTES: usize = 12 << 40;

/// Threads that prefetch.
pub const PREFETCHERS: usize = 3;
/// Threads that resolve faults in handler mode.
pub const HANDLERS: usize = 2;

/// Everything.
#[derive(Debug)]
pub struct Pager {
    /// How faults arrive.
    pub mode: Mode,
    /// Mappings smaller than this are left to the kernel.
    pub min_bytes: usize,
    /// What each page is.
    pub table: PageTable,
    /// The bound on DRAM.
    pub budget: Budget,
    /// Keeps operations apart from forks.
    pub gate: Gate,
    /// What operations work with.
    pub contexts: Contexts,
    /// Free address space.
    pub extents: Lock<Extents>,
    /// Whose turn it is to map at an exact place, or to change or take away mappings (`places.rs`).
    pub places: Lock<()>,
    /// The kernel's fault interface.
    pub uffd: Uffd,
    /// Where pages go.
    pub store: SwapStore,
    /// Who leaves next.
    pub policy: Policy,
    /// Pages compressed in DRAM; None if switched off.
    pub tier: Option<CompressedTier>,
    /// Pages of DRAM charged for the tier.
    pub tier_pages: AtomicI64,
    /// Who walks in order.
    pub streams: Streams,
    /// Whether pages bring their neighbours.
    pub neighbours: Neighbours,
    /// Which pages will be written.
    pub forecast: Forecast,
    /// What happened.
    pub statistics: Statistics,
    /// Decisions, on request.
    pub log: Option<Log>,
    /// The summary goes to standard error at the end.
    pub says_summary: bool,
    /// Pages on their way out.
    pub victims: VictimCache,
    /// Windows to prefetch.
    pub windows: WindowQueue,
    /// A batch of zero pages, never written.
    pub zeroes: *const u8,
    /// What holds dirty pages while they are unmapped.
    pub pipes: Pipes,
    /// `/proc/self/mem`, for pages that cannot be moved; negative without.
    pub memory_file: AtomicI32,
    /// The program's break: first and one past the last byte, and its limit.
    pub program_break: Lock<ProgramBreak>,
    /// Seats of the background threads.
    pub seats: Vec<Seat>,
    /// The background threads run.
    pub threads_started: AtomicBool,
    /// How many of them this process has. They never end.
    pub own_threads: AtomicU32,
    /// Who makes room: the evictor, or (second) the threads that need it.
    pub inline_eviction: CrowdTurns,
    /// Nonzero: the evictor has work.
    pub evict_wanted: AtomicU32,
    /// Tells parent from vfork child, which shares this memory.
    pub process: AtomicI32,
    /// Pages locked into DRAM.
    pub locked_pages: AtomicI64,
    /// Stacks and thread blocks that the kernel writes to, which are among them. Taken inside the
    /// gate.
    pub stacks: Lock<Stacks>,
    /// Alternate signal stacks of the pager's, one a thread.
    pub signal_stacks: SignalStacks,
    /// Reservations that asked for another place, since some of one was used.
    pub misplaced: AtomicU32,
    /// Bytes one system call may pin.
    pub most_pinned_bytes: AtomicUsize,
    /// Pages that system calls hold in DRAM just now; of a page that two hold, both.
    pub pinned_pages: AtomicI64,
}

/// The `brk` area, inside the arena.
#[derive(Debug, Default)]
pub struct ProgramBreak {
    /// First byte.
    pub start: usize,
    /// One past the last byte in use.
    pub now: usize,
    /// It may not grow past this.
    pub limit: usize,
}

// SAFETY: the raw pointer is to memory that nobody writes.
unsafe impl Sync for Pager {}
// SAFETY: as above.
unsafe impl Send for Pager {}

/// Bytes that one system call may pin: a sixteenth of DRAM, within limits.
pub fn most_pinned_bytes(budget: &Budget) -> usize {
    const LEAST_BYTES: usize = 256 << 10;
    const MOST_BYTES: usize = 4 << 20;
    let dram_bytes = budget.share_of(budget.dram_pages() as u64) as usize * PAGE_BYTES;
    (dram_bytes / 16).clamp(LEAST_BYTES, MOST_BYTES)
}

/// Calls that may move less are given little once all together hold more than one page in so
/// many of DRAM: they may wait for ever, and others need frames.
const PINNED_SHARE: i64 = 4;

impl Pager {
    /// System calls hold so many pages more, or less. Whether all together hold so much of
    /// DRAM that no more of it should wait with them.
    pub fn notes_pins(&self, pages: i64) -> bool {
        let held = self.pinned_pages.fetch_add(pages, Ordering::Relaxed) + pages;
        held > self.budget.share_of(self.budget.dram_pages() as u64) as i64 / PINNED_SHARE
    }
}

static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

/// The pager, once [`install`]ed.
pub fn pager() -> Option<&'static Pager> {
    // SAFETY: null, or what `install` leaked.
    unsafe { PAGER.load(Ordering::Acquire).as_ref() }
}

/// Makes this the pager of the process, for good.
pub fn install(pager: Pager) -> &'static Pager {
    let leaked = Box::leak(Box::new(pager));
    PAGER.store(leaked, Ordering::Release);
    leaked
}

/// An operation under way: signals blocked, inside the gate, with a context.
#[derive(Debug)]
pub struct Operation<'a> {
    pager: &'a Pager,
    /// Buffer and scratch arrays.
    pub context: Context,
    signals: Option<u64>,
    pass: Option<Pass<'a>>,
}

impl Pager {
    /// Starts an operation where signals are blocked already.
    pub fn enter_masked(&self) -> Operation<'_> {
        let pass = self.gate.enter();
        Operation {
            pager: self,
            context: self.contexts.borrow(&self.budget),
            signals: None,
            pass: Some(pass),
        }
    }

    /// The first pages of a context's buffer, for transfers.
    pub fn buffer(&self, context: &Context, pages: usize) -> *mut u8 {
        self.contexts.buffer(context, pages, &self.budget)
    }

    /// Promises that so many more pages can be kept, or refuses. The end of the run tells how often.
    pub fn promise(&self, pages: u64) -> bool {
        let promised = self.budget.promise(pages);
        if !promised {
            self.counters().enomem.add(1);
        }
        promised
    }

    /// Whether this is the pager's process, and no child of it by vfork.
    pub fn is_this_process(&self) -> bool {
        // SAFETY: no arguments.
        let process = unsafe { syscall::call(libc::SYS_getpid, [0; 6]) } as i32;
        process == self.process.load(Ordering::Relaxed)
    }

    /// An alternate signal stack for this thread, of the pager's; not for what shares the
    /// memory of a process and is none of its threads.
    pub fn own_signal_stack(&self) -> Option<libc::stack_t> {
        if !self.is_this_process() {
            return None;
        }
        (self.signal_stacks).of_thread(self, syscall::this_thread())
    }

    /// A thread that has no alternate signal stack has the pager's when its handler returns.
    pub fn give_signal_stack(&self, context: &mut libc::ucontext_t) {
        if context.uc_stack.ss_size == 0
            && let Some(stack) = self.own_signal_stack()
        {
            context.uc_stack = stack;
        }
    }

    /// The sums of this process.
    pub fn counters(&self) -> &'static Counters {
        &self.statistics.block().counters
    }

    /// Starts an operation: blocks all signals until it ends.
    pub fn enter(&self) -> Operation<'_> {
        let signals = block_signals();
        let mut operation = self.enter_masked();
        operation.signals = Some(signals);
        operation
    }
}

impl Process for Pager {
    fn number(&self) -> i32 {
        self.process.load(Ordering::Relaxed)
    }

    fn charge(&self, pages: i64) {
        self.budget.charge_overhead(pages);
    }

    fn lock_memory(&self, start: usize, bytes: usize) -> bool {
        self.lock_stack(start, bytes)
    }

    fn unlock_memory(&self, start: usize, bytes: usize) {
        self.unlock_stack(start, bytes);
    }

    fn without_signals<R>(&self, work: impl FnOnce() -> R) -> R {
        let signals = block_signals();
        let result = work();
        restore_signals(signals);
        result
    }
}

impl Operation<'_> {
    /// Works on the stack of the pager's, where that of the caller may be managed memory.
    pub fn on_own_stack(&self, mut work: &mut dyn FnMut()) {
        // SAFETY: the operation's stack, on which nothing runs while its owner is here; the
        // argument is what `run` takes, and outlives the call.
        unsafe {
            call_on_stack(
                self.context.stack_top(),
                run,
                (&raw mut work).cast::<c_void>(),
            );
        }
    }
}

extern "C" fn run(argument: *mut c_void) {
    // SAFETY: `on_own_stack` passes this.
    let work = unsafe { &mut *argument.cast::<&mut dyn FnMut()>() };
    work();
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.pager.contexts.give_back(&self.context);
        self.pass = None;
        if let Some(signals) = self.signals {
            restore_signals(signals);
        }
    }
}

/// Whether an address lies in the address space the pager has taken.
pub fn in_arena(address: usize) -> bool {
    (ARENA_BASE..ARENA_BASE + ARENA_MOST_BYTES).contains(&address)
}

/// The pager does not touch managed memory in the midst of its work. Where it is called on a stack
/// in managed memory, and not by a signal, as much of that as it takes is brought in before.
#[inline(never)]
pub fn bring_in_stack() {
    const PAGES: usize = 2;
    let here = 0u8;
    let pointer = &raw const here as usize;
    if in_arena(pointer) {
        for page in 1..=PAGES {
            let below = (pointer - page * PAGE_BYTES) as *const AtomicU8;
            // SAFETY: below the stack pointer, or what lies below the stack, and left as it is.
            unsafe { (*below).fetch_or(0, Ordering::SeqCst) };
        }
    }
}

/// Blocks all signals of this thread; the mask before.
pub fn block_signals() -> u64 {
    let all = u64::MAX;
    let mut before = 0u64;
    // SAFETY: two 64-bit sets, as the kernel's call takes.
    unsafe {
        syscall::call(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                &raw const all as usize,
                &raw mut before as usize,
                8,
                0,
                0,
            ],
        );
    }
    before
}

/// Sets the mask of this thread.
pub fn restore_signals(mask: u64) {
    // SAFETY: one 64-bit set.
    unsafe {
        syscall::call(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                &raw const mask as usize,
                0,
                8,
                0,
                0,
            ],
        );
    }
}
