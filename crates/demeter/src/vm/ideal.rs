// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows `ideal` and `ideal-2m`: a clairvoyant static placement of any COMMAND.
//!
//! A run of `none` is recorded by page, the pages that gain most are given to
//! FMEM, and COMMAND runs again with the model serving each page from where it was
//! put; see `demeter_machine::placement`. Up to the region of interest both guests are
//! the same to the bit.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use demeter_machine::accesses::AccessesConfig;
use demeter_machine::heat::HeatConfig;
use demeter_machine::placement::{self, NameBy, Recording};
use demeter_machine::watch::WatchConfig;
use serde::Serialize;

use super::figures::{self, Job, Row};
use super::session::{self, Finished, Show};
use super::settings::{Options, Settings};
use super::tmm::Tmm;
use super::workplace::{RamDir, ResultsDir};
use crate::digest;
use crate::error::Error;
use crate::progress::Board;
use crate::testbed::Testbed;

/// The recording, among a run's results.
const RECORDING: &str = "pages.bin";
/// Heat, among a run's results.
pub const HEAT: &str = "heat.json";
/// Recorded accesses, among a run's results.
pub const ACCESSES: &str = "accesses.bin";
const POLL: Duration = Duration::from_millis(50);
/// Shares of a shorter way than this part of `none`'s time say nothing: there is hardly
/// anything to gain. (So has `lab/demeter_lab/seven.py`.)
const LEAST_WAY: f64 = 0.05;

/// What a guest's model follows by page.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Watch {
    /// Costs by page are recorded.
    pub record: bool,
    /// How pages are named from run to run.
    pub names: NameBy,
    /// The placement in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ideal: Option<Ideal>,
    /// Heat is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heat: Option<HeatConfig>,
    /// Accesses are recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses: Option<AccessesConfig>,
}

/// A chosen placement.
#[derive(Debug, Clone, Serialize)]
pub struct Ideal {
    #[serde(skip)]
    bytes: Arc<[u8]>,
    /// What is known of it.
    #[serde(flatten)]
    pub figures: Promise,
}

/// What a placement is made of and promises.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Promise {
    /// Size of what is placed as one.
    pub granule_bytes: u64,
    /// FMEM that there was to give away: what COMMAND may use.
    pub fmem_bytes: u64,
    /// The part of it that found a taker in the recording.
    pub given_bytes: u64,
    /// Pages of 4 KiB that the recording saw filled from memory.
    pub recorded_pages: u64,
    /// By how much the recorded run would have been shorter, by its own fills.
    pub predicted_saving_s: f64,
    /// SHA-256 of the placement.
    pub placement: String,
}

impl Watch {
    /// The plugin's part, its files beside the run's others.
    pub fn config(&self, ram: &RamDir, results: &ResultsDir) -> Result<WatchConfig, Error> {
        let absolute = |path: PathBuf| {
            std::path::absolute(&path).map_err(|cause| Error::file("name", &path, cause))
        };
        let place = match &self.ideal {
            None => None,
            Some(ideal) => {
                let path = ram.file("placement", 0)?;
                std::fs::write(&path, &ideal.bytes)
                    .map_err(|cause| Error::file("write", &path, cause))?;
                Some(path)
            }
        };
        let record = self.record.then(|| results.join(RECORDING));
        let heat = (self.heat.clone())
            .map(|heat| Ok::<_, Error>((absolute(results.join(HEAT))?, heat)))
            .transpose()?;
        let accesses = (self.accesses.clone())
            .map(|config| Ok::<_, Error>((absolute(results.join(ACCESSES))?, config)))
            .transpose()?;
        Ok(WatchConfig {
            names: self.names,
            record: record.map(absolute).transpose()?,
            place,
            heat,
            accesses,
        })
    }
}

/// What `recording` says of these settings' FMEM.
fn choose(recording: &Recording, order: u32, fmem_bytes: u64) -> Ideal {
    let choice = placement::choose(recording, order, fmem_bytes);
    let bytes = choice.placement.to_bytes();
    let granule_bytes = 4096 << order;
    Ideal {
        figures: Promise {
            granule_bytes,
            fmem_bytes,
            given_bytes: choice.placement.fast.len() as u64 * granule_bytes,
            recorded_pages: recording.pages.len() as u64,
            predicted_saving_s: choice.saving_ps as f64 * 1e-12,
            placement: digest::sha256(&bytes),
        },
        bytes: bytes.into(),
    }
}

fn read(directory: &Path) -> Result<Recording, Error> {
    let path = directory.join(RECORDING);
    let bytes = std::fs::read(&path).map_err(|cause| Error::file("read", &path, cause))?;
    Recording::from_bytes(&bytes).map_err(|error| Error::Malformed {
        path,
        cause: error.to_string(),
    })
}

/// A job's part in a recording of the comparison.
#[derive(Clone)]
pub enum Part {
    /// It is the run that is recorded.
    Records(Arc<OnceLock<Recording>>),
    /// It runs by what was recorded, in granules of this order.
    Follows(Arc<OnceLock<Recording>>, u32),
}

/// The settings of a job, once what it needs has been recorded; none if another
/// job failed meanwhile.
pub fn settings_of(job: &Job, failed: &AtomicBool) -> Option<Settings> {
    let mut settings = job.settings.clone();
    match &job.part {
        None => {}
        Some(Part::Records(_)) => settings.watch.record = true,
        Some(Part::Follows(slot, order)) => {
            let recording = loop {
                if failed.load(Ordering::Relaxed) {
                    return None;
                }
                if let Some(recording) = slot.get() {
                    break recording;
                }
                std::thread::sleep(POLL);
            };
            let ideal = choose(recording, *order, settings.tier_bytes[0]);
            settings.watch.ideal = Some(ideal);
        }
    }
    Some(settings)
}

/// A job has finished: its recording is there for those that wait.
pub fn publish(job: &Job, finished: Finished) -> Result<Finished, Error> {
    if let Some(Part::Records(slot)) = &job.part {
        let _ = slot.set(read(&finished.directory)?);
    }
    Ok(finished)
}

/// The parts of managers in a comparison.
pub fn parts(managers: &[Tmm]) -> Vec<Option<Part>> {
    let slot = Arc::new(OnceLock::new());
    let wanted = managers.iter().any(|tmm| tmm.ideal_order().is_some());
    (managers.iter())
        .map(|tmm| match (tmm, tmm.ideal_order()) {
            (_, Some(order)) => Some(Part::Follows(slot.clone(), order)),
            (Tmm::None, None) if wanted => Some(Part::Records(slot.clone())),
            _ => None,
        })
        .collect()
}

/// For a single run: records `none` first, into `<out>.recording`.
pub fn record_first(
    testbed: &Testbed,
    options: &Options,
    command: &[String],
    order: u32,
    out: &Path,
) -> Result<(Ideal, Finished), Error> {
    let mut settings = options.settings(Tmm::None, command)?;
    settings.watch.record = true;
    let mut name = out.as_os_str().to_owned();
    name.push(".recording");
    let board = Board::new();
    let line = board.line("recording");
    let show = Show {
        stream_output: false,
        line: &line,
        total_work: None,
    };
    let finished = session::run(testbed, &settings, Path::new(&name), None, &show)
        .and_then(|finished| figures::must_succeed(Tmm::None, &settings, finished))?;
    let recording = read(&finished.directory)?;
    let ideal = choose(&recording, order, settings.tier_bytes[0]);
    Ok((ideal, finished))
}

/// The share of what a placement promises that its run came out faster than the
/// recorded one.
pub fn realised(promise: &Promise, none_s: f64, ideal_s: f64) -> Option<f64> {
    (promise.predicted_saving_s > 0.0).then(|| (none_s - ideal_s) / promise.predicted_saving_s)
}

/// Tells each row how much of the way from `none` to `ideal` it went, in time.
/// 1 and more is possible: `fast` has more FMEM, and a manager may follow what changes.
/// Where the way is shorter than [`LEAST_WAY`], no row has a share.
pub fn fill_shares(rows: &mut [(Tmm, Row)]) {
    let time_of = |wanted: Tmm| {
        (rows.iter())
            .find(|(tmm, _)| *tmm == wanted)
            .map(|(_, row)| row.time_s)
    };
    let Some(none_s) = time_of(Tmm::None) else {
        return;
    };
    let way_s = time_of(Tmm::Ideal).map(|ideal_s| none_s - ideal_s);
    for (_, row) in rows {
        row.ideal_share = way_s
            .filter(|way_s| *way_s >= LEAST_WAY * none_s)
            .map(|way_s| (none_s - row.time_s) / way_s);
        row.realised_share =
            (row.placement.as_ref()).and_then(|promise| realised(promise, none_s, row.time_s));
    }
}

/// A line on each placement of a table.
pub fn render(rows: &[(Tmm, Row)]) -> String {
    (rows.iter())
        .filter_map(|(tmm, row)| {
            let line = describe(row.placement.as_ref()?, row.realised_share);
            Some(format!("{}: {line}\n", tmm.row()))
        })
        .collect()
}

/// A placement in words.
pub fn describe(promise: &Promise, realised_share: Option<f64>) -> String {
    format!(
        "{} of {} MiB of FMEM given to the dearest {} KiB granules of {} recorded pages; \
         predicted saving {:.3} s, realised {}%",
        promise.given_bytes >> 20,
        promise.fmem_bytes >> 20,
        promise.granule_bytes >> 10,
        promise.recorded_pages,
        promise.predicted_saving_s,
        crate::table::percent(realised_share, 1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::manager;
    use crate::vm::settings::tests::options;
    use demeter_machine::placement::PageCost;

    fn row(time_s: f64, predicted_saving_s: Option<f64>) -> Row {
        Row {
            time_s,
            placement: predicted_saving_s.map(|predicted_saving_s| Promise {
                granule_bytes: 4096,
                fmem_bytes: 4096,
                given_bytes: 4096,
                recorded_pages: 2,
                predicted_saving_s,
                placement: String::new(),
            }),
            ..Row::default()
        }
    }

    #[test]
    fn rows_are_told_how_far_they_went() {
        let mut rows = vec![
            (Tmm::Demeter, row(6.0, None)),
            (Tmm::Ideal, row(2.0, Some(9.0))),
            (Tmm::Fast, row(1.0, None)),
            (Tmm::None, row(10.0, None)),
        ];
        fill_shares(&mut rows);
        let shares: Vec<_> = rows.iter().map(|(_, row)| row.ideal_share).collect();
        assert_eq!(shares, [Some(0.5), Some(1.0), Some(1.125), Some(0.0)]);
        assert_eq!(rows[1].1.realised_share, Some(8.0 / 9.0));
        let told = render(&rows);
        assert!(told.starts_with("ideal: 0 of 0 MiB"), "{told}");
        assert!(told.contains("realised 88.9%"), "{told}");
        // At the least way there are shares, below it none, however far a row fell behind.
        for (ideal_s, has_shares) in [(9.5, true), (9.501, false), (11.0, false)] {
            let mut rows = vec![
                (Tmm::None, row(10.0, None)),
                (Tmm::Ideal, row(ideal_s, Some(0.1))),
                (Tmm::Demeter, row(20.0, None)),
            ];
            fill_shares(&mut rows);
            for (tmm, row) in &rows {
                assert_eq!(row.ideal_share.is_some(), has_shares, "{tmm:?} {ideal_s}");
            }
        }
        // No way to go, or nowhere to start from: no share.
        for mut rows in [
            vec![
                (Tmm::None, row(1.0, None)),
                (Tmm::Ideal, row(1.0, Some(0.0))),
            ],
            vec![(Tmm::Ideal, row(1.0, Some(1.0)))],
        ] {
            fill_shares(&mut rows);
            assert!(rows.iter().all(|(_, row)| row.ideal_share.is_none()));
            assert!(rows.iter().all(|(_, row)| row.realised_share.is_none()));
        }
    }

    #[test]
    fn capacity_is_the_memory_that_command_may_use() {
        let recording = Recording {
            pages: (0..10)
                .map(|key| {
                    (
                        key,
                        PageCost {
                            fmem_ps: 0,
                            smem_ps: 1_000_000,
                        },
                    )
                })
                .collect(),
            missed_ps: 0,
        };
        let promise = choose(&recording, 0, 3 * 4096).figures;
        assert_eq!(promise.given_bytes, 3 * 4096);
        assert_eq!(promise.predicted_saving_s, 3e-6);
        assert_eq!(choose(&recording, 9, 3 * 4096).figures.given_bytes, 0);
    }

    #[test]
    fn the_guest_of_a_placement_is_the_recorded_one() {
        let run = |tmm: Tmm| {
            let settings = options("").settings(tmm, &["true".into()]).unwrap();
            (manager::manager(&settings), settings.env.clone())
        };
        assert_eq!(run(Tmm::Ideal), run(Tmm::None));
        assert_eq!(run(Tmm::Ideal2m), run(Tmm::None));
    }

    #[test]
    fn only_none_is_recorded_and_only_for_those_that_follow() {
        let parts = |managers: &[Tmm]| {
            (super::parts(managers).iter())
                .map(|part| match part {
                    None => '-',
                    Some(Part::Records(_)) => 'r',
                    Some(Part::Follows(_, order)) => char::from(b'0' + *order as u8),
                })
                .collect::<String>()
        };
        assert_eq!(
            parts(&[Tmm::None, Tmm::Demeter, Tmm::Ideal2m, Tmm::Ideal]),
            "r-90"
        );
        assert_eq!(parts(&[Tmm::None, Tmm::Fast]), "--");
    }
}
