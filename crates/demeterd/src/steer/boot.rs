// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest pays for, boots among it. Whoever boots has no balloon until its driver has made
//! it one, so that by the device's words all of its FMEM is its own, of which it may have touched
//! little. It pays for what it was promised, or for what the host has allocated for it if that is
//! more: a boot neither costs credit nor saves some. One that does not boot pays for its size, and
//! for what the host sees that it has touched of its balloon, whatever it says.

use demeter_balloon::view::{Stage, TierView, VmView};
use demeter_balloon::wire::PAGE_SHIFT;

use super::grace::Grace;
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
    /// Reports that the device took: where these are fewer than before it is another device.
    reports: u64,
    clock: Clock,
    /// Of FMEM that it had beyond its size while it said nothing: the words before may be those
    /// of a system that is not there any more.
    unheard_page_s: f64,
    grace: Grace,
}

impl Boot {
    /// Nobody is connected: what comes next is another device.
    pub fn unplug(&mut self) {
        self.hellos = 0;
        self.reports = 0;
        self.boots = true;
        self.grace.look(0);
    }

    /// What it pays for where `share_pages` are its part, of the time that passed since it was
    /// last asked here.
    pub fn charge(
        &mut self,
        view: &VmView,
        tier: &TierView,
        share_pages: u64,
        passed_s: f64,
    ) -> Charge {
        let size_pages = pages(tier.size_bytes);
        let promised_pages = tier.wanted_size_bytes.map_or(0, pages);
        let held_pages = size_pages.max(promised_pages);
        let seen_pages = backing_pages(tier).map(|seen| seen.min(pages(tier.total_bytes)));
        let over_pages = seen_pages.unwrap_or(0).saturating_sub(held_pages);
        // What it was promised is paid already, also where it has not taken it out yet.
        let promised_beyond = held_pages - size_pages;
        let kept_pages = (tier.kept_bytes).map(|kept| pages(kept).saturating_sub(promised_beyond));
        let is_new = self.look(view, tier, passed_s);
        let clock_ns = (view.statistics.as_ref()).map(|statistics| statistics.guest_time_ns);
        let heard = self.clock.look(clock_ns, is_new);
        let late_pages = self.late_pages(view, heard, over_pages, share_pages, passed_s);
        let is_heard = is_heard(view);
        let pages = match kept_pages {
            _ if self.boots && self.booted_s <= BOOT_S => {
                self.grace.look(kept_pages.unwrap_or(0));
                promised_pages.max(seen_pages.unwrap_or(held_pages))
            }
            Some(kept_pages) if is_heard => {
                held_pages.saturating_add(self.grace.charge(kept_pages, share_pages, passed_s))
            }
            // Not everywhere the host sees whose doing it is what is allocated: one that speaks
            // is believed there.
            None if is_heard && heard != Words::OfAnother => held_pages,
            // Not every monitor tells of a reset: one that has fallen silent may know nothing of
            // its balloon any more.
            _ => {
                self.grace.look(kept_pages.unwrap_or(0));
                held_pages + over_pages
            }
        };
        Charge { pages, late_pages }
    }

    /// Does it boot? True: it has begun to since the last decision.
    fn look(&mut self, view: &VmView, tier: &TierView, passed_s: f64) -> bool {
        let has_driver = view.stage == Stage::Driven;
        let traffic = tier.traffic;
        let is_same = traffic.hellos == self.hellos && traffic.reports >= self.reports;
        let has_greeted = has_driver && !is_same;
        if has_driver {
            self.hellos = traffic.hellos;
            self.reports = traffic.reports;
        }
        let is_new = has_greeted || view.stage == Stage::Connected;
        self.boots = is_new || (self.boots && (tier.busy || tier.wanted_size_bytes.is_none()));
        self.booted_s = if self.boots {
            (self.booted_s + passed_s).min(2.0 * BOOT_S)
        } else {
            (self.booted_s - passed_s * FORGOTTEN_PART).max(0.0)
        };
        is_new
    }

    /// What it had without a word, `over_pages` now, and what was let pass, if it turns out that
    /// it boots: pages of the time that has passed.
    fn late_pages(
        &mut self,
        view: &VmView,
        heard: Words,
        over_pages: u64,
        share_pages: u64,
        passed_s: f64,
    ) -> u64 {
        if self.boots && passed_s > 0.0 {
            let unpaid_page_s = self.grace.take_unpaid_s() * share_pages as f64;
            return ((std::mem::take(&mut self.unheard_page_s) + unpaid_page_s) / passed_s) as u64;
        }
        // Where the host sees what is kept, that is paid by what it sees alone.
        let is_seen = (view.tiers.first()).is_some_and(|tier| tier.kept_bytes.is_some());
        if !self.boots && is_heard(view) {
            match heard {
                // Who speaks was there all the time.
                Words::New => self.unheard_page_s = 0.0,
                Words::None if !is_seen => self.unheard_page_s += over_pages as f64 * passed_s,
                // It pays at once.
                Words::None | Words::OfAnother => {}
            }
        }
        0
    }
}

/// What a guest has said since the last decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Words {
    None,
    /// It was there all the time.
    New,
    /// Its clock is behind: a system that was there before, and whose driver greeted, does not
    /// say that.
    OfAnother,
}

/// The clock of the system whose driver greeted last.
#[derive(Debug, Default)]
struct Clock {
    /// When it last spoke.
    latest_ns: u64,
    /// Somebody greeted, and the words may still be those of before.
    is_unheard: bool,
}

impl Clock {
    /// `is_new`: somebody has greeted since the last decision.
    fn look(&mut self, now_ns: Option<u64>, is_new: bool) -> Words {
        self.is_unheard |= is_new;
        let Some(now_ns) = now_ns.filter(|now_ns| *now_ns != self.latest_ns) else {
            return Words::None;
        };
        if now_ns < self.latest_ns && !self.is_unheard {
            return Words::OfAnother;
        }
        self.latest_ns = now_ns;
        // In one decision with a greeting nobody knows which was first: they may be the last
        // words of the system before, whose clock is ahead of the new one's.
        self.is_unheard = is_new;
        Words::New
    }
}

/// It has a driver that speaks.
fn is_heard(view: &VmView) -> bool {
    view.stage == Stage::Driven && view.statistics.is_some()
}

fn pages(bytes: u64) -> u64 {
    bytes >> PAGE_SHIFT
}
