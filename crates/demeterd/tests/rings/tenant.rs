// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A modelled guest that works: accesses to a hot set, of which FMEM serves what fits
//! into it, and a driver that does what it is asked for.
#![allow(dead_code, reason = "each test that includes it uses a part")]

use std::collections::BTreeSet;

use demeter_balloon::wire::{
    NODE_STATISTICS_BYTES, OP_DEFLATE, OP_DONE, OP_INFLATED, Range, Report, Request,
    STATISTICS_BYTES, VALID_PSI, VALID_TMM,
};

use crate::model::{Daemon, Guest};

/// Of each node; the rings lie in the first 64 of FMEM.
pub const NODE_PAGES: u64 = 1024;

/// Pages of each that no balloon may have.
const FIRST_PAGES: [u64; 2] = [64, 0];

/// A guest with a load.
pub struct Tenant {
    guest: Guest,
    /// Pages of each node, counted from its first one.
    balloons: [BTreeSet<u64>; 2],
    samples: [u64; 2],
    refaults: u64,
    sequence: u64,
    /// By tier.
    pub accesses: [u64; 2],
    /// Of its size.
    pub changes: u64,
    /// Time in which its tasks waited for memory, if it says that.
    pub stalled_us: Option<u64>,
    /// Smallest size, as far as somebody notes it.
    pub least_pages: u64,
}

/// What a guest does in an interval.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// That it uses, of any tier: FMEM first.
    pub hot_pages: u64,
    /// To these.
    pub accesses: u64,
}

impl Tenant {
    /// Connects and greets; memory of the nodes `filled` is in use.
    pub fn new(daemon: &Daemon, name: &str, filled: &[usize]) -> Self {
        let mut guest = Guest::connect(daemon, name);
        // Nobody believes in hot pages that the host has not allocated.
        for &node in filled {
            guest.fill(node);
        }
        guest.greet();
        Self {
            guest,
            balloons: Default::default(),
            samples: [0; 2],
            refaults: 0,
            sequence: 0,
            accesses: [0; 2],
            changes: 0,
            stalled_us: None,
            least_pages: u64::MAX,
        }
    }

    /// FMEM that it has.
    pub fn size_pages(&self) -> u64 {
        self.size_of(0)
    }

    fn size_of(&self, node: usize) -> u64 {
        NODE_PAGES - self.balloons[node].len() as u64
    }

    /// Executes what the daemon asks for.
    pub fn obey(&mut self) {
        while let Some(bytes) = self.guest.poll_request() {
            let request = Request::from_bytes(&bytes).unwrap();
            let node = usize::from(request.node);
            let balloon = &mut self.balloons[node];
            let now = balloon.len() as u64;
            let target = request.target_pages;
            let (op, pages): (u16, Vec<u64>) = if target > now {
                let free = (FIRST_PAGES[node]..NODE_PAGES).filter(|page| !balloon.contains(page));
                (OP_INFLATED, free.take((target - now) as usize).collect())
            } else {
                let held = balloon.iter().rev().copied();
                (OP_DEFLATE, held.take((now - target) as usize).collect())
            };
            let first = self.guest.first_page(node);
            let ranges: Vec<Range> = (pages.iter())
                .map(|page| Range {
                    gpa: (first + page) << 12,
                    nr_pages: 1,
                })
                .collect();
            let mut report = Report {
                id: request.id,
                op,
                node: request.node,
                current_pages: target,
                ..Report::default()
            };
            if !ranges.is_empty() {
                assert_eq!(self.guest.report(node, report, &ranges), Some(0));
                for page in pages {
                    let changed = if op == OP_INFLATED {
                        balloon.insert(page)
                    } else {
                        self.guest.touch(node, page);
                        balloon.remove(&page)
                    };
                    assert!(changed);
                }
                // Of FMEM.
                self.changes += u64::from(node == 0);
            }
            report.op = OP_DONE;
            assert_eq!(self.guest.report(node, report, &[]), Some(0));
        }
    }

    /// Uses what is in its balloons, without a word.
    pub fn touch_balloon(&self) {
        for (node, balloon) in self.balloons.iter().enumerate() {
            (balloon.iter()).for_each(|&page| self.guest.touch(node, page));
        }
    }

    /// Works until then, says so, and waits until that was read.
    pub fn work(&mut self, until_ns: u64, load: Load) {
        self.say(until_ns, load);
        self.guest.wait_statistics();
    }

    /// What it said was read.
    pub fn wait(&mut self) {
        self.guest.wait_statistics();
    }

    /// Works until then, and says so.
    pub fn say(&mut self, until_ns: u64, load: Load) {
        let served = self.size_pages().min(load.hot_pages);
        let fast = load.accesses * served / load.hot_pages.max(1);
        let slow = load.accesses - fast;
        self.samples[0] += fast;
        self.samples[1] += slow;
        self.accesses[0] += fast;
        self.accesses[1] += slow;
        let warm = (load.hot_pages - served).min(self.size_of(1));
        // What has no room is missed once in an interval.
        self.refaults += load.hot_pages - served - warm;
        let mut bytes = vec![0; STATISTICS_BYTES + 2 * NODE_STATISTICS_BYTES];
        let mut put = |at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        put(0, self.sequence);
        put(8, until_ns);
        let valid = VALID_TMM | self.stalled_us.map_or(0, |_| VALID_PSI);
        put(16, 2 << 16 | u64::from(valid) << 32);
        put(24, self.samples[0]);
        put(32, self.samples[1]);
        put(40, load.hot_pages);
        put(48, self.stalled_us.unwrap_or(0));
        put(80, self.refaults);
        for (node, used) in [served, warm].into_iter().enumerate() {
            let at = STATISTICS_BYTES + node * NODE_STATISTICS_BYTES;
            put(at, NODE_PAGES);
            put(at + 8, self.size_of(node) - used);
            put(at + 16, self.balloons[node].len() as u64);
            put(at + 24, used);
        }
        self.sequence += 1;
        self.guest.send_statistics(&bytes);
    }

    /// Where its queues stand, for whoever waits in vain.
    pub fn rings(&self) -> String {
        self.guest.rings()
    }
}
