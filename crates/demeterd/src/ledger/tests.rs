// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;

const LONG: Duration = Duration::from_secs(60);

fn state(directory: &tempfile::TempDir) -> Arc<State> {
    Arc::new(State::open(directory.path()).unwrap())
}

/// As the disk has it when all is written.
fn open(state: &Arc<State>) -> Ledger {
    open_of(state, "a")
}

fn open_of(state: &Arc<State>, vm: &str) -> Ledger {
    settle(state);
    Ledger::open(Some(state.clone()), vm).unwrap()
}

/// Until all is written.
fn settle(state: &State) {
    state.ledgers.call(LONG, |_| ()).unwrap();
}

fn asked(tier: &str, balloon_bytes: u64) -> Entry {
    Entry {
        tier: Some(tier.into()),
        balloon_bytes: Some(balloon_bytes),
        ..Entry::now(What::Asked)
    }
}

fn taken_out(bus: &str) -> Entry {
    Entry {
        bus: Some(bus.into()),
        ..Entry::now(What::TakenOut)
    }
}

#[test]
fn the_last_sizes_survive_a_sudden_end() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let open = || open(&state);
    let ledger = open();
    ledger.add(asked("fmem", 1));
    ledger.add(asked("smem", 2));
    ledger.add(asked("fmem", 3));
    drop(ledger);
    settle(&state);
    let path = directory.path().join("a.jsonl");
    let mut file = Tail::open(&path).unwrap().file;
    file.write_all(b"{\"unix_ms\":12,\"why\":\"\xc3").unwrap();
    let again = open();
    let sizes = again.last_balloons();
    assert_eq!(sizes, [("smem".to_owned(), 2), ("fmem".to_owned(), 3)]);
    // The next one is no part of the line that was cut.
    again.add(asked("fmem", 4));
    drop(again);
    let sizes = open().last_balloons();
    assert_eq!(sizes, [("smem".to_owned(), 2), ("fmem".to_owned(), 4)]);
}

#[test]
fn noise_neither_grows_the_memory_nor_hides_sizes() {
    let ledger = Ledger::open(None, "a").unwrap();
    ledger.add(asked("fmem", 7));
    ledger.add(taken_out("port7"));
    for _ in 0..10 * REMEMBERED {
        ledger.add(Entry::now(What::Driver));
    }
    assert_eq!(ledger.recent().len(), REMEMBERED);
    assert_eq!(ledger.last_balloons(), [("fmem".to_owned(), 7)]);
    assert_eq!(ledger.taken_out().as_deref(), Some("port7"));
}

#[test]
fn sizes_of_one_tier_do_not_hide_those_of_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let open = || open(&state);
    let ledger = open();
    ledger.add(asked("smem", 7));
    ledger.add(taken_out("port7"));
    for size in 0..2 * REMEMBERED as u64 {
        ledger.add(asked("fmem", size));
    }
    let wanted = [
        ("smem".to_owned(), 7),
        ("fmem".to_owned(), 2 * REMEMBERED as u64 - 1),
    ];
    assert_eq!(ledger.last_balloons(), wanted);
    let again = open();
    assert_eq!(again.last_balloons(), wanted);
    assert_eq!(again.taken_out().as_deref(), Some("port7"));
}

#[test]
fn the_file_is_rotated_and_keeps_the_sizes() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let ledger = open(&state);
    ledger.add(asked("fmem", 7));
    ledger.add(taken_out("port7"));
    let long = Entry {
        why: Some("x".repeat(1 << 16)),
        ..Entry::now(What::Driver)
    };
    for _ in 0..300 {
        ledger.add(long.clone());
        settle(&state);
    }
    let total: u64 = fs::read_dir(directory.path())
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(total < 2 * ROTATE_BYTES + (1 << 18), "{total}");
    drop(ledger);
    let again = open(&state);
    assert_eq!(again.last_balloons(), [("fmem".to_owned(), 7)]);
    assert_eq!(again.taken_out().as_deref(), Some("port7"));
    again.add(Entry::now(What::PutIn));
    assert_eq!(again.taken_out(), None);
}

#[test]
fn the_entry_that_makes_the_file_too_large_counts() {
    let put_in = Entry::now(What::PutIn);
    for (last, size, bus) in [
        (put_in, 7, None),
        (taken_out("port8"), 7, Some("port8")),
        (asked("fmem", 8), 8, Some("port7")),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let state = state(&directory);
        let open = || open(&state);
        let ledger = open();
        ledger.add(asked("fmem", 7));
        ledger.add(taken_out("port7"));
        settle(&state);
        let file = Tail::open(&directory.path().join("a.jsonl")).unwrap().file;
        file.set_len(ROTATE_BYTES).unwrap();
        ledger.add(last);
        drop(ledger);
        settle(&state);
        assert!(directory.path().join("a.jsonl.1").exists());
        let again = open();
        assert_eq!(again.last_balloons(), [("fmem".to_owned(), size)]);
        assert_eq!(again.taken_out().as_deref(), bus);
    }
}

/// `/dev/full` answers every write as a full disk does.
#[test]
fn a_full_disk_is_told_once_and_what_was_asked_meanwhile_is_written_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.jsonl");
    let state = state(&directory);
    let ledger = open(&state);
    ledger.add(asked("fmem", 7));
    ledger.add(taken_out("port7"));
    settle(&state);
    let kept = directory.path().join("kept");
    fs::rename(&path, &kept).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    for size in 8..20 {
        ledger.add(asked("fmem", size));
        settle(&state);
        assert!(ledger.lines.inner().is_given_up);
    }
    ledger.add(Entry::now(What::PutIn));
    settle(&state);
    // There is room again.
    fs::rename(&kept, &path).unwrap();
    ledger.add(Entry::now(What::Driver));
    settle(&state);
    assert!(!ledger.lines.inner().is_given_up);
    ledger.add(asked("smem", 3));
    drop(ledger);
    let again = open(&state);
    let wanted = [("fmem".to_owned(), 19), ("smem".to_owned(), 3)];
    assert_eq!(again.last_balloons(), wanted);
    assert_eq!(again.taken_out(), None);
    let drivers = |entry: &Entry| entry.what == What::Driver;
    assert_eq!(again.recent().into_iter().filter(drivers).count(), 1);
}

/// The thread that writes waits for somebody: as for a disk that is frozen, but that it can
/// be woken by a test that fails.
#[test]
fn a_disk_that_does_not_answer_keeps_nobody_waiting_and_has_the_last_sizes_then() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let ledger = open(&state);
    ledger.add(asked("smem", 5));
    settle(&state);
    let (thaws, frozen) = std::sync::mpsc::channel::<()>();
    state.ledgers.push(move || {
        let _ = frozen.recv();
    });
    for size in 0..3 * REMEMBERED as u64 {
        ledger.add(asked("fmem", size));
        ledger.add(Entry::now(What::Driver));
    }
    assert!(ledger.is_behind());
    assert_eq!(ledger.lines.inner().waiting.len(), REMEMBERED);
    let began = std::time::Instant::now();
    assert!(!ledger.add_first(taken_out("port7")));
    assert!(began.elapsed() >= FIRST_LIMIT);
    drop(thaws);
    settle(&state);
    assert!(!ledger.is_behind());
    assert!(ledger.add_first(Entry::now(What::PutIn)));
    let again = open(&state);
    let wanted = [
        ("smem".to_owned(), 5),
        ("fmem".to_owned(), 3 * REMEMBERED as u64 - 1),
    ];
    assert_eq!(again.last_balloons(), wanted);
    assert_eq!(again.taken_out(), None);
}

#[test]
fn who_is_removed_leaves_nothing_to_the_next_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let ledger = open(&state);
    ledger.add(asked("fmem", 7));
    ledger.retire();
    // Somebody still has it, and hears of its guest.
    ledger.add(asked("fmem", 8));
    let next = open(&state);
    assert!(next.recent().is_empty());
    assert!(directory.path().join("a.removed").exists());
    ledger.add(asked("fmem", 9));
    assert!(open(&state).recent().is_empty());
}

#[test]
fn what_was_begun_in_vain_leaves_what_was_there_before() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let path = directory.path().join("a.jsonl");
    let ledger = open(&state);
    ledger.add(asked("fmem", 7));
    ledger.abandon();
    settle(&state);
    assert!(!path.exists());
    open(&state).add(asked("fmem", 8));
    let again = open(&state);
    again.add(asked("fmem", 9));
    again.abandon();
    let sizes = open(&state).last_balloons();
    assert_eq!(sizes[0].0, "fmem");
    assert!([8, 9].contains(&sizes[0].1), "{sizes:?}");
    assert!(!directory.path().join("a.removed").exists());
}

#[test]
fn what_cannot_be_written_first_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let ledger = open(&state);
    settle(&state);
    let path = directory.path().join("a.jsonl");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    assert!(!ledger.add_first(taken_out("port7")));
    assert!(ledger.is_behind());
}

#[test]
fn many_sizes_do_not_hide_a_death() {
    let ledger = Ledger::open(None, "a").unwrap();
    ledger.add(Entry::now(What::WorkerDied));
    ledger.add(Entry::now(What::Disabled));
    for size in 0..2 * REMEMBERED as u64 {
        ledger.add(asked("fmem", size));
    }
    let shown = ledger.recent();
    assert_eq!(shown.len(), REMEMBERED);
    assert_eq!(shown[0].what, What::WorkerDied);
    assert_eq!(shown[1].what, What::Disabled);
    // Nor do other entries that a guest can cause.
    for _ in 0..10 * REMEMBERED {
        ledger.add(Entry::now(What::Driver));
    }
    let shown = ledger.recent();
    assert_eq!(shown[0].what, What::WorkerDied);
    assert_eq!(shown[1].what, What::Disabled);
    assert_eq!(shown.len(), REMEMBERED);
}

#[test]
fn of_too_many_deaths_the_oldest_are_left_out() {
    let ledger = Ledger::open(None, "a").unwrap();
    ledger.add(asked("fmem", 7));
    ledger.add(taken_out("port7"));
    for at in 0..2 * REMEMBERED as u64 {
        ledger.add(Entry {
            unix_ms: at,
            ..Entry::now(What::WorkerDied)
        });
    }
    let shown = ledger.recent();
    assert_eq!(shown.len(), REMEMBERED);
    assert_eq!(shown.last().unwrap().unix_ms, 2 * REMEMBERED as u64 - 1);
    assert_eq!(ledger.last_balloons(), [("fmem".to_owned(), 7)]);
    assert_eq!(ledger.taken_out().as_deref(), Some("port7"));
}

/// Names may have dots, and whatever we put behind them.
#[test]
fn no_machine_has_the_files_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let others = [
        "a.old",
        "a.1",
        "a.jsonl",
        "a.jsonl.1",
        "a.removed",
        "lock",
        "fleet",
        "accounts",
    ];
    for (size, other) in (1..).zip(others) {
        open_of(&state, other).add(asked("fmem", size));
    }
    let ledger = open(&state);
    assert!(ledger.recent().is_empty());
    ledger.add(asked("fmem", 99));
    settle(&state);
    let file = Tail::open(&directory.path().join("a.jsonl")).unwrap().file;
    file.set_len(ROTATE_BYTES).unwrap();
    ledger.add(asked("fmem", 100));
    ledger.retire();
    for (size, other) in (1..).zip(others) {
        let sizes = open_of(&state, other).last_balloons();
        assert_eq!(sizes, [("fmem".to_owned(), size)], "{other}");
    }
    for name in ["lock", "fleet.json", "accounts.json", "accounts.unread"] {
        assert!(!name.ends_with(".jsonl") && !name.ends_with(".removed"));
    }
}

/// As versions before left it: `a.old.jsonl` of `a`.
#[test]
fn an_old_file_of_before_an_upgrade_is_taken_over_if_it_is_nobody_elses() {
    for (is_long, is_same, is_taken) in [
        (true, true, true),
        (true, false, false),
        (false, true, false),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let state = state(&directory);
        let before = directory.path().join("a.old.jsonl");
        let mut size = Entry {
            unix_ms: 7,
            ..asked("fmem", 7)
        };
        let mut tail = Tail::open(&before).unwrap();
        tail.append(&Entry::now(What::WorkerDied)).unwrap();
        tail.append(&size).unwrap();
        if is_long {
            let mut file = tail.file;
            file.write_all(&vec![b' '; ROTATE_BYTES as usize]).unwrap();
            file.write_all(b"\n").unwrap();
        }
        size.unix_ms += u64::from(!is_same);
        let mut tail = Tail::open(&directory.path().join("a.jsonl")).unwrap();
        tail.append(&size).unwrap();
        for _ in 0..2 {
            let ledger = open(&state);
            let deaths = |entry: &Entry| entry.what == What::WorkerDied;
            assert_eq!(ledger.recent().iter().any(deaths), is_taken);
            assert_eq!(ledger.last_balloons(), [("fmem".to_owned(), 7)]);
            settle(&state);
            assert_eq!(before.exists(), !is_taken);
        }
        assert_eq!(open_of(&state, "a.old").recent().is_empty(), is_taken);
    }
}

#[test]
fn what_a_full_disk_did_not_take_is_written_when_there_is_room_without_a_further_entry() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let path = directory.path().join("a.jsonl");
    let ledger = open(&state);
    ledger.add(asked("fmem", 7));
    settle(&state);
    assert_eq!(ledger.unwritten(), 0);
    let kept = directory.path().join("kept");
    fs::rename(&path, &kept).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    for size in 8..10 {
        ledger.add(asked("fmem", size));
        settle(&state);
    }
    assert_eq!(ledger.unwritten(), 2);
    // In vain.
    let now = Instant::now();
    ledger.retry(now);
    settle(&state);
    assert_eq!(ledger.unwritten(), 2);
    fs::rename(&kept, &path).unwrap();
    // Not all the time.
    ledger.retry(now + RETRY - Duration::from_millis(1));
    settle(&state);
    assert!(ledger.is_behind());
    ledger.retry(now + RETRY);
    settle(&state);
    assert_eq!(ledger.unwritten(), 0);
    assert!(!ledger.is_behind());
    assert_eq!(open(&state).last_balloons(), [("fmem".to_owned(), 9)]);
    let written = fs::read(&path).unwrap();
    ledger.retry(now + 2 * RETRY);
    settle(&state);
    assert_eq!(fs::read(&path).unwrap(), written, "there is nothing to do");
}

#[test]
fn who_is_removed_while_the_disk_is_full_is_not_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory);
    let path = directory.path().join("a.jsonl");
    let ledger = open(&state);
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    ledger.add(asked("fmem", 7));
    settle(&state);
    ledger.retire();
    assert_eq!(ledger.unwritten(), 0);
    ledger.retry(Instant::now());
    settle(&state);
    assert!(!path.exists());
}
