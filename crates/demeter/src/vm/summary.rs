// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of one run, from the time series and the guest's records.
//! All times are modelled; nothing of the host enters.

use std::collections::BTreeMap;
use std::path::Path;

use demeter_machine::config::{MachineConfig, PluginConfig};
use demeter_machine::series::{RowKind, SeriesRow};
use demeter_machine::tasks::TaskTime;
use serde::{Deserialize, Serialize};

use super::hypervisor::HostPhase;
use super::outcome::Outcome;
use super::policy::Peer;
use super::settings::Settings;
use super::tmm::Tmm;
use super::watch::Promise;
use super::{damon, damon_auto};
use crate::digest;
use crate::error::Error;

/// Version of `summary.json`.
const FORMAT: u32 = 1;

/// `summary.json` of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// [`FORMAT`].
    pub format: u32,
    /// Name of the manager's row.
    pub tmm: &'static str,
    /// COMMAND's status as a shell would tell it.
    pub status: i32,
    /// The region of interest.
    pub whole: Phase,
    /// Its part after three quarters of the reported work; absent where
    /// COMMAND reports none.
    pub last_quarter: Option<Phase>,
    /// 4 KiB pages that the manager moved to FMEM.
    pub promoted_pages: u64,
    /// 4 KiB pages that the manager moved to SMEM.
    pub demoted_pages: u64,
    /// 4 KiB pages that it could not move.
    pub refused_pages: u64,
    /// The manager's CPU time by stage; all zero for managers that do not say.
    pub stage_ns: BTreeMap<String, u64>,
    /// CPU time by task, most first; what is missing to the whole time the vCPUs idled.
    /// Empty where the guest's kernel does not let tasks be told apart.
    pub tasks: Vec<TaskTime>,
    /// The clairvoyant placement that this run had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Promise>,
    /// Memory that COMMAND found free per node.
    pub free_bytes: BTreeMap<u32, u64>,
    /// Of it in blocks that a huge page fits into, before anybody took or gave memory.
    pub whole_bytes: BTreeMap<u32, u64>,
    /// Files below the manager's directory after the run.
    pub manager_files: BTreeMap<String, String>,
    /// Lines of the guest's kernel log that tell of trouble.
    pub kernel_trouble: Vec<String>,
    /// SHA-256 over series, COMMAND's output and the figures above.
    pub digest: String,
}

/// The figures of a part of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Phase {
    /// Modelled time with the model on, idle time included.
    pub time_s: f64,
    /// The part of it that kernel threads took, a manager's worker among them.
    pub kthread_s: f64,
    /// What is left without it, and without what the host's threads took: the time if they ran
    /// on a spare vCPU.
    pub spare_time_s: f64,
    /// Work reported, in the workload's unit.
    pub work: Option<u64>,
    /// Per modelled second.
    pub work_per_s: Option<f64>,
    /// Share of user-mode line fills from memory that FMEM served.
    pub fmem_share: Option<f64>,
    /// Share of the time spent in the kernel (instructions and charges).
    pub kernel_share: f64,
    /// Share of the time charged for records of the sampling unit.
    pub record_share: f64,
    /// Share of the time that the manager itself accounts for in its stages; absent for
    /// managers that do not say.
    pub manager_share: Option<f64>,
    /// Instructions.
    pub insn: u64,
    /// Records of the sampling unit.
    pub samples: u64,
    /// Full TLB flushes, asked for or by a switch of address space: without
    /// PCID every load of CR3 drops all that is not global.
    pub tlb_full: u64,
    /// Single-page TLB invalidations.
    pub tlb_single: u64,
    /// Page walks.
    pub walks: u64,
    /// What a hypervisor did that places the guest's pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<HostPhase>,
}

/// Computes the figures of a finished run.
pub fn summarise(
    settings: &Settings,
    outcome: &Outcome,
    plugin: &PluginConfig,
    output: &Path,
) -> Result<Summary, Error> {
    // COMMAND that never reached its region of interest leaves no series.
    let series = &plugin.series;
    let bytes = std::fs::read(series).unwrap_or_default();
    let rows = parse(&bytes).map_err(|error| Error::Malformed {
        path: series.to_path_buf(),
        cause: error.to_string(),
    })?;
    let own = settings.tmm == Tmm::Demeter;
    let below = settings.hypervisor.is_some();
    let phase = |rows: &[SeriesRow]| phase(rows, &settings.machine, own, below);
    let whole = phase(&rows);
    let last_quarter = last_quarter_of(&rows).map(|start| phase(&rows[start..]));
    let moved = match rows.last() {
        Some(row) if below => {
            let host = &row.counters.hypervisor;
            [host.promoted_pages, host.demoted_pages, host.refused_pages]
        }
        _ => moved_pages(settings.tmm, &rows, outcome),
    };
    let mut summary = Summary {
        format: FORMAT,
        tmm: settings.tmm.row(),
        status: outcome.shell_status(),
        whole,
        last_quarter,
        promoted_pages: moved[0],
        demoted_pages: moved[1],
        refused_pages: moved[2],
        stage_ns: match settings.tmm {
            Tmm::Peer(_) => Peer::stages(outcome),
            _ => stages(&rows),
        },
        tasks: tasks(&plugin.summary),
        placement: (settings.watch.ideal.as_ref()).map(|ideal| ideal.figures.clone()),
        free_bytes: outcome.free_bytes.clone(),
        whole_bytes: outcome.whole_bytes.clone(),
        manager_files: outcome.manager_files.clone(),
        kernel_trouble: outcome.kernel_trouble.clone(),
        digest: String::new(),
    };
    let figures = serde_json::to_vec(&summary).map_err(|error| Error::Malformed {
        path: "summary.json".into(),
        cause: error.to_string(),
    })?;
    let output = std::fs::read(output).unwrap_or_default();
    summary.digest = digest::sha256_of([bytes.as_slice(), &output, &figures]);
    Ok(summary)
}

/// CPU time by task, from the plugin's own summary; it writes none where nothing was
/// modelled.
fn tasks(path: &Path) -> Vec<TaskTime> {
    #[derive(Deserialize)]
    struct Part {
        tasks: Vec<TaskTime>,
    }
    let part = std::fs::read(path)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Part>(&bytes).ok());
    part.map_or_else(Vec::new, |part| part.tasks)
}

/// A line of a series that is no row.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {cause}")]
pub struct SeriesError {
    line: usize,
    cause: serde_json::Error,
}

/// Reads a series.
pub fn parse(bytes: &[u8]) -> Result<Vec<SeriesRow>, SeriesError> {
    bytes
        .split(|&byte| byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| {
            serde_json::from_slice(line).map_err(|cause| SeriesError {
                line: index + 1,
                cause,
            })
        })
        .collect()
}

/// Index of the row at which three quarters of the reported work were done.
fn last_quarter_of(rows: &[SeriesRow]) -> Option<usize> {
    let progress = |row: &&SeriesRow| row.kind == RowKind::Progress;
    let total = rows.iter().rfind(progress)?.value;
    let start = rows
        .iter()
        .position(|row| row.kind == RowKind::Progress && row.value >= total / 4 * 3)?;
    // The last report must lie after it, or there is nothing to measure.
    (rows[start].value < total).then_some(start)
}

/// Modelled time between the first and the last row during which the model
/// was on. A slice that does not begin with `on` begins inside a region.
fn modelled_ns(rows: &[SeriesRow]) -> u64 {
    let mut since = rows
        .first()
        .filter(|row| row.kind != RowKind::Off)
        .map(|row| row.t_ns);
    let mut total = 0;
    for row in rows {
        match row.kind {
            RowKind::On => since = Some(row.t_ns),
            RowKind::Off => {
                total += since.take().map_or(0, |start| row.t_ns - start);
            }
            RowKind::Tick | RowKind::Mark | RowKind::Progress => {}
        }
    }
    if let (Some(start), Some(last)) = (since, rows.last()) {
        total += last.t_ns - start;
    }
    total
}

fn phase(rows: &[SeriesRow], machine: &MachineConfig, own_manager: bool, below: bool) -> Phase {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return Phase::default();
    };
    // A slice from the middle ends with the work: what follows (a final
    // checksum, say) is not part of the quarter.
    let inside = first.kind == RowKind::Progress;
    let last_progress = rows.iter().rposition(|row| row.kind == RowKind::Progress);
    let (rows, last) = match last_progress {
        Some(end) if inside => (&rows[..=end], &rows[end]),
        _ => (rows, last),
    };
    let time_ns = modelled_ns(rows);
    let (a, b) = (&first.counters, &last.counters);
    let delta = |field: fn(&demeter_machine::series::Counters) -> u64| {
        // Counters of a run begin at its first `on`.
        let start = if inside { field(a) } else { 0 };
        field(b).saturating_sub(start)
    };
    let work = last_progress
        .filter(|_| rows.iter().any(|row| row.kind == RowKind::Progress))
        .map(|end| {
            let start = if inside { first.value } else { 0 };
            rows.get(end).map_or(last.value, |row| row.value) - start
        });
    let fmem = delta(|c| c.fmem_loads_user);
    let smem = delta(|c| c.smem_loads_user);
    let kernel_ps = u128::from(delta(|c| c.kernel_insn)) * u128::from(machine.insn_ps)
        + u128::from(delta(|c| c.kernel_charged_ps));
    let time_s = time_ns as f64 * 1e-9;
    let share_of_time = |ps: f64| {
        if time_ns == 0 {
            0.0
        } else {
            ps / (time_ns as f64 * 1000.0)
        }
    };
    let manager_share = own_manager.then(|| {
        let stages = last
            .guest
            .stage_ns
            .total()
            .saturating_sub(first.guest.stage_ns.total());
        share_of_time(stages as f64 * 1000.0)
    });
    let kthread_s = delta(|c| c.kthread_ps) as f64 * 1e-12;
    let hypervisor = below.then(|| {
        let before = if inside {
            a.hypervisor
        } else {
            Default::default()
        };
        HostPhase::new(&before, &b.hypervisor)
    });
    let stolen_s = hypervisor.map_or(0.0, |host| host.stolen_s);
    Phase {
        time_s,
        kthread_s,
        spare_time_s: (time_s - kthread_s - stolen_s).max(0.0),
        work,
        work_per_s: work
            .filter(|_| time_ns > 0)
            .map(|work| work as f64 / time_s),
        fmem_share: (fmem + smem > 0).then(|| fmem as f64 / (fmem + smem) as f64),
        kernel_share: share_of_time(kernel_ps as f64),
        record_share: share_of_time(delta(|c| c.pmu_record_ps) as f64),
        manager_share,
        insn: delta(|c| c.insn),
        samples: delta(|c| c.samples),
        tlb_full: delta(|c| c.tlb_full) + delta(|c| c.cr3_writes),
        tlb_single: delta(|c| c.tlb_single),
        walks: delta(|c| c.walk_4k) + delta(|c| c.walk_2m),
        hypervisor,
    }
}

/// Pages promoted, demoted, refused.
fn moved_pages(tmm: Tmm, rows: &[SeriesRow], outcome: &Outcome) -> [u64; 3] {
    if tmm == Tmm::Demeter {
        let guest = rows.last().map(|row| row.guest).unwrap_or_default();
        return [
            guest.promoted_pages,
            guest.demoted_pages,
            guest.refused_pages,
        ];
    }
    if matches!(tmm, Tmm::Damon | Tmm::DamonAuto) {
        let [promoted, demoted] = if tmm == Tmm::Damon {
            damon::moved_pages(&outcome.manager_files)
        } else {
            damon_auto::moved_pages(&outcome.manager_files)
        };
        return [promoted, demoted, outcome.vmstat_delta("pgmigrate_fail")];
    }
    if let Tmm::Peer(peer) = tmm {
        return peer.moved_pages(outcome);
    }
    outcome.moved_by_kernel(tmm.is_nbt())
}

fn stages(rows: &[SeriesRow]) -> BTreeMap<String, u64> {
    rows.last()
        .map(|row| row.guest.stage_ns)
        .unwrap_or_default()
        .named()
        .map(|(name, ns)| (name.to_owned(), ns))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_machine::config::Preset;
    use demeter_machine::series::{Counters, GuestReport, StageNs};

    fn row(t_ns: u64, kind: RowKind, value: u64, fmem: u64, smem: u64) -> SeriesRow {
        SeriesRow {
            t_ns,
            kind,
            value,
            counters: Counters {
                insn: t_ns,
                kernel_insn: t_ns / 10,
                fmem_loads_user: fmem,
                smem_loads_user: smem,
                samples: t_ns / 1_000_000,
                ..Counters::default()
            },
            guest: GuestReport {
                stage_ns: StageNs {
                    drain: t_ns / 100,
                    ..StageNs::default()
                },
                ..GuestReport::default()
            },
        }
    }

    fn rows() -> Vec<SeriesRow> {
        let s = 1_000_000_000;
        vec![
            row(0, RowKind::On, 0, 0, 0),
            row(s, RowKind::Progress, 25, 10, 90),
            row(2 * s, RowKind::Progress, 50, 20, 180),
            row(3 * s, RowKind::Progress, 75, 60, 190),
            row(3 * s + s / 2, RowKind::Progress, 100, 150, 200),
            row(3 * s + s / 2, RowKind::Off, 0, 150, 200),
        ]
    }

    #[test]
    fn whole_and_last_quarter() {
        let rows = rows();
        let machine = MachineConfig::preset(Preset::Pmem);
        let whole = phase(&rows, &machine, true, false);
        assert_eq!(whole.time_s, 3.5);
        assert_eq!(whole.work, Some(100));
        assert_eq!(whole.fmem_share, Some(150.0 / 350.0));
        // 10 % kernel instructions at 0.3 ns
        assert!((whole.kernel_share - 0.03).abs() < 1e-9);
        // 1 % in a stage
        assert!((whole.manager_share.unwrap() - 0.01).abs() < 1e-9);

        let quarter = phase(
            &rows[last_quarter_of(&rows).unwrap()..],
            &machine,
            false,
            false,
        );
        assert_eq!(quarter.time_s, 0.5);
        assert_eq!(quarter.work, Some(25));
        assert_eq!(quarter.work_per_s, Some(50.0));
        assert_eq!(quarter.fmem_share, Some(0.9));
        assert_eq!(quarter.manager_share, None);
    }

    #[test]
    fn time_with_the_model_off_does_not_count() {
        let rows = [
            row(10, RowKind::On, 0, 0, 0),
            row(20, RowKind::Off, 0, 0, 0),
            row(50, RowKind::On, 0, 0, 0),
            row(57, RowKind::Tick, 0, 0, 0),
        ];
        assert_eq!(modelled_ns(&rows), 17);
        assert_eq!(modelled_ns(&[]), 0);
    }

    #[test]
    fn no_progress_no_quarter() {
        let rows = [row(0, RowKind::On, 0, 0, 0), row(9, RowKind::Off, 0, 0, 0)];
        assert_eq!(last_quarter_of(&rows), None);
        assert_eq!(
            phase(&rows, &MachineConfig::default(), false, false).work,
            None
        );
        assert_eq!(
            phase(&[], &MachineConfig::default(), false, true),
            Phase::default()
        );
    }

    #[test]
    fn torn_series_is_refused() {
        assert!(parse(b"{\"t_ns\":1").is_err());
        assert_eq!(parse(b"").unwrap().len(), 0);
    }
}
