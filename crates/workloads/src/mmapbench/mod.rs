// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mmapbench`: how fast threads touch pages of a large mapping.
//!
//! After the benchmark of Crotty, Leis and Pavlo, "Are You Sure You Want to Use
//! MMAP in Your Database Management System?" (CIDR 2022), for anonymous memory:
//! one row a second of how much was touched, how many TLB shootdowns and disk
//! reads that took, and how much a competing thread still computed. Beyond it:
//! writes, a hot set, and contents of which every byte can be checked.

mod observe;
mod pattern;
mod rows;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use demeter_agent::size;

use self::observe::Counters;
use self::pattern::{Access, HotSet, Order, Pattern, Walk};
use crate::Error;
use crate::memory::{PAGE_BYTES, Region};
use crate::page::{self, Contents, WORDS};

/// Arguments of `mmapbench`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// Size of the mapping
    #[arg(long, default_value = "1G", value_parser = size::parse)]
    size: u64,
    /// Threads that touch pages
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Order of touches
    #[arg(long, value_enum, default_value_t = Order::Random)]
    pattern: Order,
    /// What is done to a page
    #[arg(long, value_enum, default_value_t = Access::Read)]
    access: Access,
    /// Advice given to the kernel on the order of accesses
    #[arg(long, value_enum, default_value_t = Hint::Normal)]
    hint: Hint,
    /// Ask for huge pages (the default is to ask for small ones)
    #[arg(long)]
    huge: bool,
    /// Seconds to run; one row each
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Random part of the contents, in percent: 100 cannot be compressed
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    entropy: u8,
    /// Check (and write) every byte of a page at each touch, and all pages at the end
    #[arg(long)]
    check: bool,
    /// Share of the pages that are hot, in permille
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=1000))]
    hot_pages: u64,
    /// Share of touches that go to the hot pages, in permille
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u64).range(0..=1000))]
    hot_touches: u64,
    /// Hot pages lie side by side instead of apart
    #[arg(long)]
    hot_together: bool,
    /// Threads that compute all the time, to show what CPU is left
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=64))]
    cpu_work: u64,
    /// Name for the column `dev`
    #[arg(long, default_value = "anonymous")]
    dev: String,
    /// Seed of contents and orders
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Read lines `PATTERN THREADS SECONDS [CPU_WORK]` (such as `hot-write 2 1.5`) from
    /// standard input, touch accordingly, and print one JSON object for each
    #[arg(long)]
    steps: bool,
}

/// Advice for `madvise`.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    /// None in particular
    Normal,
    /// Random accesses ahead
    Random,
    /// Sequential accesses ahead
    Sequential,
}

/// A thread's count of touches, alone in its cache line.
#[derive(Default)]
#[repr(align(128))]
struct Tally {
    touches: AtomicU64,
    wrong: AtomicU64,
    scanned: AtomicU64,
}

/// The mapping, what every page must hold, and the threads' tallies.
struct Bench {
    region: Region,
    contents: Contents,
    versions: Vec<AtomicU32>,
    hot: HotSet,
    seed: u64,
    tallies: Vec<Tally>,
    stop: AtomicBool,
    cpu_units: AtomicU64,
}

impl Bench {
    fn new(arguments: &Arguments) -> Result<Self, Error> {
        let pages = arguments.size / PAGE_BYTES;
        if pages < 64 * 64 || pages > u64::from(u32::MAX) {
            return Err(Error::Usage(
                "the size is below 16 MiB or above 16 TiB".into(),
            ));
        }
        let contents = Contents {
            entropy_percent: arguments.entropy,
            whole_page: arguments.check,
            seed: arguments.seed,
        };
        Ok(Self {
            region: map(arguments)?,
            contents,
            versions: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            hot: HotSet {
                pages_permille: arguments.hot_pages,
                touches_permille: arguments.hot_touches,
                scattered: !arguments.hot_together,
            },
            seed: arguments.seed,
            tallies: (0..64).map(|_| Tally::default()).collect(),
            stop: AtomicBool::new(false),
            cpu_units: AtomicU64::new(0),
        })
    }

    fn pages(&self) -> u64 {
        self.versions.len() as u64
    }

    /// First word of a page.
    #[inline(always)]
    fn at(&self, region: &Region, page: u64) -> *mut u64 {
        region.base().wrapping_add(page as usize * WORDS)
    }

    /// Writes all pages of a region with version 0, the pages divided among the threads.
    fn fill(&self, region: &Region, threads: u64) {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let tally = &self.tallies[thread as usize];
                scope.spawn(move || {
                    let share = |index: u64| self.pages() * index / threads;
                    for page in share(thread)..share(thread + 1) {
                        // SAFETY: the page lies inside the region and is this thread's.
                        unsafe { self.contents.write(self.at(region, page), page, 0) };
                        tally.touches.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
    }

    /// The loop of one thread, until `stop`.
    fn touch(&self, (thread, threads): (u64, u64), order: Order, access: Access) {
        let tally = &self.tallies[thread as usize];
        let scanned = tally.scanned.load(Ordering::Relaxed);
        let salt = tally.touches.load(Ordering::Relaxed);
        let seed = self.seed ^ salt.rotate_left(20);
        let mut walk = Walk::new(
            self.pages(),
            (thread, threads),
            (order, access),
            self.hot,
            seed,
            scanned,
        );
        while !self.stop.load(Ordering::Relaxed) {
            let page = walk.page();
            let wrong = self.touch_page(page, access);
            if wrong > 0 {
                tally.wrong.fetch_add(wrong, Ordering::Relaxed);
            }
            // The only writer: a plain increment.
            let touches = tally.touches.load(Ordering::Relaxed) + 1;
            tally.touches.store(touches, Ordering::Relaxed);
        }
        tally.scanned.store(walk.scanned(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn touch_page(&self, page: u64, access: Access) -> u64 {
        let at = self.at(&self.region, page);
        let version = self.versions[page as usize].load(Ordering::Relaxed);
        let wrong = if self.contents.whole_page {
            // SAFETY: inside the region; a page has one writer, which is this
            // thread, or nobody writes.
            unsafe { self.contents.wrong_words(at, page, version) }
        } else {
            // SAFETY: as above; the first word of the page.
            u64::from(unsafe { at.read_volatile() } != page::header(page, version))
        };
        if access == Access::Write {
            let next = version.wrapping_add(1);
            self.versions[page as usize].store(next, Ordering::Relaxed);
            if self.contents.whole_page {
                // SAFETY: as above.
                unsafe { self.contents.write(at, page, next) };
            } else {
                // SAFETY: as above.
                unsafe { at.write_volatile(page::header(page, next)) };
            }
        }
        wrong
    }

    /// Runs threads and calls `watch` meanwhile; they end when it returns.
    fn run<T>(
        &self,
        order: Order,
        access: Access,
        threads: u64,
        cpu_work: u64,
        watch: impl FnOnce() -> T,
    ) -> T {
        self.stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || self.touch((thread, threads), order, access));
            }
            for _ in 0..cpu_work {
                scope.spawn(|| self.compute());
            }
            let outcome = watch();
            self.stop.store(true, Ordering::Relaxed);
            outcome
        })
    }

    /// Competes for the CPU; a unit is ten thousand exponentials of logarithms.
    fn compute(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let mut value = self.cpu_units.load(Ordering::Relaxed) as f64 + 1.0;
            for _ in 0..10_000 {
                value = std::hint::black_box(value.ln().exp());
            }
            self.cpu_units.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn touches(&self) -> u64 {
        self.touches_of(self.tallies.len() as u64).iter().sum()
    }

    /// Touches of each of the first so many threads.
    fn touches_of(&self, threads: u64) -> Vec<u64> {
        (self.tallies.iter().take(threads as usize))
            .map(|tally| tally.touches.load(Ordering::Relaxed))
            .collect()
    }

    fn wrong(&self) -> u64 {
        self.tallies
            .iter()
            .map(|tally| tally.wrong.load(Ordering::Relaxed))
            .sum()
    }

    /// Compares every byte of every page with what it must be.
    fn sweep(&self) -> u64 {
        (0..self.pages())
            .map(|page| {
                let version = self.versions[page as usize].load(Ordering::Relaxed);
                // SAFETY: inside the region; the threads have ended.
                unsafe {
                    self.contents
                        .wrong_words(self.at(&self.region, page), page, version)
                }
            })
            .sum()
    }
}

/// A mapping with the advice that was asked for.
fn map(arguments: &Arguments) -> Result<Region, Error> {
    let region = Region::map(arguments.size / PAGE_BYTES * PAGE_BYTES)?;
    region.advise_huge(arguments.huge);
    match arguments.hint {
        Hint::Normal => {}
        Hint::Random => region.advise(libc::MADV_RANDOM),
        Hint::Sequential => region.advise(libc::MADV_SEQUENTIAL),
    }
    Ok(region)
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    let bench = Bench::new(arguments)?;
    let began = Instant::now();
    bench.fill(&bench.region, 1);
    let fill_seconds = began.elapsed().as_secs_f64();
    if arguments.steps {
        rows::steps(arguments, &bench, fill_seconds)?;
    } else {
        rows::every_second(arguments, &bench)?;
    }
    let wrong = bench.wrong() + if arguments.check { bench.sweep() } else { 0 };
    if wrong > 0 {
        return Err(Error::Verification {
            wrong,
            words: bench.pages() * WORDS as u64,
        });
    }
    Ok(())
}

/// Sleeps until `elapsed` has passed since `began`.
fn sleep_until(began: Instant, elapsed: Duration) {
    if let Some(rest) = elapsed.checked_sub(began.elapsed()) {
        std::thread::sleep(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        mmapbench: Arguments,
    }

    fn arguments(line: &str) -> Arguments {
        Line::parse_from(std::iter::once("mmapbench").chain(line.split_whitespace())).mmapbench
    }

    /// Touches for a moment in every way and returns the bench.
    fn touched(line: &str) -> Bench {
        let arguments = arguments(line);
        let bench = Bench::new(&arguments).unwrap();
        bench.fill(&bench.region, 2);
        for order in [Order::Sequential, Order::Random, Order::Hot] {
            for access in [Access::Write, Access::Read] {
                bench.run(order, access, 3, 0, || {
                    std::thread::sleep(Duration::from_millis(20));
                });
            }
        }
        bench
    }

    #[test]
    fn contents_hold_in_every_mode() {
        for line in [
            "--size 16M",
            "--size 17M --check",
            "--size 16M --check --entropy 30 --huge",
        ] {
            let bench = touched(line);
            assert_eq!(bench.wrong() + bench.sweep(), 0, "{line}");
            assert!(bench.touches() > bench.pages() + 6);
        }
    }

    #[test]
    fn damage_is_found() {
        let bench = touched("--size 16M --check");
        let word = bench.region.get(77 * 512 + 300);
        bench.region.set(77 * 512 + 300, word ^ 1);
        assert_eq!(bench.sweep(), 1);
        let bench = touched("--size 16M");
        let word = bench.region.get(77 * 512);
        bench.region.set(77 * 512, word ^ 1);
        assert_eq!(bench.touch_page(77, Access::Read), 1);
    }

    #[test]
    fn refuses_sizes_that_mean_nothing() {
        assert!(Bench::new(&arguments("--size 1M")).is_err());
    }
}
