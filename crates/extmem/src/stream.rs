// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who reads in order, and what will be wanted next.
//!
//! Only faults are seen, and prefetched pages do not fault. So the first page of each
//! window is left out: its fault tells that the thread is still coming along, and asks
//! for the next window. A thread may follow several streams at once (a program that
//! walks two arrays), forwards, backwards or with a stride. Windows start small and
//! double with each page that was waited for.
//!
//! Nobody tells whether a page that was brought is used. But a thread that comes by the
//! next trigger has passed what lies before it, and of a stream that is given up early for
//! another, what was asked for and not passed is taken for wasted. While much is, all
//! windows shrink, and at last no more are asked for but by one stream in
//! [`PROBE_PERIOD`], which shows whether it is worth it again.
//!
//! Threads are told apart by a number that the caller passes: thread-local storage is
//! not to be trusted in signal handlers.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::lock::Lock;
use crate::page::PageIndex;
use crate::queue::Window;
use crate::region::{Region, carved_bytes};

/// Threads that are told apart; more share.
const THREADS: usize = 64;
/// Streams that a thread follows at once.
const STREAMS: usize = 6;
/// Windows asked for ahead of a stream.
const DEPTH: usize = 4;
/// Windows in one piece of advice.
pub const MOST_WINDOWS: usize = 8;
/// Steps of equal length that make a stream.
const PROOF: u8 = 2;
/// Longest stride, in pages, that is told from jumping about.
const LONGEST_STRIDE: i64 = 64;
/// First window.
const LEAST_PAGES: u32 = 16;
/// Largest window: 256 KiB, beyond which reads get no faster.
const MOST_PAGES: u32 = 64;
/// How far ahead resident pages are skipped.
const SKIP: i64 = 256;
/// Share of wasted pages, one in so many, that halves windows.
const WASTE: u32 = 4;
/// Pages whose fate is known before windows change; fewer while few are asked for.
const PERIOD: u32 = 4096;
/// How often windows are halved before nothing is asked for any more.
const STOPPED: u32 = 5;
/// Meanwhile one step of a stream in so many makes it ask all the same.
const PROBE_PERIOD: u32 = 32;
/// Pages of a stream that a thread reads itself when nobody else is about to.
const LATE_PAGES: u32 = 16;

/// What follows from a fault.
#[derive(Debug, Clone, Copy, Default)]
pub struct Advice {
    /// The fault is part of a stream: the page will hardly be wanted again soon.
    pub is_stream: bool,
    /// So many pages from this one on are worth one read, if they are out still.
    pub late_pages: u32,
    count: usize,
    windows: [Window; MOST_WINDOWS],
}

impl Advice {
    /// What to bring in.
    pub fn windows(&self) -> &[Window] {
        &self.windows[..self.count]
    }

    fn push(&mut self, window: Window) -> bool {
        let Some(place) = self.windows.get_mut(self.count) else {
            return false;
        };
        *place = window;
        self.count += 1;
        true
    }
}

/// All zero is a stream that nobody follows.
#[derive(Debug, Clone, Copy)]
struct Stream {
    used: bool,
    /// Steps of `stride` seen in a row.
    proof: u8,
    last: PageIndex,
    /// Pages from one access to the next; negative when going down.
    stride: i32,
    /// Pages whose fault asks for more, nearest first.
    triggers: [PageIndex; DEPTH],
    waiting: usize,
    /// First page not asked for.
    ahead: i64,
    window_pages: u32,
    /// Pages asked for and not passed yet.
    owed_pages: u32,
    /// Pages passed.
    passed_pages: u32,
    /// Asks although others may not.
    probes: bool,
    /// For replacement.
    turn: u32,
}

/// A thread's streams.
#[derive(Debug)]
struct Follower {
    turn: u32,
    streams: [Stream; STREAMS],
}

/// The detector. All zero but for its limits.
#[derive(Debug)]
pub struct Streams {
    followers: &'static [Lock<Follower>],
    /// Pages of the arena.
    pages: PageIndex,
    most_window_pages: u32,
    used: AtomicU32,
    wasted: AtomicU32,
    /// Right shift of windows while much is wasted; [`STOPPED`]: none.
    caution: AtomicU32,
    /// Steps of streams while stopped.
    steps: AtomicU32,
}

impl Streams {
    /// Bytes that [`Self::new`] wants.
    pub fn footprint_bytes() -> usize {
        carved_bytes::<Lock<Follower>>(THREADS)
    }

    /// Nobody streams. Windows of all threads' streams should fit well into
    /// `dram_pages`. None: the region is too small.
    pub fn new(pages: PageIndex, dram_pages: u64, mut region: Region) -> Option<Self> {
        // SAFETY: zero is a follower of nothing.
        let followers = unsafe { region.carve::<Lock<Follower>>(THREADS) }?;
        let fair = dram_pages / (8 * DEPTH as u64);
        Some(Self {
            followers,
            pages,
            most_window_pages: fair.clamp(2, u64::from(MOST_PAGES)) as u32,
            used: AtomicU32::new(0),
            wasted: AtomicU32::new(0),
            caution: AtomicU32::new(0),
            steps: AtomicU32::new(0),
        })
    }

    /// A fault of a thread that has to wait for its page. `is_out` says whether a page
    /// could be brought in. Signals must be blocked.
    pub fn observe(
        &self,
        thread: u32,
        page: PageIndex,
        write: bool,
        mut is_out: impl FnMut(PageIndex) -> bool,
    ) -> Advice {
        let mut advice = Advice::default();
        // Thread numbers follow one another.
        let mut follower = self.followers[thread as usize % THREADS].lock();
        follower.turn = follower.turn.wrapping_add(1);
        let turn = follower.turn;
        let index = follower.place(page);
        if !follower.streams[index].fits(page) {
            self.feedback(follower.pass_on_to(page), 0);
        }
        let stream = &mut follower.streams[index];
        stream.turn = turn;
        let owed_pages = stream.owed_pages;
        let step = stream.step(page);
        self.feedback(owed_pages - stream.owed_pages, 0);
        match step {
            Step::Other => {
                self.feedback(0, stream.wasted_pages());
                *stream = Stream {
                    used: true,
                    last: page,
                    turn,
                    ..Stream::NONE
                };
            }
            Step::Unproven => {}
            Step::Inside => advice.is_stream = true,
            Step::Next => {
                let caution = self.caution.load(Ordering::Relaxed);
                stream.probes |= caution == STOPPED
                    && self
                        .steps
                        .fetch_add(1, Ordering::Relaxed)
                        .is_multiple_of(PROBE_PERIOD);
                if caution == STOPPED && !stream.probes {
                    return advice;
                }
                advice.is_stream = true;
                advice.late_pages = LATE_PAGES >> caution;
                let most = (self.most_window_pages >> caution).max(2);
                stream.window_pages = (stream.window_pages * 2).clamp(LEAST_PAGES.min(most), most);
                stream.advance(page, write, self.pages, &mut is_out, &mut advice);
                let asked_pages = advice.windows().iter().map(|window| window.pages);
                stream.owed_pages += asked_pages.sum::<u32>();
            }
        }
        advice
    }

    /// What became of prefetched pages: so many were used, so many left unused.
    fn feedback(&self, used: u32, wasted: u32) {
        if used + wasted == 0 {
            return;
        }
        let caution = self.caution.load(Ordering::Relaxed);
        let used = self.used.fetch_add(used, Ordering::Relaxed) + used;
        let wasted = self.wasted.fetch_add(wasted, Ordering::Relaxed) + wasted;
        if used + wasted < PERIOD >> caution {
            return;
        }
        self.used.store(0, Ordering::Relaxed);
        self.wasted.store(0, Ordering::Relaxed);
        let next = if wasted > (used + wasted) / WASTE {
            (caution + 1).min(STOPPED)
        } else {
            caution.saturating_sub(1)
        };
        self.caution.store(next, Ordering::Relaxed);
    }
}

enum Step {
    /// Has nothing to do with the stream.
    Other,
    /// Fits, but it is too early to tell.
    Unproven,
    /// Inside a window that is on its way.
    Inside,
    /// The stream goes on: ask for more.
    Next,
}

impl Follower {
    /// A page that no stream was waiting for, but some way ahead of one: the thread walked
    /// through what was asked for and on through pages that were in DRAM. Returns pages
    /// that were used so.
    fn pass_on_to(&mut self, page: PageIndex) -> u32 {
        /// Longest part in DRAM.
        const REACH: i64 = 2048;
        let mut used_pages = 0;
        for stream in &mut self.streams {
            let unit = i64::from(stream.stride).signum();
            let beyond = (i64::from(page) - stream.ahead) * unit;
            if stream.owed_pages > 0 && (0..REACH).contains(&beyond) {
                used_pages += std::mem::take(&mut stream.owed_pages);
            }
        }
        used_pages
    }

    /// The stream that the page goes on with, else the one to give up.
    fn place(&self, page: PageIndex) -> usize {
        let near = self
            .streams
            .iter()
            .enumerate()
            .filter(|(_, stream)| stream.fits(page))
            .max_by_key(|(_, stream)| stream.proof);
        if let Some((index, _)) = near {
            return index;
        }
        self.streams
            .iter()
            .enumerate()
            .max_by_key(|(_, stream)| {
                if stream.used {
                    self.turn.wrapping_sub(stream.turn)
                } else {
                    u32::MAX
                }
            })
            .map_or(0, |(index, _)| index)
    }
}

impl Stream {
    const NONE: Self = Self {
        used: false,
        proof: 0,
        last: 0,
        stride: 0,
        triggers: [0; DEPTH],
        waiting: 0,
        ahead: 0,
        window_pages: 0,
        owed_pages: 0,
        passed_pages: 0,
        probes: false,
        turn: 0,
    };

    fn fits(&self, page: PageIndex) -> bool {
        let distance = i64::from(page) - i64::from(self.last);
        self.used
            && distance != 0
            && (self.covers(page)
                || if self.proof >= 1 {
                    distance == i64::from(self.stride)
                } else {
                    distance.abs() <= LONGEST_STRIDE
                })
    }

    /// Between the last page and what was asked for, and one that a stride steps on: what
    /// lies between its steps is somebody else's, a walk over all pages above all.
    fn covers(&self, page: PageIndex) -> bool {
        let page = i64::from(page);
        self.proof >= PROOF
            && (page - i64::from(self.last)) % i64::from(self.stride) == 0
            && if self.stride > 0 {
                page > i64::from(self.last) && page < self.ahead
            } else {
                page < i64::from(self.last) && page > self.ahead
            }
    }

    /// The thread came from the last page to this one: what lies between was used.
    fn pass(&mut self, page: PageIndex) {
        let steps = page.abs_diff(self.last) / self.stride.unsigned_abs().max(1);
        self.owed_pages = self.owed_pages.saturating_sub(steps);
        self.passed_pages = self.passed_pages.saturating_add(steps);
        self.last = page;
    }

    /// What was wasted if the thread came no further. A stream that went on for longer
    /// than what it still had ahead most likely went on to pages that were in DRAM.
    fn wasted_pages(&self) -> u32 {
        if self.passed_pages < self.owed_pages {
            self.owed_pages
        } else {
            0
        }
    }

    fn step(&mut self, page: PageIndex) -> Step {
        if !self.fits(page) {
            return Step::Other;
        }
        if let Some(at) = self.triggers[..self.waiting]
            .iter()
            .position(|&trigger| trigger == page)
        {
            self.triggers.copy_within(at + 1..self.waiting, 0);
            self.waiting -= at + 1;
            self.pass(page);
            return Step::Next;
        }
        if self.covers(page) {
            // Triggers that were passed were not out when the thread came by.
            let down = self.stride < 0;
            while self.waiting > 0 && (self.triggers[0] < page) != down {
                self.triggers.copy_within(1..self.waiting, 0);
                self.waiting -= 1;
            }
            self.pass(page);
            return if self.waiting < DEPTH / 2 {
                Step::Next
            } else {
                Step::Inside
            };
        }
        let distance = (i64::from(page) - i64::from(self.last)) as i32;
        if distance == self.stride {
            self.pass(page);
            self.proof = self.proof.saturating_add(1);
        } else {
            self.last = page;
            self.stride = distance;
            self.proof = 1;
        }
        if self.proof < PROOF {
            return Step::Unproven;
        }
        if self.waiting == 0 {
            self.ahead = i64::from(page) + i64::from(self.stride);
        }
        Step::Next
    }

    /// Asks for windows until [`DEPTH`] triggers wait.
    fn advance(
        &mut self,
        page: PageIndex,
        write: bool,
        pages: PageIndex,
        is_out: &mut impl FnMut(PageIndex) -> bool,
        advice: &mut Advice,
    ) {
        let stride = i64::from(self.stride);
        let unit = stride.signum();
        if (self.ahead - i64::from(page)) * unit <= 0 {
            self.ahead = i64::from(page) + stride;
        }
        let inside = |at: i64| (0..i64::from(pages)).contains(&at);
        while self.waiting < DEPTH && advice.count < MOST_WINDOWS {
            let mut trigger = self.ahead;
            let mut skipped = 0;
            while inside(trigger) && skipped < SKIP && !is_out(trigger as PageIndex) {
                trigger += stride;
                skipped += 1;
            }
            if !inside(trigger) || skipped == SKIP {
                return;
            }
            self.triggers[self.waiting] = trigger as PageIndex;
            self.waiting += 1;
            if stride.abs() == 1 {
                // The pages behind the trigger, in ascending order.
                let count = i64::from(self.window_pages) - 1;
                let (low, high) = if unit > 0 {
                    (trigger + 1, (trigger + count).min(i64::from(pages) - 1))
                } else {
                    ((trigger - count).max(0), trigger - 1)
                };
                if low <= high {
                    advice.push(Window {
                        first: low as PageIndex,
                        pages: (high - low + 1) as u32,
                        write,
                    });
                }
                self.ahead = trigger + unit * i64::from(self.window_pages);
            } else {
                // Single pages cost a read each: few of them, and one trigger for all.
                let mut at = trigger + stride;
                while inside(at)
                    && advice.push(Window {
                        first: at as PageIndex,
                        pages: 1,
                        write,
                    })
                {
                    at += stride;
                }
                self.ahead = at;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const PAGES: u32 = 100_000;

    fn streams() -> Streams {
        let region = Region::map_anonymous(Streams::footprint_bytes()).unwrap();
        Streams::new(PAGES, 1 << 20, region).unwrap()
    }

    /// Touches pages in order; returns faults and pages prefetched but never touched.
    fn walk(streams: &Streams, accesses: impl IntoIterator<Item = (u32, u32)>) -> (usize, usize) {
        let (mut resident, mut brought) = (HashSet::new(), HashSet::new());
        let mut faults = 0;
        for (thread, page) in accesses {
            brought.remove(&page);
            if !resident.insert(page) {
                continue;
            }
            faults += 1;
            let advice = streams.observe(thread, page, false, |page| !resident.contains(&page));
            for window in advice.windows() {
                for page in window.first..window.first + window.pages {
                    assert!(page < PAGES);
                    if resident.insert(page) {
                        brought.insert(page);
                    }
                }
            }
        }
        (faults, brought.len())
    }

    #[test]
    fn a_straight_walk_faults_once_a_window() {
        let (faults, wasted) = walk(&streams(), (0..20_000).map(|page| (1, page)));
        assert!(faults < 20_000 / 50, "{faults} faults");
        assert!(wasted < 400, "{wasted} wasted");
    }

    #[test]
    fn backwards_too() {
        let (faults, wasted) = walk(&streams(), (30_000..50_000).rev().map(|page| (1, page)));
        assert!(faults < 20_000 / 50, "{faults} faults");
        assert!(wasted < 400, "{wasted} wasted");
    }

    #[test]
    fn a_stride_brings_only_what_is_used() {
        let (faults, wasted) = walk(&streams(), (0..2000).map(|step| (1, step * 7)));
        assert!(faults < 2000 / 5, "{faults} faults");
        assert!(wasted < 20, "{wasted} wasted");
    }

    #[test]
    fn several_arrays_and_several_threads_at_once() {
        let accesses = (0..5000u32)
            .flat_map(|step| (0..4u32).map(move |array| (array % 2, array * 20_000 + step)));
        let (faults, wasted) = walk(&streams(), accesses);
        assert!(faults < 20_000 / 40, "{faults} faults");
        assert!(wasted < 2000, "{wasted} wasted");
    }

    #[test]
    fn jumping_about_brings_nothing() {
        let mut state = 1u64;
        let accesses: Vec<_> = (0..5000)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (1, (state >> 33) as u32 % PAGES)
            })
            .collect();
        let (_, wasted) = walk(&streams(), accesses);
        assert!(wasted < 250, "{wasted} wasted");
    }

    #[test]
    fn a_stream_among_random_faults_is_still_seen() {
        let mut state = 1u64;
        let accesses = (0..6000u32).flat_map(|step| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let random = 50_000 + (state >> 33) as u32 % 50_000;
            [(1, step), (1, random)]
        });
        let accesses: Vec<_> = accesses.collect();
        let (faults, _) = walk(&streams(), accesses);
        // The random half faults at nearly every access.
        assert!(faults < 6000 + 600, "{faults} faults");
    }

    /// Largest window that a walk of `pages` from `from` asks for.
    fn largest(streams: &Streams, from: u32, pages: u32) -> u32 {
        (from..from + pages)
            .flat_map(|page| {
                let advice = streams.observe(9, page, false, |_| true);
                advice.windows().to_vec()
            })
            .map(|window| window.pages)
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn a_walk_over_pages_of_which_parts_are_in_dram_wastes_nothing() {
        let streams = streams();
        let mut resident: HashSet<u32> = (0..PAGES)
            .filter(|page| page % 1000 >= 90 && page % 1000 < 700)
            .collect();
        for page in 0..PAGES {
            if resident.insert(page) {
                let advice = streams.observe(1, page, false, |page| !resident.contains(&page));
                for window in advice.windows() {
                    resident.extend(window.first..window.first + window.pages);
                }
            }
        }
        assert_eq!(streams.caution.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_stride_does_not_hide_a_walk_over_all_pages() {
        let stride = (0..8).map(|step| (1, 1000 + step * LONGEST_STRIDE as u32));
        let (faults, _) = walk(&streams(), stride.chain((1300..9300).map(|page| (1, page))));
        assert!(faults < 8000 / 40, "{faults} faults");
    }

    #[test]
    fn walks_that_break_off_shrink_windows_and_long_ones_restore_them() {
        let streams = streams();
        assert_eq!(largest(&streams, 0, 500), 63);
        // Six pages here and there look like streams, and are none.
        let mut asked_pages = Vec::new();
        for turn in 0..4000u32 {
            let from = turn * 7919 % (PAGES - 100);
            asked_pages.push(largest(&streams, from, 6));
        }
        assert_eq!(streams.caution.load(Ordering::Relaxed), STOPPED);
        let late = &asked_pages[2000..];
        let asking = late.iter().filter(|&&pages| pages > 0).count();
        assert!((1..late.len() / 4).contains(&asking), "{asking} still ask");
        assert!(late.iter().all(|&pages| pages <= 3));
        // A real stream is seen all the same, and brings the windows back.
        largest(&streams, 10_000, 60_000);
        assert_eq!(largest(&streams, 80_000, 500), 63);
    }

    proptest! {
        #[test]
        fn any_faults_get_sane_advice(
            faults in proptest::collection::vec((0u32..3, 0u32..400, any::<bool>()), 0..400),
            base in prop_oneof![Just(0u32), Just(PAGES - 400)],
        ) {
            let streams = streams();
            for (thread, page, out) in faults {
                let advice = streams.observe(thread, base + page, false, |_| out);
                for window in advice.windows() {
                    prop_assert!(window.pages >= 1 && window.pages <= MOST_PAGES);
                    prop_assert!(window.first + window.pages <= PAGES);
                    prop_assert!(!(window.first..window.first + window.pages).contains(&(base + page)));
                }
            }
        }
    }
}
