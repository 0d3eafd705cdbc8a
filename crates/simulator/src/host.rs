// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several guests on one host, whose FMEM one of the host daemon's policies divides.
//!
//! Each guest is a [`Simulation`] of its own, with its own clock; what it tells and what it is
//! told goes through `demeter-policy` as in the daemon. Between two decisions guests know
//! nothing of each other, so that they may be played side by side.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use demeter_balloon::statistics::Trigger;
use demeter_balloon::{NodeStatistics, Statistics};
use demeter_core::{FMEM, SMEM};
use demeter_machine::MachineConfig;
use demeter_policy::{
    DEAD_BAND, Entitled, FINE_BAND, Fleet, Held, MOST_SAMPLES_PER_S, Memory, Policy, changes,
    differs, divide,
};
use demeter_recording::Window;

use crate::player::{Next, Player};
use crate::side_by_side::side_by_side;
use crate::simulation::Figures;
use crate::{Error, Header, Manager, PAGE_SHIFT, Report, Simulation, Variant, replay};

/// A guest that comes to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its record.
    pub record: PathBuf,
    /// When it comes, on the host's clock.
    pub start_ns: u64,
}

/// What guests share.
pub struct Host {
    /// Who divides.
    pub policy: Arc<dyn Policy>,
    /// FMEM that there is.
    pub pool_bytes: u64,
    /// Least of a guest.
    pub floor_bytes: u64,
    /// Most of a guest; none: all of its memory.
    pub ceiling_bytes: Option<u64>,
    /// Between decisions.
    pub interval_ns: u64,
}

/// What became of a guest.
#[derive(Clone, Debug, PartialEq)]
pub struct Stay {
    /// When it came and went, on the host's clock.
    pub from_to_s: [f64; 2],
    /// FMEM that it had, on the mean over its time.
    pub fmem_bytes: f64,
    /// The least and the most.
    pub fmem_bounds_bytes: [u64; 2],
    /// How often its FMEM was changed.
    pub resizes: u64,
    /// What it came to; `none_s` is under first touch with an equal part of the pool for ever.
    pub report: Report,
}

/// A guest that is there.
struct Guest {
    at: usize,
    player: Player,
    simulation: Simulation,
    memory: Memory,
    sequence: u64,
    size_pages: u64,
    bounds_pages: [u64; 2],
    /// FMEM by time, in pages times picoseconds, up to `since_ps`.
    held: f64,
    since_ps: u64,
    resizes: u64,
    is_over: bool,
}

impl Guest {
    /// Goes on until its clock is there, or its record ends.
    fn advance(&mut self, start_ps: u64, until_ps: u64, window: &mut Window) -> Result<(), Error> {
        while !self.is_over && start_ps + self.simulation.now_ps() < until_ps {
            match self.player.next(window)? {
                Next::Resident(resident) => self.simulation.resident(resident),
                Next::Window(eligible) => self.simulation.window(window, eligible)?,
                Next::End => self.is_over = true,
            }
        }
        Ok(())
    }

    /// FMEM since it was last asked counts as what it was.
    fn settle(&mut self) {
        let now_ps = self.simulation.now_ps();
        self.held += self.size_pages as f64 * (now_ps - self.since_ps) as f64;
        self.since_ps = now_ps;
    }

    fn resize(&mut self, size_pages: u64) {
        self.settle();
        self.simulation.resize(self.size_pages, size_pages);
        self.size_pages = size_pages;
        self.resizes += 1;
        self.bounds_pages[0] = self.bounds_pages[0].min(size_pages);
        self.bounds_pages[1] = self.bounds_pages[1].max(size_pages);
    }

    fn stay(mut self, start_ps: u64) -> Stay {
        self.settle();
        let took_ps = self.simulation.now_ps();
        let mean_pages = if took_ps > 0 {
            self.held / took_ps as f64
        } else {
            self.size_pages as f64
        };
        let seconds = |ps: u64| ps as f64 * 1e-12;
        Stay {
            from_to_s: [seconds(start_ps), seconds(start_ps + took_ps)],
            fmem_bytes: mean_pages * (1u64 << PAGE_SHIFT) as f64,
            fmem_bounds_bytes: self.bounds_pages.map(|pages| pages << PAGE_SHIFT),
            resizes: self.resizes,
            report: self.simulation.finish(),
        }
    }
}

/// What a driver would tell.
fn statistics(
    sequence: u64,
    now_ns: u64,
    figures: &Figures,
    size_pages: u64,
    totals: [u64; 2],
) -> Statistics {
    let sizes = [size_pages, totals[SMEM]];
    let node = |tier: usize| NodeStatistics {
        total_pages: totals[tier],
        free_pages: sizes[tier].saturating_sub(figures.resident_pages[tier]),
        balloon_pages: totals[tier].saturating_sub(sizes[tier]),
        anon_pages: figures.resident_pages[tier],
        ..NodeStatistics::default()
    };
    Statistics {
        sequence,
        guest_time_ns: now_ns,
        event: Trigger::Periodic,
        has_tmm: figures.hot_pages.is_some(),
        has_psi: false,
        fmem_samples: figures.tier_samples[FMEM],
        smem_samples: figures.tier_samples[SMEM],
        hot_wanted_pages: figures.hot_pages.unwrap_or(0),
        psi_some_us: 0,
        psi_full_us: 0,
        oom_kills: 0,
        oom_deflated_pages: 0,
        refaults: 0,
        nodes: vec![node(FMEM), node(SMEM)],
    }
}

/// Plays guests on a host. `choose` says how each is managed, by its record's header.
///
/// # Errors
/// A record is cut short, damaged or foreign, or the core refuses something; with its place
/// among `tenants`.
pub fn host(
    tenants: &[Tenant],
    host: &Host,
    choose: impl Fn(&Header) -> Result<Variant, Error>,
) -> Result<Vec<Stay>, (usize, Error)> {
    let mut state = Running {
        tenants,
        host,
        choose,
        guests: Vec::new(),
        stays: tenants.iter().map(|_| None).collect(),
        arrived: vec![false; tenants.len()],
        decided_ps: 0,
    };
    let start_ps = |at: usize| tenants[at].start_ns * 1000;
    let mut now_ps = 0;
    let mut next_decision_ps = 0;
    loop {
        let comes = (0..tenants.len())
            .filter(|&at| !state.arrived[at] && start_ps(at) <= now_ps)
            .collect::<Vec<_>>();
        if now_ps >= next_decision_ps || !comes.is_empty() {
            state.decide(&comes, now_ps)?;
            while next_decision_ps <= now_ps {
                next_decision_ps += host.interval_ns * 1000;
            }
        }
        let next_arrival_ps = (0..tenants.len())
            .filter(|&at| !state.arrived[at])
            .map(start_ps)
            .min();
        if state.guests.is_empty() {
            match next_arrival_ps {
                None => break,
                Some(next_ps) => {
                    now_ps = next_ps;
                    continue;
                }
            }
        }
        now_ps = next_arrival_ps.map_or(next_decision_ps, |next| next.min(next_decision_ps));
        state.advance(now_ps)?;
    }
    let mut stays: Vec<Stay> = std::mem::take(&mut state.stays)
        .into_iter()
        .flatten()
        .collect();
    let machine = |header: &Header| Ok((state.choose)(header)?.machine);
    let reports = stays.iter_mut().map(|stay| &mut stay.report);
    compare(tenants, host.pool_bytes, machine, reports)?;
    Ok(stays)
}

struct Running<'a, C> {
    tenants: &'a [Tenant],
    host: &'a Host,
    choose: C,
    guests: Vec<Guest>,
    stays: Vec<Option<Stay>>,
    arrived: Vec<bool>,
    /// Of the last decision, on the host's clock.
    decided_ps: u64,
}

impl<C: Fn(&Header) -> Result<Variant, Error>> Running<'_, C> {
    /// Sizes of both tiers that a guest could have.
    fn totals(&self, header: &Header) -> [u64; 2] {
        let all: u64 = header.tier_bytes.iter().sum();
        let most = all.min(self.host.ceiling_bytes.unwrap_or(u64::MAX));
        [most.min(self.host.pool_bytes), all].map(|bytes| bytes >> PAGE_SHIFT)
    }

    /// One decision; `comes` are guests that are not there yet.
    fn decide(&mut self, comes: &[usize], now_ps: u64) -> Result<(), (usize, Error)> {
        let host = self.host;
        let mut players = Vec::new();
        for &at in comes {
            self.arrived[at] = true;
            let player = Player::open(&self.tenants[at].record).map_err(|error| (at, error))?;
            players.push((at, player, Memory::default()));
        }
        let entitled = Entitled {
            floor_pages: host.floor_bytes >> PAGE_SHIFT,
            ceiling_pages: None,
            weight: 1,
            fixed_pages: Some(equal_bytes(host.pool_bytes, self.tenants) >> PAGE_SHIFT),
        };
        let sizes_memory = host.policy.sizes_memory();
        let mut totals = Vec::new();
        let mut held = Vec::new();
        let mut known = Vec::new();
        for at in 0..self.guests.len() {
            let total = self.totals(&self.guests[at].player.header);
            let guest = &mut self.guests[at];
            let figures = guest.simulation.figures();
            guest.sequence += 1;
            let now_ns = guest.simulation.now_ps() / 1000;
            let told = statistics(guest.sequence, now_ns, &figures, guest.size_pages, total);
            guest.memory.learn(Some(&told), MOST_SAMPLES_PER_S);
            guest.memory.told_size(guest.size_pages);
            let resident: u64 = figures.resident_pages.iter().sum();
            let size = guest.size_pages;
            let one = (guest.memory).guest(&entitled, total[0], size, Some(&told), Some(resident));
            known.push(demeter_policy::Guest {
                memory_pages: sizes_memory.then_some(resident),
                ..one
            });
            totals.push(total[0]);
            held.push(size);
        }
        for (_, player, memory) in &players {
            let total = self.totals(&player.header)[0];
            // It would be started with an equal part, if there is room.
            let start = total.min(equal_bytes(host.pool_bytes, self.tenants) >> PAGE_SHIFT);
            known.push(demeter_policy::Guest {
                memory_pages: sizes_memory.then_some(total),
                ..memory.guest(&entitled, total, start, None, None)
            });
            totals.push(total);
            held.push(0);
        }
        let pool_pages = host.pool_bytes >> PAGE_SHIFT;
        let fleet = Fleet {
            pool_pages,
            guests: known,
        };
        let wanted = host.policy.sizes(&fleet);
        // For the time that has passed, which arrivals make shorter than an interval, and among
        // those who were there in it.
        let elapsed_s = (now_ps - self.decided_ps) as f64 * 1e-12;
        self.decided_ps = now_ps;
        let claims: Vec<_> = fleet.claims().into_iter().take(self.guests.len()).collect();
        for (guest, share_pages) in self.guests.iter_mut().zip(divide(pool_pages, &claims)) {
            (guest.memory.account).settle(guest.size_pages, share_pages, elapsed_s);
        }
        let band = if sizes_memory { FINE_BAND } else { DEAD_BAND };
        let here = self.guests.len();
        // What losers let go is there at once, and the winners' in the second round.
        for _ in 0..2 {
            let now: Vec<Held> = (held.iter())
                .map(|&pages| Held {
                    held_pages: pages,
                    wanted_pages: pages,
                })
                .collect();
            let is_worth = |at: usize, size| {
                at >= here || differs(totals[at], band, now[at].wanted_pages, size)
            };
            for (at, size) in changes(pool_pages, &now, &wanted, is_worth, |_, _| false) {
                if size == held[at] {
                    continue;
                }
                held[at] = size;
                if let Some(guest) = self.guests.get_mut(at) {
                    guest.resize(size);
                }
            }
        }
        for ((at, player, memory), size_pages) in players.into_iter().zip(held.split_off(here)) {
            let variant = (self.choose)(&player.header).map_err(|error| (at, error))?;
            let simulation = Simulation::new(
                &player.header,
                size_pages << PAGE_SHIFT,
                &variant.machine,
                variant.manager,
                variant.seed + at as u64,
            );
            self.guests.push(Guest {
                at,
                player,
                simulation,
                memory,
                sequence: 0,
                size_pages,
                bounds_pages: [size_pages; 2],
                held: 0.0,
                since_ps: 0,
                resizes: 0,
                is_over: false,
            });
        }
        Ok(())
    }

    /// Everybody goes on until then; who has ended leaves.
    fn advance(&mut self, until_ps: u64) -> Result<(), (usize, Error)> {
        let tenants = self.tenants;
        let start_ps = |guest: &Guest| tenants[guest.at].start_ns * 1000;
        side_by_side(&mut self.guests, |guest, window| {
            let start_ps = start_ps(guest);
            (guest.advance(start_ps, until_ps, window)).map_err(|error| (guest.at, error))
        })?;
        let (over, here) = std::mem::take(&mut self.guests)
            .into_iter()
            .partition(|guest: &Guest| guest.is_over);
        self.guests = here;
        let over: Vec<Guest> = over;
        for guest in over {
            let (at, start_ps) = (guest.at, start_ps(&guest));
            self.stays[at] = Some(guest.stay(start_ps));
        }
        Ok(())
    }
}

/// An equal part of the pool, in whole pages.
fn equal_bytes(pool_bytes: u64, tenants: &[Tenant]) -> u64 {
    (pool_bytes / tenants.len().max(1) as u64) >> PAGE_SHIFT << PAGE_SHIFT
}

/// What each guest would take under first touch, and with the clairvoyant placement, in an
/// equal part of the pool that never changes. Once for each record.
pub(crate) fn compare<'a>(
    tenants: &[Tenant],
    pool_bytes: u64,
    machine: impl Fn(&Header) -> Result<MachineConfig, Error>,
    reports: impl Iterator<Item = &'a mut Report>,
) -> Result<(), (usize, Error)> {
    let mut known: Vec<(&Path, Report)> = Vec::new();
    for (at, (tenant, report)) in tenants.iter().zip(reports).enumerate() {
        if !known.iter().any(|(path, _)| *path == tenant.record) {
            let none = |header: &Header| {
                Ok(vec![Variant {
                    fmem_bytes: equal_bytes(pool_bytes, tenants),
                    machine: machine(header)?,
                    manager: Manager::None,
                    seed: 0,
                }])
            };
            let played = replay(&tenant.record, none).map_err(|error| (at, error))?;
            let played = played.reports.into_iter();
            known.extend(played.map(|report| (tenant.record.as_path(), report)));
        }
        if let Some((_, base)) = known.iter().find(|(path, _)| *path == tenant.record) {
            report.compare(base.time_s, base.ideal_s);
        }
    }
    Ok(())
}
