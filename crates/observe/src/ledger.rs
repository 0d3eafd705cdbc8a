// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was decided and what came of it: `/sys/kernel/mm/demeter/ledger`, layout in
//! `uapi/demeter_ledger.h`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::{Fields, Malformed, at_least, check_head, need};

/// `DEMETER_LEDGER_MAGIC`.
pub const MAGIC: u64 = 0x5247_4445_4c54_4d44;
/// `DEMETER_LEDGER_VERSION`.
pub const VERSION: u32 = 1;
const HEADER_BYTES: u32 = 128;
const REASON_BYTES: u32 = 16;
const MAX_REASONS: usize = 32;
const TARGET_BYTES: u32 = 64 + 8 * MAX_REASONS as u32;
const DECISION_BYTES: u32 = 152;
/// Origin of the account of those gone.
const GONE: u32 = 3;

/// How an address space came to be managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// `targets/pid_add`.
    Pid,
    /// `targets/cgroup`.
    Cgroup,
    /// `targets/auto_min_bytes`.
    Size,
    /// The sum of all that are not managed any more.
    Gone,
}

impl Origin {
    fn of(number: u32) -> Self {
        match number {
            0 => Self::Pid,
            1 => Self::Cgroup,
            2 => Self::Size,
            _ => Self::Gone,
        }
    }

    /// As a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pid => "pid",
            Self::Cgroup => "cgroup",
            Self::Size => "size",
            Self::Gone => "gone",
        }
    }
}

/// What one address space was given and cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Number of the address space.
    pub space: u32,
    /// Its thread group when it was added.
    pub pid: u32,
    /// How it came to be managed.
    pub origin: Origin,
    /// Decisions taken for it.
    pub decisions: u64,
    /// 4 KiB pages moved to the fast tier.
    pub promoted_pages: u64,
    /// 4 KiB pages moved to the slow tier.
    pub demoted_pages: u64,
    /// Of those promoted: into free memory.
    pub filled_pages: u64,
    /// Latency saved by decisions taken for it, by the planner's word.
    pub predicted_ns: u64,
    /// Latency saved so far, by the samples.
    pub realised_ns: i64,
    /// 4 KiB pages not moved in steps taken for it, by reason; none that is 0.
    pub refused_pages: BTreeMap<String, u64>,
}

/// Fill, swap or demotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Promotion into free memory.
    Fill,
    /// Promotion with as much demotion.
    Swap,
    /// Demotion of what is above the cap of a group.
    Demote,
    /// A kind that this version does not know.
    Other,
}

/// What sampled the accesses that a decision was taken by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Intel PEBS.
    Pebs,
    /// AMD IBS.
    Ibs,
    /// Pages made to fault.
    Touch,
    /// Nothing at that time: samples from before it.
    None,
    /// A source that this version does not know.
    Other,
}

impl Source {
    /// None where the module did not tell.
    fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => return None,
            1 => Self::Pebs,
            2 => Self::Ibs,
            3 => Self::Touch,
            4 => Self::None,
            _ => Self::Other,
        })
    }

    /// As a word, as in the file `sampler`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pebs => "pebs",
            Self::Ibs => "ibs",
            Self::Touch => "touch",
            Self::None => "none",
            Self::Other => "other",
        }
    }
}

/// Where a decision stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Its time is not over.
    Open,
    /// It is, or its address space is gone.
    Settled,
    /// Nothing was moved.
    Empty,
}

/// One of the two ranges of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Number of the address space.
    pub space: u32,
    /// Its thread group.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// From 0 since load.
    pub number: u64,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Epochs ended before it.
    pub epoch: u64,
    /// Fill or swap.
    pub kind: Kind,
    /// What sampled the accesses that it was taken by; modules of before do not tell.
    #[serde(default)]
    pub source: Option<Source>,
    /// Where it stands.
    pub standing: Standing,
    /// Whose pages were to be promoted.
    pub hot: Side,
    /// Whose pages were to be demoted for them.
    pub cold: Option<Side>,
    /// 4 KiB pages to be moved each way.
    pub planned_pages: u64,
    /// 4 KiB pages moved each way.
    pub moved_pages: u64,
    /// 4 KiB pages refused on both sides.
    pub refused_pages: u64,
    /// For most of them.
    pub reason: Option<String>,
    /// 4 KiB pages refused for that reason.
    pub reason_pages: u64,
    /// How long the promise runs.
    pub lasts_ns: u64,
    /// How long it has run.
    pub age_ns: u64,
    /// Latency that the moved pages save while it runs, by the planner's word.
    pub predicted_ns: u64,
    /// Latency that they saved so far, by the samples.
    pub realised_ns: i64,
}

/// The whole ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// CLOCK_MONOTONIC of the snapshot.
    pub time_ns: u64,
    /// Epochs ended since load.
    pub epochs: u64,
    /// Taken since load.
    pub decisions_taken: u64,
    /// Whose time is not over.
    pub open_decisions: u64,
    /// Whose time is over.
    pub settled_decisions: u64,
    /// Overwritten before their time was over.
    pub dropped_decisions: u64,
    /// For which nothing was moved.
    pub empty_decisions: u64,
    /// Of all.
    pub predicted_ns: u64,
    /// Of all.
    pub realised_ns: i64,
    /// Of those settled.
    pub settled_predicted_ns: u64,
    /// Of those settled.
    pub settled_realised_ns: i64,
    /// Address spaces that are managed.
    pub accounts: Vec<Account>,
    /// The sum of those that are not any more.
    pub gone: Option<Account>,
    /// The latest, oldest first.
    pub decisions: Vec<Decision>,
}

impl Ledger {
    /// Understands the file.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        check_head(bytes, MAGIC, VERSION)?;
        need(bytes, u64::from(HEADER_BYTES))?;
        let mut head = Fields::new(&bytes[12..]);
        let header_bytes = at_least("header", head.u32(), HEADER_BYTES)?;
        let reason_bytes = at_least("names of reasons", head.u32(), REASON_BYTES)?;
        let target_bytes = at_least("targets", head.u32(), TARGET_BYTES)?;
        let decision_bytes = at_least("decisions", head.u32(), DECISION_BYTES)?;
        let (nr_reasons, nr_targets, nr_decisions) = (head.u32(), head.u32(), head.u32());
        let section = |nr: u32, each: usize| u64::from(nr).saturating_mul(each as u64);
        let reasons_at = header_bytes as u64;
        let targets_at = reasons_at.saturating_add(section(nr_reasons, reason_bytes));
        let decisions_at = targets_at.saturating_add(section(nr_targets, target_bytes));
        need(
            bytes,
            decisions_at.saturating_add(section(nr_decisions, decision_bytes)),
        )?;
        let records = |at: u64, each: usize, nr: u32| {
            bytes[at as usize..].chunks_exact(each).take(nr as usize)
        };
        let reasons: Vec<String> = records(reasons_at, reason_bytes, nr_reasons)
            .map(|name| {
                let end = name.iter().position(|&byte| byte == 0);
                String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]).into_owned()
            })
            .collect();
        let mut accounts: Vec<Account> = records(targets_at, target_bytes, nr_targets)
            .map(|record| account(record, &reasons))
            .collect();
        let gone = (accounts.iter())
            .position(|account| account.origin == Origin::Gone)
            .map(|at| accounts.remove(at));
        Ok(Self {
            time_ns: head.u64(),
            epochs: head.u64(),
            decisions_taken: head.u64(),
            open_decisions: head.u64(),
            settled_decisions: head.u64(),
            dropped_decisions: head.u64(),
            empty_decisions: head.u64(),
            predicted_ns: head.u64(),
            realised_ns: head.i64(),
            settled_predicted_ns: head.u64(),
            settled_realised_ns: head.i64(),
            accounts,
            gone,
            decisions: records(decisions_at, decision_bytes, nr_decisions)
                .map(|record| decision(record, &reasons))
                .collect(),
        })
    }

    /// Every account, that of those gone too.
    pub fn all_accounts(&self) -> impl Iterator<Item = &Account> {
        self.accounts.iter().chain(&self.gone)
    }
}

fn account(record: &[u8], reasons: &[String]) -> Account {
    let mut fields = Fields::new(record);
    let (space, pid, origin) = (fields.u32(), fields.u32(), fields.u32());
    fields.u32();
    Account {
        space,
        pid,
        origin: Origin::of(origin.min(GONE)),
        decisions: fields.u64(),
        promoted_pages: fields.u64(),
        demoted_pages: fields.u64(),
        filled_pages: fields.u64(),
        predicted_ns: fields.u64(),
        realised_ns: fields.i64(),
        refused_pages: (reasons.iter().take(MAX_REASONS))
            .map(|name| (name.clone(), fields.u64()))
            .filter(|&(_, pages)| pages > 0)
            .collect(),
    }
}

fn decision(record: &[u8], reasons: &[String]) -> Decision {
    let mut fields = Fields::new(record);
    let (number, time_ns, epoch) = (fields.u64(), fields.u64(), fields.u64());
    let (kind, state) = (fields.u32(), fields.u32());
    let mut side = || Side {
        space: fields.u32(),
        pid: fields.u32(),
        start: fields.u64(),
        end: fields.u64(),
    };
    let (hot, cold) = (side(), side());
    let (planned_pages, moved_pages, refused_pages) = (fields.u64(), fields.u64(), fields.u64());
    let (reason, source) = (fields.u32(), fields.u32());
    Decision {
        number,
        time_ns,
        epoch,
        kind: match kind {
            0 => Kind::Fill,
            1 => Kind::Swap,
            2 => Kind::Demote,
            _ => Kind::Other,
        },
        source: Source::of(source),
        standing: match state {
            0 => Standing::Open,
            1 => Standing::Settled,
            _ => Standing::Empty,
        },
        hot,
        cold: (cold.end > 0).then_some(cold),
        planned_pages,
        moved_pages,
        refused_pages,
        reason: (reason > 0)
            .then(|| reasons.get(reason as usize).cloned())
            .flatten(),
        reason_pages: fields.u64(),
        lasts_ns: fields.u64(),
        age_ns: fields.u64(),
        predicted_ns: fields.u64(),
        realised_ns: fields.i64(),
    }
}
