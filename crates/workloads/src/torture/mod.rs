// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `torture`: everything that a program may do to its anonymous memory, at once
//! and at random, every byte checked. It must run clean on the bare kernel; what
//! then goes wrong under a pager is the pager's.

mod calls;
mod dice;
mod mapping;
mod processes;
mod signals;
mod trouble;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use demeter_agent::size;
use serde::Serialize;

use self::calls::Channels;
use self::dice::Dice;
use self::mapping::{Mapping, PAGE, PAGE_BITS};
use self::processes::Child;
use self::trouble::Check;
pub use self::trouble::Trouble;
use crate::page::Contents;
use crate::{Error, report};

/// Arguments of `torture`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// How long
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: u64,
    /// Seed of all choices (when signals come is not chosen)
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=32))]
    threads: u64,
    /// Memory of all threads together, at least 16 MiB each
    #[arg(long, default_value = "256M", value_parser = size::parse)]
    bytes: u64,
    /// Random part of the contents, in percent
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    entropy: u8,
    /// Leave out these operations
    #[arg(long, value_enum, value_delimiter = ',')]
    skip: Vec<Operation>,
    /// Do only these operations (reads and writes are always done)
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "skip")]
    only: Vec<Operation>,
}

/// What is done to memory.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Operation {
    /// Check pages
    Read,
    /// Check and change pages
    Write,
    /// Check all pages of a mapping in order
    Sweep,
    /// mremap to another size
    Resize,
    /// mremap to another address
    Relocate,
    /// munmap a part in the middle and map it again
    Punch,
    /// mmap over a part
    Overlay,
    /// madvise DONTNEED
    Discard,
    /// madvise FREE
    Free,
    /// madvise WILLNEED, COLD, PAGEOUT, SEQUENTIAL, RANDOM, NORMAL, HUGEPAGE
    Hint,
    /// mprotect read-only and back
    ReadOnly,
    /// mprotect none, access it, and mend that in a handler
    Mend,
    /// System calls on paged memory
    Call,
    /// Accesses with all signals blocked
    Blocked,
    /// Signals between threads
    Poke,
    /// The program's own SIGBUS
    BusError,
    /// fork
    Fork,
    /// fork, and the child becomes another user
    User,
    /// Start a program
    Spawn,
    /// malloc, realloc, free
    Heap,
    /// Short threads
    Thread,
    /// dlopen
    Library,
    /// A mapping goes and another comes
    Replace,
}

/// Operations and how often each is chosen.
const WEIGHTS: [(Operation, usize); 23] = [
    (Operation::Read, 300),
    (Operation::Write, 300),
    (Operation::Sweep, 3),
    (Operation::Resize, 30),
    (Operation::Relocate, 15),
    (Operation::Punch, 20),
    (Operation::Overlay, 15),
    (Operation::Discard, 25),
    (Operation::Free, 15),
    (Operation::Hint, 30),
    (Operation::ReadOnly, 20),
    (Operation::Mend, 15),
    (Operation::Call, 200),
    (Operation::Blocked, 30),
    (Operation::Poke, 30),
    (Operation::BusError, 5),
    (Operation::Fork, 4),
    (Operation::User, 2),
    (Operation::Spawn, 2),
    (Operation::Heap, 4),
    (Operation::Thread, 4),
    (Operation::Library, 2),
    (Operation::Replace, 10),
];

/// Pages of a mapping at most.
const MAPPING_PAGES: usize = 1 << 11;
const MAPPINGS: usize = 6;

struct Shared {
    arguments: Arguments,
    weights: Vec<(Operation, usize)>,
    stop: AtomicBool,
    failure: Mutex<Option<Trouble>>,
    threads: Vec<AtomicI32>,
    done: [AtomicU64; WEIGHTS.len()],
}

/// What `torture` prints, one JSON object.
#[derive(Serialize)]
struct Outcome {
    workload: &'static str,
    seconds: f64,
    operations: Vec<(Operation, u64)>,
    signals: u64,
    access_errors_mended: u64,
}

struct Worker<'a> {
    shared: &'a Shared,
    number: usize,
    dice: Dice,
    channels: Channels,
    mappings: Vec<Mapping>,
    names: u64,
    /// Pages that all mappings of this thread may have together
    budget: usize,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared, number: usize) -> Check<Self> {
        let arguments = &shared.arguments;
        let mut worker = Self {
            shared,
            number,
            dice: Dice::new(arguments.seed, number as u64),
            channels: Channels::new()?,
            mappings: Vec::new(),
            names: 0,
            budget: (arguments.bytes / arguments.threads) as usize / PAGE,
        };
        while worker.mappings.len() < MAPPINGS {
            let mapping = worker.mapping()?;
            worker.mappings.push(mapping);
        }
        Ok(worker)
    }

    /// A new mapping, every page written, that fits into the budget.
    fn mapping(&mut self) -> Check<Mapping> {
        let used: usize = self.mappings.iter().map(Mapping::pages).sum();
        let most = (self.budget / MAPPINGS).min(self.budget.saturating_sub(used).max(16));
        let pages = most - self.dice.below(most / 2);
        self.names += 1;
        let contents = Contents {
            entropy_percent: self.shared.arguments.entropy,
            whole_page: true,
            seed: self.shared.arguments.seed,
        };
        let name = ((self.number as u64) << 12) | (self.names % (1 << 12));
        let mut mapping = Mapping::new(pages, name, contents)?;
        (0..pages).for_each(|page| mapping.renew(page));
        Ok(mapping)
    }

    fn choose(&mut self) -> Operation {
        let weights = &self.shared.weights;
        let all = weights.iter().map(|entry| entry.1).sum();
        let mut roll = self.dice.below(all);
        for &(operation, weight) in weights {
            if roll < weight {
                return operation;
            }
            roll -= weight;
        }
        Operation::Read
    }

    fn run(&mut self) -> Check<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let operation = self.choose();
            self.once(operation).map_err(|trouble| {
                trouble.during(format!("thread {}, {operation:?}", self.number))
            })?;
            self.shared.done[operation as usize].fetch_add(1, Ordering::Relaxed);
        }
        self.mappings
            .iter()
            .try_for_each(Mapping::sweep)
            .map_err(|trouble| trouble.during(format!("thread {}, at the end", self.number)))
    }

    fn once(&mut self, operation: Operation) -> Check<()> {
        let dice = &mut self.dice;
        let index = dice.below(self.mappings.len());
        let used: usize = self.mappings.iter().map(Mapping::pages).sum();
        let mapping = &mut self.mappings[index];
        let page = dice.below(mapping.pages());
        match operation {
            Operation::Read => (0..16).try_for_each(|_| mapping.check(dice.below(mapping.pages()))),
            Operation::Write => {
                (0..16).try_for_each(|_| mapping.rewrite(dice.below(mapping.pages())))
            }
            Operation::Sweep => mapping.sweep(),
            Operation::Resize => {
                let room = self.budget.saturating_sub(used);
                let most = (mapping.pages() + room).clamp(2, MAPPING_PAGES.min(1 << PAGE_BITS));
                mapping.resize(1 + dice.below(most))?;
                let first = mapping.pages() - 1;
                mapping.rewrite(first)
            }
            Operation::Relocate => {
                mapping.relocate()?;
                mapping.rewrite(page)
            }
            Operation::Punch => {
                let range = mapping.range(dice, 64);
                mapping.punch(range)
            }
            Operation::Overlay => {
                let range = mapping.range(dice, 64);
                mapping.overlay(range)
            }
            Operation::Discard => {
                let range = mapping.range(dice, 64);
                mapping.advise(range, libc::MADV_DONTNEED)
            }
            Operation::Free => {
                let range = mapping.range(dice, 16);
                mapping.advise(range, libc::MADV_FREE)
            }
            Operation::Hint => {
                let range = mapping.range(dice, 256);
                let once = [libc::MADV_WILLNEED, libc::MADV_COLD, libc::MADV_PAGEOUT];
                mapping.advise(range, dice.of(&once))?;
                // These stay with the area, and a part would become one of its own.
                let lasting = [
                    libc::MADV_SEQUENTIAL,
                    libc::MADV_RANDOM,
                    libc::MADV_NORMAL,
                    libc::MADV_HUGEPAGE,
                    libc::MADV_NOHUGEPAGE,
                ];
                mapping.advise(0..mapping.pages(), dice.of(&lasting))
            }
            Operation::ReadOnly => {
                let range = mapping.range(dice, 16);
                mapping.protect(&range, libc::PROT_READ)?;
                range.clone().try_for_each(|page| mapping.check(page))?;
                mapping.protect(&range, libc::PROT_READ | libc::PROT_WRITE)?;
                mapping.rewrite(range.start)
            }
            Operation::Mend => {
                mapping.protect(&(page..page + 1), libc::PROT_NONE)?;
                signals::mending(self.number, mapping.at(page), PAGE, || mapping.check(page))
            }
            Operation::Call => {
                let kind = dice.of(&calls::KINDS);
                if mapping.pages() < 4 {
                    return Ok(());
                }
                let other = (page + 1 + dice.below(mapping.pages() - 1)) % mapping.pages();
                self.channels
                    .call(kind, mapping, (other, page), dice)
                    .map_err(|trouble| trouble.during(format!("{kind:?}")))
            }
            Operation::Blocked => signals::blocked(|| {
                (0..8).try_for_each(|_| mapping.rewrite(dice.below(mapping.pages())))
            }),
            Operation::Poke => {
                let other = dice.below(self.shared.threads.len());
                let thread = self.shared.threads[other].load(Ordering::Relaxed);
                if thread != 0 {
                    signals::poke(thread);
                }
                Ok(())
            }
            Operation::BusError => signals::own_bus_error(self.number),
            Operation::Fork => processes::fork(&mut self.mappings, Child::Alike, dice),
            Operation::User => processes::fork(&mut self.mappings, Child::OfAnotherUser, dice),
            Operation::Spawn => processes::spawn(),
            Operation::Heap => processes::heap(dice),
            Operation::Thread => processes::thread(mapping, dice),
            Operation::Library => processes::load_library(),
            Operation::Replace => {
                mapping.sweep()?;
                drop(self.mappings.swap_remove(index));
                let mapping = self.mapping()?;
                self.mappings.push(mapping);
                Ok(())
            }
        }
    }
}

/// Runs the torture.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    if arguments.bytes / arguments.threads < 16 << 20 {
        return Err(Error::Usage("each thread needs 16 MiB".into()));
    }
    let chosen = |operation: &Operation| {
        matches!(operation, Operation::Read | Operation::Write)
            || (!arguments.skip.contains(operation)
                && (arguments.only.is_empty() || arguments.only.contains(operation)))
    };
    let shared = Shared {
        arguments: arguments.clone(),
        weights: WEIGHTS
            .into_iter()
            .filter(|(operation, _)| chosen(operation))
            .collect(),
        stop: AtomicBool::new(false),
        failure: Mutex::new(None),
        threads: (0..arguments.threads).map(|_| AtomicI32::new(0)).collect(),
        done: std::array::from_fn(|_| AtomicU64::new(0)),
    };
    signals::install()?;
    if chosen(&Operation::Poke) {
        signals::start_timer()?;
    }
    let began = Instant::now();
    let end = Duration::from_secs(arguments.seconds);
    std::thread::scope(|scope| {
        for number in 0..arguments.threads as usize {
            let shared = &shared;
            scope.spawn(move || {
                let outcome = signals::AlternateStack::new().and_then(|_stack| {
                    let mut worker = Worker::new(shared, number)?;
                    shared.threads[number].store(signals::thread_id(), Ordering::Relaxed);
                    let outcome = worker.run();
                    shared.threads[number].store(0, Ordering::Relaxed);
                    outcome
                });
                if let Err(trouble) = outcome {
                    shared.stop.store(true, Ordering::Relaxed);
                    if let Ok(mut failure) = shared.failure.lock() {
                        failure.get_or_insert(trouble);
                    }
                }
            });
        }
        while began.elapsed() < end && !shared.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        shared.stop.store(true, Ordering::Relaxed);
    });
    if let Some(trouble) = shared.failure.into_inner().unwrap_or_default() {
        return Err(trouble.into());
    }
    let (handled, wrong_words, mended) = signals::counts();
    if wrong_words > 0 {
        let wrong = wrong_words;
        return Err(Trouble::Handlers { handled, wrong }.into());
    }
    let done = |operation: Operation| shared.done[operation as usize].load(Ordering::Relaxed);
    report::line(
        &mut std::io::stdout().lock(),
        &Outcome {
            workload: "torture",
            seconds: began.elapsed().as_secs_f64(),
            operations: shared
                .weights
                .iter()
                .map(|&(operation, _)| (operation, done(operation)))
                .collect(),
            signals: handled,
            access_errors_mended: mended,
        },
    )
}
