// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Made-up records under the simulator: what is hot comes to FMEM and pays, the same
//! record gives the same digits, and a broken one an error.

use std::path::Path;

use demeter_machine::{MachineConfig, Preset};
use demeter_recording::{First, ReadError, Resident, Row, Run, Window, Writer};
use demeter_simulator::{Costs, Error, Header, Manager, Params, Replayed, Variant, replay};

const CHUNK_PAGES: u64 = 512;
const SPACE: u64 = 3;
const WINDOW_PS: u64 = 10_000_000_000;

struct Shape {
    chunks: u64,
    /// These are accessed ten times as much as all others together.
    hot: std::ops::Range<u64>,
    /// The first ones are in FMEM, huge.
    fmem_chunks: u64,
    windows: u64,
    /// Of these, only every so many is ever accessed.
    cold_step: u64,
}

const SMALL: Shape = Shape {
    chunks: 64,
    hot: 56..60,
    fmem_chunks: 8,
    windows: 100,
    cold_step: 1,
};

impl Shape {
    fn header(&self) -> Header {
        let bytes = |chunks: u64| chunks << 21;
        Header {
            command: vec!["made-up".into()],
            tier_bytes: [self.fmem_chunks, self.chunks - self.fmem_chunks].map(bytes),
            node_bytes: [self.fmem_chunks + 64, self.chunks].map(bytes),
            huge_pages: true,
            window_ns: WINDOW_PS / 1000,
            threshold_ns: 64,
            machine: MachineConfig::preset(Preset::Pmem),
        }
    }

    fn write(&self, path: &Path) {
        let header = serde_json::to_vec(&self.header()).unwrap();
        let mut writer = Writer::create(path, &header).unwrap();
        let run = |from: u64, to: u64, slow| Run {
            page: from * CHUNK_PAGES,
            pages: (to - from) * CHUNK_PAGES,
            first: First { slow, huge: true },
        };
        let resident = Resident {
            space: SPACE,
            runs: vec![
                run(0, self.fmem_chunks, false),
                run(self.fmem_chunks, self.chunks, true),
            ],
        };
        writer.resident(&resident).unwrap();
        let row = |page, count| Row {
            page,
            random: count,
            streamed: 0,
            eligible: count,
            first: None,
        };
        for number in 0..self.windows {
            let mut rows = Vec::new();
            for chunk in (0..self.chunks).step_by(self.cold_step as usize) {
                if !self.hot.contains(&chunk) {
                    rows.push(row(chunk * CHUNK_PAGES + number % CHUNK_PAGES, 60));
                }
            }
            for page in self.hot.start * CHUNK_PAGES..self.hot.end * CHUNK_PAGES {
                rows.push(row(page, 20));
            }
            rows.sort_by_key(|row| row.page);
            let window = Window {
                base_ps: WINDOW_PS,
                elapsed_ps: 2 * WINDOW_PS,
                walks: [(0, 0); 2],
                spaces: vec![(SPACE, rows.len())],
                rows,
            };
            writer.window(&window).unwrap();
        }
        writer.finish().unwrap();
    }
}

fn params() -> Params {
    Params {
        epoch_ms: 50,
        sample_period: 401,
        ..Params::default()
    }
}

fn demeter(header: &Header, fmem_bytes: u64) -> Variant {
    Variant {
        fmem_bytes,
        machine: header.machine.clone(),
        manager: Manager::Demeter(params(), Costs::testbed(&header.machine)),
    }
}

fn play(path: &Path) -> Replayed {
    replay(path, |header| {
        Ok(vec![demeter(header, header.tier_bytes[0])])
    })
    .unwrap()
}

fn recorded(shape: &Shape) -> (tempfile::TempDir, std::path::PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("accesses.bin");
    shape.write(&path);
    (place, path)
}

/// Base pages of the hot part in FMEM, as a share.
fn hot_share(replayed: &Replayed, shape: &Shape) -> f64 {
    let (start, end) = (shape.hot.start << 21, shape.hot.end << 21);
    let pages: u64 = (replayed.reports[0].placed.iter())
        .filter(|range| range.start < end && range.end > start)
        .map(|range| {
            let inside = range.end.min(end) - range.start.max(start);
            range.fmem_pages * inside / (range.end - range.start)
        })
        .sum();
    pages as f64 / ((end - start) >> 12) as f64
}

#[test]
fn what_is_hot_comes_to_fmem_and_pays() {
    let (_place, path) = recorded(&SMALL);
    let replayed = play(&path);
    let report = &replayed.reports[0];
    assert!((replayed.recorded_s - 2.0).abs() < 1e-9);
    assert_eq!(replayed.pages, 4 * CHUNK_PAGES + 60 * 100);
    let share = hot_share(&replayed, &SMALL);
    assert!(share > 0.99, "{share} {report:?}");
    let none_s = report.none_s.unwrap();
    assert!(report.ideal_s.unwrap() < report.time_s && report.time_s < none_s);
    assert!(report.ideal_share > Some(0.7), "{report:?}");
    assert!(report.fmem_share_last_quarter > Some(0.9), "{report:?}");
    assert_eq!(report.promoted_pages, report.demoted_pages);
    assert_eq!(report.filled_pages, 0);
}

#[test]
fn the_same_record_gives_the_same_digits() {
    let (_place, path) = recorded(&SMALL);
    let [first, second] = [play(&path), play(&path)];
    assert_eq!(first.reports, second.reports);
    // Beside others in one pass as by itself; another parameter is another outcome.
    let both = replay(&path, |header| {
        let mut other = demeter(header, header.tier_bytes[0]);
        let slower = Params {
            epoch_ms: 200,
            ..params()
        };
        other.manager = Manager::Demeter(slower, Costs::testbed(&header.machine));
        Ok(vec![other, demeter(header, header.tier_bytes[0])])
    })
    .unwrap();
    assert_eq!(both.reports[1], first.reports[0]);
    assert_ne!(both.reports[0].digest, first.reports[0].digest);
    assert!(both.reports[0].time_s > first.reports[0].time_s);
}

/// More FMEM is never worse for first touch, nor for the clairvoyant; with all of it
/// nothing is left to gain.
#[test]
fn fmem_of_another_size() {
    let (_place, path) = recorded(&SMALL);
    let sizes = [2, 8, 32, 64].map(|chunks: u64| chunks << 21);
    let replayed = replay(&path, |header| {
        Ok(sizes.map(|bytes| demeter(header, bytes)).into())
    })
    .unwrap();
    for pair in replayed.reports.windows(2) {
        assert!(pair[0].none_s >= pair[1].none_s, "{pair:?}");
        assert!(pair[0].ideal_s >= pair[1].ideal_s, "{pair:?}");
    }
    let last = &replayed.reports[3];
    assert_eq!((last.ideal_share, last.promoted_pages), (None, 0));
    assert_eq!(last.none_s, last.ideal_s);
}

#[test]
fn a_record_that_is_cut_short_is_told() {
    let (place, path) = recorded(&SMALL);
    let whole = std::fs::read(&path).unwrap();
    let cut = place.path().join("cut");
    std::fs::write(&cut, &whole[..whole.len() - 1]).unwrap();
    let error = replay(&cut, |_| Ok(Vec::new())).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Record(ReadError::CutShort { windows: 100, .. })
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("cut short"), "{error}");
    std::fs::write(&cut, b"{\"format\": 1}").unwrap();
    let error = replay(&cut, |_| Ok(Vec::new())).unwrap_err();
    assert!(
        matches!(error, Error::Record(ReadError::Foreign)),
        "{error:?}"
    );
}

/// A TiB of huge pages, of which FMEM holds an eighth.
#[test]
fn a_tebibyte_is_nothing_special() {
    const CHUNKS: u64 = 1 << 19;
    let shape = Shape {
        chunks: CHUNKS,
        hot: CHUNKS - 64..CHUNKS - 32,
        fmem_chunks: CHUNKS / 8,
        windows: 40,
        cold_step: 1024,
    };
    let (_place, path) = recorded(&shape);
    let replayed = play(&path);
    let share = hot_share(&replayed, &shape);
    let report = &replayed.reports[0];
    assert!(share > 0.9, "{share} {report:?}");
    assert!(report.time_s < report.none_s.unwrap(), "{report:?}");
}
