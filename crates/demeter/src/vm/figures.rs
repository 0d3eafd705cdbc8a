// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs under several managers side by side, and the row that each of them
//! makes in a table.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;

use super::balloon::Seat;
use super::hypervisor::HostPhase;
use super::recording::Part;
use super::session::{self, Finished, Show};
use super::settings::{HUGE_BYTES, Settings};
use super::step;
use super::summary::{Phase, Summary};
use super::tmm::Tmm;
use super::watch::Promise;
use crate::error::Error;
use crate::progress::Board;
use crate::table;
use crate::testbed::Testbed;

/// One row: the figures that managers are compared by. Times are modelled.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Row {
    /// COMMAND's exit status, as a shell would tell it.
    pub status: i32,
    /// Region of interest.
    pub time_s: f64,
    /// The same if kernel threads, a manager's worker among them, ran on a spare vCPU;
    /// absent where they are not told apart.
    pub spare_time_s: Option<f64>,
    /// How much of the way from `none` to `ideal`, in time.
    pub ideal_share: Option<f64>,
    /// What a clairvoyant placement promises.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Promise>,
    /// How much of that came true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realised_share: Option<f64>,
    /// Work per second, over all of it.
    pub updates_per_s: Option<f64>,
    /// And after three quarters of the work.
    pub updates_per_s_last_quarter: Option<f64>,
    /// Share of user-mode line fills that FMEM served; 1 where all memory is fast.
    pub fmem_share: Option<f64>,
    /// 4 KiB pages.
    pub promoted_pages: u64,
    /// 4 KiB pages.
    pub demoted_pages: u64,
    /// 4 KiB pages.
    pub refused_pages: u64,
    /// Guest CPU spent on management: what Demeter accounts for itself; for
    /// NUMA balancing and DAMON, whose work is spread over the kernel, the kernel's share of the
    /// time minus the kernel's share under `none`, and what a hypervisor made the guest pay.
    pub tmm_cpu_share: Option<f64>,
    /// The same after three quarters of the work.
    pub tmm_cpu_share_last_quarter: Option<f64>,
    /// Full TLB flushes.
    pub tlb_full: u64,
    /// Single-page TLB invalidations.
    pub tlb_single: u64,
    /// What a hypervisor did that places the guest's pages; its flushes are not in the
    /// guest's above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<HostPhase>,
}

impl Row {
    /// The row of a run; `none` is the run without a manager, for reference.
    pub fn new(summary: &Summary, tmm: Tmm, none: Option<&Summary>) -> Self {
        let quarter = summary.last_quarter.as_ref();
        Self {
            status: summary.status,
            time_s: summary.whole.time_s,
            spare_time_s: (!summary.tasks.is_empty()).then_some(summary.whole.spare_time_s),
            ideal_share: None,
            placement: summary.placement.clone(),
            realised_share: None,
            updates_per_s: summary.whole.work_per_s,
            updates_per_s_last_quarter: quarter.and_then(|phase| phase.work_per_s),
            fmem_share: match tmm {
                Tmm::Fast => Some(1.0),
                _ => summary.whole.fmem_share,
            },
            promoted_pages: summary.promoted_pages,
            demoted_pages: summary.demoted_pages,
            refused_pages: summary.refused_pages,
            tmm_cpu_share: cpu_share(tmm, Some(&summary.whole), none.map(|none| &none.whole)),
            tmm_cpu_share_last_quarter: cpu_share(
                tmm,
                quarter,
                none.and_then(|none| none.last_quarter.as_ref()),
            ),
            tlb_full: summary.whole.tlb_full,
            tlb_single: summary.whole.tlb_single,
            hypervisor: summary.whole.hypervisor,
        }
    }
}

fn cpu_share(tmm: Tmm, phase: Option<&Phase>, none: Option<&Phase>) -> Option<f64> {
    let phase = phase?;
    match tmm {
        Tmm::NbtDefault | Tmm::Nbt | Tmm::Damon | Tmm::DamonAuto | Tmm::Demeter | Tmm::Peer(_) => {
            let host =
                (phase.hypervisor).map_or(0.0, |of| (of.stolen_s + of.waited_s) / phase.time_s);
            none.map(|none| {
                (phase.kernel_share - none.kernel_share).max(0.0) + phase.record_share + host
            })
        }
        Tmm::None | Tmm::Fast | Tmm::Oracle | Tmm::Ideal | Tmm::Ideal2m => Some(0.0),
    }
}

const COLUMNS: [&str; 14] = [
    "manager",
    "time s",
    "spare s",
    "ideal %",
    "M/s",
    "M/s last¼",
    "FMEM %",
    "promoted",
    "demoted",
    "refused",
    "mgmt %",
    "last¼ %",
    "TLB full",
    "TLB single",
];

/// The table of a comparison; rows that failed come last.
pub fn render(rows: &[(Tmm, Row)], failed: &[(Tmm, Error)]) -> String {
    let millions = |rate: Option<f64>| table::number(rate.map(|rate| rate * 1e-6), 3);
    let mut cells: Vec<Vec<String>> = rows
        .iter()
        .map(|(tmm, row)| {
            vec![
                tmm.row().to_owned(),
                format!("{:.3}", row.time_s),
                table::number(row.spare_time_s, 3),
                table::percent(row.ideal_share, 1),
                millions(row.updates_per_s),
                millions(row.updates_per_s_last_quarter),
                table::percent(row.fmem_share, 1),
                row.promoted_pages.to_string(),
                row.demoted_pages.to_string(),
                row.refused_pages.to_string(),
                table::percent(row.tmm_cpu_share, 2),
                table::percent(row.tmm_cpu_share_last_quarter, 2),
                row.tlb_full.to_string(),
                row.tlb_single.to_string(),
            ]
        })
        .collect();
    cells.extend(failed.iter().map(|(tmm, _)| {
        let mut row = vec!["-".to_owned(); COLUMNS.len()];
        row[0] = tmm.row().to_owned();
        row[1] = "failed".to_owned();
        row
    }));
    table::render(&COLUMNS, &cells)
}

/// Where Demeter's share of the guest's CPU went, a line; nothing for others.
pub fn render_stages(finished: &[Finished]) -> String {
    let Some(demeter) = (finished.iter()).find(|run| run.summary.tmm == Tmm::Demeter.row()) else {
        return String::new();
    };
    let stages: Vec<String> = (demeter.summary.stage_ns.iter())
        .map(|(stage, ns)| format!("{stage} {:.2}", *ns as f64 * 1e-6))
        .collect();
    format!("guest CPU of demeter by stage, ms: {}\n", stages.join(", "))
}

/// The node of which programs take memory first: that of FMEM.
const FIRST_NODE: u32 = 0;

/// A line where guests began with other numbers of huge pages of FMEM free: what does not fit
/// then lies in SMEM at first, whatever the manager. Guests are compared that have as many nodes
/// as the first.
pub fn render_unequal(finished: &[Finished]) -> String {
    let nodes = finished
        .first()
        .map_or(0, |run| run.summary.whole_bytes.len());
    let whole: Vec<(&str, u64)> = (finished.iter())
        .filter(|run| run.summary.whole_bytes.len() == nodes)
        .filter_map(|run| {
            let bytes = run.summary.whole_bytes.get(&FIRST_NODE)?;
            Some((run.summary.tmm, bytes / HUGE_BYTES))
        })
        .collect();
    unequal(&whole)
}

/// Rows and their huge pages.
fn unequal(whole: &[(&str, u64)]) -> String {
    if whole.windows(2).all(|pair| pair[0].1 == pair[1].1) {
        return String::new();
    }
    let words: Vec<String> = (whole.iter())
        .map(|(row, pages)| format!("{row} {pages}"))
        .collect();
    let words = words.join(", ");
    format!("not equal at the start: huge pages of FMEM free: {words}\n")
}

/// One guest of a comparison.
pub struct Job {
    /// Its name, also of its results.
    pub name: String,
    /// Its place at a daemon that others share.
    pub seat: Option<Arc<Seat>>,
    /// Its manager.
    pub tmm: Tmm,
    /// Its settings.
    pub settings: Settings,
    /// Its part in a recording.
    pub part: Option<Part>,
}

/// What a guest that fails means for the other jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// They are not started any more.
    Stop,
    /// They go on, unless the failure would be theirs too.
    GoOn,
}

/// Runs the jobs, `parallel` at a time, each into `out/<name>`, and returns what came of
/// each. A failure that stops the others is returned alone.
pub fn run_all(
    testbed: &Testbed,
    jobs: &[Job],
    parallel: usize,
    out: &Path,
    total_work: Option<u64>,
    others: Others,
) -> Result<Vec<Result<Finished, Error>>, Error> {
    let board = Board::new();
    let next = Mutex::new(0_usize);
    let slots: Vec<Mutex<Option<Result<Finished, Error>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let stopped = AtomicBool::new(false);
    // Of several failures the first is the cause: others may have waited for that guest.
    let first = Mutex::new(None);
    let stops = |error: &Error| others == Others::Stop || !error.is_of_one_guest();
    std::thread::scope(|scope| {
        for _ in 0..parallel.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let index = {
                        let Ok(mut next) = next.lock() else { return };
                        *next += 1;
                        *next - 1
                    };
                    let (Some(job), Some(slot)) = (jobs.get(index), slots.get(index)) else {
                        return;
                    };
                    // Also of one that is not started: others may wait for it.
                    let leave = Leave(job);
                    if stopped.load(Ordering::Relaxed) {
                        continue;
                    }
                    let outcome = match job.run(testbed, out, total_work, &board, &stopped) {
                        Ok(Some(finished)) => Ok(finished),
                        Ok(None) => continue,
                        Err(error) => {
                            if stops(&error) {
                                stopped.store(true, Ordering::Relaxed);
                                if let Ok(mut first) = first.lock() {
                                    first.get_or_insert(index);
                                }
                            }
                            Err(error)
                        }
                    };
                    drop(leave);
                    if let Ok(mut slot) = slot.lock() {
                        *slot = Some(outcome);
                    }
                }
            });
        }
    });
    let first = first.into_inner().ok().flatten();
    let mut ended = Vec::new();
    for (index, slot) in slots.into_iter().enumerate() {
        // An empty slot was not started because another run stopped all; its
        // failure is in a slot of its own.
        match slot.into_inner() {
            Ok(Some(Err(error))) if first == Some(index) => return Err(error),
            Ok(Some(outcome)) => ended.push(outcome),
            _ => {}
        }
    }
    Ok(ended)
}

/// Has a guest leave those that wait for it, however its run ends.
struct Leave<'a>(&'a Job);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if let Some(seat) = &self.0.seat {
            seat.leave();
        }
        if let Some(pool) = &self.0.settings.pool {
            step::leave(pool);
        }
    }
}

impl Job {
    /// Runs it; nothing if all runs were `stopped` before it could begin.
    fn run(
        &self,
        testbed: &Testbed,
        out: &Path,
        total_work: Option<u64>,
        board: &Board,
        stopped: &AtomicBool,
    ) -> Result<Option<Finished>, Error> {
        let settings = match &self.part {
            None => self.settings.clone(),
            Some(part) => match part.settings(&self.settings, stopped)? {
                Some(settings) => settings,
                None => return Ok(None),
            },
        };
        let line = board.line(&self.name);
        let show = Show {
            stream_output: false,
            line: &line,
            total_work,
        };
        let place = out.join(&self.name);
        let outcome = session::run(testbed, &settings, &place, self.seat.as_ref(), &show)
            .and_then(|finished| must_succeed(self.tmm, &self.settings, finished))
            .map_err(|error| self.with_whom_it_waited_for(error))
            .and_then(|finished| {
                if let Some(part) = &self.part {
                    part.publish(&finished.directory)?;
                }
                Ok(finished)
            });
        if let (Err(_), Some(part)) = (&outcome, &self.part) {
            part.withdraw();
        }
        outcome.map(Some)
    }

    /// A guest that took too long may have waited for another of its pool.
    fn with_whom_it_waited_for(&self, error: Error) -> Error {
        let (Error::Timeout { limit_s, .. }, Some(pool)) = (&error, &self.settings.pool) else {
            return error;
        };
        let behind = step::behind(pool);
        if behind.is_empty() || behind.contains(&pool.index) {
            return error;
        }
        let names: Vec<String> = behind.iter().map(|guest| format!("vm{guest}")).collect();
        Error::Waited {
            limit_s: *limit_s,
            name: self.name.clone(),
            behind: names.join(", "),
        }
    }
}

/// A run whose COMMAND ended with a status that does not count is an error.
pub fn must_succeed(tmm: Tmm, settings: &Settings, finished: Finished) -> Result<Finished, Error> {
    session::warn_of_trouble(&finished);
    if let Some((cause, status)) = &finished.outcome.not_started {
        return Err(Error::Command {
            program: "COMMAND".into(),
            cause: cause.clone(),
            status: u8::try_from(*status).unwrap_or(127),
        });
    }
    let status = finished.outcome.shell_status();
    if (settings.ok_statuses.iter()).any(|&ok| i32::from(ok) == status) {
        return Ok(finished);
    }
    Err(Error::CommandFailed {
        tmm: tmm.row().to_owned(),
        status,
        kept: finished.directory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_began_with_other_huge_pages_are_told() {
        assert_eq!(unequal(&[]), "");
        assert_eq!(unequal(&[("none", 28), ("demeter", 28)]), "");
        assert_eq!(
            unequal(&[("none", 28), ("nbt", 28), ("demeter", 27)]),
            "not equal at the start: huge pages of FMEM free: none 28, nbt 28, demeter 27\n"
        );
    }

    #[test]
    fn share_of_nbt_is_relative_to_none() {
        let phase = |kernel_share| Phase {
            kernel_share,
            manager_share: Some(0.5),
            record_share: 0.001,
            ..Phase::default()
        };
        let share = |tmm| cpu_share(tmm, Some(&phase(0.05)), Some(&phase(0.02)));
        // One measure for all: the kernel's part over that of none, and records.
        assert!((share(Tmm::Nbt).unwrap() - 0.031).abs() < 1e-12);
        assert_eq!(share(Tmm::Demeter), share(Tmm::Nbt));
        assert_eq!(share(Tmm::None), Some(0.0));
        assert_eq!(cpu_share(Tmm::Nbt, Some(&phase(0.1)), None), None);
    }
}
