// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ledger of one balloon: which pages are in it, how many it may hold, and
//! what it was asked for.
//!
//! Requests travel. While one is on its way the driver may still execute an
//! older one, so the budget is the largest target that the driver can have in
//! mind: those that it has not answered, and the last one that it has. [DEV-13]

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::pages::Pages;
use crate::reason::Reason;
use crate::regions::Regions;
use crate::wire::{OP_DEFLATE, OP_INFLATED, Outcome, PAGE_SHIFT, Range};

/// Most requests of a node that the driver has not answered. One that is not
/// delivered yet is replaced, so the bound costs nothing.
const MAX_UNANSWERED: usize = 8;

/// A request that the driver has.
#[derive(Debug, Clone, Copy)]
struct Delivered {
    id: u64,
    ticket: u64,
    target_pages: u64,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// The newest wish that it fulfils or gives up.
    pub ticket: u64,
    /// What was asked for.
    pub target_pages: u64,
    /// How.
    pub outcome: Outcome,
}

/// State of one balloon.
#[derive(Debug, Default)]
pub struct Node {
    pages: Pages,
    /// What was in the balloon of memory that has just gone away, and may be back at once.
    away: Pages,
    hello: bool,
    /// Pages that may still come with the RESYNC flag; None: none may.
    resync_left: Option<u64>,
    wish: Option<u64>,
    ticket: u64,
    undelivered: bool,
    unanswered: VecDeque<Delivered>,
    answered_target: u64,
    last: Option<Ended>,
    /// Of the pages in the balloon, those that still have their backing.
    punching_pages: u64,
}

impl Node {
    /// Pages in the balloon.
    #[must_use]
    pub fn held_pages(&self) -> u64 {
        self.pages.len()
    }

    /// A driver is there.
    #[must_use]
    pub fn has_driver(&self) -> bool {
        self.hello
    }

    /// What the host wants the balloon to hold.
    #[must_use]
    pub fn wish_pages(&self) -> Option<u64> {
        self.wish
    }

    /// The newest wish's number.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// The newest ended request.
    #[must_use]
    pub fn last(&self) -> Option<Ended> {
        self.last
    }

    /// True if the driver has not answered all that it was asked.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.undelivered || !self.unanswered.is_empty()
    }

    /// Most pages that the driver may have been asked to hold.
    #[must_use]
    pub fn budget_pages(&self) -> u64 {
        self.unanswered
            .iter()
            .map(|request| request.target_pages)
            .fold(self.answered_target, u64::max)
    }

    /// Notes a wish and its number, which [`Node::last`] shows once it has ended.
    pub fn wish(&mut self, target_pages: u64, ticket: u64) {
        self.wish = Some(target_pages);
        self.undelivered = true;
        self.ticket = ticket;
    }

    /// Target of a request that can be delivered now.
    #[must_use]
    pub fn deliverable(&self) -> Option<u64> {
        let ready = self.hello && self.undelivered && self.unanswered.len() < MAX_UNANSWERED;
        self.wish.filter(|_| ready)
    }

    /// The driver has the request from here on.
    pub fn deliver(&mut self, id: u64, target_pages: u64) {
        self.undelivered = false;
        self.unanswered.push_back(Delivered {
            id,
            ticket: self.ticket,
            target_pages,
        });
    }

    /// HELLO: a new driver, which holds nothing but what it reports from now on:
    /// `resync_pages` of an earlier life, if it says so. [DEV-5]
    pub fn hello(&mut self, resync_pages: Option<u64>) {
        // Nobody may have told of the reset before it, so that what the last driver has not
        // answered may have been asked of this one: it may do that until it answers. [DEV-13]
        let crossed = self
            .unanswered
            .iter()
            .map(|request| request.target_pages)
            .max();
        self.forget();
        self.answered_target = crossed.unwrap_or(0);
        self.hello = true;
        self.resync_left = resync_pages;
        self.undelivered = self.wish.is_some();
    }

    fn forget(&mut self) {
        self.pages.clear();
        self.away.clear();
        self.reset();
    }

    /// Whoever drove it is gone, with all that it was asked for. What is in the balloon stays
    /// there until somebody else greets. [DEV-7]
    pub fn reset(&mut self) {
        self.hello = false;
        self.resync_left = None;
        self.unanswered.clear();
        self.answered_target = 0;
        // What is wished for is still to be asked.
        self.undelivered = self.wish.is_some();
    }

    /// Memory went away: so does what was in the balloon of it. Memory came back: so does that,
    /// unless it was forgotten.
    pub fn keep_within(&mut self, regions: &Regions, node: u16) {
        let is_there = |page| {
            let range = Range {
                gpa: page << PAGE_SHIFT,
                nr_pages: 1,
            };
            regions.pieces(node, range).is_ok()
        };
        let back = self.away.part(|page| !is_there(page));
        let gone = self.pages.part(is_there);
        self.pages.merge(&back);
        self.away.merge(&gone);
    }

    /// What has gone away is not expected back.
    pub fn forget_away(&mut self) {
        self.away.clear();
    }

    /// So many of the pages that were taken in last still have their backing.
    pub fn set_punching(&mut self, nr_pages: u64) {
        self.punching_pages = nr_pages;
    }

    /// As above.
    #[must_use]
    pub fn punching_pages(&self) -> u64 {
        self.punching_pages
    }

    /// Takes pages in, all or none. On failure the index of the range.
    ///
    /// # Errors
    /// The reason of the first range that is wrong.
    pub fn inflate(
        &mut self,
        node: u16,
        ranges: &[Range],
        resync: bool,
        regions: &Regions,
    ) -> Result<(), (Reason, usize)> {
        let before = self.pages.len();
        // [DEV-6]: a number that HELLO gave, and nothing else in between.
        let limit = if resync {
            let left = self.resync_left.ok_or((Reason::NoResync, 0))?;
            before.saturating_add(left)
        } else {
            self.budget_pages()
        };
        self.each(OP_INFLATED, node, ranges, regions)?;
        // [DEV-10]: the budget comes last.
        let after = self.pages.len();
        if after > limit {
            self.revert(OP_INFLATED, ranges);
            return Err((Reason::Budget, 0));
        }
        self.resync_left = if resync { Some(limit - after) } else { None };
        Ok(())
    }

    /// Gives pages back, all or none. On failure the index of the range.
    ///
    /// # Errors
    /// The reason of the first range that is wrong.
    pub fn deflate(
        &mut self,
        node: u16,
        ranges: &[Range],
        regions: &Regions,
    ) -> Result<(), (Reason, usize)> {
        self.each(OP_DEFLATE, node, ranges, regions)?;
        self.resync_left = None;
        Ok(())
    }

    /// Undoes an [`Node::inflate`] that the host could not honour.
    pub fn undo_inflate(&mut self, ranges: &[Range]) {
        let before = self.pages.len();
        self.revert(OP_INFLATED, ranges);
        if let Some(left) = &mut self.resync_left {
            *left += before - self.pages.len();
        }
    }

    fn each(
        &mut self,
        op: u16,
        node: u16,
        ranges: &[Range],
        regions: &Regions,
    ) -> Result<(), (Reason, usize)> {
        for (index, range) in ranges.iter().enumerate() {
            if let Err(reason) = self.one(op, node, *range, regions) {
                self.revert(op, &ranges[..index]);
                return Err((reason, index));
            }
        }
        Ok(())
    }

    fn one(&mut self, op: u16, node: u16, range: Range, regions: &Regions) -> Result<(), Reason> {
        // From here on the range is inside guest memory, so that its size and
        // the sums below are bounded.
        regions.pieces(node, range)?;
        let first = range.gpa >> PAGE_SHIFT;
        if op == OP_INFLATED {
            if self.pages.contains_any(first, range.nr_pages) {
                return Err(Reason::Twice);
            }
            self.pages.insert(first, range.nr_pages);
        } else {
            if !self.pages.contains_all(first, range.nr_pages) {
                return Err(Reason::NotInflated);
            }
            self.pages.remove(first, range.nr_pages);
        }
        Ok(())
    }

    fn revert(&mut self, op: u16, ranges: &[Range]) {
        for range in ranges {
            let first = range.gpa >> PAGE_SHIFT;
            if op == OP_INFLATED {
                self.pages.remove(first, range.nr_pages);
            } else {
                self.pages.insert(first, range.nr_pages);
            }
        }
    }

    /// The driver ended a request. None if it was not asked for that.
    pub fn done(&mut self, id: u64, outcome: Outcome) -> Option<Ended> {
        let at = self.unanswered.iter().position(|r| r.id == id)?;
        let request = self.unanswered[at];
        self.unanswered.drain(..=at);
        self.answered_target = request.target_pages;
        let ended = Ended {
            ticket: request.ticket,
            target_pages: request.target_pages,
            outcome,
        };
        self.last = Some(ended);
        Some(ended)
    }
}
