// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Made-up records under the simulator: what is hot comes to FMEM and pays, the same
//! record gives the same digits, and a broken one an error.

mod made_up;

use std::path::Path;

use demeter_recording::ReadError;
use demeter_simulator::{Costs, Error, Manager, Params, Replayed, replay};
use made_up::{CHUNK_PAGES, SMALL, Shape, demeter, params, recorded};

fn play(path: &Path) -> Replayed {
    replay(path, |header| {
        Ok(vec![demeter(header, header.tier_bytes[0])])
    })
    .unwrap()
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

/// A hot part that moves on as soon as it is found: the judge stops what does not pay, and
/// the loss is bounded. What stays hot is never stopped.
#[test]
fn moves_that_do_not_pay_are_stopped() {
    let flips = Shape {
        windows: 600,
        flip_windows: 12,
        hot: 32..40,
        hot_fills: 2,
        ..SMALL
    };
    let (_place, path) = recorded(&flips);
    let report = &play(&path).reports[0];
    assert!(report.stops > 0, "{report:?}");
    assert!(report.time_s < 1.02 * report.none_s.unwrap(), "{report:?}");
    // Without a stop each of the fifty flips would have what is hot brought.
    assert!(report.promoted_pages < 25 * 8 * CHUNK_PAGES, "{report:?}");

    let (_place, path) = recorded(&SMALL);
    assert_eq!(play(&path).reports[0].stops, 0);
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
        flip_windows: 0,
        hot_fills: 20,
    };
    let (_place, path) = recorded(&shape);
    let replayed = play(&path);
    let share = hot_share(&replayed, &shape);
    let report = &replayed.reports[0];
    assert!(share > 0.9, "{share} {report:?}");
    assert!(report.time_s < report.none_s.unwrap(), "{report:?}");
}
