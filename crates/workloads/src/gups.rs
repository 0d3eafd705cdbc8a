// SPDX-License-Identifier: Apache-2.0 OR MIT
//! GUPS with a hot set: random XOR updates of 64-bit words, a fixed share of
//! them in a contiguous hot part of the array.
//!
//! Random numbers come from a 64-bit linear congruential generator, one
//! multiplication and one addition an update: its high half picks the word,
//! its low half decides hot or cold. The work is fixed (a number of updates),
//! so that two managers can be compared by time.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use demeter_agent::protocol::BIND_HOT_ENV;
use demeter_agent::{magic, roi, size};
use serde::Serialize;

use crate::Error;
use crate::array::{self, Pages};
use crate::memory::{Memory, PAGE_BYTES, Region};

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;

/// Arguments of `gups`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// Size of the array
    #[arg(long, default_value = "560M", value_parser = size::parse)]
    footprint: u64,
    /// Size of its hot part
    #[arg(long, default_value = "40M", value_parser = size::parse)]
    hot: u64,
    /// Share of updates that go to the hot part, in permille
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u32).range(0..=1000))]
    hot_permille: u32,
    /// Where the hot part lies
    #[arg(long, value_enum, default_value_t = Place::End)]
    place: Place,
    /// Updates of a thread after which its hot part moves to its next place, 0: never
    #[arg(long, default_value_t = 0, value_name = "UPDATES")]
    phase_updates: u64,
    /// Number of places that the hot part goes round, evenly spread over the array
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..=1024))]
    phase_places: u64,
    /// Update every 64 bytes from beginning to end, over and over, instead of random words
    #[arg(long, conflicts_with_all = ["phase_updates", "bind_hot"])]
    scan: bool,
    /// Threads; updates are divided among them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Updates in all
    #[arg(long, default_value_t = 20_000_000)]
    updates: u64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bind the hot part to this node and touch it first: the oracle
    #[arg(long, env = BIND_HOT_ENV)]
    bind_hot: Option<u32>,
    /// Bind all of the array to this node (MPOL_BIND)
    #[arg(long, conflicts_with = "bind_hot")]
    bind: Option<u32>,
    /// Kind of memory that the array is
    #[arg(long, value_enum, default_value_t)]
    memory: Memory,
    /// Processes beside this one that map the array as well
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    sharers: u32,
    /// Times that progress is reported, evenly spread over the updates
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    progress: u64,
    /// Advice on huge pages
    #[arg(long, value_enum, default_value_t = Pages::System)]
    pages: Pages,
    /// Afterwards apply all updates once more and check that every word is
    /// back at its first value (exact with one thread)
    #[arg(long)]
    verify: bool,
}

/// Where the hot part lies in the array.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Touched first
    Begin,
    /// Touched last
    End,
    /// Single pages all over the array
    Scattered,
}

/// What `gups` prints, one JSON object.
#[derive(Serialize)]
struct Outcome {
    workload: &'static str,
    updates: u64,
    seconds: f64,
    updates_per_s: f64,
    updates_per_s_last_quarter: f64,
    checksum: String,
    verified: Option<bool>,
}

/// Word ranges of the two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    hot_first: u64,
    hot_words: u64,
    cold_first: u64,
    cold_words: u64,
}

impl Layout {
    /// Of an array and its hot part, sizes in bytes.
    pub fn new(footprint: u64, hot: u64, place: Place) -> Result<Self, Error> {
        let page_words = PAGE_BYTES / 8;
        let words = footprint / PAGE_BYTES * page_words;
        let hot_words = hot / PAGE_BYTES * page_words;
        if hot_words == 0 || hot_words >= words {
            return Err(Error::Usage(format!(
                "hot part of {hot} bytes does not fit into {footprint} bytes"
            )));
        }
        // The index is (32 random bits x words) >> 32.
        if words > u64::from(u32::MAX) {
            return Err(Error::Usage("footprint is above 32 GiB".into()));
        }
        let cold_words = words - hot_words;
        let (hot_first, cold_first) = match place {
            Place::Begin => (0, hot_words),
            // Which pages those are is the caller's to say; the rest is not told from them.
            Place::Scattered => (0, 0),
            Place::End => (cold_words, 0),
        };
        Ok(Self {
            hot_first,
            hot_words,
            cold_first,
            cold_words,
        })
    }

    fn of(arguments: &Arguments) -> Result<Self, Error> {
        Self::new(arguments.footprint, arguments.hot, arguments.place)
    }

    /// The hot part in its place number `phase` of `places`; 0 is where it was. What is not
    /// hot is then anywhere but in a part at the end, as large as the hot one.
    fn in_phase(&self, phase: u64, places: u64) -> Self {
        let page_words = PAGE_BYTES / 8;
        let stride = self.words() / places / page_words * page_words;
        let first = (self.hot_first + phase % places * stride) % self.words();
        Self {
            hot_first: first.min(self.cold_words),
            cold_first: 0,
            ..*self
        }
    }

    /// Words of both parts.
    pub fn words(&self) -> u64 {
        self.hot_words + self.cold_words
    }
}

/// Runs the benchmark and prints its outcome.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    if arguments.updates < arguments.progress.max(4) * arguments.threads {
        return Err(Error::Usage(format!(
            "{} updates are too few for {} progress reports and {} threads",
            arguments.updates, arguments.progress, arguments.threads
        )));
    }
    let layout = Layout::of(arguments)?;
    if arguments.place == Place::Scattered && arguments.bind_hot.is_some() {
        return Err(Error::Usage(
            "scattered pages cannot be bound; next: choose another --place".into(),
        ));
    }
    if arguments.place == Place::Scattered && arguments.phase_updates > 0 {
        return Err(Error::Usage(
            "scattered pages have no phases; next: choose another --place".into(),
        ));
    }
    let region = array::region_of(layout.words() * 8, arguments.memory, arguments.pages)?;
    first_touch(arguments, &layout, &region)?;
    for _ in 0..arguments.sharers {
        share_with_child(&region)?;
    }

    crate::begin();
    let (seconds, last_quarter_seconds) = update_all(arguments, &layout, &region, true);
    roi::end();

    let checksum =
        (0..region.words()).fold(0_u64, |sum, word| sum.rotate_left(1) ^ region.get(word));
    let verified = if arguments.verify {
        update_all(arguments, &layout, &region, false);
        let wrong = (0..region.words())
            .filter(|&word| region.get(word) != word)
            .count() as u64;
        // Threads may race for a word; HPCC allows one percent.
        let allowed = if arguments.threads == 1 {
            0
        } else {
            region.words() / 100
        };
        if wrong > allowed {
            return Err(Error::Verification {
                wrong,
                words: region.words(),
            });
        }
        Some(true)
    } else {
        None
    };
    let outcome = Outcome {
        workload: "gups",
        updates: arguments.updates,
        seconds,
        updates_per_s: arguments.updates as f64 / seconds,
        updates_per_s_last_quarter: arguments.updates as f64 / 4.0 / last_quarter_seconds,
        checksum: format!("{checksum:016x}"),
        verified,
    };
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, &outcome).map_err(std::io::Error::from)?;
    writeln!(stdout)?;
    Ok(())
}

fn first_touch(arguments: &Arguments, layout: &Layout, region: &Region) -> Result<(), Error> {
    if let Some(node) = arguments.bind_hot {
        region.bind(layout.hot_first, layout.hot_words, node)?;
        region.touch(layout.hot_first, layout.hot_words);
    }
    if let Some(node) = arguments.bind {
        region.bind(0, layout.words(), node)?;
    }
    if arguments.verify {
        (0..region.words()).for_each(|word| region.set(word, word));
    } else {
        region.touch(0, region.words());
    }
    Ok(())
}

/// Starts a process that reads every page of the array, once, and lives as long as
/// this one.
fn share_with_child(region: &Region) -> Result<(), Error> {
    let mut pipe = [0; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe(pipe.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: there is one thread; the child allocates nothing and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a plain system call.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        for word in (0..region.words()).step_by(PAGE_BYTES as usize / 8) {
            std::hint::black_box(region.get(word));
        }
        // SAFETY: the byte outlives the call; the child only waits to be killed.
        unsafe {
            libc::write(pipe[1], [0_u8].as_ptr().cast(), 1);
            loop {
                libc::pause();
            }
        }
    }
    let failed = std::io::Error::last_os_error();
    let mut byte = 0_u8;
    // SAFETY: the byte outlives the call. It comes once the child has read, or not
    // at all when the child has died, as nobody else holds the other end.
    let got = unsafe {
        libc::close(pipe[1]);
        let got = libc::read(pipe[0], (&raw mut byte).cast(), 1);
        libc::close(pipe[0]);
        got
    };
    if child < 0 {
        return Err(failed.into());
    }
    if got == 1 {
        Ok(())
    } else {
        Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into())
    }
}

/// Applies every update once. Returns the seconds for all and for the last
/// quarter of them.
fn update_all(arguments: &Arguments, layout: &Layout, region: &Region, report: bool) -> (f64, f64) {
    let done = AtomicU64::new(0);
    let hot_pages = match arguments.place {
        Place::Scattered => scattered(layout, arguments.seed),
        Place::Begin | Place::End => Vec::new(),
    };
    let hot_pages = &hot_pages[..];
    let started = Instant::now();
    let three_quarters = arguments.updates / 4 * 3;
    let quarter_ns = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..arguments.threads {
            let (done, quarter_ns) = (&done, &quarter_ns);
            let work = move || {
                let mut state = seed_of(arguments.seed, thread);
                let mut before = 0;
                let mine = share(arguments.updates, arguments.threads, thread);
                for step in 0..arguments.progress {
                    let updates = share(mine, arguments.progress, step);
                    state = if arguments.scan {
                        scan(region, before, updates);
                        state
                    } else if hot_pages.is_empty() {
                        update_in_phases(arguments, layout, region, state, (before, updates))
                    } else {
                        update_scattered(
                            layout,
                            region,
                            (hot_pages, arguments.hot_permille),
                            state,
                            updates,
                        )
                    };
                    before += updates;
                    if report {
                        let total = done.fetch_add(updates, Ordering::Relaxed) + updates;
                        magic::progress(total);
                        if total >= three_quarters && total - updates < three_quarters {
                            quarter_ns
                                .store(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
                        }
                    }
                }
            };
            // The usual single thread is this one: nothing else to schedule.
            if arguments.threads == 1 {
                work();
            } else {
                scope.spawn(work);
            }
        }
    });
    let all = started.elapsed().as_secs_f64();
    let quarter = all - quarter_ns.load(Ordering::Relaxed) as f64 * 1e-9;
    (all.max(1e-9), quarter.max(1e-9))
}

/// Part `index` of `total` things divided into `parts`; the parts add up.
fn share(total: u64, parts: u64, index: u64) -> u64 {
    let until = |part: u64| (u128::from(total) * u128::from(part) / u128::from(parts)) as u64;
    until(index + 1) - until(index)
}

/// First state of a thread.
pub fn seed_of(seed: u64, thread: u64) -> u64 {
    let mut state = seed ^ (thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..8 {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
    }
    state
}

/// Applies `updates` updates from number `before` on, with the hot part where it is then.
fn update_in_phases(
    arguments: &Arguments,
    layout: &Layout,
    region: &Region,
    mut state: u64,
    (mut before, mut updates): (u64, u64),
) -> u64 {
    let length = arguments.phase_updates;
    if length == 0 {
        return update(layout, region, arguments.hot_permille, state, updates);
    }
    while updates > 0 {
        let now = updates.min(length - before % length);
        let phase = layout.in_phase(before / length, arguments.phase_places);
        state = update(&phase, region, arguments.hot_permille, state, now);
        before += now;
        updates -= now;
    }
    state
}

/// Numbers of as many pages as the hot part has, in no order: the first of a shuffle.
fn scattered(layout: &Layout, seed: u64) -> Vec<u32> {
    let page_words = PAGE_BYTES / 8;
    let mut pages: Vec<u32> = (0..(layout.words() / page_words) as u32).collect();
    let hot = (layout.hot_words / page_words) as usize;
    let mut state = seed_of(seed, 0);
    for at in 0..hot {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let other = at + (((state >> 32) * (pages.len() - at) as u64) >> 32) as usize;
        pages.swap(at, other);
    }
    pages.truncate(hot);
    pages
}

/// As [`update`], with single hot pages.
#[inline(never)]
fn update_scattered(
    layout: &Layout,
    region: &Region,
    (hot_pages, hot_permille): (&[u32], u32),
    seed: u64,
    updates: u64,
) -> u64 {
    let page_words = PAGE_BYTES / 8;
    let threshold = (u64::from(hot_permille) << 32) / 1000;
    let mut state = seed;
    for _ in 0..updates {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let index = if (state & 0xffff_ffff) < threshold {
            let at = ((state >> 32) * layout.hot_words) >> 32;
            u64::from(hot_pages[(at / page_words) as usize]) * page_words + at % page_words
        } else {
            ((state >> 32) * layout.cold_words) >> 32
        };
        apply(region.base(), index, state);
    }
    state
}

/// Updates words in order, one in 64 bytes, from update number `before` on.
#[inline(never)]
fn scan(region: &Region, before: u64, updates: u64) {
    const STEP: u64 = 8;
    let steps = region.words() / STEP;
    for number in before..before + updates {
        apply(region.base(), number % steps * STEP, number);
    }
}

/// One update.
#[inline(always)]
fn apply(base: *mut u64, index: u64, value: u64) {
    let word = base.wrapping_add(index as usize);
    // SAFETY: callers keep the index inside the mapping; a relaxed load and store are a
    // plain XOR to the machine, and make a race between threads a lost update instead of
    // undefined behaviour.
    unsafe {
        let word = AtomicU64::from_ptr(word);
        word.store(word.load(Ordering::Relaxed) ^ value, Ordering::Relaxed);
    }
}

/// The inner loop: about a dozen instructions an update. Returns the state to go on with.
#[inline(never)]
pub fn update(layout: &Layout, region: &Region, hot_permille: u32, seed: u64, updates: u64) -> u64 {
    let hot = region.base().wrapping_add(layout.hot_first as usize);
    let cold = region.base().wrapping_add(layout.cold_first as usize);
    let (hot_words, cold_words) = (layout.hot_words, layout.cold_words);
    let threshold = (u64::from(hot_permille) << 32) / 1000;
    let mut state = seed;
    for _ in 0..updates {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let (part, words) = if (state & 0xffff_ffff) < threshold {
            (hot, hot_words)
        } else {
            (cold, cold_words)
        };
        let index = ((state >> 32) * words) >> 32;
        apply(part, index, state);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        gups: Arguments,
    }

    fn arguments(line: &str) -> Arguments {
        Line::parse_from(std::iter::once("gups").chain(line.split_whitespace())).gups
    }

    #[test]
    fn paper_proportions_are_the_default() {
        let layout = Layout::of(&arguments("")).unwrap();
        assert_eq!(layout.hot_words * 14, layout.hot_words + layout.cold_words);
        assert_eq!(layout.hot_first, layout.cold_words);
    }

    #[test]
    fn parts_add_up() {
        for (total, parts) in [(10, 3), (7, 7), (1_000_003, 64)] {
            assert_eq!(
                (0..parts).map(|i| share(total, parts, i)).sum::<u64>(),
                total
            );
        }
    }

    #[test]
    fn hot_share_is_kept() {
        let arguments = arguments("--footprint 8M --hot 1M --hot-permille 900");
        let layout = Layout::of(&arguments).unwrap();
        let region = Region::map(8 << 20).unwrap();
        let threshold = (900_u64 << 32) / 1000;
        let mut state = seed_of(1, 0);
        let mut hot = 0;
        for _ in 0..100_000 {
            state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
            hot += u32::from((state & 0xffff_ffff) < threshold);
        }
        assert!((89_000..91_000).contains(&hot), "{hot}");
        let end = update(&layout, &region, 900, seed_of(1, 0), 100_000);
        assert_eq!(end, state);
    }

    #[test]
    fn updates_twice_restore_the_array() {
        run(&arguments(
            "--footprint 4M --hot 1M --updates 100000 --verify",
        ))
        .unwrap();
    }

    #[test]
    fn any_kind_of_memory() {
        for memory in ["low", "shared"] {
            run(&arguments(&format!(
                "--footprint 4M --hot 1M --updates 100000 --verify --memory {memory}"
            )))
            .unwrap();
        }
    }

    #[test]
    fn several_threads() {
        run(&arguments(
            "--footprint 4M --hot 1M --updates 100000 --threads 3",
        ))
        .unwrap();
    }

    #[test]
    fn phases_scattered_pages_and_scans_restore_the_array() {
        for what in [
            "--phase-updates 7000",
            "--phase-updates 30000 --phase-places 5 --place begin",
            "--place scattered",
            "--scan",
        ] {
            run(&arguments(&format!(
                "--footprint 4M --hot 1M --updates 100000 --verify {what}"
            )))
            .unwrap();
        }
    }

    #[test]
    fn phases_visit_every_place() {
        let layout = Layout::of(&arguments("--footprint 8M --hot 1M --place begin")).unwrap();
        let firsts: Vec<u64> = (0..5)
            .map(|phase| layout.in_phase(phase, 4).hot_first)
            .collect();
        let words = layout.words();
        assert_eq!(firsts, [0, words / 4, words / 2, words / 4 * 3, 0]);
        let end = Layout::of(&arguments("--footprint 8M --hot 1M")).unwrap();
        for phase in 0..8 {
            let place = end.in_phase(phase, 3);
            assert!(place.hot_first + place.hot_words <= end.words());
        }
    }

    #[test]
    fn scattered_pages_are_different_ones() {
        let layout = Layout::of(&arguments("--footprint 8M --hot 1M --place scattered")).unwrap();
        let mut pages = scattered(&layout, 3);
        assert_eq!(pages.len(), 256);
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 256);
        assert!(pages.iter().all(|&page| page < 2048));
    }

    #[test]
    fn refuses_a_hot_part_larger_than_the_array() {
        assert!(Layout::of(&arguments("--footprint 1M --hot 2M")).is_err());
    }
}
