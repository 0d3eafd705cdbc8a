// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Published managers: one file here each, that says what the row is called, who carries
//! it out, what can be set and where that is written. To add one, write its file and name
//! its rows in [`POLICIES`]: everything else (`--tmm`, `--peer-set`, `doctor`, set-up, figures)
//! follows from the table. See docs/peers.md.

mod abit;
mod example;
mod hemem;
mod memtis;
mod nimble;
mod nomad;
mod tpp;
mod tpp_h;
mod vtmm;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use demeter_agent::protocol::{self, Module, Write};
use demeter_machine::HypervisorConfig;
use serde::{Serialize, Serializer};

use super::knobs::{self, Knobs};
use super::outcome::Outcome;
use super::writes::{LRU_GEN, THP_ENABLED, lru_word, module_path, of_fmem};
use crate::error::Error;
use crate::testbed::Kernel;

/// Where `guest/peers/frame/host.c` has its files.
const PEER_DIR: &str = "/sys/kernel/mm/demeter_peer";
/// Linux for which the modules are made.
const KERNEL: (u32, u32) = (6, 12);
const OPTION: &str = "--peer-set";

/// What has Linux itself move nothing.
fn linux_moves_nothing() -> Vec<Write> {
    vec![
        Write::new("/sys/kernel/mm/numa/demotion_enabled", "0"),
        Write::new("/proc/sys/kernel/numa_balancing", "0"),
    ]
}

/// Every row, in the order of `--help`.
static POLICIES: &[&dyn Policy] = &[
    &tpp::TPP,
    &tpp::TPP_CHARGED,
    &tpp_h::TPP_H,
    &tpp_h::TPP_H_NOFLUSH,
    &tpp_h::TPP_H_2M,
    &abit::RAMINATE,
    &abit::HETEROOS,
    &vtmm::VTMM,
    &memtis::MEMTIS,
    &memtis::MEMTIS_UNSCALED,
    &nomad::NOMAD,
    &hemem::HEMEM,
    &hemem::HEMEM_PAPER,
    &nimble::NIMBLE,
    &example::EXAMPLE,
];

/// Who carries a row out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// A module of `guest/peers/`, by its file name, in a guest with a node for each tier.
    Module(&'static str),
    /// The modelled machine, below a guest that has one node of memory. What of FMEM is for
    /// it is still to be said.
    Hypervisor(Box<HypervisorConfig>),
}

/// Where the value of a knob goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file of `params/`.
    Param,
    /// A file of the guest.
    File(&'static str),
    /// A share of FMEM, written as that of the whole node, when the region of interest begins.
    FmemShareAtRoi(&'static str),
    /// Which page lists: `lists` or `mglru`.
    Lists,
    /// Which huge pages: `always`, `madvise` or `never`.
    HugePages,
    /// A number of the hypervisor's, of the same name.
    Hypervisor,
}

/// Something that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Its name after the row's in `--peer-set ROW.NAME=VALUE`.
    pub name: &'static str,
    /// Its value where the user gives none; none leaves things as they are.
    pub value: Option<&'static str>,
    /// Where it goes.
    pub place: Place,
}

impl Knob {
    /// A knob that has a value.
    const fn new(name: &'static str, value: &'static str, place: Place) -> Self {
        Self {
            name,
            value: Some(value),
            place,
        }
    }

    /// A knob that is left alone unless the user sets it.
    const fn unset(name: &'static str, place: Place) -> Self {
        Self {
            name,
            value: None,
            place,
        }
    }
}

/// A row.
pub trait Policy: Sync {
    /// Name of the row in options, tables and results.
    fn row(&self) -> &'static str;
    /// One line for `--help`.
    fn about(&self) -> &'static str;
    /// Who carries it out.
    fn by(&self) -> By;
    /// What can be set, with the values of this row, in the order in which it is written.
    fn knobs(&self) -> Vec<Knob>;
    /// What the manager needs of the kernel beside its knobs, before it is switched on.
    fn writes(&self) -> Vec<Write> {
        Vec::new()
    }
    /// 4 KiB pages promoted, demoted and refused: the module's own count where it has one,
    /// else the kernel's of promotion and demotion.
    fn moved_pages(&self, outcome: &Outcome) -> [u64; 3] {
        let stat = |name: &str| stat(&outcome.manager_files, name);
        match (stat("promoted_pages"), stat("demoted_pages")) {
            (Some(promoted), Some(demoted)) => {
                [promoted, demoted, stat("refused_pages").unwrap_or(0)]
            }
            _ => outcome.moved_by_kernel(true),
        }
    }
}

/// What Linux's NUMA balancing between tiers needs: it makes pages of SMEM fault, and kswapd
/// demotes. For policies that replace its decisions only.
fn hint_faults() -> Vec<Write> {
    vec![
        Write::new("/sys/kernel/mm/numa/demotion_enabled", "1"),
        Write::new("/proc/sys/kernel/numa_balancing", "2"),
    ]
}

/// What can be set of a hypervisor: the numbers that its manager reads.
fn hypervisor_knobs(config: &HypervisorConfig) -> Vec<Knob> {
    let names = config.manager.names();
    names
        .map(|name| Knob::unset(name, Place::Hypervisor))
        .collect()
}

/// The pace at which it makes them fault: Linux's defaults, a tenth of the periods and
/// a 25.6th of the memory, as that is how much smaller the guest is.
const HINT_FAULT_KNOBS: [Knob; 4] = [
    Knob::new(
        "scan_delay_ms",
        "100",
        Place::File("/sys/kernel/debug/sched/numa_balancing/scan_delay_ms"),
    ),
    Knob::new(
        "scan_period_min_ms",
        "100",
        Place::File("/sys/kernel/debug/sched/numa_balancing/scan_period_min_ms"),
    ),
    Knob::new(
        "scan_period_max_ms",
        "6000",
        Place::File("/sys/kernel/debug/sched/numa_balancing/scan_period_max_ms"),
    ),
    Knob::new(
        "scan_size_mb",
        "10",
        Place::File("/sys/kernel/debug/sched/numa_balancing/scan_size_mb"),
    ),
];

/// One of [`POLICIES`], told from others by its row.
#[derive(Clone, Copy)]
pub struct Peer(&'static dyn Policy);

impl Peer {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        POLICIES.iter().map(|&policy| Self(policy))
    }

    /// Name of its row.
    pub fn row(self) -> &'static str {
        self.0.row()
    }

    /// One line for `--help`.
    pub fn about(self) -> &'static str {
        self.0.about()
    }

    /// File name of its module, if it is one.
    pub fn module(self) -> Option<&'static str> {
        match self.0.by() {
            By::Module(name) => Some(name),
            By::Hypervisor(_) => None,
        }
    }

    /// Its hypervisor, if it is one, with the values in force.
    pub fn hypervisor(
        self,
        knobs: &Knobs,
        fmem_bytes: u64,
    ) -> Result<Option<HypervisorConfig>, Error> {
        let By::Hypervisor(mut config) = self.0.by() else {
            return Ok(None);
        };
        let wrong = |cause: String| Error::Usage {
            cause: format!("{OPTION} {}: {cause}", self.row()),
            next: "see docs/model.md for what can be set, and its default".into(),
        };
        config.fmem_bytes = fmem_bytes;
        for (name, value) in knobs {
            let value = (value.parse())
                .map_err(|_| wrong(format!("{name}={value} is not a whole number")))?;
            config.set(name, value);
        }
        (config.validate()).map_err(|error| wrong(error.to_string()))?;
        Ok(Some(*config))
    }

    /// Refuses a kernel for which the module is not made.
    pub fn supported(self, kernel: &Kernel) -> Result<(), Error> {
        if self.module().is_none() || kernel.version() == Some(KERNEL) {
            return Ok(());
        }
        Err(Error::Usage {
            cause: format!(
                "kernel {}: {} replaces functions of Linux {}.{}",
                kernel.release,
                self.row(),
                KERNEL.0,
                KERNEL.1
            ),
            next: format!("use --kernel {}.{}", KERNEL.0, KERNEL.1),
        })
    }

    /// The values in force: the row's, then the user's for it.
    pub fn knobs(self, set: &[(String, String)]) -> Result<Knobs, Error> {
        let knobs = self.0.knobs();
        let names: Vec<&str> = knobs.iter().map(|knob| knob.name).collect();
        let base: Vec<(&str, &str)> = (knobs.iter())
            .filter_map(|knob| Some((knob.name, knob.value?)))
            .collect();
        let mut own = Vec::new();
        for (name, value) in set {
            let Some((row, name)) = name.split_once('.') else {
                return Err(no_such_row(name));
            };
            if !Self::all().any(|peer| peer.row() == row) {
                return Err(no_such_row(name));
            }
            if row == self.row() {
                own.push((name.to_owned(), value.clone()));
            }
        }
        knobs::in_force(OPTION, &names, &base, &own)
    }

    /// Completes what the agent does for this manager, with the knobs in force. Of the node
    /// that FMEM is, COMMAND may use the first number of bytes, and the second is its size.
    pub fn set_up(
        self,
        manager: &mut protocol::Manager,
        knobs: &Knobs,
        (fmem_bytes, node_bytes): (u64, u64),
    ) {
        let Some(module) = self.module() else {
            return;
        };
        let below = |name: &str| format!("{PEER_DIR}/{name}");
        manager.module = Some(Module {
            path: module_path(module),
            params: String::new(),
        });
        for knob in self.0.knobs() {
            let Some(value) = knobs.get(knob.name) else {
                continue;
            };
            let write = match knob.place {
                Place::Param => Write::new(below(&format!("params/{}", knob.name)), value),
                Place::File(path) => Write::new(path, value),
                Place::Lists => Write::new(LRU_GEN, lru_word(value)),
                Place::HugePages => Write::new(THP_ENABLED, value),
                Place::Hypervisor => continue,
                Place::FmemShareAtRoi(path) => {
                    let value = of_fmem(value, fmem_bytes, node_bytes);
                    manager.at_roi.push(Write::new(path, value));
                    continue;
                }
            };
            manager.before.push(write);
        }
        manager.before.extend(self.0.writes());
        manager.before.push(Write::new(below("enabled"), "1"));
        // Its counters stand still while they are read.
        manager.after.push(Write::new(below("enabled"), "0"));
        manager.report_dir = Some(PEER_DIR.to_owned());
    }

    /// 4 KiB pages promoted, demoted, refused.
    pub fn moved_pages(self, outcome: &Outcome) -> [u64; 3] {
        self.0.moved_pages(outcome)
    }

    /// CPU time by stage.
    pub fn stages(outcome: &Outcome) -> BTreeMap<String, u64> {
        ["track", "classify", "migrate"]
            .into_iter()
            .filter_map(|stage| {
                let ns = stat(&outcome.manager_files, &format!("{stage}_ns"))?;
                Some((stage.to_owned(), ns))
            })
            .collect()
    }
}

fn no_such_row(name: &str) -> Error {
    let rows: Vec<&str> = Peer::all().map(Peer::row).collect();
    Error::Usage {
        cause: format!("{OPTION}: '{name}' does not begin with a row and a dot"),
        next: format!("write ROW.NAME=VALUE with a row of: {}", rows.join(", ")),
    }
}

/// A number of the module's `stats/`.
fn stat(files: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    files.get(&format!("stats/{name}"))?.trim().parse().ok()
}

impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        self.row() == other.row()
    }
}

impl Eq for Peer {}

impl PartialOrd for Peer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Peer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.row().cmp(other.row())
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.row())
    }
}

impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.row())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::manager::manager;
    use crate::vm::settings::tests::options;
    use crate::vm::tmm::Tmm;

    fn peer(row: &str) -> Tmm {
        Tmm::published().find(|tmm| tmm.row() == row).unwrap()
    }

    fn set_up(line: &str, row: &str) -> protocol::Manager {
        let settings = options(line).settings(peer(row), &["true".into()]);
        manager(&settings.unwrap())
    }

    fn value<'a>(writes: &'a [Write], path: &str) -> Option<&'a str> {
        let last = writes.iter().rev().find(|write| write.path == path);
        last.map(|write| write.value.as_str())
    }

    #[test]
    fn rows_and_knobs_are_told_apart() {
        let mut rows: Vec<&str> = Tmm::published().map(Tmm::row).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), POLICIES.len());
        for policy in POLICIES {
            let mut names: Vec<&str> = policy.knobs().iter().map(|knob| knob.name).collect();
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all, "{}", policy.row());
            assert!(!policy.about().is_empty());
        }
    }

    #[test]
    fn a_value_goes_to_its_row_only() {
        let line = "--peer-set tpp.repeat_faults=0 --peer-set tpp-charged.repeat_ns=700 \
                    --peer-set tpp.watermark_scale_factor=400 --fmem 64M --kernel-reserve 192M";
        let path = format!("{PEER_DIR}/params/repeat_faults");
        let tpp = set_up(line, "tpp");
        assert_eq!(value(&tpp.before, &path), Some("0"));
        // A quarter of the node is FMEM.
        let share = "/proc/sys/vm/watermark_scale_factor";
        assert_eq!(value(&tpp.at_roi, share), Some("100"));
        let charged = set_up(line, "tpp-charged");
        assert_eq!(value(&charged.before, &path), Some("15"));
        let path = format!("{PEER_DIR}/params/repeat_ns");
        assert_eq!(value(&charged.before, &path), Some("700"));
        assert_eq!(value(&tpp.before, &path), Some("0"));
    }

    #[test]
    fn memtis_is_scaled_or_as_published() {
        for (row, cooling, period_ms) in [
            ("memtis", "78125", "50"),
            ("memtis-unscaled", "2000000", "500"),
        ] {
            let manager = set_up("--peer-set memtis.split=0", row);
            let param = |name: &str| value(&manager.before, &format!("{PEER_DIR}/params/{name}"));
            assert_eq!(param("cooling_samples"), Some(cooling));
            assert_eq!(param("kmigrated_ms"), Some(period_ms));
            let split = if row == "memtis" { "0" } else { "1" };
            assert_eq!(param("split"), Some(split));
            let path = manager.module.unwrap().path;
            assert!(path.ends_with("demeter_memtis.ko"), "{path}");
        }
    }

    #[test]
    fn hemem_has_its_codes_thresholds_or_its_papers() {
        for (row, reads, cooling) in [("hemem", "4", "10"), ("hemem-paper", "8", "18")] {
            let manager = set_up("", row);
            let param = |name: &str| value(&manager.before, &format!("{PEER_DIR}/params/{name}"));
            assert_eq!(param("hot_reads"), Some(reads));
            assert_eq!(param("hot_writes"), Some("4"));
            assert_eq!(param("cooling_samples"), Some(cooling));
            assert!(manager.module.unwrap().path.ends_with("demeter_hemem.ko"));
        }
    }

    #[test]
    fn what_is_needed_comes_before_it_is_switched_on() {
        for tmm in Tmm::published().filter(|tmm| tmm.module().is_some()) {
            let settings = options("").settings(tmm, &["true".into()]).unwrap();
            let manager = manager(&settings);
            let at = |path: &str| manager.before.iter().rposition(|write| write.path == path);
            let on = at(&format!("{PEER_DIR}/enabled")).unwrap();
            assert!(at("/proc/sys/kernel/numa_balancing") < Some(on), "{tmm:?}");
            assert!(at(LRU_GEN) < Some(on), "{tmm:?}");
            assert_eq!(on, manager.before.len() - 1, "{tmm:?}");
            assert!(manager.module.unwrap().path.ends_with(".ko"));
        }
    }

    #[test]
    fn a_hypervisor_is_below_a_guest_that_does_nothing() {
        let of = |line: &str, row| options(line).settings(peer(row), &["true".into()]);
        let rows = [
            "tpp-h",
            "tpp-h-noflush",
            "tpp-h-2m",
            "raminate",
            "heteroos",
            "vtmm",
        ];
        for row in rows {
            let line = format!("--fmem 64M --peer-set {row}.exit_ns=7");
            let settings = of(&line, row).unwrap();
            let large = u64::from(row == "tpp-h-2m");
            let flush = u64::from(row != "tpp-h-noflush");
            let hypervisor = settings.hypervisor.as_ref().unwrap();
            assert_eq!(hypervisor.ageing_flush, flush);
            assert_eq!((hypervisor.exit_ns, hypervisor.fmem_bytes), (7, 64 << 20));
            assert_eq!(
                (settings.machine.ept_2m, settings.machine.nested),
                (large, 1)
            );
            assert_eq!(settings.guest_tiers().len(), 1);
            let guest = manager(&settings);
            assert!(guest.module.is_none() && guest.at_roi.is_empty());
            let none = options("").settings(Tmm::None, &["true".into()]).unwrap();
            assert_eq!(guest.before, manager(&none).before);
        }
        for line in [
            "--peer-set tpp-h.exit_ns=x",
            "--peer-set tpp-h.steal_permille=1001",
            "--peer-set tpp-h.lru=lists",
            "--peer-set tpp-h.queues=2",
            "--machine ept_2m=1",
            "--machine nested=0",
            "--balloon demeter",
            "--sockets 2 --vcpus 2",
        ] {
            assert!(of(line, "tpp-h").is_err(), "{line} is taken");
        }
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for line in [
            "--peer-set tpp.nonsense=1",
            "--peer-set nonsense.lru=lists",
            "--peer-set lru=lists",
            "--peer-set tpp.lru=y",
        ] {
            let settings = options(line).settings(peer("tpp"), &["true".into()]);
            let error = settings.err().unwrap_or_else(|| panic!("{line} is taken"));
            assert!(error.to_string().contains(OPTION), "{error}");
        }
        // Wrong for the row it names, even if another one runs.
        let line = "--peer-set nonsense.lru=lists";
        assert!(
            options(line)
                .settings(peer("example"), &["true".into()])
                .is_err()
        );
    }

    #[test]
    fn pages_by_the_module_or_the_kernel() {
        let mut outcome = Outcome::default();
        let counters = [
            ("pgpromote_success".to_owned(), 7),
            ("pgdemote_kswapd".to_owned(), 3),
        ];
        outcome
            .vmstat
            .insert(protocol::When::After, counters.into());
        let Tmm::Peer(tpp) = peer("tpp") else {
            panic!("tpp is no peer");
        };
        assert_eq!(tpp.moved_pages(&outcome), [7, 3, 0]);
        let files = [
            ("stats/promoted_pages", "5\n"),
            ("stats/demoted_pages", "4"),
        ];
        outcome.manager_files = files.map(|(name, text)| (name.into(), text.into())).into();
        assert_eq!(tpp.moved_pages(&outcome), [5, 4, 0]);
        assert!(Peer::stages(&outcome).is_empty());
    }
}
