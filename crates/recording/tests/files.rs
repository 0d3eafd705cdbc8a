// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files come back as they were written, and one that is cut short or changed is told.

use demeter_recording::{
    Block, First, MOST_PS, ReadError, Reader, Resident, Row, Run, Window, Writer,
};
use proptest::prelude::*;

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let first = proptest::option::of((any::<bool>(), any::<bool>()));
    let counts = prop_oneof![Just((1, 0, 1)), any::<(u32, u32, u32)>()];
    let row = (1..1u64 << 20, counts, first);
    proptest::collection::vec(row, 0..200).prop_map(|rows| {
        let mut page = 0;
        (rows.into_iter())
            .map(|(step, (random, streamed, eligible), first)| {
                page += step;
                Row {
                    page,
                    random,
                    streamed,
                    eligible,
                    first: first.map(|(slow, huge)| First { slow, huge }),
                }
            })
            .collect()
    })
}

fn window() -> impl Strategy<Value = Window> {
    let spaces = proptest::collection::vec((any::<u64>(), rows()), 0..4);
    let time = || 0..=MOST_PS;
    let walks = || (time(), time());
    let times = (time(), time(), [walks(), walks()]);
    (times, spaces).prop_map(|((base, elapsed, walks), spaces)| {
        let mut window = Window {
            base_ps: base,
            elapsed_ps: elapsed,
            walks,
            ..Window::default()
        };
        for (space, rows) in spaces {
            window.rows.extend(rows);
            window.spaces.push((space, window.rows.len()));
        }
        window
    })
}

fn write(windows: &[Window], resident: &Resident) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a");
    let mut writer = Writer::create(&path, b"{}").unwrap();
    writer.resident(resident).unwrap();
    for window in windows {
        writer.window(window).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    std::fs::read(path).unwrap()
}

fn read(bytes: &[u8]) -> Result<(Vec<Window>, Vec<Resident>), ReadError> {
    let mut reader = Reader::new(bytes)?;
    assert_eq!(reader.header(), b"{}");
    let (mut windows, mut residents) = (Vec::new(), Vec::new());
    let mut window = Window::default();
    loop {
        match reader.next_block(&mut window)? {
            Block::Resident => residents.push(reader.resident().clone()),
            Block::Window => windows.push(window.clone()),
            Block::End => return Ok((windows, residents)),
        }
    }
}

fn some_resident() -> Resident {
    let run = |page, pages, slow, huge| Run {
        page,
        pages,
        first: First { slow, huge },
    };
    Resident {
        space: 7,
        runs: vec![run(512, 512, false, true), run(1024, 3, true, false)],
    }
}

proptest! {
    #[test]
    fn what_was_written_is_read(windows in proptest::collection::vec(window(), 0..5)) {
        let (read, residents) = read(&write(&windows, &some_resident())).unwrap();
        prop_assert_eq!(read, windows);
        prop_assert_eq!(residents, [some_resident()]);
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_told(
        windows in proptest::collection::vec(window(), 1..3),
        at in any::<proptest::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let whole = write(&windows, &some_resident());
        let at = at.index(whole.len());
        match read(&whole[..at]) {
            Err(ReadError::CutShort { at: told, .. }) => prop_assert_eq!(told, at as u64),
            Err(ReadError::Foreign) => prop_assert!(at < 8),
            other => prop_assert!(false, "{:?}", other),
        }
        let mut changed = whole;
        changed[at] ^= flip;
        prop_assert!(read(&changed).is_err());
    }

    #[test]
    fn anything_at_all_is_read_without_panic(bytes in any::<Vec<u8>>(), magic: bool) {
        let mut all = if magic { b"DMTRACC\x01".to_vec() } else { Vec::new() };
        all.extend(bytes);
        if let Ok(mut reader) = Reader::new(&all[..]) {
            let mut window = Window::default();
            while let Ok(block) = reader.next_block(&mut window) {
                if block == Block::End {
                    break;
                }
            }
        }
    }
}

#[test]
fn nothing_half_written_stays() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a");
    std::fs::write(&path, b"of an earlier time").unwrap();
    let mut writer = Writer::create(&path, b"{}").unwrap();
    writer.window(&Window::default()).unwrap();
    drop(writer);
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn times_that_cannot_be_are_told() {
    let long = MOST_PS + 1;
    let with = |base_ps, elapsed_ps, walks| Window {
        base_ps,
        elapsed_ps,
        walks,
        ..Window::default()
    };
    let whole = with(MOST_PS, MOST_PS, [(MOST_PS, MOST_PS); 2]);
    for wrong in [
        with(long, 0, [(0, 0); 2]),
        with(0, u64::MAX, [(0, 0); 2]),
        with(0, 0, [(long, 1), (0, 0)]),
        with(0, 0, [(0, 0), (0, long)]),
    ] {
        let file = write(&[whole.clone(), wrong], &some_resident());
        let read = read(&file);
        assert!(
            matches!(read, Err(ReadError::Long { windows: 1 })),
            "{read:?}"
        );
    }
}
