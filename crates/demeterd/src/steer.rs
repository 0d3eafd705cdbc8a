// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks the policy, and makes it so: those who lose first, so that the guests
//! together never have more than the pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use demeter_balloon::NodeStatistics;
use demeter_balloon::view::{PolicyClock, Short, Sizing, Stage, TierView, VmView, Why};
use demeter_balloon::wire::{Outcome, PAGE_SHIFT};

use crate::fleet::Fleet;
use crate::policy::{self, Account, Claim, Guest, Policy, Probe, Told};
use crate::spec::Share;
use crate::vm::Vm;

const FMEM: u16 = 0;
const SMEM: u16 = 1;
/// Differences below this part of a tier are not worth a request.
const DEAD_BAND: u64 = 64;
/// The same where memory as a whole is sized, step by step.
const FINE_BAND: u64 = 512;
/// How often guests' clocks are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// A decision comes after so long on the host, wherever the guests' clocks are:
/// one that says nothing must not hold up the others.
const PATIENCE: Duration = Duration::from_secs(60);
/// A guest that stopped before its size is asked again after so many decisions.
const RETRY_ROUNDS: u32 = 10;
/// Statistics of a guest that has said nothing for so long are not believed any
/// more; more if they come seldom, see [`stale_after`].
const STALE: Duration = Duration::from_secs(10);
/// Samples that one processor can take in a second: writing down one costs it a
/// microsecond.
const MOST_SAMPLES_PER_S: f64 = 1e6;
/// Weight of the newest rate in the smoothed one.
const NEWEST: f64 = 0.3;

/// What is remembered of a guest from one decision to the next.
#[derive(Debug, Clone, Default)]
struct Memory {
    fast_samples: u64,
    slow_samples: u64,
    stall_us: u64,
    guest_time_ns: u64,
    access_rate: Option<f64>,
    slow_permille: Option<u32>,
    stall_permille: Option<u32>,
    steady_rounds: u32,
    size_pages: u64,
    account: Account,
    refaults: u64,
    /// Kept while it is silent: what killed its programs may be why.
    ooms: Option<u64>,
    news: News,
    probe: Probe,
}

/// What the newest statistics add to those of the decision before.
#[derive(Debug, Clone, Copy, Default)]
struct News {
    elapsed_s: f64,
    refaults: u64,
    oom: bool,
}

impl Memory {
    /// Counters of the guest become rates; a guest that was rebooted counts from
    /// zero again and tells nothing this time.
    fn learn(&mut self, view: &VmView, most_per_s: f64) {
        let Some(now) = &view.statistics else {
            // Whoever is silent, or was rebooted, gets no new account for it.
            *self = Self {
                account: self.account,
                steady_rounds: self.steady_rounds,
                size_pages: self.size_pages,
                probe: self.probe,
                ooms: self.ooms,
                ..Self::default()
            };
            return;
        };
        let elapsed_ns = now.guest_time_ns.saturating_sub(self.guest_time_ns);
        let known = self.guest_time_ns > 0;
        let ooms = now.oom_kills.saturating_add(now.oom_deflated_pages);
        self.news = News {
            elapsed_s: elapsed_ns as f64 / 1e9,
            refaults: now.refaults.saturating_sub(self.refaults),
            oom: self.ooms.is_some_and(|before| ooms > before),
        };
        if !known {
            // Of the time before anybody looked.
            self.news = News {
                oom: self.news.oom,
                ..News::default()
            };
        }
        self.refaults = now.refaults;
        self.ooms = Some(ooms);
        if elapsed_ns > 0 {
            let fast = now.fmem_samples.checked_sub(self.fast_samples);
            let slow = now.smem_samples.checked_sub(self.slow_samples);
            let stall = now.psi_some_us.checked_sub(self.stall_us);
            if let (true, true, Some(fast), Some(slow)) = (known, now.has_tmm, fast, slow) {
                let all = fast.saturating_add(slow);
                let rate = (all as f64 * 1e9 / elapsed_ns as f64).min(most_per_s);
                let old = self.access_rate.unwrap_or(rate);
                self.access_rate = Some(old + NEWEST * (rate - old));
                self.slow_permille =
                    (all > 0).then(|| (u128::from(slow) * 1000 / u128::from(all)) as u32);
            } else {
                self.access_rate = None;
                self.slow_permille = None;
            }
            self.stall_permille = match stall {
                Some(stall) if known && now.has_psi => {
                    let permille = u128::from(stall) * 1_000_000 / u128::from(elapsed_ns);
                    Some(permille.min(1000) as u32)
                }
                _ => None,
            };
        }
        self.guest_time_ns = now.guest_time_ns;
        self.fast_samples = now.fmem_samples;
        self.slow_samples = now.smem_samples;
        self.stall_us = now.psi_some_us;
    }
}

/// Decides for ever.
pub async fn run(fleet: Arc<Fleet>) {
    let mut coordinator = Coordinator::default();
    let mut decided = Instant::now();
    loop {
        let orders = Orders::of(&fleet);
        let interval = Duration::from_millis(orders.interval_ms);
        let next = match orders.clock {
            PolicyClock::Host => Instant::now() + interval,
            PolicyClock::Guests => Instant::now() + LOOK,
        };
        if orders.clock == PolicyClock::Host
            || decided.elapsed() >= PATIENCE
            || coordinator.all_went_on(&fleet.vms(), interval)
        {
            decided = Instant::now();
            if coordinator.decide(fleet.seen().await, &orders) {
                fleet.with_steering(|steering| {
                    steering.decisions += 1;
                    steering.deciding += decided.elapsed();
                });
            }
        }
        tokio::time::sleep_until(next.into()).await;
    }
}

/// What a decision goes by, beside the guests.
struct Orders {
    policy: Option<Arc<dyn Policy>>,
    fmem_pool_bytes: u64,
    interval_ms: u64,
    clock: PolicyClock,
}

impl Orders {
    fn of(fleet: &Fleet) -> Self {
        fleet.with_steering(|steering| Self {
            policy: steering.policy.clone(),
            fmem_pool_bytes: steering.fmem_pool_bytes,
            interval_ms: steering.interval_ms,
            clock: steering.clock,
        })
    }
}

/// A guest that can be told something.
struct Known {
    vm: Arc<Vm>,
    view: VmView,
    /// FMEM as it was last asked for.
    wanted_pages: u64,
    /// Decisions since that changed.
    steady_rounds: u32,
    /// All tiers together, as the policy or its entitlement says.
    memory_pages: Option<u64>,
    /// Differences below this part of a tier are not worth a request.
    dead_band: u64,
}

impl Known {
    fn size_pages(&self) -> u64 {
        self.view.tiers[0].size_bytes >> PAGE_SHIFT
    }

    /// What it has or was promised, whichever is more.
    fn held_pages(&self) -> u64 {
        self.size_pages().max(self.wanted_pages)
    }
}

/// Is that size worth a request, `steady_rounds` decisions after the last one? A
/// guest that stopped before its size is asked again now and then: it may have room
/// by now.
fn is_worth(tier: &TierView, size_pages: u64, steady_rounds: u32, dead_band: u64) -> bool {
    let band = ((tier.total_bytes >> PAGE_SHIFT) / dead_band).max(1);
    let differs = |bytes: u64| (bytes >> PAGE_SHIFT).abs_diff(size_pages) >= band;
    let stopped = tier.ended_ticket == tier.ticket && differs(tier.size_bytes);
    match tier.wanted_size_bytes {
        None => true,
        Some(wanted_bytes) => {
            differs(wanted_bytes) || (stopped && steady_rounds % RETRY_ROUNDS == RETRY_ROUNDS - 1)
        }
    }
}

/// Decides for all guests, and remembers what that takes.
#[derive(Default)]
struct Coordinator {
    memories: BTreeMap<String, Memory>,
}

impl Coordinator {
    /// By their own clocks, has all that can be told something gone on for so long
    /// since the last decision? A guest that was rebooted has.
    fn all_went_on(&self, vms: &[Arc<Vm>], interval: Duration) -> bool {
        let mut any = false;
        for vm in vms {
            let view = vm.view();
            if view.stage != Stage::Driven {
                continue;
            }
            any = true;
            let now_ns = view.statistics.map_or(0, |now| now.guest_time_ns);
            let then_ns = (self.memories.get(&view.name)).map_or(0, |memory| memory.guest_time_ns);
            if (now_ns.checked_sub(then_ns))
                .is_some_and(|gone_ns| u128::from(gone_ns) < interval.as_nanos())
            {
                return false;
            }
        }
        any
    }

    /// One decision, and the requests that it takes. False: nobody decides here.
    fn decide(&mut self, seen: Vec<(Arc<Vm>, VmView)>, orders: &Orders) -> bool {
        let mut known = Vec::new();
        let mut kept_pages = 0;
        (self.memories).retain(|name, _| seen.iter().any(|(vm, _)| vm.spec.name == *name));
        let sizes_memory = (orders.policy.as_ref()).is_some_and(|policy| policy.sizes_memory());
        for (vm, mut view) in seen {
            let memory = self.memories.entry(view.name.clone()).or_default();
            forget_stale(&vm, &mut view, orders.clock);
            let share = vm.share();
            memory.learn(&view, most_samples_per_s(share.vcpus));
            if !sizes_memory {
                vm.set_sizing(None);
            }
            let Some(tier) = view.tiers.first().filter(|tier| tier.total_bytes > 0) else {
                continue;
            };
            let wanted_bytes = tier.wanted_size_bytes.unwrap_or(tier.size_bytes);
            if view.stage != Stage::Driven {
                // It cannot be told anything: what it has is not there to divide.
                kept_pages += tier.size_bytes.max(wanted_bytes) >> PAGE_SHIFT;
                continue;
            }
            let wanted_pages = wanted_bytes >> PAGE_SHIFT;
            memory.steady_rounds = if memory.size_pages == wanted_pages {
                memory.steady_rounds.saturating_add(1)
            } else {
                0
            };
            memory.size_pages = wanted_pages;
            known.push(Known {
                wanted_pages,
                steady_rounds: memory.steady_rounds,
                memory_pages: share.memory_bytes.map(|bytes| bytes >> PAGE_SHIFT),
                dead_band: DEAD_BAND,
                vm,
                view,
            });
        }
        let Some(policy) = &orders.policy else {
            return false;
        };
        let pool_pages = (orders.fmem_pool_bytes >> PAGE_SHIFT).saturating_sub(kept_pages);
        let mut guests = Vec::new();
        let mut reasons = Vec::new();
        for known in &mut known {
            let memory = self.memories.entry(known.view.name.clone()).or_default();
            let mut guest = guest(&known.vm.share(), &known.view, known.wanted_pages, memory);
            if sizes_memory {
                let told = told(known, memory);
                let wanted = memory.probe.next(told.as_ref());
                known.dead_band = FINE_BAND;
                known.memory_pages = wanted.map(|(pages, _)| pages).or(known.memory_pages);
                guest.memory_pages =
                    wanted.map(|(pages, _)| pages.saturating_sub(elsewhere(known)));
                reasons.push(wanted.map_or(Why::Silent, |(_, why)| why));
            }
            guests.push(guest);
        }
        let fleet = policy::Fleet { pool_pages, guests };
        let sizes = policy.sizes(&fleet);
        let shares = policy::divide(pool_pages, &fleet.claims());
        for (known, share_pages) in known.iter().zip(shares) {
            let memory = self.memories.entry(known.view.name.clone()).or_default();
            let elapsed_s = orders.interval_ms as f64 / 1000.0;
            (memory.account).settle(known.held_pages(), share_pages, elapsed_s);
        }
        for (((known, why), guest), &size) in
            (known.iter().zip(reasons)).zip(&fleet.guests).zip(&sizes)
        {
            known.vm.set_sizing(Some(sizing(known, guest, size, why)));
        }
        apply(&known, &sizes, policy.name(), pool_pages);
        true
    }
}

/// What a guest has told of all its memory since the last decision.
fn told(known: &Known, memory: &Memory) -> Option<Told> {
    let view = &known.view;
    let statistics = view.statistics.as_ref()?;
    let mut told = Told {
        elapsed_s: memory.news.elapsed_s,
        refaults: memory.news.refaults,
        oom: memory.news.oom,
        stall_permille: memory.stall_permille,
        ..Told::default()
    };
    let mut all_pages = 0;
    for (tier, node) in view.tiers.iter().zip(&statistics.nodes) {
        let pages = |bytes: u64| bytes >> PAGE_SHIFT;
        let (total, size) = (pages(tier.total_bytes), pages(tier.size_bytes));
        let wanted = tier.wanted_size_bytes.map_or(size, pages);
        let held = held_pages(total, node);
        all_pages += total;
        told.size_pages += size.max(wanted);
        told.free_pages += node.free_pages;
        told.held_pages += held;
        told.demand_pages += held + node.anon_pages;
        // Words of before the last change say nothing of what is free now.
        told.is_busy |= tier.busy || node.balloon_pages != pages(tier.balloon_bytes);
        told.has_stopped |= (tier.last).is_some_and(|last| {
            let early = matches!(last.outcome, Outcome::Floor | Outcome::Oom);
            early && tier.ended_ticket == tier.ticket && size > wanted
        });
    }
    told.most_pages = (known.vm.share().memory_bytes)
        .map_or(all_pages, |bytes| (bytes >> PAGE_SHIFT).min(all_pages));
    told.hot_pages = (statistics.has_tmm)
        .then(|| (statistics.hot_wanted_pages).min(resident_pages(view).unwrap_or(u64::MAX)));
    Some(told)
}

/// Memory of a guest that cannot be moved into FMEM: what its kernel holds of SMEM.
fn elsewhere(known: &Known) -> u64 {
    let nodes = (known.view.statistics.iter()).flat_map(|statistics| &statistics.nodes);
    (known.view.tiers.iter().zip(nodes).skip(1))
        .map(|(tier, node)| {
            let total_pages = tier.total_bytes >> PAGE_SHIFT;
            held_pages(total_pages, node) + total_pages / FINE_BAND
        })
        .sum()
}

fn sizing(known: &Known, guest: &Guest, fmem_pages: u64, why: Why) -> Sizing {
    let useful_pages = policy::useful_pages(guest);
    let wished = (guest.hot_pages.unwrap_or(u64::MAX)).min(guest.memory_pages.unwrap_or(0));
    let fmem_short = if fmem_pages < useful_pages {
        Some(Short::Pool)
    } else {
        (wished > guest.claim.ceiling_pages).then_some(Short::Ceiling)
    };
    Sizing {
        memory_bytes: known.memory_pages.unwrap_or(0) << PAGE_SHIFT,
        why,
        fmem_useful_bytes: useful_pages.max(wished) << PAGE_SHIFT,
        fmem_bytes: fmem_pages << PAGE_SHIFT,
        fmem_short,
    }
}

/// What a guest said long ago it does not say any more.
fn forget_stale(vm: &Vm, view: &mut VmView, clock: PolicyClock) {
    let period_ms = vm.statistics_interval_ms();
    if period_ms == 0 {
        // It speaks only if it is asked.
        vm.ask_statistics();
    }
    let age = view.statistics_age_ms.map(Duration::from_millis);
    if age.is_some_and(|age| age > stale_after(period_ms, clock)) {
        view.statistics = None;
    }
}

fn stale_after(period_ms: u32, clock: PolicyClock) -> Duration {
    match clock {
        PolicyClock::Host => STALE.max(5 * Duration::from_millis(period_ms.into())),
        // Nobody knows how slow a simulation is.
        PolicyClock::Guests => 5 * PATIENCE,
    }
}

/// What a guest with so many processors, or with all of the host's, can sample.
fn most_samples_per_s(vcpus: Option<u32>) -> f64 {
    // SAFETY: asks for a number.
    let host = || unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as f64;
    vcpus.map_or_else(host, f64::from) * MOST_SAMPLES_PER_S
}

/// Memory of the guest that the host has allocated: it can have no more that is
/// hot. None: that cannot be seen.
fn resident_pages(view: &VmView) -> Option<u64> {
    let bytes: Option<u64> = view.tiers.iter().map(|tier| tier.backing_bytes).sum();
    Some(bytes? >> PAGE_SHIFT)
}

fn guest(share: &Share, view: &VmView, size_pages: u64, memory: &Memory) -> Guest {
    let tier = &view.tiers[0];
    let total_pages = tier.total_bytes >> PAGE_SHIFT;
    let floor_pages = (share.fmem_floor_bytes >> PAGE_SHIFT).min(total_pages);
    let ceiling_pages = share
        .fmem_ceiling_bytes
        .map_or(total_pages, |bytes| bytes >> PAGE_SHIFT)
        .clamp(floor_pages, total_pages);
    let statistics = view.statistics.as_ref();
    Guest {
        size_pages,
        claim: Claim {
            floor_pages,
            ceiling_pages,
            weight: u64::from(share.weight),
        },
        fixed_pages: share.fmem_size_bytes.map(|bytes| bytes >> PAGE_SHIFT),
        hot_pages: statistics
            .filter(|statistics| statistics.has_tmm)
            .map(|statistics| {
                let held =
                    (statistics.nodes.first()).map_or(0, |node| held_pages(total_pages, node));
                (statistics.hot_wanted_pages.saturating_add(held))
                    .min(resident_pages(view).unwrap_or(u64::MAX))
            }),
        free_pages: statistics
            .and_then(|statistics| statistics.nodes.first())
            .map_or(0, |node| node.free_pages),
        access_rate: memory.access_rate.unwrap_or(0.0),
        slow_permille: memory.slow_permille,
        stall_permille: memory.stall_permille,
        steady_rounds: memory.steady_rounds,
        may_borrow: memory.account.may_borrow(),
        memory_pages: None,
    }
}

/// FMEM that no hot page can have: what the guest's kernel holds of it, or never
/// managed. A size that is to hold the hot set must hold this too.
fn held_pages(total_pages: u64, node: &NodeStatistics) -> u64 {
    total_pages
        .saturating_sub(node.balloon_pages)
        .saturating_sub(node.free_pages)
        .saturating_sub(node.anon_pages)
        .saturating_sub(node.file_pages)
}

/// Losers at once; winners as far as the losers have let go. The rest follows
/// in a later round.
fn apply(known: &[Known], sizes: &[u64], policy: &str, pool_pages: u64) {
    let why = format!("policy {policy}");
    let mut taken: u64 = known.iter().map(Known::held_pages).sum();
    let order = |loses: bool| {
        (known.iter().zip(sizes))
            .filter(move |(known, size)| (**size < known.wanted_pages) == loses)
    };
    let missing: u64 = order(false)
        .filter(|(known, size)| {
            is_worth(
                &known.view.tiers[0],
                **size,
                known.steady_rounds,
                known.dead_band,
            )
        })
        .map(|(known, size)| size.saturating_sub(known.held_pages()))
        .sum();
    // What one guest misses may be very little of each of many.
    let is_short = missing > pool_pages.saturating_sub(taken);
    for (known, &size) in order(true).chain(order(false)) {
        let gives = is_short && size < known.wanted_pages;
        let has = known.held_pages();
        let more = size
            .saturating_sub(has)
            .min(pool_pages.saturating_sub(taken));
        let size = if size > has { has + more } else { size };
        let worth = |tier: &TierView, size_pages| {
            is_worth(tier, size_pages, known.steady_rounds, known.dead_band)
        };
        // SMEM alone is changed only for those whose memory as a whole is sized.
        let by_memory = known.dead_band == FINE_BAND
            && smem(known, size << PAGE_SHIFT)
                .is_some_and(|(tier, size_bytes)| worth(tier, size_bytes >> PAGE_SHIFT));
        if gives || worth(&known.view.tiers[0], size) || by_memory {
            taken += more;
            give(known, size, &why);
        }
    }
}

/// SMEM, and what it should be beside so much FMEM, if memory as a whole is known.
fn smem(known: &Known, fmem_bytes: u64) -> Option<(&TierView, u64)> {
    let memory_bytes = known.memory_pages? << PAGE_SHIFT;
    let tier = known.view.tiers.get(1)?;
    let size_bytes = memory_bytes.saturating_sub(fmem_bytes);
    Some((tier, size_bytes.min(tier.total_bytes)))
}

/// What FMEM loses SMEM gains, if the guest has a right to memory as a whole.
/// SMEM grows before FMEM shrinks, so that the guest has room for what moves:
/// FMEM is asked for in a later round then.
fn give(known: &Known, fmem_pages: u64, why: &str) {
    let vm = &known.vm;
    let ask = |node, size_bytes| {
        if let Err(error) = vm.ask(node, size_bytes, why) {
            tracing::warn!(vm = vm.spec.name, node, "{error}");
        }
    };
    let fmem_bytes = fmem_pages << PAGE_SHIFT;
    let Some((tier, smem_bytes)) = smem(known, fmem_bytes) else {
        return ask(FMEM, fmem_bytes);
    };
    let asked = tier.wanted_size_bytes == Some(smem_bytes);
    if fmem_pages >= known.size_pages() {
        ask(FMEM, fmem_bytes);
        ask(SMEM, smem_bytes);
    } else if !asked && smem_bytes > tier.size_bytes {
        ask(SMEM, smem_bytes);
    } else if !(asked && tier.busy) {
        ask(FMEM, fmem_bytes);
        if !asked {
            ask(SMEM, smem_bytes);
        }
    }
}

#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;
