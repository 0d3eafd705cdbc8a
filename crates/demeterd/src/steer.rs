// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks the policy, and makes it so: those who lose first, so that the guests
//! together never have more than the pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use demeter_balloon::NodeStatistics;
use demeter_balloon::view::{Stage, VmView};
use demeter_balloon::wire::PAGE_SHIFT;

use crate::fleet::Fleet;
use crate::policy::{self, Claim, Guest};
use crate::spec::Share;
use crate::vm::Vm;

const FMEM: u16 = 0;
const SMEM: u16 = 1;
/// Differences below this part of a tier are not worth a request.
const DEAD_BAND: u64 = 64;
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
}

impl Memory {
    /// Counters of the guest become rates; a guest that was rebooted counts from
    /// zero again and tells nothing this time.
    fn learn(&mut self, view: &VmView) {
        let Some(now) = &view.statistics else {
            *self = Self::default();
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
                let rate = all as f64 * 1e9 / elapsed_ns as f64;
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
    loop {
        let interval_ms = fleet.with_steering(|steering| steering.interval_ms);
        let next = Instant::now() + Duration::from_millis(interval_ms);
        round(&fleet, &mut memories);
        tokio::time::sleep_until(next.into()).await;
    }
}

fn round(fleet: &Fleet, memories: &mut BTreeMap<String, Memory>) {
    let mut known = Vec::new();
    let mut kept_pages = 0;
    for vm in fleet.vms() {
        let view = vm.view();
        let memory = memories.entry(view.name.clone()).or_default();
        memory.learn(&view);
        let Some(tier) = view.tiers.first().filter(|tier| tier.total_bytes > 0) else {
            continue;
        };
        let wanted_bytes = tier.wanted_size_bytes.unwrap_or(tier.size_bytes);
        let held_pages = tier.size_bytes.max(wanted_bytes) >> PAGE_SHIFT;
        if view.stage == Stage::Driven {
            known.push((vm.clone(), view.clone(), wanted_bytes >> PAGE_SHIFT));
        } else {
            // It cannot be told anything: what it has is not there to divide.
            kept_pages += held_pages;
        }
    }
    let guests: Vec<Guest> = known
        .iter()
        .map(|(vm, view, wanted_pages)| {
            let memory = memories.entry(view.name.clone()).or_default();
            memory.steady_rounds = if memory.size_pages == *wanted_pages {
                memory.steady_rounds.saturating_add(1)
            } else {
                0
            };
            memory.size_pages = *wanted_pages;
            guest(&vm.spec.share, view, *wanted_pages, memory)
        })
        .collect();
    let decided = fleet.with_steering(|steering| {
        let policy = steering.policy.as_ref()?;
        let pool_pages = (steering.fmem_pool_bytes >> PAGE_SHIFT).saturating_sub(kept_pages);
        let fleet = policy::Fleet { pool_pages, guests };
        Some((policy.sizes(&fleet), policy.name(), pool_pages))
    });
    if let Some((sizes, name, pool_pages)) = decided {
        apply(&known, &sizes, name, pool_pages);
    }
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
                statistics.hot_wanted_pages.saturating_add(
                    (statistics.nodes.first()).map_or(0, |node| held_pages(total_pages, node)),
                )
            }),
        free_pages: statistics
            .and_then(|statistics| statistics.nodes.first())
            .map_or(0, |node| node.free_pages),
        access_rate: memory.access_rate.unwrap_or(0.0),
        slow_permille: memory.slow_permille,
        stall_permille: memory.stall_permille,
        steady_rounds: memory.steady_rounds,
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
fn apply(known: &[(Arc<Vm>, VmView, u64)], sizes: &[u64], policy: &str, pool_pages: u64) {
    let why = format!("policy {policy}");
    // What a guest has or was promised, whichever is more.
    let mut taken: u64 = known
        .iter()
        .map(|(_, view, wanted)| (view.tiers[0].size_bytes >> PAGE_SHIFT).max(*wanted))
        .sum();
    let order = |loses: bool| {
        (known.iter().zip(sizes)).filter(move |((_, _, wanted), size)| (**size < *wanted) == loses)
    };
    for ((vm, view, wanted), &size) in order(true).chain(order(false)) {
        let total = view.tiers[0].total_bytes >> PAGE_SHIFT;
        let has = (view.tiers[0].size_bytes >> PAGE_SHIFT).max(*wanted);
        let more = size
            .saturating_sub(has)
            .min(pool_pages.saturating_sub(taken));
        let size = if size > has { has + more } else { size };
        let asked_before = view.tiers[0].wanted_size_bytes.is_some();
        if asked_before && size.abs_diff(*wanted) < (total / DEAD_BAND).max(1) {
            continue;
        }
        taken += more;
        give(vm, view, size, &why);
    }
}

/// What FMEM loses SMEM gains, if the guest has a right to memory as a whole.
/// SMEM grows before FMEM shrinks, so that the guest has room for what moves.
fn give(vm: &Vm, view: &VmView, fmem_pages: u64, why: &str) {
    let smem = vm
        .spec
        .share
        .memory_bytes
        .zip(view.tiers.get(1))
        .map(|(memory_bytes, tier)| {
            (memory_bytes.saturating_sub(fmem_pages << PAGE_SHIFT)).min(tier.total_bytes)
        });
    let shrinks = fmem_pages < view.tiers[0].size_bytes >> PAGE_SHIFT;
    let fmem = (FMEM, Some(fmem_pages << PAGE_SHIFT));
    let asks = if shrinks {
        [(SMEM, smem), fmem]
    } else {
        [fmem, (SMEM, smem)]
    };
    for (node, size_bytes) in asks {
        if let Some(size_bytes) = size_bytes
            && let Err(error) = vm.ask(node, size_bytes, why)
        {
            tracing::warn!(vm = vm.spec.name, node, "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
