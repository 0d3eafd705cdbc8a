// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory managers that can be compared, and every number they are run
//! with. Nothing else in this crate sets a manager's parameters.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use demeter_agent::protocol::BIND_HOT_ENV;
use demeter_machine::HypervisorConfig;
use serde::Serialize;

use super::knobs::{self, Knobs};
use super::policy::Peer;
use super::{damon, damon_auto};
use crate::error::Error;

/// Parameters of demeter.ko for the testbed, over the module's own defaults.
///
/// The testbed's memory is about a thousandth of the paper's machines, and a
/// guest lives for seconds, not minutes: an epoch of 50 ms relates to a run of
/// about ten modelled seconds as the paper's 500 ms to its minutes. All others are the
/// module's defaults: the paper's where it has one (sample period, latency threshold,
/// tau, significance), and its own for horizon, hysteresis and the bound of the rate.
pub const DEMETER_SCALED: [(&str, &str); 1] = [("epoch_ms", "50")];

/// Knobs of the row `nbt`: of a search on the ground before FMEM's share of watermarks was
/// kept apart, better on the demo's GUPS than those of another with short runs, in which
/// nothing beats none (`lab/experiments/tune.sh`, docs/results/guests.md). Lists and page size are
/// the kernel's own choice, so that `--thp` still counts.
///
/// The stock defaults are made for processes that run for minutes: scans start
/// after one second, take 256 MiB a second and pages count as hot when touched
/// within a second of the scan.
pub const NBT_TUNED: [(&str, &str); 6] = [
    ("scan_delay_ms", "0"),
    // The kernel scans no more than 2560 MiB a second, so 256 MiB in 100 ms. The longest
    // period is also how often the threshold follows the rate of promotion.
    ("scan_period_min_ms", "25"),
    ("scan_period_max_ms", "25"),
    ("scan_size_mb", "256"),
    ("hot_threshold_ms", "100"),
    // Of FMEM, as on a machine whose node is nothing else (see the manager's set-up).
    ("watermark_scale_factor", "550"),
];

/// What can be set for the rows `nbt` and `nbt-default`.
pub const NBT_KNOBS: [&str; 9] = [
    "hot_threshold_ms",
    "scan_delay_ms",
    "scan_period_min_ms",
    "scan_period_max_ms",
    "scan_size_mb",
    "watermark_scale_factor",
    "promote_rate_limit_MBps",
    "lru",
    "thp",
];

/// Knobs of the DAMON row: of seven settings of the intervals, bounds and quotas
/// (5 to 20 ms a check, 10 to 20 checks, hot from a tenth to four tenths of them), each run once
/// with a fifth to a third of the demo's GUPS, the one with the best last quarter. The search
/// of `lab/experiments/tune.sh`, with the budget of [`NBT_TUNED`], found none better: its
/// winner, these with huge pages, did next to nothing in its short runs, and on the demo's GUPS
/// it is slower than first touch.
///
/// With huge pages where monitoring sees them ([`damon::sees_huge_pages`]), else without.
/// The quota for demotion is far above FMEM: DAMON charges what it looks at, not
/// what it moves, and the coldest memory of a guest is not COMMAND's.
pub const DAMON_TUNED: [(&str, &str); 13] = [
    ("thp", "always"),
    ("lru", "mglru"),
    ("sample_us", "20000"),
    ("aggr_us", "400000"),
    ("update_us", "1000000"),
    ("min_regions", "100"),
    ("max_regions", "1000"),
    ("hot_min_permille", "300"),
    ("hot_bytes_per_window", "33554432"),
    ("cold_max_permille", "50"),
    ("cold_min_age", "1"),
    ("cold_bytes_per_window", "536870912"),
    ("window_ms", "400"),
];

/// Goals and bounds of the row `damon-auto`: those of Linux's own sample of
/// self-tuned tiering (`samples/damon/mtier.c`), with control periods a tenth of
/// it, as all managers have here. What is not as there is said beside the value.
pub const DAMON_AUTO_SCALED: [(&str, &str); 13] = [
    ("lru", "mglru"),
    ("thp", "always"),
    ("access_bp", "400"),
    ("aggrs", "3"),
    ("min_sample_us", "5000"),
    ("max_sample_us", "1000000"),
    // 99.7 and 0.5 % there. Of so small a node the kernel keeps more than that free
    // for itself, so that both goals would look as good as reached.
    ("fmem_used_bp", "9700"),
    ("fmem_free_bp", "600"),
    // 200 MiB a second.
    ("bytes_per_window", "20971520"),
    ("window_ms", "100"),
    ("min_regions", "10"),
    ("max_regions", "1000"),
    // "consist" there, whose quota begins with one byte and grows in each window by
    // as much as the goal is missed: after 4 s of a guest it was 12 bytes.
    ("tuner", "temporal"),
];

/// A memory manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tmm {
    /// First touch: nothing moves
    None,
    /// Linux as it is: NUMA balancing for tiers (mode 2) and demotion, stock values
    NbtDefault,
    /// The same with the best knobs found for this machine
    Nbt,
    /// Linux's DAMON: its migrate_hot and migrate_cold with the best values found
    Damon,
    /// DAMON of Linux 7.1 and newer, which sets its quotas and intervals by goals
    DamonAuto,
    /// demeter.ko in the guest
    Demeter,
    /// Nothing moves, all memory is fast: the ceiling
    Fast,
    /// Nothing moves; a workload that knows its hot memory binds it to FMEM
    Oracle,
    /// Runs twice: the second time the pages that gain most have been in FMEM all along
    Ideal,
    /// The same for aligned 2 MiB as one
    #[serde(rename = "ideal-2m")]
    Ideal2m,
    /// A published manager: its own rows, its own knobs
    #[serde(untagged)]
    Peer(Peer),
}

/// All of them, in the order of `--help`.
static ALL: LazyLock<Vec<Tmm>> = LazyLock::new(|| {
    let own = [
        Tmm::None,
        Tmm::NbtDefault,
        Tmm::Nbt,
        Tmm::Damon,
        Tmm::DamonAuto,
        Tmm::Demeter,
        Tmm::Fast,
        Tmm::Oracle,
        Tmm::Ideal,
        Tmm::Ideal2m,
    ];
    own.into_iter().chain(Tmm::published()).collect()
});

impl ValueEnum for Tmm {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.row()).help(self.about()))
    }
}

impl Tmm {
    /// The rows of published managers, in the order of `--help`.
    pub fn published() -> impl Iterator<Item = Self> {
        Peer::all().map(Self::Peer)
    }

    /// Name of its row in tables and results.
    pub fn row(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NbtDefault => "nbt-default",
            Self::Nbt => "nbt",
            Self::Damon => "damon",
            Self::DamonAuto => "damon-auto",
            Self::Demeter => "demeter",
            Self::Fast => "fast",
            Self::Oracle => "oracle",
            Self::Ideal => "ideal",
            Self::Ideal2m => "ideal-2m",
            Self::Peer(peer) => peer.row(),
        }
    }

    /// One line for `--help`.
    pub fn about(self) -> &'static str {
        match self {
            Self::None => "First touch: nothing moves",
            Self::NbtDefault => {
                "Linux as it is: NUMA balancing for tiers (mode 2) and demotion, stock values"
            }
            Self::Nbt => "The same with the best knobs found for this machine",
            Self::Damon => {
                "Linux's DAMON: its migrate_hot and migrate_cold with the best values found"
            }
            Self::DamonAuto => {
                "DAMON of Linux 7.1 and newer, which sets its quotas and intervals by goals"
            }
            Self::Demeter => "demeter.ko in the guest",
            Self::Fast => "Nothing moves, all memory is fast: the ceiling",
            Self::Oracle => "Nothing moves; a workload that knows its hot memory binds it to FMEM",
            Self::Ideal => {
                "Runs twice: the second time the pages that gain most have been in FMEM all along"
            }
            Self::Ideal2m => "The same for aligned 2 MiB as one",
            Self::Peer(peer) => peer.about(),
        }
    }

    /// Pages that a clairvoyant placement places as one, as a power of two; none
    /// for managers that are not one.
    pub fn ideal_order(self) -> Option<u32> {
        match self {
            Self::Ideal => Some(0),
            Self::Ideal2m => Some(9),
            _ => None,
        }
    }

    /// True for the rows in which the kernel's own balancing works.
    pub fn is_nbt(self) -> bool {
        matches!(self, Self::NbtDefault | Self::Nbt)
    }

    /// File name of the module that it is, if it is one.
    pub fn module(self) -> Option<&'static str> {
        match self {
            Self::Demeter => Some("demeter.ko"),
            Self::Peer(peer) => peer.module(),
            _ => None,
        }
    }

    /// Knobs of a published manager: its row's, then the user's.
    pub fn peer_knobs(self, set: &[(String, String)]) -> Result<Knobs, Error> {
        match self {
            Self::Peer(peer) => peer.knobs(set),
            _ => Ok(Knobs::new()),
        }
    }

    /// The hypervisor that it is, if it is one.
    pub fn hypervisor(
        self,
        knobs: &Knobs,
        fmem_bytes: u64,
    ) -> Result<Option<HypervisorConfig>, Error> {
        match self {
            Self::Peer(peer) => peer.hypervisor(knobs, fmem_bytes),
            _ => Ok(None),
        }
    }

    /// Added to COMMAND's environment.
    pub fn env(self) -> Option<(String, String)> {
        (self == Self::Oracle).then(|| (BIND_HOT_ENV.to_owned(), "0".to_owned()))
    }

    /// Parameters of demeter.ko: scaled ones, then the user's.
    pub fn demeter_params(self, set: &[(String, String)]) -> BTreeMap<String, String> {
        if self != Self::Demeter {
            return BTreeMap::new();
        }
        let scaled = DEMETER_SCALED.map(|(name, value)| (name.to_owned(), value.to_owned()));
        scaled.into_iter().chain(set.iter().cloned()).collect()
    }

    /// Knobs of NUMA balancing: tuned ones, then the user's.
    pub fn nbt_knobs(self, set: &[(String, String)]) -> Result<Knobs, Error> {
        match self {
            Self::NbtDefault => knobs::in_force("--nbt-set", &NBT_KNOBS, &[], set),
            Self::Nbt => knobs::in_force("--nbt-set", &NBT_KNOBS, &NBT_TUNED, set),
            _ => Ok(Knobs::new()),
        }
    }

    /// Knobs of DAMON: tuned ones, then the user's. `kernel` is what the testbed calls
    /// the guest's.
    pub fn damon_knobs(self, kernel: &str, set: &[(String, String)]) -> Result<Knobs, Error> {
        match self {
            Self::Damon => {
                let mut base = DAMON_TUNED;
                if !damon::sees_huge_pages(kernel) {
                    base[0] = ("thp", "never");
                }
                let knobs = knobs::in_force("--damon-set", &damon::KNOBS, &base, set)?;
                damon::check(&knobs)?;
                Ok(knobs)
            }
            _ => Ok(Knobs::new()),
        }
    }

    /// Knobs of DAMON that tunes itself: what it aims at and may not exceed.
    pub fn damon_auto_knobs(self, set: &[(String, String)]) -> Result<Knobs, Error> {
        match self {
            Self::DamonAuto => knobs::in_force(
                "--damon-auto-set",
                &damon_auto::KNOBS,
                &DAMON_AUTO_SCALED,
                set,
            ),
            _ => Ok(Knobs::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> [(String, String); 1] {
        [(name.to_owned(), value.to_owned())]
    }

    #[test]
    fn knobs_of_nbt() {
        assert_eq!(Tmm::Nbt.nbt_knobs(&[]).unwrap().len(), NBT_TUNED.len());
        assert!(Tmm::NbtDefault.nbt_knobs(&[]).unwrap().is_empty());
        let knobs = Tmm::NbtDefault.nbt_knobs(&set("lru", "lists")).unwrap();
        assert_eq!(knobs["lru"], "lists");
        assert!(Tmm::Nbt.nbt_knobs(&set("lru", "y")).is_err());
        assert!(Tmm::Nbt.nbt_knobs(&set("thp", "sometimes")).is_err());
        assert!(Tmm::NbtDefault.nbt_knobs(&set("nonsense", "1")).is_err());
    }

    #[test]
    fn damon_has_a_value_for_each_knob() {
        let damon = |kernel, set: &[_]| Tmm::Damon.damon_knobs(kernel, set);
        let knobs = damon("7.x", &[]).unwrap();
        assert!(damon::KNOBS.iter().all(|name| knobs.contains_key(*name)));
        assert_eq!(knobs["thp"], "always");
        assert_eq!(damon("6.12", &[]).unwrap()["thp"], "never");
        assert_eq!(
            damon("6.12", &set("thp", "always")).unwrap()["thp"],
            "always"
        );
        assert!(damon("6.12", &set("nonsense", "1")).is_err());
        assert!(Tmm::None.damon_knobs("6.12", &[]).unwrap().is_empty());

        let knobs = Tmm::DamonAuto.damon_auto_knobs(&[]).unwrap();
        let all = damon_auto::KNOBS.iter();
        assert!({ all }.all(|name| knobs.contains_key(*name)));
        // Its intervals are its own.
        let wrong = set("sample_us", "5000");
        assert!(Tmm::DamonAuto.damon_auto_knobs(&wrong).is_err());
    }

    #[test]
    fn every_manager_can_be_chosen_by_its_row() {
        let all = Tmm::value_variants();
        for &tmm in all {
            assert_eq!(Tmm::from_str(tmm.row(), false), Ok(tmm));
        }
        assert_eq!(all.len(), 10 + Tmm::published().count());
        let word = |tmm| serde_json::to_value(tmm).unwrap();
        assert_eq!(word(Tmm::NbtDefault), "nbt_default");
        assert!(Tmm::published().all(|tmm| word(tmm) == tmm.row()));
    }

    #[test]
    fn user_values_win() {
        let params = Tmm::Demeter.demeter_params(&set("epoch_ms", "7"));
        assert_eq!(params["epoch_ms"], "7");
        assert!(Tmm::None.demeter_params(&[]).is_empty());
        let knobs = Tmm::Nbt.nbt_knobs(&set("scan_size_mb", "64")).unwrap();
        assert_eq!(knobs["scan_size_mb"], "64");
    }
}
