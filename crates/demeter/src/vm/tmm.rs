// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory managers that can be compared, and every number they are run
//! with. Nothing else in this crate sets a manager's parameters.

use std::collections::BTreeMap;

use clap::ValueEnum;
use demeter_agent::protocol::{self, BIND_HOT_ENV, Module, Write};
use serde::Serialize;

use super::damon;
use super::settings::{Settings, Thp};
use crate::error::Error;

const NUMA_DEBUG: &str = "/sys/kernel/debug/sched/numa_balancing";
const DEMETER_DIR: &str = "/sys/kernel/mm/demeter";
/// Where the per-run archive puts the module.
pub const MODULE_PATH: &str = "/demeter/modules/demeter.ko";

/// Parameters of demeter.ko for the testbed, over the module's own defaults.
///
/// The testbed's memory is about a thousandth of the paper's machines, and a
/// guest lives for seconds, not minutes: an epoch of 50 ms relates to a run of
/// about ten modelled seconds as the paper's 500 ms to its minutes. All other
/// parameters keep the paper's values.
pub const DEMETER_SCALED: [(&str, &str); 1] = [("epoch_ms", "50")];

/// `vm.min_free_kbytes` of every guest. With huge pages on, Linux reserves what
/// is right for machines with many gigabytes: 5 % of a small guest, so that the
/// last pages of a footprint of 7/8 of memory would fall below the watermarks
/// and go wherever there is room. Scaled down like all memory.
const MIN_FREE_KIB: u32 = 4096;

/// Knobs of the tuned TPP row: the best found for the demo's GUPS among about
/// thirty settings of page sizes, scan periods and sizes, thresholds and watermarks,
/// each run whole (`demeter vm demo --tmm tpp-tuned --tpp-set …`). Which huge pages
/// find room in FMEM is chance, so the nearest were judged by the mean over several
/// seeds; `lab/experiments/tpp-sweep.sh` is a grid around the winner.
///
/// The stock defaults are made for processes that run for minutes: scans start
/// after one second, take 256 MiB a second and pages count as hot when touched
/// within a second of the scan.
pub const TPP_TUNED: [(&str, &str); 6] = [
    ("scan_delay_ms", "0"),
    ("scan_period_min_ms", "50"),
    ("scan_period_max_ms", "50"),
    ("scan_size_mb", "256"),
    ("hot_threshold_ms", "100"),
    ("watermark_scale_factor", "200"),
];

/// Knobs of the DAMON row: of seven settings of the intervals, bounds and quotas
/// (5 to 20 ms a check, 10 to 20 checks, hot from 2 to 8 of them), each run once
/// with a fifth to a third of the demo's GUPS, the one with the best last quarter.
/// Another was faster over its whole run: this is tuned, not proven best.
///
/// Without huge pages, as monitoring in Linux 6.12 sees next to nothing of them.
/// The quota for demotion is far above FMEM: DAMON charges what it looks at, not
/// what it moves, and the coldest memory of a guest is not COMMAND's.
pub const DAMON_TUNED: [(&str, &str); 12] = [
    ("thp", "never"),
    ("sample_us", "20000"),
    ("aggr_us", "400000"),
    ("update_us", "1000000"),
    ("min_regions", "100"),
    ("max_regions", "1000"),
    ("hot_min_accesses", "6"),
    ("hot_bytes_per_window", "33554432"),
    ("cold_max_accesses", "1"),
    ("cold_min_age", "1"),
    ("cold_bytes_per_window", "536870912"),
    ("window_ms", "400"),
];

/// A memory manager.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tmm {
    /// First touch: nothing moves
    None,
    /// Linux as it is: NUMA balancing mode 2 and demotion, stock values
    Tpp,
    /// The same with the best knobs found for this machine
    TppTuned,
    /// Linux's DAMON: its migrate_hot and migrate_cold with the best values found
    Damon,
    /// demeter.ko in the guest
    Demeter,
    /// Nothing moves, all memory is fast: the ceiling
    Fast,
    /// Nothing moves; a workload that knows its hot memory binds it to FMEM
    Oracle,
    /// Runs twice: the second time the pages that gain most have been in FMEM all along
    Ideal,
    /// The same for aligned 2 MiB as one
    #[value(name = "ideal-2m")]
    #[serde(rename = "ideal-2m")]
    Ideal2m,
}

impl Tmm {
    /// Name of its row in tables and results.
    pub fn row(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Tpp => "tpp_default",
            Self::TppTuned => "tpp_tuned",
            Self::Damon => "damon",
            Self::Demeter => "demeter",
            Self::Fast => "fast",
            Self::Oracle => "oracle",
            Self::Ideal => "ideal",
            Self::Ideal2m => "ideal-2m",
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
    pub fn is_tpp(self) -> bool {
        matches!(self, Self::Tpp | Self::TppTuned)
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

    /// Knobs of TPP: tuned ones, then the user's.
    pub fn tpp_knobs(self, set: &[(String, String)]) -> Result<BTreeMap<String, String>, Error> {
        if !self.is_tpp() {
            return Ok(BTreeMap::new());
        }
        let mut knobs = BTreeMap::new();
        if self == Self::TppTuned {
            knobs.extend(TPP_TUNED.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        knobs.extend(set.iter().cloned());
        for name in knobs.keys() {
            if knob_path(name).is_none() {
                return Err(Error::Usage {
                    cause: format!("--tpp-set: TPP has no knob '{name}'"),
                    next: "use hot_threshold_ms, scan_delay_ms, scan_period_min_ms, \
                           scan_period_max_ms, scan_size_mb, watermark_scale_factor or \
                           promote_rate_limit_MBps"
                        .into(),
                });
            }
        }
        Ok(knobs)
    }

    /// Knobs of DAMON: tuned ones, then the user's.
    pub fn damon_knobs(self, set: &[(String, String)]) -> Result<BTreeMap<String, String>, Error> {
        if self != Self::Damon {
            return Ok(BTreeMap::new());
        }
        let tuned = DAMON_TUNED.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let knobs: BTreeMap<_, _> = tuned.into_iter().chain(set.iter().cloned()).collect();
        if let Some(name) = (knobs.keys()).find(|name| !damon::KNOBS.contains(&name.as_str())) {
            return Err(Error::Usage {
                cause: format!("--damon-set: DAMON has no knob '{name}'"),
                next: format!("choose from: {}", damon::KNOBS.join(", ")),
            });
        }
        Ok(knobs)
    }

    /// What the agent does to set the manager up.
    pub fn manager(self, settings: &Settings) -> protocol::Manager {
        let mut before = vec![
            Write::new(
                "/sys/kernel/mm/transparent_hugepage/enabled",
                settings.thp.word(),
            ),
            Write::new("/proc/sys/vm/min_free_kbytes", MIN_FREE_KIB),
            Write::new(
                "/sys/kernel/mm/numa/demotion_enabled",
                if self.is_tpp() { "1" } else { "0" },
            ),
        ];
        if settings.thp == Thp::Never {
            // khugepaged would otherwise still collapse what madvise asked for.
            before.push(Write::new(
                "/sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
                "0",
            ));
        }
        let mut manager = protocol::Manager {
            // The guest of a placement must not differ from the recorded one.
            name: match self.ideal_order() {
                Some(_) => Self::None.row().to_owned(),
                None => self.row().to_owned(),
            },
            ..protocol::Manager::default()
        };
        if self.is_tpp() {
            for (name, value) in &settings.tpp_knobs {
                let Some(path) = knob_path(name) else {
                    continue;
                };
                let write = Write::new(path, value);
                // Higher watermarks would already demote during first touch
                // and so change the placement that all rows start from.
                if name == "watermark_scale_factor" {
                    manager.at_roi.push(write);
                } else {
                    before.push(write);
                }
            }
            before.push(Write::new("/proc/sys/kernel/numa_balancing", "2"));
        }
        if self == Self::Demeter {
            manager.module = Some(Module {
                path: MODULE_PATH.to_owned(),
                params: String::new(),
            });
            let below = |name: &str| format!("{DEMETER_DIR}/{name}");
            before.push(Write::new("/proc/sys/kernel/numa_balancing", "0"));
            before.push(Write::new(below("sampler"), "vpmu"));
            for (name, value) in &settings.demeter_params {
                before.push(Write::new(below(&format!("params/{name}")), value));
            }
            before.push(Write::new(
                below("targets/cgroup"),
                protocol::COMMAND_CGROUP_NAME,
            ));
            before.push(Write::new(below("enabled"), "1"));
            manager.report_dir = Some(DEMETER_DIR.to_owned());
        }
        manager.before = before;
        if self == Self::Damon {
            damon::set_up(&mut manager, settings);
        }
        manager
    }
}

/// File of a TPP knob.
fn knob_path(name: &str) -> Option<String> {
    match name {
        "hot_threshold_ms" | "scan_delay_ms" | "scan_period_min_ms" | "scan_period_max_ms"
        | "scan_size_mb" => Some(format!("{NUMA_DEBUG}/{name}")),
        "watermark_scale_factor" => Some("/proc/sys/vm/watermark_scale_factor".to_owned()),
        "promote_rate_limit_MBps" => {
            Some("/proc/sys/kernel/numa_balancing_promote_rate_limit_MBps".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuned_knobs_all_have_a_file() {
        assert!(TPP_TUNED.iter().all(|(name, _)| knob_path(name).is_some()));
        assert!(
            Tmm::Tpp
                .tpp_knobs(&[("nonsense".into(), "1".into())])
                .is_err()
        );
    }

    #[test]
    fn damon_has_a_value_for_each_knob() {
        let knobs = Tmm::Damon.damon_knobs(&[]).unwrap();
        assert!(damon::KNOBS.iter().all(|name| knobs.contains_key(*name)));
        assert!(
            Tmm::Damon
                .damon_knobs(&[("nonsense".into(), "1".into())])
                .is_err()
        );
        assert!(Tmm::None.damon_knobs(&[]).unwrap().is_empty());
    }

    #[test]
    fn user_values_win() {
        let params = Tmm::Demeter.demeter_params(&[("epoch_ms".into(), "7".into())]);
        assert_eq!(params["epoch_ms"], "7");
        assert!(Tmm::None.demeter_params(&[]).is_empty());
    }
}
