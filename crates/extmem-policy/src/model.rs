// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A model of the pager, to see what policies miss. Its numbers are modelled: they
//! compare policies with CLOCK over true accessed bits, which user space has not.
//! For tests of policies (feature `model`), and not for the pager itself.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::abi::{self, Arrival, FIRST_TOUCH, NEVER, STREAM, SWAP, VICTIM_CACHE};
use crate::{Algorithm, Host, Memory};

const DRAM: u32 = 8192;
const PAGES: u32 = 2 * DRAM;
const BATCH: usize = 64;

fn host() -> abi::Host {
    abi::Host {
        abi: abi::ABI,
        size: size_of::<abi::Host>() as u32,
        arena_pages: PAGES,
        dram_pages: DRAM,
        context: std::ptr::null_mut(),
        prefetch: None,
        state: None,
    }
}

trait Model {
    /// True on a miss.
    fn touch(&mut self, page: u32, stream: bool) -> bool;
}

/// The pager around a policy: resident pages, then the victim cache, then swap.
struct Pager<A> {
    policy: A,
    resident: Vec<bool>,
    /// Oldest first; a page that was wanted leaves a hole.
    victims: VecDeque<Option<u32>>,
    cached: Vec<bool>,
    /// Pages of streams, which go straight out.
    streams: Vec<bool>,
    used: u32,
    evictions: u32,
    stamps: HashMap<u32, u32>,
    /// Touches of pages in the victim cache.
    detours: u32,
}

impl<A: Algorithm> Pager<A> {
    fn new() -> Self {
        let host = Host::from_raw(host());
        let bytes = A::memory_bytes(&host, "").unwrap();
        Self {
            policy: A::start(&mut memory(bytes), host, "").unwrap(),
            resident: vec![false; PAGES as usize],
            victims: VecDeque::new(),
            cached: vec![false; PAGES as usize],
            streams: vec![false; PAGES as usize],
            used: 0,
            evictions: 0,
            stamps: HashMap::new(),
            detours: 0,
        }
    }

    fn make_room(&mut self) {
        let mut chosen = [0; BATCH];
        while self.used >= DRAM {
            if self.victims.len() as u32 > self.policy.victim_cache_pages()
                || self.victims.len() > DRAM as usize / 2
            {
                // The oldest go, those that were wanted again meanwhile excepted.
                for _ in 0..BATCH {
                    let Some(position) = self.victims.pop_front() else {
                        break;
                    };
                    if let Some(page) = position {
                        self.cached[page as usize] = false;
                        self.leave(page);
                    }
                }
                continue;
            }
            let count = self.policy.choose(&mut chosen);
            assert!(count > 0, "{} names nobody", A::NAME.to_string_lossy());
            for &page in &chosen[..count] {
                assert!(std::mem::take(&mut self.resident[page as usize]));
                if self.policy.victim_cache_pages() == 0 || self.streams[page as usize] {
                    self.leave(page);
                } else {
                    self.cached[page as usize] = true;
                    self.victims.push_back(Some(page));
                }
            }
        }
    }

    /// Everything goes out.
    #[cfg(test)]
    fn leave_all(&mut self) {
        let mut chosen = [0; BATCH];
        for page in std::mem::take(&mut self.victims).into_iter().flatten() {
            self.cached[page as usize] = false;
            self.leave(page);
        }
        while self.used > 0 {
            let count = self.policy.choose(&mut chosen);
            for &page in &chosen[..count] {
                self.resident[page as usize] = false;
                self.leave(page);
            }
        }
    }

    /// The program gives memory back and has the same anew.
    #[cfg(test)]
    fn map_anew(&mut self, pages: Range<u32>) {
        for page in pages.clone() {
            let resident = std::mem::take(&mut self.resident[page as usize]);
            let cached = std::mem::take(&mut self.cached[page as usize]);
            self.used -= u32::from(resident || cached);
            self.stamps.remove(&page);
        }
        for victim in &mut self.victims {
            if victim.is_some_and(|page| pages.contains(&page)) {
                *victim = None;
            }
        }
        self.policy.unmapped(pages.start, pages.end - pages.start);
        self.policy.mapped(pages.start, pages.end - pages.start);
    }

    fn leave(&mut self, page: u32) {
        self.evictions += 1;
        self.stamps.insert(page, self.evictions);
        self.policy.evicted(&[page]);
        self.used -= 1;
    }
}

impl<A: Algorithm> Model for Pager<A> {
    fn touch(&mut self, page: u32, stream: bool) -> bool {
        if self.resident[page as usize] {
            return false;
        }
        let cached = std::mem::take(&mut self.cached[page as usize]);
        let mut arrival = Arrival {
            page,
            distance: NEVER,
            ..Arrival::default()
        };
        if cached {
            arrival.source = VICTIM_CACHE;
            let most = self
                .victims
                .len()
                .max(self.policy.victim_cache_pages() as usize);
            let at = self.victims.iter().rposition(|&other| other == Some(page));
            if let Some(at) = at {
                let age = self.victims.len() - 1 - at;
                arrival.cache_permille = (age * 1000 / most) as u16;
                self.victims[at] = None;
            }
            self.detours += 1;
        } else {
            self.make_room();
            self.used += 1;
            arrival.source = FIRST_TOUCH;
            if let Some(stamp) = self.stamps.get(&page) {
                arrival.source = SWAP;
                arrival.distance = self.evictions - stamp;
                arrival.flags = if stream { STREAM } else { 0 };
            }
        }
        self.resident[page as usize] = true;
        self.streams[page as usize] = arrival.flags & STREAM != 0;
        self.policy.arrived(&[arrival]);
        !cached
    }
}

/// CLOCK with accessed bits, as the kernel could have it.
struct TrueClock {
    ring: VecDeque<u32>,
    accessed: Vec<Option<bool>>,
}

impl Model for TrueClock {
    fn touch(&mut self, page: u32, _stream: bool) -> bool {
        if let Some(bit) = &mut self.accessed[page as usize] {
            *bit = true;
            return false;
        }
        while self.ring.len() >= DRAM as usize {
            let Some(oldest) = self.ring.pop_front() else {
                break;
            };
            if self.accessed[oldest as usize] == Some(true) {
                self.accessed[oldest as usize] = Some(false);
                self.ring.push_back(oldest);
            } else {
                self.accessed[oldest as usize] = None;
            }
        }
        self.accessed[page as usize] = Some(false);
        self.ring.push_back(page);
        true
    }
}

fn random(state: &mut u64) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 20) as u32
}

/// What a program touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Any page as likely as any other.
    Uniform,
    /// Nine touches in ten go to a set half as large as DRAM.
    HotSet,
    /// The same with a set of seven eighths of DRAM.
    LargeHotSet,
    /// The small hot set, and from half way on the large one, of other pages.
    OtherHotSet,
    /// A set of three quarters of DRAM that is another one after eight times as many
    /// touches as DRAM has pages: a merge sort, say.
    Shifting,
    /// The fourth power of a uniform number.
    Skewed,
    /// All pages in order, again and again.
    Loop,
    /// Four walks through a quarter each, which begin anew nine sixteenths of the way.
    BrokenWalks,
    /// The loop, and as many touches of a set half as large as DRAM.
    ScanAndHot,
    /// A walk through three quarters of all pages, with jumps into the last quarter.
    PageRank,
    /// Nine sixteenths of the pages, any as likely as any other: the rest is done with.
    Remnant,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Uniform,
        Self::HotSet,
        Self::LargeHotSet,
        Self::OtherHotSet,
        Self::Shifting,
        Self::Skewed,
        Self::Loop,
        Self::BrokenWalks,
        Self::ScanAndHot,
        Self::PageRank,
        Self::Remnant,
    ];
}

/// Touches of a run, after every page was touched once.
const TOUCHES: u32 = 30 * PAGES;
/// Those after which a policy should know its program.
const SETTLED: Range<u32> = TOUCHES / 2..TOUCHES;
/// Those of a long run.
#[cfg(test)]
const LONG: u32 = 16 * TOUCHES;
/// Those before: every page of a hot set comes some five times.
#[cfg(test)]
const SETTLING: Range<u32> = 0..6 * PAGES;

/// Share of touches that miss under a policy once it knows the program.
pub fn misses<A: Algorithm>(pattern: Pattern) -> f64 {
    misses_in::<A>(pattern, SETTLED)
}

/// The same under CLOCK over true accessed bits.
pub fn ideal_misses(pattern: Pattern) -> f64 {
    ideal_misses_in(pattern, SETTLED)
}

fn misses_in<A: Algorithm>(pattern: Pattern, counted: Range<u32>) -> f64 {
    let mut pager = Pager::<A>::new();
    let edges = PAGES / 4 * 3;
    pager.policy.mapped(0, edges);
    pager.policy.mapped(edges, PAGES - edges);
    run(&mut pager, pattern, counted)
}

fn ideal_misses_in(pattern: Pattern, counted: Range<u32>) -> f64 {
    let mut clock = TrueClock {
        ring: VecDeque::new(),
        accessed: vec![None; PAGES as usize],
    };
    run(&mut clock, pattern, counted)
}

fn run(model: &mut dyn Model, pattern: Pattern, counted: Range<u32>) -> f64 {
    let mut missed = 0;
    watch(model, pattern, counted.end, |turn, _, miss| {
        missed += u32::from(miss && counted.contains(&turn));
    });
    f64::from(missed) / f64::from(counted.end - counted.start)
}

/// So many touches, each of them told.
fn watch<M: Model + ?Sized>(
    model: &mut M,
    pattern: Pattern,
    touches: u32,
    mut tell: impl FnMut(u32, &M, bool),
) {
    let mut state = 88_172_645_463_325_252;
    (0..PAGES).for_each(|page| {
        model.touch(page, false);
    });
    let mut walk = 0;
    for turn in 0..touches {
        let scrambled = |page: u32| (page * 7919 + 13) % PAGES;
        let (page, stream) = match pattern {
            Pattern::Uniform => (random(&mut state) % PAGES, false),
            Pattern::Remnant => (random(&mut state) % (PAGES / 16 * 9), false),
            Pattern::HotSet | Pattern::LargeHotSet | Pattern::OtherHotSet => {
                let half_way = pattern == Pattern::OtherHotSet && turn > TOUCHES / 2;
                let first = if half_way { DRAM } else { 0 };
                let limit = match pattern {
                    _ if random(&mut state) % 10 == 9 => PAGES,
                    Pattern::HotSet => DRAM / 2,
                    Pattern::OtherHotSet if !half_way => DRAM / 2,
                    _ => DRAM / 8 * 7,
                };
                (
                    scrambled((first + random(&mut state) % limit) % PAGES),
                    false,
                )
            }
            Pattern::Shifting => {
                let set = turn / (8 * DRAM) * (DRAM / 4 * 3);
                let page = set + random(&mut state) % (DRAM / 4 * 3);
                (scrambled(page % PAGES), false)
            }
            Pattern::Skewed => {
                let share = f64::from(random(&mut state)) / f64::from(u32::MAX);
                let page = (share.powi(4) * f64::from(PAGES)) as u32;
                (scrambled(page % PAGES), false)
            }
            Pattern::Loop => (turn % PAGES, true),
            Pattern::BrokenWalks => {
                let step = turn % (PAGES / 16 * 9);
                (step % 4 * (PAGES / 4) + step / 4, true)
            }
            Pattern::ScanAndHot if turn % 2 == 0 => {
                walk = (walk + 1) % PAGES;
                (walk, true)
            }
            Pattern::ScanAndHot => (random(&mut state) % (DRAM / 2), false),
            Pattern::PageRank if turn % 4 == 0 => {
                walk = (walk + 1) % (PAGES / 4 * 3);
                (walk, true)
            }
            Pattern::PageRank => (PAGES / 4 * 3 + random(&mut state) % (PAGES / 4), false),
        };
        let miss = model.touch(page, stream);
        tell(turn, model, miss);
    }
}

/// Memory for a policy, never given back.
pub fn memory(bytes: usize) -> Memory {
    let leaked: &'static mut [u128] = Vec::leak(vec![0u128; bytes / 16 + 1]);
    // SAFETY: leaked, aligned memory of that size.
    unsafe { Memory::from_raw(leaked.as_mut_ptr().cast(), bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, Default2Q, Fifo};

    /// A page of the victim cache that is wanted costs a fault: that has to be worth it.
    #[test]
    fn where_all_pages_are_alike_the_default_does_not_go_on_looking_for_hot_ones() {
        for pattern in [Pattern::Uniform, Pattern::Remnant] {
            let mut pager = Pager::<Default2Q>::new();
            pager.policy.mapped(0, PAGES);
            let missed = run(&mut pager, pattern, 0..TOUCHES) * f64::from(TOUCHES);
            let detours = f64::from(pager.detours);
            println!("modelled faults, {pattern:?}: {missed} and {detours} for nothing");
            assert!(detours < missed / 4.0, "{detours} beside {missed}");
        }
    }

    /// What a program has freed is not what it waits for, nor what left as all zero and came back
    /// as if it were new.
    #[test]
    fn memory_that_is_given_back_is_not_out() {
        for is_zero in [false, true] {
            let mut pager = Pager::<Default2Q>::new();
            pager.policy.mapped(0, PAGES);
            for _ in 0..8 {
                (0..PAGES).for_each(|page| {
                    pager.touch(page, false);
                });
                if is_zero {
                    pager.leave_all();
                    pager.stamps.clear();
                } else {
                    pager.map_anew(0..PAGES);
                }
            }
            let missed = run(&mut pager, Pattern::Uniform, 0..TOUCHES) * f64::from(TOUCHES);
            let detours = f64::from(pager.detours);
            println!("modelled faults, zero {is_zero}: {missed}, {detours} for nothing");
            assert!(detours < missed / 16.0, "{detours} beside {missed}");
        }
    }

    /// Nor may it take long until the hot pages are known, with waves of misses as they
    /// grow old together.
    #[test]
    fn the_default_settles_nearly_as_soon_as_clock() {
        let anew = TOUCHES / 2..TOUCHES / 2 + SETTLING.end;
        for (pattern, when, most) in [
            (Pattern::HotSet, SETTLING, 1.15),
            (Pattern::LargeHotSet, SETTLING, 1.3),
            (Pattern::OtherHotSet, anew, 1.5),
        ] {
            let ideal = ideal_misses_in(pattern, when.clone());
            let default = misses_in::<Default2Q>(pattern, when);
            println!("modelled misses while settling, {pattern:?}: {default:.4}, {ideal:.4}");
            assert!(default < ideal * most, "{default} against {ideal}");
        }
    }

    /// Pages that come back soon by chance must not push out those that are known to be hot,
    /// which would be learnt anew, each by a fault.
    #[test]
    fn what_is_known_to_be_hot_stays_so() {
        const WINDOW: u32 = 8 * DRAM;
        for (pattern, most_waves) in [(Pattern::HotSet, 6), (Pattern::LargeHotSet, 16)] {
            let ideal = ideal_misses(pattern);
            let mut pager = Pager::<Default2Q>::new();
            pager.policy.mapped(0, PAGES);
            let (mut waves, mut missed, mut before) = (0, 0, (0, 0));
            watch(&mut pager, pattern, LONG, |turn, pager, miss| {
                missed += u32::from(miss);
                if turn % WINDOW == WINDOW - 1 {
                    let faults = missed + pager.detours - before.0 - before.1;
                    before = (missed, pager.detours);
                    waves += u32::from(f64::from(faults) > f64::from(WINDOW) * ideal * 1.5);
                }
            });
            let missed = f64::from(missed) / f64::from(LONG);
            let detours = f64::from(pager.detours) / f64::from(LONG);
            println!(
                "modelled misses of long, {pattern:?}: {missed:.4}, {ideal:.4}; \
                 {waves} waves, {detours:.4} found in the victim cache"
            );
            assert!(
                missed < ideal * 1.02,
                "{pattern:?}: {missed} against {ideal}"
            );
            assert!(
                waves <= most_waves,
                "{pattern:?}: {waves} waves of {}",
                LONG / WINDOW
            );
            // Each of them is a fault, too; most are while they are learnt.
            assert!(detours < missed / 3.0, "{detours} beside {missed}");
        }
    }

    /// Parts of eight pages, 128 chunks.
    fn cut() -> Pager<Default2Q> {
        let mut pager = Pager::<Default2Q>::new();
        pager.policy.cut_walk(3);
        pager.policy.mapped(0, PAGES);
        pager
    }

    #[test]
    fn where_a_walk_is_kept_by_the_lowest_parts_of_chunks_as_little_is_missed() {
        for (pattern, most) in [(Pattern::Loop, 0.6), (Pattern::BrokenWalks, 0.25)] {
            let missed = run(&mut cut(), pattern, SETTLED);
            println!("modelled misses, {pattern:?}, in parts: {missed:.4}");
            assert!(missed < most, "{pattern:?}: {missed}");
        }
        let whole = misses::<Default2Q>(Pattern::PageRank);
        let missed = run(&mut cut(), Pattern::PageRank, SETTLED);
        println!("modelled misses, PageRank: {whole:.4}, in parts {missed:.4}");
        assert!(missed < whole * 1.1);
    }

    /// A page that comes back alone while DRAM is full of the stream has nothing of what is kept.
    #[test]
    fn a_walk_is_kept_though_other_pages_come_alone() {
        let walked = PAGES / 8 * 7;
        let mut pager = Pager::<Default2Q>::new();
        pager.policy.mapped(0, PAGES);
        (0..PAGES).for_each(|page| {
            pager.touch(page, false);
        });
        // All are out, and DRAM is free: so it is after other memory was given back.
        pager.leave_all();
        let (mut state, mut missed) = (88_172_645_463_325_252, 0);
        for step in 0..6 * walked {
            if step % 128 == 0 {
                pager.touch(walked + random(&mut state) % (PAGES - walked), false);
            }
            let miss = pager.touch(step % walked, true);
            missed += u32::from(miss && step >= 3 * walked);
        }
        let share = f64::from(missed) / f64::from(3 * walked);
        println!("modelled misses of a walk beside others: {share:.3}");
        assert!(share < 0.5, "{share}");
    }

    #[test]
    fn each_of_four_threads_that_walk_quarters_misses_about_as_much() {
        let mut pager = cut();
        let mut missed = [0; 4];
        for step in 0..TOUCHES / 4 {
            for (thread, missed) in (0..4).zip(&mut missed) {
                let page = thread * (PAGES / 4) + step % (PAGES / 4);
                let miss = pager.touch(page, true);
                *missed += u32::from(miss && step >= TOUCHES / 8);
            }
        }
        let shares = missed.map(|missed| f64::from(missed) / f64::from(TOUCHES / 8));
        println!("modelled misses of four threads: {shares:.3?}");
        assert!(shares.iter().all(|share| (0.4..0.65).contains(share)));
    }

    #[test]
    fn policies_miss_about_as_little_as_clock_with_accessed_bits() {
        println!("modelled misses, percent   CLOCK with bits   default   clock    fifo");
        for pattern in Pattern::ALL {
            let [ideal, default, clock, fifo] = [
                ideal_misses(pattern),
                misses::<Default2Q>(pattern),
                misses::<Clock>(pattern),
                misses::<Fifo>(pattern),
            ];
            println!(
                "{:14} {:>26.2} {:>9.2} {:>7.2} {:>7.2}",
                format!("{pattern:?}"),
                ideal * 100.0,
                default * 100.0,
                clock * 100.0,
                fifo * 100.0
            );
            match pattern {
                // Nothing can be learnt here, and nothing must be lost.
                Pattern::Uniform | Pattern::Remnant => {
                    assert!(default < ideal * 1.05 && clock < ideal * 1.05);
                }
                Pattern::HotSet | Pattern::LargeHotSet | Pattern::Skewed => {
                    assert!(default < ideal * 1.15, "{default} against {ideal}");
                    assert!(clock < fifo, "{clock} against {fifo}");
                }
                Pattern::OtherHotSet => {
                    assert!(default < ideal * 1.3, "{default} against {ideal}");
                    assert!(clock < fifo, "{clock} against {fifo}");
                }
                Pattern::Shifting => assert!(default < ideal * 1.05, "{default} against {ideal}"),
                // Where CLOCK misses every time, what is in DRAM stays.
                Pattern::Loop => assert!(default < 0.6 && ideal > 0.99, "{default}"),
                Pattern::BrokenWalks => assert!(default < 0.25 && ideal > 0.99, "{default}"),
                Pattern::ScanAndHot | Pattern::PageRank => {
                    assert!(
                        default < ideal * 0.75 && default < fifo,
                        "{default} {ideal}"
                    );
                }
            }
        }
    }
}
