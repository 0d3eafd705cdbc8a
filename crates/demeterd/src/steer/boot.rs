// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest pays for, boots among it. Whoever boots has no balloon until its driver has made
//! it one, so that by the device's words all of its FMEM is its own, of which it may have touched
//! little. It pays for what it was promised, or for what the host has allocated for it if that is
//! more: a boot neither costs credit nor saves some.

use demeter_balloon::view::{Stage, TierView, VmView};
use demeter_balloon::wire::PAGE_SHIFT;

use super::told::backing_pages;

/// Boots take no longer together, or they are none: whoever does not get there, or boots again
/// and again, pays for what is kept for it, which others cannot have.
const BOOT_S: f64 = 300.0;
/// Of the time in which it does not boot, the part by which what it has booted is forgotten:
/// five minutes an hour.
const FORGOTTEN_PART: f64 = 1.0 / 12.0;

/// What a guest pays for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// Of the time that has passed now.
    pub pages: u64,
    /// What it had earlier, without a word, and nobody knew was its own: pages of the same time.
    pub late_pages: u64,
}

/// What is remembered of one guest.
#[derive(Debug, Default)]
pub struct Boot {
    /// It boots: it has not done what it was asked for since then.
    boots: bool,
    /// For so long, all its boots together, less what is forgotten.
    booted_s: f64,
    /// Drivers that greeted.
    hellos: u64,
    /// Its clock when it last spoke.
    guest_time_ns: u64,
    /// Of FMEM that it had beyond its size while it said nothing: the words before may be those
    /// of a system that is not there any more.
    unheard_page_s: f64,
}

impl Boot {
    /// Nobody is connected: what comes next is another device.
    pub fn unplug(&mut self) {
        self.hellos = 0;
        self.boots = true;
    }

    /// What it pays for, of the time that passed since it was last asked here.
    pub fn charge(&mut self, view: &VmView, tier: &TierView, passed_s: f64) -> Charge {
        let promised_pages = tier.wanted_size_bytes.map_or(0, pages);
        let held_pages = pages(tier.size_bytes).max(promised_pages);
        let seen_pages = backing_pages(tier).map(|seen| seen.min(pages(tier.total_bytes)));
        self.look(view, tier, passed_s);
        let over_pages = seen_pages.unwrap_or(0).saturating_sub(held_pages);
        let late_pages = self.late_pages(view, over_pages, passed_s);
        let pages = if self.boots && self.booted_s <= BOOT_S {
            promised_pages.max(seen_pages.unwrap_or(held_pages))
        } else if is_heard(view) {
            // Not every monitor tells of a reset: one that has fallen silent may know nothing of
            // its balloon any more. One that speaks is not charged what is on its way out of
            // what the host has allocated.
            held_pages
        } else {
            held_pages + over_pages
        };
        Charge { pages, late_pages }
    }

    /// Does it boot?
    fn look(&mut self, view: &VmView, tier: &TierView, passed_s: f64) {
        let has_driver = view.stage == Stage::Driven;
        let has_greeted = has_driver && tier.traffic.hellos != self.hellos;
        if has_driver {
            self.hellos = tier.traffic.hellos;
        }
        let is_new = has_greeted || view.stage == Stage::Connected;
        self.boots = is_new || (self.boots && (tier.busy || tier.wanted_size_bytes.is_none()));
        self.booted_s = if self.boots {
            (self.booted_s + passed_s).min(2.0 * BOOT_S)
        } else {
            (self.booted_s - passed_s * FORGOTTEN_PART).max(0.0)
        };
    }

    /// What it had without a word, `over_pages` now, if it turns out that it boots: pages of the
    /// time that has passed.
    fn late_pages(&mut self, view: &VmView, over_pages: u64, passed_s: f64) -> u64 {
        let now_ns = (view.statistics.as_ref()).map(|statistics| statistics.guest_time_ns);
        let says_nothing = now_ns == Some(self.guest_time_ns);
        self.guest_time_ns = now_ns.unwrap_or(0);
        if self.boots && passed_s > 0.0 {
            return (std::mem::take(&mut self.unheard_page_s) / passed_s) as u64;
        }
        if !self.boots && is_heard(view) {
            // Who speaks was there all the time.
            self.unheard_page_s = if says_nothing {
                self.unheard_page_s + over_pages as f64 * passed_s
            } else {
                0.0
            };
        }
        0
    }
}

/// It has a driver that speaks.
fn is_heard(view: &VmView) -> bool {
    view.stage == Stage::Driven && view.statistics.is_some()
}

fn pages(bytes: u64) -> u64 {
    bytes >> PAGE_SHIFT
}
