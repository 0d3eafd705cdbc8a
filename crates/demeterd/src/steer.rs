// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks the policy, and makes it so: those who lose first, so that the guests
//! together never have more than the pool.

mod away;
mod boot;
mod grace;
mod passed;
mod told;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use demeter_balloon::view::{
    AccountView, PolicyClock, Short, Sizing, Stage, TierView, VmView, Why,
};
use demeter_balloon::wire::PAGE_SHIFT;

use crate::accounts::ByName;
use crate::fleet::Fleet;
use crate::policy::{
    self, Account, Claim, DEAD_BAND, Entitled, FINE_BAND, Guest, Held, MOST_SAMPLES_PER_S, Memory,
    Policy, held_pages,
};
use crate::spec::Share;
use crate::vm::Vm;
use away::Away;
use boot::{Boot, Charge};
use passed::Passed;
use told::{Quiet, resident_pages, told};

const FMEM: u16 = 0;
const SMEM: u16 = 1;
/// How often guests' clocks are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// A decision comes after so long on the host, wherever the guests' clocks are:
/// one that says nothing must not hold up the others.
const PATIENCE: Duration = Duration::from_secs(60);
/// By their own clocks, it comes when somebody has gone on for so many intervals, too:
/// nor must one whose clock is slow.
const AHEAD: u128 = 4;
/// A guest that stopped before its size is asked again after so many decisions.
const RETRY_ROUNDS: u32 = 10;
/// Statistics of a guest that has said nothing for so long are not believed any
/// more; more if they come seldom, see [`stale_after`].
const STALE: Duration = Duration::from_secs(10);

/// Decides for ever.
pub async fn run(fleet: Arc<Fleet>) {
    let mut coordinator = Coordinator::new(fleet.accounts.newest());
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
            || coordinator.time_has_come(fleet.vms().iter().map(|vm| vm.view()), interval)
        {
            decided = Instant::now();
            coordinator.decide_by(&fleet, &orders, fleet.seen()).await;
            fleet.accounts.set(coordinator.accounts());
        }
        fleet.keep_accounts();
        tokio::select! {
            () = tokio::time::sleep_until(next.into()) => {}
            // An hour may be left of the old interval.
            () = fleet.steered() => {}
        }
    }
}

/// What a decision goes by, beside the guests.
struct Orders {
    policy: Option<Arc<dyn Policy>>,
    fmem_pool_bytes: u64,
    interval_ms: u64,
    clock: PolicyClock,
    /// Whoever steers has said something since where it is another one by now.
    generation: u64,
}

impl Orders {
    fn of(fleet: &Fleet) -> Self {
        fleet.with_steering(|steering| Self {
            policy: steering.policy.clone(),
            fmem_pool_bytes: steering.fmem_pool_bytes,
            interval_ms: steering.interval_ms,
            clock: steering.clock,
            generation: steering.generation,
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

/// A guest that cannot be told anything, and has FMEM that others cannot have. It pays for it
/// as any other: whoever resets its machine and loads no driver would have it for nothing.
struct Kept {
    vm: Arc<Vm>,
    view: VmView,
    /// What is not there to divide: as it was told, until its driver says otherwise.
    size_pages: u64,
    claim: Claim,
}

/// Is that size worth a request, `steady_rounds` decisions after the last one? A
/// guest that stopped before its size is asked again now and then: it may have room
/// by now.
fn is_worth(tier: &TierView, size_pages: u64, steady_rounds: u32, dead_band: u64) -> bool {
    let total_pages = tier.total_bytes >> PAGE_SHIFT;
    let differs =
        |bytes: u64| policy::differs(total_pages, dead_band, bytes >> PAGE_SHIFT, size_pages);
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
    away: Away,
    quiet: BTreeMap<String, Quiet>,
    boots: BTreeMap<String, Boot>,
    /// The last decision.
    decided: Option<Instant>,
    passed: Passed,
}

impl Coordinator {
    /// With what an earlier one left.
    fn new(accounts: ByName) -> Self {
        Self {
            away: Away::new(accounts),
            ..Self::default()
        }
    }

    /// Of all who are not as new, whether they are here or away.
    fn accounts(&self) -> ByName {
        let here = self.memories.iter();
        let here = here.map(|(name, memory)| (name, &memory.account));
        (self.away.accounts().iter().chain(here))
            .filter(|(_, account)| !account.is_new())
            .map(|(name, account)| (name.clone(), *account))
            .collect()
    }

    /// By their own clocks, has all that can be told something gone on for so long
    /// since the last decision, or has one for several times that? A guest that was rebooted
    /// has.
    fn time_has_come(&self, views: impl IntoIterator<Item = VmView>, interval: Duration) -> bool {
        let (mut any, mut all) = (false, true);
        for view in views {
            if view.stage != Stage::Driven {
                continue;
            }
            any = true;
            let now_ns = view.statistics.map_or(0, |now| now.guest_time_ns);
            let then_ns = (self.memories.get(&view.name)).map_or(0, |memory| memory.guest_time_ns);
            let gone_ns = now_ns.checked_sub(then_ns).map(u128::from);
            all &= gone_ns.is_none_or(|gone_ns| gone_ns >= interval.as_nanos());
            // Of one that has just come nobody knows how long that was.
            if then_ns > 0 && gone_ns.is_some_and(|gone_ns| gone_ns >= AHEAD * interval.as_nanos())
            {
                return true;
            }
        }
        any && all
    }

    /// One decision by what is seen when somebody has looked, which takes seconds where a worker
    /// does not answer.
    async fn decide_by(
        &mut self,
        fleet: &Fleet,
        orders: &Orders,
        seen: impl Future<Output = Vec<(Arc<Vm>, VmView)>>,
    ) {
        let began = Instant::now();
        let seen = seen.await;
        fleet.with_steering(|steering| {
            // Nothing is asked for behind the back of whoever has taken over meanwhile.
            if steering.generation == orders.generation && self.decide(seen, orders) {
                steering.decisions += 1;
                steering.deciding += began.elapsed();
            }
        });
    }

    /// One decision, and the requests that it takes. False: nobody decides here.
    fn decide(&mut self, seen: Vec<(Arc<Vm>, VmView)>, orders: &Orders) -> bool {
        let now = Instant::now();
        let before = self.decided.replace(now);
        let since = before.map_or(Duration::ZERO, |before| now - before);
        let mut known = Vec::new();
        let mut kept = Vec::new();
        let mut gone = Vec::new();
        (self.memories).retain(|name, memory| {
            let stays = seen.iter().any(|(vm, _)| vm.spec.name == *name);
            if !stays {
                self.away.leave(name, memory.account);
            }
            stays
        });
        (self.quiet).retain(|name, _| self.memories.contains_key(name));
        (self.boots).retain(|name, _| self.memories.contains_key(name));
        let believes = (orders.policy.as_ref()).is_some_and(|policy| policy.believes());
        let sizes_memory = (orders.policy.as_ref()).is_some_and(|policy| policy.sizes_memory());
        for (vm, mut view) in seen {
            let memory = (self.memories.entry(view.name.clone()))
                .or_insert_with(|| Memory::new(self.away.back(&view.name)));
            forget_stale(&vm, &mut view, orders.clock);
            let share = vm.share();
            memory.learn(view.statistics.as_ref(), most_samples_per_s(share.vcpus));
            if !sizes_memory {
                vm.set_sizing(None);
            }
            if !believes {
                vm.set_account(None);
            }
            let Some(tier) = view.tiers.first().filter(|tier| tier.total_bytes > 0) else {
                memory.probe.unplugged();
                self.boots.entry(view.name).or_default().unplug();
                gone.push(vm);
                continue;
            };
            let wanted_bytes = tier.wanted_size_bytes.unwrap_or(tier.size_bytes);
            if view.stage != Stage::Driven {
                let size_pages = tier.size_bytes.max(wanted_bytes) >> PAGE_SHIFT;
                kept.push(Kept {
                    claim: guest(&share, &view, size_pages, memory).claim,
                    vm,
                    view,
                    size_pages,
                });
                continue;
            }
            let wanted_pages = wanted_bytes >> PAGE_SHIFT;
            let steady_rounds = memory.told_size(wanted_pages);
            known.push(Known {
                wanted_pages,
                steady_rounds,
                memory_pages: share.memory_bytes.map(|bytes| bytes >> PAGE_SHIFT),
                dead_band: DEAD_BAND,
                vm,
                view,
            });
        }
        let Some(policy) = &orders.policy else {
            return false;
        };
        let all_pages = orders.fmem_pool_bytes >> PAGE_SHIFT;
        let kept_pages = kept.iter().map(|kept| kept.size_pages).sum();
        let pool_pages = all_pages.saturating_sub(kept_pages);
        let speak = known.iter().filter(|known| known.view.statistics.is_some());
        let told_s = speak.filter_map(|known| {
            let (name, memory) = self.memories.get_key_value(&known.view.name)?;
            Some((name.as_str(), memory.news.elapsed_s))
        });
        let passed_s = self.passed.next(orders, since, told_s);
        let mut guests = Vec::new();
        let mut reasons = Vec::new();
        for known in &mut known {
            let memory = self.memories.entry(known.view.name.clone()).or_default();
            let mut guest = guest(&known.vm.share(), &known.view, known.wanted_pages, memory);
            if sizes_memory {
                let quiet = self.quiet.entry(known.view.name.clone()).or_default();
                let told = told(&known.vm.share(), &known.view, memory, quiet, passed_s);
                let wanted = memory.probe.next(told.as_ref());
                known.dead_band = FINE_BAND;
                known.memory_pages = wanted.map(|(pages, _)| pages).or(known.memory_pages);
                let elsewhere_pages = elsewhere(&known.view);
                guest.memory_pages = wanted.map(|(pages, _)| pages.saturating_sub(elsewhere_pages));
                guest.used_pages =
                    told.map(|told| told.used_pages().saturating_sub(elsewhere_pages));
                reasons.push(wanted.map_or(Why::Silent, |(_, why)| why));
            }
            guests.push(guest);
        }
        let fleet = policy::Fleet { pool_pages, guests };
        let sizes = policy.sizes(&fleet);
        let shares = policy::divide(pool_pages, &fleet.claims());
        if believes {
            for vm in gone {
                // Nobody knows what it has.
                let memory = self.memories.get(&vm.spec.name);
                vm.set_account(memory.map(|memory| account_view(&memory.account, None)));
            }
            self.away.pass(passed_s);
            self.settle(all_pages, &known, &kept, fleet.claims(), &shares, passed_s);
        }
        for (at, (known, why)) in known.iter().zip(&reasons).enumerate() {
            let sizing = sizing(known, &fleet.guests[at], sizes[at], shares[at], *why);
            known.vm.set_sizing(Some(sizing));
        }
        let causes: Vec<String> = (fleet.guests.iter().enumerate())
            .map(|(at, guest)| cause(policy.as_ref(), guest, reasons.get(at)))
            .collect();
        apply(&known, &sizes, &causes, pool_pages);
        true
    }

    /// Whoever cannot be told anything pays for what it has beyond its share of all FMEM. The
    /// others' is that too where they have less because of it, and so earn; where it has less
    /// than its share, theirs is `shares`, of what is there: nobody else could have that.
    fn settle(
        &mut self,
        all_pages: u64,
        known: &[Known],
        kept: &[Kept],
        mut claims: Vec<Claim>,
        shares: &[u64],
        passed_s: f64,
    ) {
        claims.extend(kept.iter().map(|kept| kept.claim));
        let of_all = policy::divide(all_pages, &claims);
        let (known_of_all, kept_of_all) = of_all.split_at(known.len());
        let known = (known.iter().zip(shares).zip(known_of_all))
            .map(|((known, share), of_all)| (&known.vm, &known.view, *share.max(of_all)));
        let kept =
            (kept.iter().zip(kept_of_all)).map(|(kept, of_all)| (&kept.vm, &kept.view, *of_all));
        for (vm, view, share_pages) in known.chain(kept) {
            let Some(tier) = view.tiers.first() else {
                continue;
            };
            let boot = self.boots.entry(view.name.clone()).or_default();
            let Charge { pages, late_pages } = boot.charge(view, tier, share_pages, passed_s);
            let memory = self.memories.entry(view.name.clone()).or_default();
            let charged_pages = pages.saturating_add(late_pages);
            (memory.account).settle(charged_pages, share_pages, passed_s);
            let now = Some((share_pages, pages));
            vm.set_account(Some(account_view(&memory.account, now)));
        }
    }
}

/// For whoever looks; `now`: its share, and what it pays for.
fn account_view(account: &Account, now: Option<(u64, u64)>) -> AccountView {
    AccountView {
        credit_ms: account.credit().as_millis() as u64,
        spent: !account.may_borrow(),
        share_bytes: now.map(|(pages, _)| pages << PAGE_SHIFT),
        charged_bytes: now.map(|(_, pages)| pages << PAGE_SHIFT),
    }
}

/// Memory of a guest that cannot be moved into FMEM: what its kernel holds of SMEM, as far as the
/// host has allocated that. Who says more would get room for it, and room for more the next time.
fn elsewhere(view: &VmView) -> u64 {
    let nodes = (view.statistics.iter()).flat_map(|statistics| &statistics.nodes);
    (view.tiers.iter().zip(nodes).skip(1))
        .map(|(tier, node)| {
            let total_pages = tier.total_bytes >> PAGE_SHIFT;
            let held = told::allocated(tier, held_pages(total_pages, node));
            held + total_pages / FINE_BAND
        })
        .sum()
}

fn sizing(known: &Known, guest: &Guest, fmem_pages: u64, share_pages: u64, why: Why) -> Sizing {
    let useful_pages = policy::useful_pages(guest);
    let wished = (guest.hot_pages.unwrap_or(u64::MAX)).min(guest.memory_pages.unwrap_or(0));
    let fmem_short = if fmem_pages < useful_pages {
        // With its share it has all that is not lent.
        let has_share = fmem_pages >= share_pages.min(useful_pages);
        Some(if has_share && !guest.may_borrow {
            Short::Credit
        } else {
            Short::Pool
        })
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

fn guest(share: &Share, view: &VmView, size_pages: u64, memory: &Memory) -> Guest {
    let pages = |bytes: u64| bytes >> PAGE_SHIFT;
    let entitled = Entitled {
        floor_pages: pages(share.fmem_floor_bytes),
        ceiling_pages: share.fmem_ceiling_bytes.map(pages),
        weight: u64::from(share.weight),
        fixed_pages: share.fmem_size_bytes.map(pages),
    };
    let (total_pages, resident_pages) = (pages(view.tiers[0].total_bytes), resident_pages(view));
    let statistics = view.statistics.as_ref();
    memory.guest(
        &entitled,
        total_pages,
        size_pages,
        statistics,
        resident_pages,
    )
}

/// For the ledger: who decided, and what it knew of the guest.
fn cause(policy: &dyn Policy, guest: &Guest, why: Option<&Why>) -> String {
    let mut words = format!("policy {}", policy.name());
    let mut tell = |what: std::fmt::Arguments<'_>| {
        let _ = write!(words, ", {what}");
    };
    if let Some(why) = why {
        tell(format_args!("{}", why.name()));
    }
    if let Some(pages) = guest.hot_pages {
        tell(format_args!("hot {:.1} MiB", pages as f64 / 256.0));
    }
    if guest.access_rate > 0.0 {
        tell(format_args!("{:.0} samples/s", guest.access_rate));
    }
    if let Some(permille) = guest.slow_permille {
        tell(format_args!("{permille} of 1000 to SMEM"));
    }
    if let Some(permille) = guest.stall_permille {
        tell(format_args!("stalled {permille} of 1000"));
    }
    if policy.believes() && !guest.may_borrow {
        tell(format_args!("no credit"));
    }
    words
}

/// Asks for what has changed. `causes` go to the ledgers.
fn apply(known: &[Known], sizes: &[u64], causes: &[String], pool_pages: u64) {
    let worth = |known: &Known, tier: &TierView, size_pages| {
        is_worth(tier, size_pages, known.steady_rounds, known.dead_band)
    };
    // SMEM alone is changed only for those whose memory as a whole is sized.
    let by_memory = |known: &Known, size: u64| {
        known.dead_band == FINE_BAND
            && smem(known, size << PAGE_SHIFT)
                .is_some_and(|(tier, size_bytes)| worth(known, tier, size_bytes >> PAGE_SHIFT))
    };
    let held: Vec<Held> = (known.iter())
        .map(|known| Held {
            held_pages: known.held_pages(),
            wanted_pages: known.wanted_pages,
        })
        .collect();
    let changes = policy::changes(
        pool_pages,
        &held,
        sizes,
        |at, size| worth(&known[at], &known[at].view.tiers[0], size),
        |at, size| by_memory(&known[at], size),
    );
    for (at, size) in changes {
        give(&known[at], size, &causes[at]);
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
