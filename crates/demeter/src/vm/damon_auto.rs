// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The manager `damon-auto`: DAMON that tunes itself, after Linux's own sample
//! of a tiered machine (`samples/damon/mtier.c`). A kdamond watches each node.
//! That of SMEM promotes what was accessed (`migrate_hot`) until FMEM is used by
//! a share, that of FMEM demotes what was not (`migrate_cold`) until a share of
//! it is free; the two overlap, so that pages keep being exchanged. DAMON sets
//! the quotas by how far each goal is, and its intervals by how many accesses it
//! sees.
//!
//! As in the row `damon`, both touch COMMAND's cgroup only and wait for its
//! region of interest; quotas and intervals tune themselves from before it on.

use std::collections::BTreeMap;

use demeter_agent::protocol::{self, COMMAND_CGROUP_NAME, Write};
use demeter_machine::MemoryLayout;

use super::damon::{self, ANY, lists_and_pages};
use super::knobs::Knobs;
use crate::error::Error;
use crate::testbed::Kernel;

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const MIN_AGE: &str = "contexts/0/schemes/0/access_pattern/age/min";
/// Checks of an aggregation before the intervals are tuned, as in the sample.
const SAMPLES_PER_AGGREGATION: u64 = 20;

/// What can be set, in the order of `--help`.
pub const KNOBS: [&str; 13] = [
    "thp",
    "lru",
    "access_bp",
    "aggrs",
    "min_sample_us",
    "max_sample_us",
    "fmem_used_bp",
    "fmem_free_bp",
    "bytes_per_window",
    "window_ms",
    "min_regions",
    "max_regions",
    "tuner",
];

/// A kdamond by what it does. Its number is the node that it watches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kdamond {
    Demote = 0,
    Promote = 1,
}

impl Kdamond {
    const ALL: [Self; 2] = [Self::Demote, Self::Promote];

    fn write(self, name: &str, value: impl ToString) -> Write {
        Write::new(format!("{KDAMONDS}/{}/{name}", self as u32), value)
    }
}

/// Refuses a kernel that cannot do it, before a guest is started.
pub fn supported(kernel: &Kernel) -> Result<(), Error> {
    damon::supported_since(
        kernel,
        (7, 1),
        "DAMON tunes quotas to a node's free memory within one window since Linux 7.1",
        "use --kernel 7.x, or --tmm damon",
    )
}

/// Completes what the agent does for this manager.
pub fn set_up(manager: &mut protocol::Manager, knobs: &Knobs, node_bytes: [u64; 2]) {
    manager.before.extend(lists_and_pages(knobs));
    manager
        .before
        .push(Write::new(format!("{KDAMONDS}/nr_kdamonds"), 2));
    let layout = MemoryLayout::new(node_bytes[0], node_bytes[1]);
    for kdamond in Kdamond::ALL {
        let ranges = layout.ranges(kdamond as usize);
        manager.before.extend(before(kdamond, knobs, &ranges));
        manager.at_roi.push(kdamond.write(MIN_AGE, 0));
        manager.at_roi.push(kdamond.write("state", "commit"));
        for word in [
            "update_schemes_stats",
            "update_schemes_effective_quotas",
            "update_tuned_intervals",
            "off",
        ] {
            manager.after.push(kdamond.write("state", word));
        }
    }
    manager.report_dir = Some(KDAMONDS.to_owned());
}

/// 4 KiB pages that were promoted and demoted, from the reported files.
pub fn moved_pages(files: &BTreeMap<String, String>) -> [u64; 2] {
    [Kdamond::Promote, Kdamond::Demote].map(|kdamond| {
        let name = format!("{}/contexts/0/schemes/0/stats/sz_applied", kdamond as u32);
        damon::pages_of(files, &name)
    })
}

fn before(kdamond: Kdamond, knobs: &Knobs, ranges: &[std::ops::Range<u64>]) -> Vec<Write> {
    let knob = |name: &str| knobs.get(name).cloned().unwrap_or_default();
    let min_sample_us = knob("min_sample_us");
    let aggr_us =
        (min_sample_us.parse::<u64>()).map_or(0, |us| us.saturating_mul(SAMPLES_PER_AGGREGATION));
    let promote = kdamond == Kdamond::Promote;
    let mut writes = vec![kdamond.write("contexts/nr_contexts", 1)];
    let mut context = |name: &str, value: String| {
        writes.push(kdamond.write(&format!("contexts/0/{name}"), value));
    };
    context("operations", "paddr".into());
    let intervals = "monitoring_attrs/intervals";
    context(&format!("{intervals}/sample_us"), min_sample_us.clone());
    context(&format!("{intervals}/aggr_us"), aggr_us.to_string());
    // A goal without aggregations is none; bounds are checked against it.
    for (name, value) in [
        ("min_sample_us", min_sample_us),
        ("max_sample_us", knob("max_sample_us")),
        ("access_bp", knob("access_bp")),
        ("aggrs", knob("aggrs")),
    ] {
        context(&format!("{intervals}/intervals_goal/{name}"), value);
    }
    context("monitoring_attrs/nr_regions/max", knob("max_regions"));
    context("monitoring_attrs/nr_regions/min", knob("min_regions"));
    context("targets/nr_targets", "1".into());
    context("targets/0/regions/nr_regions", ranges.len().to_string());
    for (index, range) in ranges.iter().enumerate() {
        let region = format!("targets/0/regions/{index}");
        context(&format!("{region}/start"), range.start.to_string());
        context(&format!("{region}/end"), range.end.to_string());
    }

    context("schemes/nr_schemes", "1".into());
    let mut scheme = |name: &str, value: &str| context(&format!("schemes/0/{name}"), value.into());
    let (action, to, metric, goal) = if promote {
        ("migrate_hot", "0", "node_mem_used_bp", "fmem_used_bp")
    } else {
        ("migrate_cold", "1", "node_mem_free_bp", "fmem_free_bp")
    };
    scheme("action", action);
    scheme("target_nid", to);
    let window_ms = knob("window_ms");
    let window_us = (window_ms.parse::<u64>()).map_or(0, |ms| ms.saturating_mul(1000));
    scheme("apply_interval_us", &window_us.to_string());
    scheme("access_pattern/sz/min", "4096");
    scheme("access_pattern/sz/max", "18446744073709551615");
    let [least, most] = if promote { ["1", ANY] } else { ["0", "0"] };
    scheme("access_pattern/nr_accesses/max", most);
    scheme("access_pattern/nr_accesses/min", least);
    // No region gets this old: the scheme waits for the region of interest.
    scheme("access_pattern/age/min", ANY);
    scheme("access_pattern/age/max", ANY);
    scheme("quotas/bytes", &knob("bytes_per_window"));
    scheme("quotas/reset_interval_ms", &window_ms);
    scheme("quotas/weights/nr_accesses_permil", "100");
    scheme("quotas/weights/age_permil", "100");
    scheme("quotas/goal_tuner", &knob("tuner"));
    scheme("quotas/goals/nr_goals", "1");
    scheme("quotas/goals/0/target_metric", metric);
    scheme("quotas/goals/0/nid", "0");
    scheme("quotas/goals/0/target_value", &knob(goal));
    // What is not COMMAND's stays; of the rest, pages that were accessed since
    // the last look go up, others down.
    scheme("filters/nr_filters", "2");
    scheme("filters/0/type", "memcg");
    scheme("filters/0/memcg_path", COMMAND_CGROUP_NAME);
    scheme("filters/0/matching", "N");
    scheme("filters/0/allow", "N");
    scheme("filters/1/type", "young");
    scheme("filters/1/matching", "Y");
    scheme("filters/1/allow", if promote { "Y" } else { "N" });
    writes.push(kdamond.write("state", "on"));
    writes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::manager::manager;
    use crate::vm::settings::tests::options;
    use crate::vm::tmm::Tmm;

    #[test]
    fn each_kdamond_has_its_node_and_its_goal() {
        let settings = options("--damon-auto-set fmem_free_bp=70")
            .settings(Tmm::DamonAuto, &["true".into()])
            .unwrap();
        let manager = manager(&settings);
        let [fmem_bytes, smem_bytes] = settings.node_bytes;
        for (kdamond, start, end, metric, target) in [
            (0, 0, fmem_bytes, "node_mem_free_bp", "70"),
            (
                1,
                fmem_bytes,
                fmem_bytes + smem_bytes,
                "node_mem_used_bp",
                "9700",
            ),
        ] {
            let at = |name: &str| {
                let path = format!("{KDAMONDS}/{kdamond}/contexts/0/{name}");
                let write = manager.before.iter().find(|write| write.path == path);
                write.unwrap_or_else(|| panic!("{path}")).value.clone()
            };
            assert_eq!(at("targets/0/regions/0/start"), start.to_string());
            assert_eq!(at("targets/0/regions/0/end"), end.to_string());
            assert_eq!(at("schemes/0/quotas/goals/0/target_metric"), metric);
            assert_eq!(at("schemes/0/quotas/goals/0/target_value"), target);
            assert_eq!(at("monitoring_attrs/intervals/aggr_us"), "100000");
        }
    }

    #[test]
    fn moved_pages_by_direction() {
        let name = |kdamond| format!("{kdamond}/contexts/0/schemes/0/stats/sz_applied");
        let files = [(name(0), "8192".into()), (name(1), "4096".into())].into();
        assert_eq!(moved_pages(&files), [1, 2]);
    }
}
