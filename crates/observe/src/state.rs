// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything at one time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::groups::Group;
use crate::heat::{Heat, Range};
use crate::ledger::{Account, Ledger};

/// Version of the JSON of [`State`]; later ones only add fields.
pub const FORMAT: u32 = 1;

/// One of the two tiers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// `fmem` or `smem`.
    pub name: String,
    /// Its first NUMA node.
    pub node: u32,
    /// Memory of its nodes; absent where the system does not say.
    pub total_bytes: Option<u64>,
    /// Free memory of its nodes.
    pub free_bytes: Option<u64>,
    /// Resident memory of the managed address spaces.
    pub managed_bytes: u64,
    /// Its nodes; none before they are chosen.
    #[serde(default)]
    pub nodes: Vec<Node>,
}

/// One NUMA node of a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub node: u32,
    /// Its memory; absent where the system does not say.
    pub total_bytes: Option<u64>,
    /// What is free of it.
    pub free_bytes: Option<u64>,
    /// Resident memory of the managed address spaces; absent where the module does not
    /// tell nodes apart.
    pub managed_bytes: Option<u64>,
    /// Moved here from the other tier since load; the same.
    pub arrived_bytes: Option<u64>,
}

/// One managed address space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Number of the address space.
    pub space: u32,
    /// Its thread group when it was added.
    pub pid: u32,
    /// Name of the program that has this PID now.
    pub command: Option<String>,
    /// How it came to be managed; absent where the module keeps no ledger.
    pub account: Option<Account>,
    /// Its ranges.
    pub ranges: usize,
    /// Their decayed samples: a steady rate shows twice the samples of an epoch.
    pub samples: f64,
    /// Resident in the fast tier, when counted last.
    pub fmem_bytes: u64,
    /// Resident in the slow tier, when counted last.
    pub smem_bytes: u64,
}

/// What the module shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`FORMAT`].
    pub format: u32,
    /// CLOCK_MONOTONIC of the guest.
    pub time_ns: u64,
    /// Whether memory is managed now.
    pub enabled: bool,
    /// Name of the sampler.
    pub sampler: String,
    /// How samples arrive.
    pub sampler_delivery: String,
    /// Fast, slow.
    pub tiers: Vec<Tier>,
    /// `params/` by file name.
    pub params: BTreeMap<String, i64>,
    /// `stats/` by path below it, such as `refused/pinned`.
    pub stats: BTreeMap<String, i64>,
    /// The managed address spaces.
    pub targets: Vec<Target>,
    /// The groups, by name; none in what an older version tells.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// The heat map.
    pub heat: Heat,
    /// Absent where the module keeps none.
    pub ledger: Option<Ledger>,
}

impl State {
    /// One of [`State::stats`], 0 where the module has no such file.
    pub fn stat(&self, path: &str) -> i64 {
        self.stats.get(path).copied().unwrap_or(0)
    }

    /// Those of [`State::stats`] in a directory, by file name.
    pub fn stats_in<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = (&'a str, i64)> {
        self.stats.iter().filter_map(move |(path, &value)| {
            let name = path.strip_prefix(directory)?.strip_prefix('/')?;
            Some((name, value))
        })
    }

    /// What differs between the accounts of the ledger and the module's totals, in
    /// words; none when every sum is right, as it must be while nothing is managed.
    pub fn imbalance(&self) -> Vec<String> {
        let Some(ledger) = &self.ledger else {
            return Vec::new();
        };
        let sum = |of: fn(&Account) -> i128| ledger.all_accounts().map(of).sum::<i128>();
        let mut sums: BTreeMap<String, i128> = BTreeMap::from([
            ("promoted_pages".into(), sum(|a| a.promoted_pages.into())),
            ("demoted_pages".into(), sum(|a| a.demoted_pages.into())),
            ("filled_pages".into(), sum(|a| a.filled_pages.into())),
            ("gain/predicted_ns".into(), sum(|a| a.predicted_ns.into())),
            ("gain/realised_ns".into(), sum(|a| a.realised_ns.into())),
            ("gain/decisions".into(), sum(|a| a.decisions.into())),
        ]);
        for (reason, _) in self.stats_in("refused") {
            sums.insert(format!("refused/{reason}"), 0);
        }
        for (reason, &pages) in ledger.all_accounts().flat_map(|a| &a.refused_pages) {
            *sums.entry(format!("refused/{reason}")).or_default() += i128::from(pages);
        }
        (sums.into_iter())
            .filter(|(path, sum)| *sum != i128::from(self.stat(path)))
            .map(|(path, sum)| format!("{path} is {}, the accounts say {sum}", self.stat(&path)))
            .collect()
    }
}

/// Sums the heat map up by address space, in the order of their numbers.
pub(crate) fn targets(heat: &Heat, ledger: Option<&Ledger>) -> Vec<Target> {
    let mut targets: BTreeMap<u32, Target> = BTreeMap::new();
    let empty = |space, pid| Target {
        space,
        pid,
        command: None,
        account: None,
        ranges: 0,
        samples: 0.0,
        fmem_bytes: 0,
        smem_bytes: 0,
    };
    for account in ledger.map_or(&[][..], |ledger| &ledger.accounts) {
        let mut target = empty(account.space, account.pid);
        target.account = Some(account.clone());
        targets.insert(account.space, target);
    }
    for range in &heat.ranges {
        let target = (targets.entry(range.space)).or_insert_with(|| empty(range.space, range.pid));
        let Range {
            fmem_pages,
            smem_pages,
            ..
        } = *range;
        target.ranges += 1;
        target.samples += range.samples;
        target.fmem_bytes += fmem_pages << 12;
        target.smem_bytes += smem_pages << 12;
    }
    targets.into_values().collect()
}
