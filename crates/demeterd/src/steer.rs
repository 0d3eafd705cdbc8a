// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks the policy, and makes it so: those who lose first, so that the guests
//! together never have more than the pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use demeter_balloon::NodeStatistics;
use demeter_balloon::view::{PolicyClock, Stage, TierView, VmView};
use demeter_balloon::wire::PAGE_SHIFT;

use crate::fleet::Fleet;
use crate::policy::{self, Account, Claim, Guest};
use crate::spec::Share;
use crate::vm::Vm;

const FMEM: u16 = 0;
const SMEM: u16 = 1;
/// Differences below this part of a tier are not worth a request.
const DEAD_BAND: u64 = 64;
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
                ..Self::default()
            };
            return;
        };
        let elapsed_ns = now.guest_time_ns.saturating_sub(self.guest_time_ns);
        let known = self.guest_time_ns > 0;
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
    let mut memories = BTreeMap::new();
    let mut decided = Instant::now();
    loop {
        let (interval_ms, clock) =
            fleet.with_steering(|steering| (steering.interval_ms, steering.clock));
        let interval = Duration::from_millis(interval_ms);
        let next = match clock {
            PolicyClock::Host => Instant::now() + interval,
            PolicyClock::Guests => Instant::now() + LOOK,
        };
        if clock == PolicyClock::Host
            || decided.elapsed() >= PATIENCE
            || all_went_on(&fleet, &memories, interval)
        {
            decided = Instant::now();
            let seen = fleet.seen().await;
            round(&fleet, seen, &mut memories);
        }
        tokio::time::sleep_until(next.into()).await;
    }
}

/// By their own clocks, has all that can be told something gone on for so long
/// since the last decision? A guest that was rebooted has.
fn all_went_on(fleet: &Fleet, memories: &BTreeMap<String, Memory>, interval: Duration) -> bool {
    let mut any = false;
    for vm in fleet.vms() {
        let view = vm.view();
        if view.stage != Stage::Driven {
            continue;
        }
        any = true;
        let now_ns = view.statistics.map_or(0, |now| now.guest_time_ns);
        let then_ns = (memories.get(&view.name)).map_or(0, |memory| memory.guest_time_ns);
        if (now_ns.checked_sub(then_ns))
            .is_some_and(|gone_ns| u128::from(gone_ns) < interval.as_nanos())
        {
            return false;
        }
    }
    any
}

/// A guest that can be told something.
struct Known {
    vm: Arc<Vm>,
    view: VmView,
    /// FMEM as it was last asked for.
    wanted_pages: u64,
    /// Decisions since that changed.
    steady_rounds: u32,
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
fn is_worth(tier: &TierView, size_pages: u64, steady_rounds: u32) -> bool {
    let band = ((tier.total_bytes >> PAGE_SHIFT) / DEAD_BAND).max(1);
    let differs = |bytes: u64| (bytes >> PAGE_SHIFT).abs_diff(size_pages) >= band;
    let stopped = tier.ended_ticket == tier.ticket && differs(tier.size_bytes);
    match tier.wanted_size_bytes {
        None => true,
        Some(wanted_bytes) => {
            differs(wanted_bytes) || (stopped && steady_rounds % RETRY_ROUNDS == RETRY_ROUNDS - 1)
        }
    }
}

fn round(fleet: &Fleet, seen: Vec<(Arc<Vm>, VmView)>, memories: &mut BTreeMap<String, Memory>) {
    let mut known = Vec::new();
    let mut kept_pages = 0;
    let (interval_ms, clock) = fleet.with_steering(|s| (s.interval_ms, s.clock));
    memories.retain(|name, _| seen.iter().any(|(vm, _)| vm.spec.name == *name));
    for (vm, mut view) in seen {
        let memory = memories.entry(view.name.clone()).or_default();
        forget_stale(&vm, &mut view, clock);
        memory.learn(&view, most_samples_per_s(vm.share().vcpus));
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
            vm: vm.clone(),
            wanted_pages,
            steady_rounds: memory.steady_rounds,
            view,
        });
    }
    let guests: Vec<Guest> = (known.iter())
        .map(|known| {
            let memory = memories.entry(known.view.name.clone()).or_default();
            guest(&known.vm.share(), &known.view, known.wanted_pages, memory)
        })
        .collect();
    let decided = fleet.with_steering(|steering| {
        let policy = steering.policy.as_ref()?;
        let pool_pages = (steering.fmem_pool_bytes >> PAGE_SHIFT).saturating_sub(kept_pages);
        let fleet = policy::Fleet { pool_pages, guests };
        let shares = policy::divide(pool_pages, &fleet.claims());
        Some((policy.sizes(&fleet), shares, policy.name(), pool_pages))
    });
    if let Some((sizes, shares, name, pool_pages)) = decided {
        for (known, share_pages) in known.iter().zip(shares) {
            let memory = memories.entry(known.view.name.clone()).or_default();
            let elapsed_s = interval_ms as f64 / 1000.0;
            (memory.account).settle(known.held_pages(), share_pages, elapsed_s);
        }
        apply(&known, &sizes, name, pool_pages);
        fleet.with_steering(|steering| steering.decisions += 1);
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
    for (known, &size) in order(true).chain(order(false)) {
        let has = known.held_pages();
        let more = size
            .saturating_sub(has)
            .min(pool_pages.saturating_sub(taken));
        let size = if size > has { has + more } else { size };
        if is_worth(&known.view.tiers[0], size, known.steady_rounds) {
            taken += more;
            give(known, size, &why);
        }
    }
}

/// What FMEM loses SMEM gains, if the guest has a right to memory as a whole.
/// SMEM grows before FMEM shrinks, so that the guest has room for what moves:
/// FMEM is asked for in a later round then.
fn give(known: &Known, fmem_pages: u64, why: &str) {
    let (vm, view) = (&known.vm, &known.view);
    let ask = |node, size_bytes| {
        if let Err(error) = vm.ask(node, size_bytes, why) {
            tracing::warn!(vm = vm.spec.name, node, "{error}");
        }
    };
    let fmem_bytes = fmem_pages << PAGE_SHIFT;
    let smem = (vm.share().memory_bytes.zip(view.tiers.get(1))).map(|(memory_bytes, tier)| {
        let size_bytes = memory_bytes
            .saturating_sub(fmem_bytes)
            .min(tier.total_bytes);
        (tier, size_bytes)
    });
    let Some((tier, smem_bytes)) = smem else {
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
mod tests {
    use super::*;
    use demeter_balloon::Statistics;
    use demeter_balloon::statistics::Trigger;

    fn tier(total_pages: u64) -> TierView {
        TierView {
            tier: "fmem".into(),
            node: 0,
            total_bytes: total_pages << PAGE_SHIFT,
            balloon_bytes: 0,
            size_bytes: total_pages << PAGE_SHIFT,
            wanted_size_bytes: None,
            backing_bytes: Some(total_pages << PAGE_SHIFT),
            busy: false,
            last: None,
            ticket: 0,
            ended_ticket: 0,
            traffic: demeter_balloon::device::Traffic::default(),
        }
    }

    /// A guest that has sampled that often by then and calls all of its memory hot.
    fn claims(samples: u64, guest_time_ns: u64) -> VmView {
        let node = NodeStatistics {
            anon_pages: 1000,
            ..NodeStatistics::default()
        };
        VmView {
            name: "liar".into(),
            stage: Stage::Driven,
            problem: None,
            tiers: vec![tier(1000)],
            violations: BTreeMap::new(),
            statistics: Some(Statistics {
                sequence: 0,
                guest_time_ns,
                event: Trigger::Periodic,
                has_tmm: true,
                has_psi: false,
                fmem_samples: samples,
                smem_samples: 0,
                hot_wanted_pages: 1000,
                psi_some_us: 0,
                psi_full_us: 0,
                oom_kills: 0,
                oom_deflated_pages: 0,
                refaults: 0,
                nodes: vec![node],
            }),
            statistics_age_ms: Some(0),
            churn: demeter_balloon::view::Churn::default(),
        }
    }

    fn share() -> Share {
        let line = "liar,socket=/s,fmem=/f";
        let description = crate::spec::Description::parse(line).unwrap();
        description.finish(&BTreeMap::new()).unwrap().share
    }

    #[test]
    fn nobody_samples_more_than_its_processors_can() {
        let mut memory = Memory::default();
        let most = most_samples_per_s(Some(2));
        memory.learn(&claims(1, 1_000_000_000), most);
        memory.learn(&claims(1_000_000_000_000, 2_000_000_000), most);
        assert_eq!(memory.access_rate, Some(2e6));
        // Nor by a clock that stands still.
        memory.learn(&claims(2_000_000_000_000, 2_000_000_001), most);
        assert!(memory.access_rate <= Some(2e6));
    }

    #[test]
    fn who_says_nothing_any_more_is_not_believed_and_keeps_its_account() {
        let mut memory = Memory::default();
        memory.learn(&claims(1, 1_000_000_000), 1e6);
        memory.learn(&claims(100_000, 2_000_000_000), 1e6);
        memory.account.settle(2000, 1000, 1e9);
        let mut silent = claims(100_000, 2_000_000_000);
        silent.statistics = None;
        memory.learn(&silent, 1e6);
        assert_eq!(memory.access_rate, None);
        assert!(!memory.account.may_borrow());
        let guest = guest(&share(), &silent, 1000, &memory);
        assert_eq!((guest.hot_pages, guest.access_rate), (None, 0.0));
        assert_eq!(stale_after(1000, PolicyClock::Host), STALE);
        let seldom = stale_after(60_000, PolicyClock::Host);
        assert_eq!(seldom, Duration::from_secs(300));
    }

    #[test]
    fn nobody_has_more_hot_pages_than_the_host_has_allocated() {
        let mut view = claims(1, 1);
        let hot = |view: &VmView| guest(&share(), view, 1000, &Memory::default()).hot_pages;
        assert_eq!(hot(&view), Some(1000));
        view.tiers[0].backing_bytes = Some(300 << PAGE_SHIFT);
        assert_eq!(hot(&view), Some(300));
        view.tiers[0].backing_bytes = None;
        assert_eq!(hot(&view), Some(1000));
    }

    #[test]
    fn a_guest_that_stopped_early_is_asked_again_later() {
        let mut tier = TierView {
            tier: "fmem".into(),
            node: 0,
            total_bytes: 6400 << PAGE_SHIFT,
            balloon_bytes: 0,
            size_bytes: 6000 << PAGE_SHIFT,
            wanted_size_bytes: Some(5000 << PAGE_SHIFT),
            backing_bytes: None,
            busy: false,
            last: None,
            ticket: 7,
            ended_ticket: 7,
            traffic: demeter_balloon::device::Traffic::default(),
        };
        assert!(is_worth(&tier, 4000, 1), "another size");
        assert!(!is_worth(&tier, 5000 + 99, 1), "within the dead band");
        assert!(!is_worth(&tier, 5000, 1), "not at once");
        assert!(is_worth(&tier, 5000, RETRY_ROUNDS - 1));
        tier.ended_ticket = 6;
        assert!(!is_worth(&tier, 5000, RETRY_ROUNDS - 1), "still at work");
        tier.ended_ticket = 7;
        tier.size_bytes = 5000 << PAGE_SHIFT;
        assert!(!is_worth(&tier, 5000, RETRY_ROUNDS - 1), "it is there");
    }

    #[test]
    fn what_the_kernel_holds_is_no_room_for_hot_pages() {
        let mut node = NodeStatistics {
            balloon_pages: 200,
            free_pages: 300,
            anon_pages: 350,
            file_pages: 50,
            ..NodeStatistics::default()
        };
        assert_eq!(held_pages(1000, &node), 100);
        // Whatever a guest says.
        node.free_pages = 5000;
        assert_eq!(held_pages(1000, &node), 0);
    }
}
