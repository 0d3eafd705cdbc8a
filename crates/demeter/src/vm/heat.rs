// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm heat`: where COMMAND's line fills go over time, by guest-virtual and
//! by guest-physical address (the paper's figure 4, of any COMMAND).

use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum as _;
use demeter_agent::size;
use demeter_machine::heat::{HeatConfig, HeatReport, HeatRow};
use serde::Serialize;

use super::figures;
use super::heat_view::{self, Picture};
use super::session::{self, Show};
use super::settings::Options;
use super::tmm::Tmm;
use super::watch::HEAT;
use super::workplace::{to_json, write_atomically};
use crate::error::Error;
use crate::progress::Board;
use crate::table;
use crate::testbed::Testbed;

const FIGURE: &str = "heat.svg";
/// Ranges told one by one.
const TOLD: usize = 12;
/// Size of a picture in characters.
const TEXT_LINES: usize = 24;
const TEXT_COLUMNS: usize = 64;

/// Arguments of `vm heat`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Memory manager
    #[arg(long, value_enum, default_value_t = Tmm::None)]
    tmm: Tmm,
    #[command(flatten)]
    options: Options,
    /// Memory that is told apart, a power of two
    #[arg(long, default_value = "256K", value_parser = size::parse, value_name = "SIZE")]
    granule: u64,
    /// Modelled time that is told apart at least, in milliseconds
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    window: u64,
    /// Results directory
    #[arg(long, default_value = "out/heat", value_name = "DIR")]
    out: PathBuf,
    /// Print the hot ranges as JSON
    #[arg(long)]
    json: bool,
    /// Program of the guest and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What is told of one map.
#[derive(Debug, PartialEq, Serialize)]
struct Hot {
    /// Memory that was filled from at all.
    touched_bytes: u64,
    /// Memory of hot granules.
    hot_bytes: u64,
    /// Their share of the line fills.
    hot_share: f64,
    /// Ranges of neighbours that they make.
    hot_ranges: usize,
    /// From the lowest hot address to the end of the highest, of one address space.
    hot_span_bytes: u64,
    /// The ranges with most fills.
    ranges: Vec<Range>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Range {
    space: u64,
    address: u64,
    bytes: u64,
    share: f64,
}

#[derive(Serialize)]
struct Told<'a> {
    format: u32,
    command: &'a [String],
    granule_bytes: u64,
    window_ns: u64,
    windows: usize,
    fills: u64,
    dropped_fills: u64,
    r#virtual: Hot,
    physical: Hot,
    data: PathBuf,
    figure: PathBuf,
}

/// Carries the verb out.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let granule_bytes = arguments.granule;
    if !granule_bytes.is_power_of_two() || !(4096..=1 << 30).contains(&granule_bytes) {
        return Err(Error::Usage {
            cause: format!("--granule {granule_bytes} is not a power of two from 4K to 1G"),
            next: "try --granule 64K".into(),
        });
    }
    if arguments.tmm.ideal_order().is_some() {
        return Err(Error::Usage {
            cause: "a clairvoyant placement moves nothing that a map could show".into(),
            next: "choose another --tmm".into(),
        });
    }
    let mut settings = (arguments.options).settings(arguments.tmm, &arguments.command)?;
    settings.watch.heat = Some(HeatConfig {
        granule_bytes,
        window_ns: arguments.window * 1_000_000,
    });
    let testbed = Testbed::load()?;
    let board = Board::new();
    let line = board.line("heat");
    let show = Show {
        stream_output: false,
        line: &line,
        total_work: None,
    };
    let finished = session::run(&testbed, &settings, &arguments.out, None, &show)
        .and_then(|finished| figures::must_succeed(arguments.tmm, &settings, finished))?;
    drop(line);

    let data = finished.directory.join(HEAT);
    let bytes = std::fs::read(&data).map_err(|cause| Error::file("read", &data, cause))?;
    let report: HeatReport = serde_json::from_slice(&bytes).map_err(|error| Error::Malformed {
        path: data.clone(),
        cause: error.to_string(),
    })?;
    let figure = finished.directory.join(FIGURE);
    let title = arguments.command.join(" ");
    write_atomically(&figure, heat_view::svg(&report, &title).as_bytes())?;
    let told = tell(&arguments.command, &report, data, figure);
    let shown = if arguments.json {
        to_json(&told)?
    } else {
        render(&told, &report, arguments.tmm).into_bytes()
    };
    let _ = std::io::stdout().write_all(&shown);
    Ok(0)
}

fn tell<'a>(
    command: &'a [String],
    report: &HeatReport,
    data: PathBuf,
    figure: PathBuf,
) -> Told<'a> {
    Told {
        format: 1,
        command,
        granule_bytes: report.granule_bytes,
        window_ns: report.window_ns,
        windows: report.windows,
        fills: report.virtual_rows.iter().map(fills).sum(),
        dropped_fills: report.dropped_fills,
        r#virtual: hot(&report.virtual_rows, report.granule_bytes),
        physical: hot(&report.physical_rows, report.granule_bytes),
        data,
        figure,
    }
}

fn fills(row: &HeatRow) -> u64 {
    row.fills.iter().copied().map(u64::from).sum()
}

/// Finds what is hot: granules with at least half the fills that the granule of the
/// average fill has. A bound by share would cut through an evenly hot range.
fn hot(rows: &[HeatRow], granule_bytes: u64) -> Hot {
    let all: u64 = rows.iter().map(fills).sum();
    let squares: u128 = rows.iter().map(|row| u128::from(fills(row)).pow(2)).sum();
    let share = |fills: u64| fills as f64 / all.max(1) as f64;
    let bound = (squares / u128::from(all.max(1)) / 2).max(1);
    let mut ranges: Vec<(Range, u64)> = Vec::new();
    for row in rows.iter().filter(|row| u128::from(fills(row)) >= bound) {
        match ranges.last_mut() {
            Some((range, sum))
                if range.space == row.space && range.address + range.bytes == row.address =>
            {
                range.bytes += granule_bytes;
                *sum += fills(row);
            }
            _ => {
                let range = Range {
                    space: row.space,
                    address: row.address,
                    bytes: granule_bytes,
                    share: 0.0,
                };
                ranges.push((range, fills(row)));
            }
        }
    }
    let hottest_space = (ranges.iter().max_by_key(|(_, sum)| *sum)).map(|(range, _)| range.space);
    let of_space = || (ranges.iter()).filter(|(range, _)| Some(range.space) == hottest_space);
    let start = of_space().map(|(range, _)| range.address).min();
    let end = of_space()
        .map(|(range, _)| range.address + range.bytes)
        .max();
    let hot_fills = ranges.iter().map(|(_, sum)| sum).sum();
    let mut told: Vec<(Range, u64)> = ranges.clone();
    told.sort_by_key(|(range, sum)| (std::cmp::Reverse(*sum), range.space, range.address));
    told.truncate(TOLD);
    Hot {
        touched_bytes: rows.len() as u64 * granule_bytes,
        hot_bytes: ranges.iter().map(|(range, _)| range.bytes).sum(),
        hot_share: share(hot_fills),
        hot_ranges: ranges.len(),
        hot_span_bytes: end.unwrap_or(0) - start.unwrap_or(0),
        ranges: (told.into_iter())
            .map(|(range, sum)| Range {
                share: share(sum),
                ..range
            })
            .collect(),
    }
}

fn render(told: &Told<'_>, report: &HeatReport, tmm: Tmm) -> String {
    let mut text = format!(
        "line fills of {} under {}; {} KiB by {:.0} ms, times modelled\n",
        told.command.join(" "),
        tmm.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned()),
        told.granule_bytes >> 10,
        told.window_ns as f64 * 1e-6,
    );
    for (name, rows) in [
        ("guest-virtual", &report.virtual_rows),
        ("guest-physical", &report.physical_rows),
    ] {
        let picture = Picture::fold(rows, report, TEXT_LINES, TEXT_COLUMNS);
        text.push_str(&format!("\n{name} memory over {:.3} s\n", picture.seconds));
        text.push_str(&picture.text());
    }
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let rows: Vec<Vec<String>> = [("virtual", &told.r#virtual), ("physical", &told.physical)]
        .into_iter()
        .map(|(name, hot)| {
            vec![
                name.to_owned(),
                mib(hot.touched_bytes),
                mib(hot.hot_bytes),
                table::percent(Some(hot.hot_share), 1),
                hot.hot_ranges.to_string(),
                mib(hot.hot_span_bytes),
            ]
        })
        .collect();
    let header = [
        "address",
        "touched MiB",
        "hot MiB",
        "fills %",
        "ranges",
        "span MiB",
    ];
    text.push_str(&format!("\n{}\n", table::render(&header, &rows)));
    for (name, hot) in [("virtual", &told.r#virtual), ("physical", &told.physical)] {
        for range in hot.ranges.iter().take(4) {
            text.push_str(&format!(
                "hot {name} range {:#x}, {} MiB: {}% of fills\n",
                range.address,
                mib(range.bytes),
                table::percent(Some(range.share), 1)
            ));
        }
    }
    if told.dropped_fills > 0 {
        text.push_str(&format!(
            "{} line fills found no room in the maps: give a larger --granule\n",
            told.dropped_fills
        ));
    }
    text.push_str(&format!("figure {}\n", told.figure.display()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(space: u64, address: u64, fills: u32) -> HeatRow {
        HeatRow {
            space,
            address,
            fills: vec![fills],
        }
    }

    #[test]
    fn an_evenly_hot_range_is_one() {
        let mut rows: Vec<HeatRow> = (0..100).map(|at| row(1, at * 4096, 10)).collect();
        for (at, row) in rows.iter_mut().enumerate().skip(40).take(10) {
            row.fills = vec![900 + at as u32 % 7];
        }
        let hot = hot(&rows, 4096);
        assert_eq!((hot.hot_ranges, hot.hot_bytes), (1, 10 * 4096));
        assert_eq!(hot.hot_span_bytes, 10 * 4096);
        assert_eq!(hot.ranges[0].address, 40 * 4096);
        assert_eq!(hot.touched_bytes, 100 * 4096);
        assert!((hot.hot_share - 0.909).abs() < 0.01, "{}", hot.hot_share);
    }

    #[test]
    fn scattered_granules_are_many() {
        let rows: Vec<HeatRow> = (0..64_u64)
            .map(|at| row(0, at * 4096, if at % 8 == 0 { 500 } else { 1 }))
            .collect();
        let hot = hot(&rows, 4096);
        assert_eq!((hot.hot_ranges, hot.hot_bytes), (8, 8 * 4096));
        assert_eq!(hot.hot_span_bytes, 57 * 4096);
    }

    #[test]
    fn address_spaces_are_not_neighbours() {
        let hot = hot(&[row(1, 0, 5), row(2, 4096, 5)], 4096);
        assert_eq!((hot.hot_ranges, hot.hot_span_bytes), (2, 4096));
        assert_eq!(super::hot(&[], 4096).hot_ranges, 0);
    }
}
