// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest says of its memory, as far as it agrees with what the host has allocated.

use demeter_balloon::view::{TierView, VmView};
use demeter_balloon::wire::{Outcome, PAGE_SHIFT};

use crate::policy::{Memory, Told, held_pages};
use crate::spec::Share;

/// What a kernel may have set aside and never touched (a crash kernel's memory, huge pages):
/// at most this part of a tier is believed to be neither free nor allocated.
const SET_ASIDE: u64 = 8;
/// A tier on its way to a size is judged by what was seen before, and is left alone, for so
/// long: whoever never ends a request, or tells a balloon that it does not have, is judged again.
pub const MOVING_S: f64 = 60.0;

/// What is remembered of a guest's tiers.
#[derive(Debug, Clone, Default)]
pub struct Quiet {
    tiers: Vec<QuietTier>,
}

#[derive(Debug, Clone, Copy, Default)]
struct QuietTier {
    /// When it last was not on its way.
    untouched_pages: u64,
    /// On its way since then.
    moving_s: f64,
}

fn pages(bytes: u64) -> u64 {
    bytes >> PAGE_SHIFT
}

/// What the host has allocated for a tier. A guest that has a driver has written into each
/// of its tiers, so that none is the word of a file system that does not count.
pub fn backing_pages(tier: &TierView) -> Option<u64> {
    tier.backing_bytes.filter(|bytes| *bytes > 0).map(pages)
}

/// Of `held` pages of a tier, which a guest says that its kernel holds, those that the host has
/// allocated, and what may be set aside beside them.
pub fn allocated(tier: &TierView, held: u64) -> u64 {
    let set_aside = held.min(pages(tier.total_bytes) / SET_ASIDE);
    backing_pages(tier).map_or(held, |backing| held.min(backing.saturating_add(set_aside)))
}

/// Memory of a driven guest that the host has allocated: it can have no more that is
/// hot. None: that cannot be seen.
pub fn resident_pages(view: &VmView) -> Option<u64> {
    view.tiers.iter().map(backing_pages).sum()
}

/// What a guest has told of all its memory since the last decision, `passed_s` ago.
pub fn told(
    share: &Share,
    view: &VmView,
    memory: &Memory,
    quiet: &mut Quiet,
    passed_s: f64,
) -> Option<Told> {
    let statistics = view.statistics.as_ref()?;
    quiet.tiers.resize(view.tiers.len(), QuietTier::default());
    let mut told = Told {
        elapsed_s: memory.news.elapsed_s,
        refaults: memory.news.refaults,
        oom: memory.news.oom,
        stall_permille: memory.stall_permille,
        ..Told::default()
    };
    let mut all_pages = 0;
    let tiers = (view.tiers.iter().zip(&statistics.nodes)).zip(&mut quiet.tiers);
    for (at, ((tier, node), quiet)) in tiers.enumerate() {
        let (total, size) = (pages(tier.total_bytes), pages(tier.size_bytes));
        let wanted = tier.wanted_size_bytes.map_or(size, pages);
        // Words of before the last change say nothing of what is free now.
        let is_moving = tier.busy || node.balloon_pages != pages(tier.balloon_bytes);
        quiet.moving_s = if is_moving {
            quiet.moving_s + passed_s
        } else {
            0.0
        };
        let is_late = quiet.moving_s > MOVING_S;
        let mut held = held_pages(total, node);
        match backing_pages(tier) {
            // While a balloon changes, its size and what is allocated are of two moments.
            Some(_) if tier.busy && !is_late => {}
            Some(backing) => {
                let set_aside = held.min(total / SET_ASIDE);
                held = allocated(tier, held);
                quiet.untouched_pages = size.saturating_sub(backing.saturating_add(set_aside));
            }
            None => quiet.untouched_pages = 0,
        }
        all_pages += total;
        told.size_pages += size.max(wanted);
        told.untouched_pages += quiet.untouched_pages.min(size);
        told.free_pages += node.free_pages;
        if at > 0 {
            told.free_smem_pages += node.free_pages;
        }
        told.held_pages += held;
        told.demand_pages += held + node.anon_pages;
        told.is_busy |= is_moving && !is_late;
        told.has_stopped |= (tier.last).is_some_and(|last| {
            let early = matches!(last.outcome, Outcome::Floor | Outcome::Oom);
            early && tier.ended_ticket == tier.ticket && size > wanted
        });
    }
    let resident = resident_pages(view).unwrap_or(u64::MAX);
    told.demand_pages = told.demand_pages.min(resident);
    told.most_pages = (share.memory_bytes).map_or(all_pages, |bytes| pages(bytes).min(all_pages));
    told.hot_pages = (statistics.has_tmm).then(|| (statistics.hot_wanted_pages).min(resident));
    Some(told)
}
