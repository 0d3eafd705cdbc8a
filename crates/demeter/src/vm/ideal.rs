// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows `ideal` and `ideal-2m`: a clairvoyant static placement of any COMMAND.
//!
//! A run of `none` is recorded by page, the pages that gain most are given to
//! FMEM, and COMMAND runs again with the model serving each page from where it was
//! put; see `demeter_machine::placement`. Up to the region of interest both guests are
//! the same to the bit.

use std::path::Path;

use super::figures::{self, Row};
use super::recording::{self, Part, Slot};
use super::session::{self, Finished, Show};
use super::settings::Options;
use super::tmm::Tmm;
use super::watch::{Ideal, Promise};
use crate::error::Error;
use crate::progress::Board;
use crate::testbed::Testbed;

/// Shares of a shorter way than this part of `none`'s time say nothing: there is hardly
/// anything to gain. (So has `lab/demeter_lab/seven.py`.)
const LEAST_WAY: f64 = 0.05;

/// The parts of managers in a comparison.
pub fn parts(managers: &[Tmm]) -> Vec<Option<Part>> {
    let slot = Slot::default();
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
    let recording = recording::read(&finished.directory)?;
    let ideal = recording::choose(&recording, order, settings.tier_bytes[0]);
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
