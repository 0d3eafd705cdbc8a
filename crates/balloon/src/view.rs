// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the owner of devices tells about them: the JSON of the control
//! interface. Sizes are bytes; *size* is what a node leaves to its guest, which
//! is the node without its balloon.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::Traffic;
use crate::statistics::Statistics;
use crate::wire::Outcome;

/// Where a virtual machine's device stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// No virtual machine monitor is connected.
    Waiting,
    /// One is, and its guest has no driver yet.
    Connected,
    /// A driver is there.
    Driven,
    /// The guest did wrong too often: nothing is taken from it any more.
    Disabled,
}

/// How the newest ended request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastView {
    /// How.
    pub outcome: Outcome,
    /// Which size was asked for.
    pub asked_size_bytes: u64,
}

/// One tier of a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierView {
    /// `fmem`, `smem`, or `node2`, `node3`.
    pub tier: String,
    /// NUMA node.
    pub node: u16,
    /// Memory of the node.
    pub total_bytes: u64,
    /// In the balloon.
    pub balloon_bytes: u64,
    /// Left to the guest.
    pub size_bytes: u64,
    /// Wanted to be left to the guest; none: nobody said.
    pub wanted_size_bytes: Option<u64>,
    /// What the host has allocated for it, if that can be seen.
    pub backing_bytes: Option<u64>,
    /// Of what is in the balloon, what the host has allocated again nevertheless, at least: its
    /// guest has touched it. None: that cannot be told.
    #[serde(default)]
    pub kept_bytes: Option<u64>,
    /// A request is on its way.
    pub busy: bool,
    /// The newest ended request.
    pub last: Option<LastView>,
    /// Number of the newest wish.
    pub ticket: u64,
    /// Number of the newest wish that has ended.
    pub ended_ticket: u64,
    /// So far, since the device was plugged in.
    pub traffic: Traffic,
}

/// One guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VmView {
    /// Name in the configuration.
    pub name: String,
    /// Where it stands.
    pub stage: Stage,
    /// What is wrong with it or with how it is served, if something is: its memory, its socket,
    /// a disk, its monitor.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub problem: Option<String>,
    /// Its tiers, fastest first.
    pub tiers: Vec<TierView>,
    /// How it did wrong, and how often.
    pub violations: BTreeMap<String, u64>,
    /// Its own words.
    pub statistics: Option<Statistics>,
    /// How old those are.
    pub statistics_age_ms: Option<u64>,
    /// What it would have had more of.
    #[serde(default)]
    pub churn: Churn,
    /// What the policy wants its memory to be, if it sizes memory as a whole.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sizing: Option<Sizing>,
    /// What it may have beyond its share, under a policy that goes by what guests say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub account: Option<AccountView>,
    /// Who serves its device.
    #[serde(default)]
    pub worker: WorkerView,
}

/// What a guest may have of FMEM beyond its share. Who pays for more than its share borrows
/// what others lend, and spends credit; who pays for less lends, and earns some. There are no
/// debts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountView {
    /// Time at twice its share that is left.
    pub credit_ms: u64,
    /// That was gone, and has not come back far enough: beyond its share it has what no other
    /// guest needs.
    pub spent: bool,
    /// Its part of FMEM by its weight; none: it is not connected, and neither pays nor earns.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub share_bytes: Option<u64>,
    /// What it pays for; none: as above.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub charged_bytes: Option<u64>,
}

/// The worker of a guest: what parses the words that the guest writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerView {
    /// A process of its own; none: there is none now, or it is a thread of the daemon.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// What keeps it from the rest of the host.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub confinement: Option<Confinement>,
    /// How often one ended that should not have.
    #[serde(default)]
    pub deaths: u64,
    /// Why the last one did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_death: Option<String>,
}

/// What keeps a worker from the rest of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    /// User of its own; none: the daemon's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uid: Option<u32>,
    /// A system call that it has no use for ends it.
    pub seccomp: bool,
    /// It can open no file, and bind or connect no TCP socket.
    pub landlock: bool,
    /// What of that is missing, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub missing: Vec<String>,
}

/// How a guest's memory is sized, and why not otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizing {
    /// All tiers together.
    pub memory_bytes: u64,
    /// Why that much.
    pub why: Why,
    /// FMEM that it has a use for.
    pub fmem_useful_bytes: u64,
    /// FMEM that it is given.
    pub fmem_bytes: u64,
    /// Why it is given less than it has a use for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fmem_short: Option<Short>,
}

/// Why a guest's memory has its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Free memory is taken back.
    Free,
    /// Cold memory is looked for, step by step.
    Cold,
    /// Nothing is left to take.
    Settled,
    /// It allocates, and is given room.
    Grows,
    /// It missed pages, stalled or ran out: it is given back more than that.
    Suffers,
    /// It has suffered, and is left alone for a while.
    Waits,
    /// It stopped before its size: it needs the rest itself.
    Kept,
    /// It has not ended the last request.
    Moving,
    /// It does not say what it needs.
    Silent,
}

impl Why {
    /// As in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Cold => "cold",
            Self::Settled => "settled",
            Self::Grows => "grows",
            Self::Suffers => "suffers",
            Self::Waits => "waits",
            Self::Kept => "kept",
            Self::Moving => "moving",
            Self::Silent => "silent",
        }
    }
}

/// Why a guest has less FMEM than it has a use for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Short {
    /// Others have a right to the rest of the pool.
    Pool,
    /// It has its share, and has spent its credit: others need the rest.
    Credit,
    /// It may not have more.
    Ceiling,
}

/// How often a guest met the limits of what it can make the daemon do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Churn {
    /// Its messages had to wait.
    pub held_back: u64,
    /// Lines that the log does not have.
    pub untold: u64,
    /// Entries that the ledger does not have.
    pub unwritten: u64,
}

/// A wish.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeWish {
    /// What to leave to the guest.
    pub size_bytes: u64,
    /// Why, for the ledger.
    #[serde(default)]
    pub why: Option<String>,
    /// Wait so long for the guest to get there; 0: do not wait.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Whose clock a policy's interval goes by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyClock {
    /// The host's.
    #[default]
    Host,
    /// The guests': a decision when the last of them has come so far, for guests
    /// whose clocks are a simulation's.
    Guests,
}

/// Which policy decides, and what it distributes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyView {
    /// `external`, `static`, `proportional`, `guaranteed`, `pressure`, `working-set`.
    pub name: String,
    /// FMEM of the host that the guests share.
    pub fmem_pool_bytes: u64,
    /// Period of decisions.
    pub interval_ms: u64,
    /// Whose milliseconds these are.
    #[serde(default)]
    pub clock: PolicyClock,
}

/// Any failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong.
    pub error: String,
    /// What to do.
    pub next: String,
}

/// Name of a node in the interfaces.
#[must_use]
pub fn tier_name(node: u16) -> String {
    match node {
        0 => "fmem".into(),
        1 => "smem".into(),
        other => format!("node{other}"),
    }
}

/// The node of that name; `node0` and `node1` are understood too.
#[must_use]
pub fn tier_node(name: &str) -> Option<u16> {
    match name {
        "fmem" => Some(0),
        "smem" => Some(1),
        other => other
            .strip_prefix("node")?
            .parse()
            .ok()
            .filter(|node| usize::from(*node) < crate::wire::MAX_NODES),
    }
}
