// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The manager `damon`: Linux's own data access monitor, set up through sysfs
//! as its documentation describes. It watches the physical memory of both
//! nodes; one scheme takes what is cold from FMEM to SMEM (`migrate_cold`), one
//! what is hot from SMEM to FMEM (`migrate_hot`).
//!
//! Both touch COMMAND's cgroup only, as Demeter does, and only the node they
//! move from. Linux 6.12 has traps here: an address filter must say what to
//! leave out, as one that says what to let in lets nothing in; a quota is not
//! enforced in its first window, which must pass before a scheme may act;
//! migration fails where the other node is full, so that room must be made
//! first, and promotion into a full node copies pages to where they were; and
//! before 6.15 monitoring sees an access to a huge page only where it happens
//! to look at its first 4 KiB.

use std::collections::BTreeMap;

use demeter_agent::protocol::{self, COMMAND_CGROUP_NAME, Write};
use demeter_machine::MemoryLayout;

use super::knobs::Knobs;
use super::writes::{LRU_GEN, lru_word};
use crate::error::Error;
use crate::testbed::Kernel;

const KDAMOND: &str = "/sys/kernel/mm/damon/admin/kdamonds/0";
const CONTEXT: &str = "/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0";
const SCHEMES: &str = "/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes";
const MIN_AGE: &str = "access_pattern/age/min";
/// Largest value of a bound on a number of checks or aggregations.
pub const ANY: &str = "4294967295";

/// What can be set, in the order of `--help`.
pub const KNOBS: [&str; 13] = [
    "thp",
    "lru",
    "sample_us",
    "aggr_us",
    "update_us",
    "min_regions",
    "max_regions",
    "hot_min_permille",
    "hot_bytes_per_window",
    "cold_max_permille",
    "cold_min_age",
    "cold_bytes_per_window",
    "window_ms",
];

/// A scheme: which way it moves pages, and where in `schemes/` it stands.
#[derive(Clone, Copy)]
enum Scheme {
    Demote = 0,
    Promote = 1,
}

impl Scheme {
    fn file(self, name: &str) -> String {
        format!("{SCHEMES}/{}/{name}", self as u32)
    }
}

/// What DAMON counts a region's accesses in: the checks of an aggregation that met
/// one. Knobs say shares of them, so that they mean the same with other intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bounds {
    /// Hot from so many on: at least one, or all memory would be hot.
    hot_min_accesses: u64,
    /// Cold up to so many.
    cold_max_accesses: u64,
}

impl Bounds {
    /// None where there is no check in an aggregation, or a share is not 0 to 1000.
    fn of(knobs: &Knobs) -> Option<Self> {
        let number = |name| knob(knobs, name).parse::<u64>().ok();
        let share = |name| number(name).filter(|permille| *permille <= 1000);
        let checks = number("aggr_us")?.checked_div(number("sample_us")?)?;
        if checks == 0 {
            return None;
        }
        let of_checks = |permille: u64| checks.saturating_mul(permille);
        Some(Self {
            hot_min_accesses: of_checks(share("hot_min_permille")?).div_ceil(1000).max(1),
            cold_max_accesses: of_checks(share("cold_max_permille")?) / 1000,
        })
    }
}

/// Refuses values that make no monitoring, or one that says nothing.
pub fn check(knobs: &Knobs) -> Result<(), Error> {
    let refuse = |cause: String, next: &str| {
        Err(Error::Usage {
            cause: format!("--damon-set: {cause}"),
            next: next.into(),
        })
    };
    match Bounds::of(knobs) {
        None => refuse(
            format!(
                "not an aggregation of checks: sample_us={}, aggr_us={}, hot_min_permille={}, cold_max_permille={}",
                knob(knobs, "sample_us"),
                knob(knobs, "aggr_us"),
                knob(knobs, "hot_min_permille"),
                knob(knobs, "cold_max_permille"),
            ),
            "make aggr_us at least sample_us, and shares 0 to 1000",
        ),
        Some(bounds) if bounds.cold_max_accesses >= bounds.hot_min_accesses => refuse(
            format!(
                "memory would be cold with up to {} accesses and hot with {}",
                bounds.cold_max_accesses, bounds.hot_min_accesses
            ),
            "make hot_min_permille larger, or cold_max_permille smaller",
        ),
        Some(_) => Ok(()),
    }
}

/// Whether monitoring sees accesses to huge pages in a kernel of this name (Linux 6.15
/// and newer, see above); not where the name is no version.
pub fn sees_huge_pages(kernel: &str) -> bool {
    let mut numbers = kernel.split('.').map(|word| word.parse::<u32>().ok());
    // "7.x" is whatever 7 the testbed has.
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), minor) => (major, minor.unwrap_or(0)) >= (6, 15),
        _ => false,
    }
}

/// Refuses a kernel that cannot do it, before a guest is started.
pub fn supported(kernel: &Kernel) -> Result<(), Error> {
    supported_since(
        kernel,
        (6, 11),
        "DAMON migrates pages since Linux 6.11",
        "use --kernel 6.12 or newer for --tmm damon",
    )
}

/// Refuses a kernel that is older, or has no DAMON: `why` this version, and what
/// to do `next`.
pub fn supported_since(
    kernel: &Kernel,
    since: (u32, u32),
    why: &str,
    next: &str,
) -> Result<(), Error> {
    let refuse = |cause: &str| {
        Err(Error::Usage {
            cause: format!("kernel {}: {cause}", kernel.release),
            next: next.into(),
        })
    };
    let Some(version) = kernel.version() else {
        return refuse("its version cannot be told");
    };
    if version < since {
        return refuse(why);
    }
    // The testbed puts the configuration beside the image.
    let config = kernel.vmlinuz.with_file_name("config");
    let Ok(config) = std::fs::read_to_string(config) else {
        return Ok(());
    };
    for option in ["CONFIG_DAMON_PADDR", "CONFIG_DAMON_SYSFS", "CONFIG_MEMCG"] {
        if !config.lines().any(|line| line == format!("{option}=y")) {
            return refuse(&format!("{option} is not set"));
        }
    }
    Ok(())
}

/// Completes what the agent does for this manager.
pub fn set_up(manager: &mut protocol::Manager, knobs: &Knobs, node_bytes: [u64; 2]) {
    manager.before.extend(before(knobs, node_bytes));
    // What happens before says nothing about the region of interest, and cold
    // pages would leave FMEM while others are touched first.
    let cold_min_age = knob(knobs, "cold_min_age");
    for (scheme, age) in [(Scheme::Demote, cold_min_age), (Scheme::Promote, "0")] {
        manager.at_roi.push(Write::new(scheme.file(MIN_AGE), age));
    }
    let state = |word| Write::new(format!("{KDAMOND}/state"), word);
    manager.before.push(state("on"));
    manager.at_roi.push(state("commit"));
    manager.after = vec![state("update_schemes_stats"), state("off")];
    manager.report_dir = Some(SCHEMES.to_owned());
}

/// 4 KiB pages that were promoted and demoted, from the reported files.
pub fn moved_pages(files: &BTreeMap<String, String>) -> [u64; 2] {
    [Scheme::Promote, Scheme::Demote]
        .map(|scheme| pages_of(files, &format!("{}/stats/sz_applied", scheme as u32)))
}

/// 4 KiB pages that a reported file says in bytes.
pub fn pages_of(files: &BTreeMap<String, String>, name: &str) -> u64 {
    (files.get(name))
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(0)
        / 4096
}

/// What the knobs common to both rows of DAMON write.
pub fn lists_and_pages(knobs: &Knobs) -> [Write; 3] {
    [
        Write::new(LRU_GEN, lru_word(knob(knobs, "lru"))),
        Write::new(
            "/sys/kernel/mm/transparent_hugepage/enabled",
            knob(knobs, "thp"),
        ),
        Write::new("/proc/sys/kernel/numa_balancing", "0"),
    ]
}

fn knob<'a>(knobs: &'a Knobs, name: &str) -> &'a str {
    knobs.get(name).map_or("", String::as_str)
}

fn before(knobs: &Knobs, [fmem_bytes, smem_bytes]: [u64; 2]) -> Vec<Write> {
    let knob = |name| knob(knobs, name);
    let context = |name: &str, value: &str| Write::new(format!("{CONTEXT}/{name}"), value);
    // Knobs were checked with the options.
    let bounds = Bounds::of(knobs).unwrap_or_default();
    let layout = MemoryLayout::new(fmem_bytes, smem_bytes);
    let nodes = [layout.ranges(0), layout.ranges(1)];

    let mut writes = lists_and_pages(knobs).to_vec();
    writes.extend([
        Write::new("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", 1),
        Write::new(format!("{KDAMOND}/contexts/nr_contexts"), 1),
        context("operations", "paddr"),
        context("monitoring_attrs/intervals/sample_us", knob("sample_us")),
        context("monitoring_attrs/intervals/aggr_us", knob("aggr_us")),
        context("monitoring_attrs/intervals/update_us", knob("update_us")),
        context("monitoring_attrs/nr_regions/max", knob("max_regions")),
        context("monitoring_attrs/nr_regions/min", knob("min_regions")),
        context("targets/nr_targets", "1"),
    ]);
    let all: Vec<_> = nodes.iter().flatten().collect();
    writes.push(context(
        "targets/0/regions/nr_regions",
        &all.len().to_string(),
    ));
    for (index, range) in all.iter().enumerate() {
        let region = |name: &str, value: u64| {
            context(
                &format!("targets/0/regions/{index}/{name}"),
                &value.to_string(),
            )
        };
        writes.extend([region("start", range.start), region("end", range.end)]);
    }
    writes.push(Write::new(format!("{SCHEMES}/nr_schemes"), 2));
    for scheme in [Scheme::Demote, Scheme::Promote] {
        let (action, to, elsewhere) = match scheme {
            Scheme::Demote => ("migrate_cold", "1", &nodes[1]),
            Scheme::Promote => ("migrate_hot", "0", &nodes[0]),
        };
        let (bound, accesses, quota) = match scheme {
            Scheme::Demote => ("max", bounds.cold_max_accesses, "cold_bytes_per_window"),
            Scheme::Promote => ("min", bounds.hot_min_accesses, "hot_bytes_per_window"),
        };
        let mut file = |name: &str, value: &str| {
            writes.push(Write::new(scheme.file(name), value));
        };
        file("action", action);
        file("target_nid", to);
        file("access_pattern/sz/min", "4096");
        file("access_pattern/sz/max", "18446744073709551615");
        file("access_pattern/nr_accesses/max", ANY);
        file(
            &format!("access_pattern/nr_accesses/{bound}"),
            &accesses.to_string(),
        );
        // No region gets this old: the scheme waits for the region of interest.
        file(MIN_AGE, ANY);
        file("access_pattern/age/max", ANY);
        file("quotas/bytes", knob(quota));
        file("quotas/reset_interval_ms", knob("window_ms"));
        file("quotas/weights/nr_accesses_permil", "900");
        file("quotas/weights/age_permil", "100");
        file("filters/nr_filters", &(elsewhere.len() + 1).to_string());
        file("filters/0/type", "memcg");
        file("filters/0/memcg_path", COMMAND_CGROUP_NAME);
        file("filters/0/matching", "N");
        for (index, range) in elsewhere.iter().enumerate() {
            let index = index + 1;
            file(&format!("filters/{index}/type"), "addr");
            file(
                &format!("filters/{index}/addr_start"),
                &range.start.to_string(),
            );
            file(&format!("filters/{index}/addr_end"), &range.end.to_string());
            file(&format!("filters/{index}/matching"), "Y");
        }
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::manager::manager;
    use crate::vm::settings::tests::options;
    use crate::vm::tmm::Tmm;

    fn value<'a>(writes: &'a [Write], path: &str) -> &'a str {
        // What is written last counts.
        let write = writes.iter().rfind(|write| write.path == path);
        &write
            .unwrap_or_else(|| panic!("{path} is not written"))
            .value
    }

    #[test]
    fn schemes_wait_and_leave_the_other_node_alone() {
        let settings = options("--damon-set cold_min_age=3")
            .settings(Tmm::Damon, &["true".into()])
            .unwrap();
        let manager = manager(&settings);
        let [fmem_bytes, smem_bytes] = settings.node_bytes;
        for (scheme, start, end) in [(0, fmem_bytes, fmem_bytes + smem_bytes), (1, 0, fmem_bytes)] {
            let at = |name: &str| {
                value(&manager.before, &format!("{SCHEMES}/{scheme}/{name}")).to_owned()
            };
            assert_eq!(at("filters/nr_filters"), "2");
            assert_eq!(at("filters/1/addr_start"), start.to_string());
            assert_eq!(at("filters/1/addr_end"), end.to_string());
            assert_eq!(at(MIN_AGE), ANY);
        }
        let age = value(&manager.at_roi, &Scheme::Demote.file(MIN_AGE));
        assert_eq!(age, "3");
        let last = manager.at_roi.last().unwrap();
        assert_eq!(last.value, "commit");
    }

    #[test]
    fn thresholds_are_shares_of_the_checks() {
        let set_up = |line: &str| {
            let settings = options(line).settings(Tmm::Damon, &["true".into()])?;
            let manager = manager(&settings);
            let at = |file: String| value(&manager.before, &file).to_owned();
            Ok([
                at(Scheme::Promote.file("access_pattern/nr_accesses/min")),
                at(Scheme::Demote.file("access_pattern/nr_accesses/max")),
            ])
        };
        let shares = "--damon-set hot_min_permille=300 --damon-set cold_max_permille=50";
        let of = |sample_us: u32, aggr_us: u32| -> Result<[String; 2], Error> {
            set_up(&format!(
                "{shares} --damon-set sample_us={sample_us} --damon-set aggr_us={aggr_us}"
            ))
        };
        assert_eq!(of(20_000, 400_000).unwrap(), ["6", "1"]);
        assert_eq!(of(5_000, 400_000).unwrap(), ["24", "4"]);
        assert_eq!(of(20_000, 50_000).unwrap(), ["1", "0"]);
        // No check in an aggregation, no interval, a share above all, hot and cold at once.
        assert!(of(20_000, 10_000).is_err());
        assert!(of(0, 10_000).is_err());
        for wrong in [
            "--damon-set hot_min_permille=1001",
            "--damon-set hot_min_permille=x",
            "--damon-set hot_min_permille=40 --damon-set cold_max_permille=60",
        ] {
            let refused: Result<_, Error> = set_up(wrong);
            assert!(refused.is_err(), "{wrong}");
        }
    }

    #[test]
    fn moved_pages_by_direction() {
        let files = [
            ("0/stats/sz_applied", "8192"),
            ("1/stats/sz_applied", "4096"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        assert_eq!(moved_pages(&files), [1, 2]);
        assert_eq!(moved_pages(&BTreeMap::new()), [0, 0]);
    }

    #[test]
    fn kernels_that_cannot_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let kernel = |release: &str| Kernel {
            name: release.into(),
            release: release.into(),
            vmlinuz: place.path().join("vmlinuz"),
            vmlinux: None,
            initrd_base: place.path().join("initrd"),
        };
        assert!(supported(&kernel("6.1.0-50-amd64")).is_err());
        assert!(supported(&kernel("nonsense")).is_err());
        assert!(supported(&kernel("6.12.107+deb13-amd64")).is_ok());
        std::fs::write(place.path().join("config"), "CONFIG_DAMON_PADDR=y\n").unwrap();
        assert!(supported(&kernel("6.12.107+deb13-amd64")).is_err());
        let all = "CONFIG_DAMON_PADDR=y\nCONFIG_DAMON_SYSFS=y\nCONFIG_MEMCG=y\n";
        std::fs::write(place.path().join("config"), all).unwrap();
        assert!(supported(&kernel("7.2.12+deb13-amd64")).is_ok());
    }
}
