// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several guests above one hypervisor, whose FMEM is one pool for all of them
//! ([`demeter_machine::hypervisor`] decides and charges, as below a live guest).
//!
//! Guests meet as live ones do ([`demeter_machine::hypervisor::pool`]), and are played side by side
//! in between. A page's fills are visits to it, spread over the window evenly from a place on that
//! is drawn; each visit walks to it once, and between slices of the window the host's threads run.
//! A record has no stores and no walks of cached pages, so dirty bits and logs of page tables
//! cannot be played.

use std::collections::HashMap;

use demeter_machine::hypervisor::pool::{MEETING_NS, Meeting, Standing};
use demeter_machine::hypervisor::{Manager, NoMemory};
use demeter_machine::{
    Hypervisor, HypervisorConfig, HypervisorCounters, MachineConfig, MemoryLayout,
};
use demeter_recording::{First, Row, Window};

use crate::host::{Tenant, compare};
use crate::player::{Next, Player};
use crate::report::Report;
use crate::side_by_side::side_by_side;
use crate::simulation::dearer_ps;
use crate::{Error, HUGE_PAGES, PAGE_SHIFT};

/// Parts of a window between which the host's threads run: 2.5 us of windows of 10 ms. In
/// longer ones what is promoted at once does not find the room that kswapd makes meanwhile.
const SLICES: u64 = 4000;
/// Visits to a page in a window, at most.
const VISITS: u64 = 10;
/// Room for a guest's memory, by its nodes: what it freed is not known to be free.
const ROOM: u64 = 2;

/// What became of a guest.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolStay {
    /// When it came and went, on the host's clock.
    pub from_to_s: [f64; 2],
    /// FMEM that it had, on the mean.
    pub fmem_bytes: f64,
    /// What it waited for the hypervisor: violations, flushes, and the host's time for its pages.
    pub waited_s: f64,
    /// Times, fills and shares; what moved is told of the host.
    pub report: Report,
}

/// What came of the pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    /// By guest.
    pub stays: Vec<PoolStay>,
    /// Of the hypervisor, for all guests.
    pub counters: HypervisorCounters,
}

/// Frames of a guest, by address space and page.
struct Frames {
    frames: HashMap<(u64, u64), u64>,
    next: u64,
    end: u64,
    /// The rest of a 2 MiB frame that base pages have begun.
    small: std::ops::Range<u64>,
}

impl Frames {
    fn get(&mut self, space: u64, page: u64, first: First) -> Result<u64, Error> {
        if let Some(&frame) = self.frames.get(&(space, page)) {
            return Ok(frame);
        }
        let full = || Error::Room;
        if first.huge {
            let (frame, head) = (self.next, page & !(HUGE_PAGES - 1));
            self.next = Some(frame + HUGE_PAGES)
                .filter(|&next| next <= self.end)
                .ok_or_else(full)?;
            for at in 0..HUGE_PAGES {
                self.frames.entry((space, head + at)).or_insert(frame + at);
            }
            return Ok(self.frames[&(space, page)]);
        }
        if self.small.is_empty() {
            self.small = self.next..self.next + HUGE_PAGES;
            self.next = Some(self.small.end)
                .filter(|&next| next <= self.end)
                .ok_or_else(full)?;
        }
        let frame = self.small.start;
        self.small.start += 1;
        self.frames.insert((space, page), frame);
        Ok(frame)
    }
}

/// Physical addresses of frames that are numbered from 0 on.
struct Addresses {
    low_frames: u64,
    high: u64,
}

impl Addresses {
    fn new(layout: &MemoryLayout) -> Self {
        let ranges = layout.ranges(0);
        let low = ranges.first().map_or(0, |range| range.end - range.start);
        Self {
            low_frames: low >> PAGE_SHIFT,
            high: ranges.get(1).map_or(0, |range| range.start),
        }
    }

    fn of(&self, frame: u64) -> u64 {
        if frame < self.low_frames {
            frame << PAGE_SHIFT
        } else {
            self.high + ((frame - self.low_frames) << PAGE_SHIFT)
        }
    }
}

/// Fills of a page at about the same time.
#[derive(Clone, Copy)]
struct Visit {
    slice: u64,
    address: u64,
    random: u64,
    streamed: u64,
}

/// Parts of a number that are even, and as many as there are parts.
fn part(number: u64, at: u64, of: u64) -> u64 {
    number * (at + 1) / of - number * at / of
}

impl Visit {
    /// Of one row in the window of that number.
    fn all(address: u64, row: &Row, window: u64, visits: &mut Vec<Self>) {
        let (random, streamed) = (u64::from(row.random), u64::from(row.streamed));
        let count = (random + streamed).min(VISITS);
        // Where in the window they begin is not known.
        let mixed = (row.page ^ window << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let begin = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        visits.extend((0..count).map(|at| Self {
            slice: (begin + at * SLICES / count) % SLICES,
            address,
            random: part(random, at, count),
            streamed: part(streamed, at, count),
        }));
    }
}

struct Guest {
    at: usize,
    player: Player,
    hypervisor: Hypervisor,
    frames: Frames,
    addresses: Addresses,
    /// Slices of the running window that are still to come.
    slice: u64,
    /// Visits of it, the last first.
    visits: Vec<Visit>,
    windows: u64,
    base_ps: u64,
    now_ps: u64,
    waited_ps: u64,
    progress_ps: u64,
    fills: [u64; 2],
    /// Progress and fills before each window.
    marks: Vec<(u64, [u64; 2])>,
    /// FMEM that it had when it was last looked at, and until then in pages times picoseconds.
    fast_pages: u64,
    held: f64,
    looked_ps: u64,
    is_over: bool,
}

impl Guest {
    fn pay(&mut self, ps: u64) {
        self.now_ps = self.now_ps.saturating_add(ps);
        self.waited_ps = self.waited_ps.saturating_add(ps);
    }

    /// Reads the next window.
    fn read(&mut self, window: &mut Window) -> Result<(), Error> {
        match self.player.next(window)? {
            Next::End => self.is_over = true,
            Next::Resident(resident) => {
                for run in &resident.runs {
                    for page in run.page..run.page + run.pages {
                        let frame = self.frames.get(resident.space, page, run.first)?;
                        self.hypervisor.resident(self.addresses.of(frame));
                    }
                }
            }
            Next::Window(_) => {
                self.slice = SLICES;
                self.base_ps = window.base_ps;
                self.marks.push((self.progress_ps, self.fills));
                self.progress_ps = self.progress_ps.saturating_add(window.base_ps);
                self.windows += 1;
                self.visits.clear();
                let mut begin = 0;
                for &(space, end) in &window.spaces {
                    for row in &window.rows[begin..end] {
                        let first = row.first.unwrap_or_default();
                        let frame = self.frames.get(space, row.page, first)?;
                        let address = self.addresses.of(frame);
                        Visit::all(address, row, self.windows, &mut self.visits);
                    }
                    begin = end;
                }
                self.visits
                    .sort_by_key(|visit| std::cmp::Reverse(visit.slice));
                self.look();
                self.fast_pages = self.hypervisor.counters().fmem_pages;
            }
        }
        Ok(())
    }

    fn look(&mut self) {
        self.held += self.fast_pages as f64 * (self.now_ps - self.looked_ps) as f64;
        self.looked_ps = self.now_ps;
    }

    /// Plays a slice of the window.
    fn play(&mut self, dearer_ps: [u64; 2]) {
        let slice = SLICES - self.slice;
        self.slice -= 1;
        let (mut owed_ps, mut slower_ps) = (0, 0);
        while let Some(visit) = self.visits.pop_if(|visit| visit.slice == slice) {
            owed_ps += self.hypervisor.walked(visit.address, true, false);
            let node = self.hypervisor.node(visit.address);
            self.fills[node] += visit.random + visit.streamed;
            if node != 0 {
                slower_ps += visit.random * dearer_ps[0] + visit.streamed * dearer_ps[1];
            }
        }
        let own_ps = part(self.base_ps, slice, SLICES).saturating_add(slower_ps);
        self.now_ps = self.now_ps.saturating_add(own_ps);
        self.pay(owed_ps);
    }

    /// Goes on until its own clock has come so far, or it is over.
    fn advance(
        &mut self,
        until_ps: u64,
        dearer_ps: [u64; 2],
        window: &mut Window,
    ) -> Result<(), Error> {
        while !self.is_over && self.now_ps < until_ps {
            let (owed_ps, flushes) = self.hypervisor.run(self.now_ps / 1000, &NoMemory);
            self.pay(owed_ps);
            if let Some(flushes) = flushes {
                self.hypervisor.flushed(flushes);
                self.pay(flushes.ps);
            }
            if self.slice == 0 {
                self.read(window)?;
            }
            if self.slice > 0 {
                self.play(dearer_ps);
            }
        }
        Ok(())
    }

    fn stay(mut self, start_ps: u64) -> PoolStay {
        self.look();
        let seconds = |ps: u64| ps as f64 * 1e-12;
        let share = |from: [u64; 2]| {
            let fills = [0, 1].map(|tier: usize| self.fills[tier] - from[tier]);
            let all = fills[0] + fills[1];
            (all > 0).then(|| fills[0] as f64 / all as f64)
        };
        let quarter = (self.marks.iter())
            .find(|(progress_ps, _)| *progress_ps >= self.progress_ps / 4 * 3)
            .map_or(self.fills, |(_, fills)| *fills);
        let mut digest = 0;
        for value in [self.now_ps, self.fills[0], self.fills[1], self.fast_pages] {
            digest = demeter_core::digest_add(digest, value);
        }
        PoolStay {
            from_to_s: [seconds(start_ps), seconds(start_ps + self.now_ps)],
            fmem_bytes: self.held / self.now_ps.max(1) as f64 * (1u64 << PAGE_SHIFT) as f64,
            waited_s: seconds(self.waited_ps),
            report: Report {
                time_s: seconds(self.now_ps),
                fmem_share: share([0; 2]),
                fmem_share_last_quarter: share(quarter),
                digest: format!("{digest:016x}"),
                ..Report::default()
            },
        }
    }
}

/// Checks what a record can tell such a hypervisor.
fn check(config: &HypervisorConfig, machine: &MachineConfig) -> Result<(), Error> {
    let refused = |reason: String| Err(Error::Hypervisor(reason));
    if config.manager == Manager::Vtmm || (config.manager == Manager::Abit && config.dirty_bit != 0)
    {
        return refused("looks at stores or page tables, which are not in a record".into());
    }
    config
        .validate()
        .and_then(|()| config.fits(machine))
        .or_else(|error| refused(error.to_string()))
}

/// Plays guests above one hypervisor with `config.fmem_bytes` of FMEM for all of them.
///
/// # Errors
/// A record is cut short, damaged or foreign, or of another machine than the first's or the
/// hypervisor's; with its place among `tenants`.
pub fn pool(
    tenants: &[Tenant],
    config: &HypervisorConfig,
    machine_of: impl Fn(&crate::Header) -> MachineConfig,
) -> Result<Pooled, (usize, Error)> {
    let mut waiting = Vec::new();
    let mut machine = None;
    for (at, tenant) in tenants.iter().enumerate() {
        let wrong = |error| (at, error);
        let player = Player::open(&tenant.record).map_err(wrong)?;
        let own = machine_of(&player.header);
        check(config, &own).map_err(wrong)?;
        if *machine.get_or_insert_with(|| own.clone()) != own {
            let reason = "has guests of one machine, and this record is of another".into();
            return Err(wrong(Error::Hypervisor(reason)));
        }
        let bytes: u64 = player.header.node_bytes.iter().sum();
        let frames = ((ROOM * bytes) >> PAGE_SHIFT).next_multiple_of(HUGE_PAGES);
        let layout = MemoryLayout::new(frames << PAGE_SHIFT, 0);
        let config = config.of_guest(at as u64, tenants.len() as u64);
        let mut hypervisor = Hypervisor::new(&config, &own, layout, 1);
        hypervisor.resume(0);
        waiting.push(Guest {
            at,
            player,
            hypervisor,
            frames: Frames {
                frames: HashMap::new(),
                next: 0,
                end: frames,
                small: 0..0,
            },
            addresses: Addresses::new(&layout),
            slice: 0,
            visits: Vec::new(),
            windows: 0,
            base_ps: 0,
            now_ps: 0,
            waited_ps: 0,
            progress_ps: 0,
            fills: [0; 2],
            marks: Vec::new(),
            fast_pages: 0,
            held: 0.0,
            looked_ps: 0,
            is_over: false,
        });
    }
    let Some(machine) = machine else {
        return Ok(Pooled {
            stays: Vec::new(),
            counters: HypervisorCounters::default(),
        });
    };
    let dearer_ps = dearer_ps(&machine);
    let mut counters = HypervisorCounters::default();
    let mut stays: Vec<Option<PoolStay>> = tenants.iter().map(|_| None).collect();
    let start_ns = |guest: &Guest| tenants[guest.at].start_ns;
    let mut here: Vec<Guest> = Vec::new();
    let mut now_ns = 0;
    while !(waiting.is_empty() && here.is_empty()) {
        let is_here = |guest: &mut Guest| start_ns(guest) <= now_ns;
        here.extend(waiting.extract_if(.., is_here));
        let standings: Vec<Standing> = (here.iter_mut())
            .map(|guest| guest.hypervisor.standing())
            .collect();
        let capacity_pages = (here.first()).map_or(0, |guest| guest.hypervisor.capacity_pages());
        let meeting = Meeting::new(now_ns / MEETING_NS, capacity_pages, standings);
        for (at, guest) in here.iter_mut().enumerate() {
            guest.hypervisor.meet(at, &meeting);
        }
        now_ns += MEETING_NS;
        side_by_side(&mut here, |guest, window| {
            let until_ps = now_ns.saturating_sub(start_ns(guest)) * 1000;
            (guest.advance(until_ps, dearer_ps, window)).map_err(|error| (guest.at, error))
        })?;
        for guest in here.extract_if(.., |guest| guest.is_over) {
            counters.add(&guest.hypervisor.counters());
            let (at, start_ps) = (guest.at, start_ns(&guest) * 1000);
            stays[at] = Some(guest.stay(start_ps));
        }
    }
    let mut stays: Vec<PoolStay> = stays.into_iter().flatten().collect();
    let reports = stays.iter_mut().map(|stay| &mut stay.report);
    let machine = |header: &crate::Header| Ok(machine_of(header));
    compare(tenants, config.pool_bytes(), machine, reports)?;
    Ok(Pooled { stays, counters })
}
