// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store on real files, real devices and real failures.

use std::os::unix::fs::FileExt;

use demeter_extmem_tree::PlaceError;

use super::*;

const MIB: u64 = 1 << 20;

fn place(path: &Path, capacity_bytes: Option<u64>) -> [SwapPlace<'_>; 1] {
    [SwapPlace {
        handed: None,
        path,
        capacity_bytes,
    }]
}

fn four(path: &Path) -> [SwapPlace<'_>; 1] {
    place(path, Some(4 * MIB))
}

fn options<'a>(places: &'a [SwapPlace<'a>]) -> SwapOptions<'a> {
    SwapOptions {
        places,
        dram_bytes: MIB,
        engine: EngineChoice::Auto,
        rings: 2,
        inject: Injection::default(),
    }
}

/// Where the test binary lies is a disk: /tmp may be memory, which takes no O_DIRECT.
fn target() -> std::path::PathBuf {
    std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned()
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().tempdir_in(target()).unwrap()
}

fn pages(count: usize) -> &'static mut [u8] {
    let mut region = Region::map_anonymous(count * SLOT_BYTES).unwrap();
    // SAFETY: zero is a u8.
    unsafe { region.carve(count * SLOT_BYTES) }.unwrap()
}

fn paint(memory: &mut [u8], seed: u64) {
    let mut state = seed | 1;
    for word in memory.chunks_exact_mut(8) {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        word.copy_from_slice(&state.to_le_bytes());
    }
}

fn piece(memory: &mut [u8], page: usize, count: usize) -> libc::iovec {
    libc::iovec {
        iov_base: memory[page * SLOT_BYTES..][..count * SLOT_BYTES]
            .as_mut_ptr()
            .cast(),
        iov_len: count * SLOT_BYTES,
    }
}

#[test]
fn scattered_pages_come_back_from_every_engine() {
    let directory = directory();
    for engine in [EngineChoice::Auto, EngineChoice::Uring, EngineChoice::Plain] {
        let store = SwapStore::open(&SwapOptions {
            engine,
            ..options(&four(directory.path()))
        })
        .unwrap();
        assert!(
            store.is_direct(),
            "no O_DIRECT under {}",
            directory.path().display()
        );
        assert_eq!(store.uses_uring(), engine != EngineChoice::Plain);
        let (source, target) = (pages(64), pages(64));
        paint(source, 7);
        let (first, run) = store.allocate(64).unwrap();
        assert_eq!(run, 64);
        // Odd pages first, then even ones, so that pieces are scattered.
        let order: Vec<usize> = (0..64)
            .step_by(2)
            .map(|page| page + 1)
            .chain((0..64).step_by(2))
            .collect();
        let list: Vec<_> = order.iter().map(|&page| piece(source, page, 1)).collect();
        // SAFETY: pieces of living buffers.
        unsafe { store.write(first, &list) }.unwrap();
        let mut batch_pieces = Vec::new();
        for &page in &order {
            batch_pieces.push(piece(target, page, 1));
        }
        let mut batch: Vec<_> = batch_pieces
            .iter()
            .enumerate()
            .map(|(index, memory)| {
                Transfer::new(Direction::Read, Slot(first.0 + index as u32), memory, 1)
            })
            .collect();
        // SAFETY: as above.
        unsafe { store.transfer(&mut batch) }.unwrap();
        assert!(batch.iter().all(|transfer| transfer.done));
        assert!(source == target);
        let again = pages(1);
        // SAFETY: as above.
        unsafe { store.read(Slot(first.0 + 5), again.as_mut_ptr(), 1) }.unwrap();
        assert!(again == &source[11 * SLOT_BYTES..12 * SLOT_BYTES]);
        // Looking or sleeping, other work is done once beside each read.
        let mut done = 0;
        for step in 0..1000 {
            let at = step % 64;
            // SAFETY: as above.
            unsafe {
                store.read_beside(Slot(first.0 + at as u32), again.as_mut_ptr(), 1, |_| {
                    done += 1
                })
            }
            .unwrap();
            let page = order[at];
            assert!(again == &source[page * SLOT_BYTES..(page + 1) * SLOT_BYTES]);
        }
        assert_eq!(done, 1000);
        let counts = store.counts();
        assert_eq!(counts.reads.load(Ordering::Relaxed), 1065);
        assert_eq!(counts.write_bytes.load(Ordering::Relaxed), 64 * 4096);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn several_places_hold_what_one_would_and_each_tells_of_its_own() {
    let directory = directory();
    let [small, file] = ["small", "file"].map(|name| directory.path().join(name));
    std::fs::create_dir(&small).unwrap();
    for engine in [EngineChoice::Uring, EngineChoice::Plain] {
        let second = std::fs::File::create(&file).unwrap();
        second.set_len(3 * MIB).unwrap();
        let [first_place] = place(&small, Some(MIB));
        let [second_place] = place(&file, None);
        let store = SwapStore::open(&SwapOptions {
            engine,
            ..options(&[first_place, second_place])
        })
        .unwrap();
        assert_eq!(store.kinds().collect::<Vec<_>>(), ["unnamed file", "file"]);
        let slots = store.capacity_slots();
        assert_eq!(slots, 256 + 3 * 256 - 1);
        // All that both can hold, and all of it comes back, in batches over both.
        let memory = pages(slots as usize);
        paint(memory, 23);
        let copy = memory.to_vec();
        let mut runs = Vec::new();
        let mut page = 0;
        while let Some((first, run)) = store.allocate(48) {
            runs.push((first, piece(memory, page, run as usize)));
            page += run as usize;
        }
        assert_eq!(page as u64, slots);
        let transfer = |direction| -> Result<(), SwapError> {
            for batch in runs.chunks(20) {
                let mut batch: Vec<_> = (batch.iter().rev())
                    .map(|(first, piece)| Transfer::new(direction, *first, piece, 1))
                    .collect();
                // SAFETY: living buffers.
                unsafe { store.transfer(&mut batch) }?;
            }
            Ok(())
        };
        assert_eq!(transfer(Direction::Write), Ok(()));
        memory.fill(0);
        assert_eq!(transfer(Direction::Read), Ok(()));
        assert!(memory == copy);
        // A page of the second one is another: that one is named.
        second.write_all_at(&[!copy[0]; 4096], 5 * 4096).unwrap();
        second.sync_all().unwrap();
        let told = transfer(Direction::Read).unwrap_err().to_string();
        let named = format!("from slot 4 at byte 20480 of {}", file.display());
        assert!(told.contains(&named), "{told}");
        // What is given back is found again, in the first one first.
        for (first, piece) in &runs {
            store.free(*first, (piece.iov_len / SLOT_BYTES) as u32);
        }
        assert_eq!(store.free_slots(), slots);
        assert_eq!(store.allocate(1).map(|(first, _)| first.0 / 256), Some(0));
    }
}

#[test]
fn children_share_all_places() {
    let directory = directory();
    let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
    for path in [&a, &b] {
        std::fs::create_dir(path).unwrap();
    }
    let [first, second] = [&a, &b].map(|path| place(path, Some(MIB))[0]);
    let store = SwapStore::open(&options(&[first, second])).unwrap();
    let mut runs = Vec::new();
    while let Some(run) = store.allocate(256) {
        runs.push(run);
    }
    assert_eq!(store.free_slots(), 0);
    // The child gives up what it has of both; the parent keeps its own.
    let child = fork_child(&store, || {
        runs.iter().for_each(|&(first, run)| store.free(first, run));
        store.free_slots() == 0
    });
    assert_eq!(wait(child), 0);
    assert_eq!(store.free_slots(), 0);
    for (first, run) in runs {
        store.free(first, run);
    }
    assert_eq!(store.free_slots(), 512);
}

#[test]
fn what_somebody_else_wrote_is_told_from_every_engine() {
    let directory = directory();
    let path = directory.path().join("swap");
    for engine in [EngineChoice::Uring, EngineChoice::Plain] {
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(4 * MIB).unwrap();
        let store = SwapStore::open(&SwapOptions {
            engine,
            ..options(&place(&path, None))
        })
        .unwrap();
        let memory = pages(64);
        paint(memory, 11);
        let (first, _) = store.allocate(64).unwrap();
        // SAFETY: living buffers.
        unsafe { store.write(first, &[piece(memory, 0, 64)]) }.unwrap();
        // One bit of the 41st page.
        let byte_offset =
            store.spans.of(first).0.backing.start_bytes + (u64::from(first.0) + 40) * 4096;
        file.write_all_at(&[memory[40 * 4096 + 1234] ^ 8], byte_offset + 1234)
            .unwrap();
        file.sync_all().unwrap();
        let told = Err(SwapError::Altered {
            place: path.to_str().unwrap().to_owned().leak(),
            slot: first.0 + 40,
            byte_offset,
        });
        // SAFETY: living buffers.
        let read = unsafe { store.read(first, memory.as_mut_ptr(), 64) };
        assert_eq!(read, told);
        let list: Vec<_> = (0..64).map(|page| piece(memory, page, 1)).collect();
        let mut batch: Vec<_> = (0..64)
            .map(|page| {
                let slot = Slot(first.0 + page);
                Transfer::new(Direction::Read, slot, &list[page as usize], 1)
            })
            .collect();
        // SAFETY: living buffers.
        let read = unsafe { store.transfer(&mut batch) };
        assert_eq!(read, told);
        let good = (0..64).filter(|&page| batch[page].done).count();
        assert!(!batch[40].done && good == 63, "{good} of 63");
        let one = Slot(first.0 + 39);
        // SAFETY: living buffers.
        unsafe { store.read(one, memory.as_mut_ptr(), 1) }.unwrap();
        assert_eq!(store.counts().errors.load(Ordering::Relaxed), 2);
        // Their 64 checks lie in one page.
        assert_eq!([store.grown_pages(), store.grown_pages()], [1, 0]);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn threads_have_more_transfers_than_rings() {
    let directory = directory();
    let store = SwapStore::open(&options(&four(directory.path()))).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..5u32 {
            let store = &store;
            scope.spawn(move || {
                let memory = pages(128);
                for turn in 0..20 {
                    paint(memory, u64::from(thread * 100 + turn));
                    let copy = memory.to_vec();
                    let list: Vec<_> = (0..128).map(|page| piece(memory, page, 1)).collect();
                    let first = thread * 128;
                    for direction in [Direction::Write, Direction::Read] {
                        let mut batch: Vec<_> = (0..128)
                            .map(|page| {
                                Transfer::new(
                                    direction,
                                    Slot(first + page),
                                    &list[page as usize],
                                    1,
                                )
                            })
                            .collect();
                        // SAFETY: living buffers.
                        unsafe { store.transfer(&mut batch) }.unwrap();
                        if direction == Direction::Write {
                            memory.fill(0);
                        }
                    }
                    assert!(memory == copy);
                }
            });
        }
    });
}

/// Forks; the child runs `body` and exits 0 if that says true, or is left to `kill`.
fn fork_child(store: &SwapStore, body: impl FnOnce() -> bool) -> i32 {
    let turn = forking();
    let ticket = store.fork_begin().unwrap();
    // SAFETY: the child only uses what needs no other thread, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        store.after_fork_in_child(ticket);
        let good = body();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    store.fork_ended(ticket, true);
    drop(turn);
    child
}

/// From before a fork to its end, one test at a time: what is opened for one's child would live
/// on in the others'.
pub fn forking() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: our child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

#[test]
fn a_child_keeps_its_copy_while_the_parent_goes_on() {
    let directory = directory();
    let store = SwapStore::open(&options(&four(directory.path()))).unwrap();
    let memory = pages(2);
    paint(memory, 9);
    let copy = memory.to_vec();
    let (first, _) = store.allocate(2).unwrap();
    // SAFETY: living buffers.
    unsafe { store.write(first, &[piece(memory, 0, 2)]) }.unwrap();
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    unsafe { libc::pipe(pipe.as_mut_ptr()) };
    let child = fork_child(&store, || {
        let mut byte = 0u8;
        // SAFETY: waits for the parent's word.
        unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) };
        memory.fill(0);
        // SAFETY: living buffers.
        let read = unsafe { store.read(first, memory.as_mut_ptr(), 2) };
        let own = store.allocate(1).unwrap().0;
        store.free(first, 2);
        read.is_ok() && memory == copy && !store.uses_uring() && own.0 > first.0 + 1
    });
    // The parent gives its copy up and fills the store: the child's must stay.
    store.free(first, 2);
    assert_eq!(store.free_slots(), 1022);
    let other = pages(1);
    while store.free_slots() > 8 {
        let (slot, run) = store.allocate(1).unwrap();
        assert!(run == 1 && slot != first && slot.0 != first.0 + 1);
        // SAFETY: living buffers.
        unsafe { store.write(slot, &[piece(other, 0, 1)]) }.unwrap();
    }
    // SAFETY: a living byte.
    unsafe { libc::write(pipe[1], (&raw const first).cast(), 1) };
    assert_eq!(wait(child), 0);
    // It gave two back and kept one; it is gone, so the sweep finds that one.
    assert_eq!(store.free_slots(), 9);
    while store.free_slots() > 0 {
        store.allocate(1).unwrap();
    }
    assert!(
        store.allocate(1).is_some(),
        "what a dead child held is found"
    );
    assert!(store.allocate(1).is_none());
}

#[test]
fn killed_relatives_give_back_and_failed_forks_cost_nothing() {
    let directory = directory();
    let store = SwapStore::open(&options(&four(directory.path()))).unwrap();
    let (first, _) = store.allocate(100).unwrap();
    for _ in 0..3 {
        let ticket = store.fork_begin().unwrap();
        store.fork_ended(ticket, false);
    }
    // More children than the family has places, so that dead ones must be swept.
    for _ in 0..80 {
        let child = fork_child(&store, || {
            store.allocate(1).unwrap();
            // SAFETY: kills this child.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            true
        });
        assert_eq!(wait(child), libc::SIGKILL);
    }
    store.free(first, 100);
    while store.free_slots() > 0 {
        store.allocate(256).unwrap();
    }
    // All that children took is swept up, to the last slot.
    let mut found = 0;
    while let Some((_, run)) = store.allocate(256) {
        found += run;
    }
    assert_eq!(store.free_slots(), 0);
    assert!(found >= 1);
    let mut total = 0;
    for slot in 0..1024 {
        store.free(Slot(slot), 1);
        total += 1;
    }
    assert_eq!(store.free_slots(), total);
}

#[test]
fn exec_gives_references_back() {
    let directory = directory();
    let store = SwapStore::open(&options(&four(directory.path()))).unwrap();
    let (first, run) = store.allocate(256).unwrap();
    let child = fork_child(&store, || {
        let arguments = [c"sleep".as_ptr(), c"5".as_ptr(), std::ptr::null()];
        // SAFETY: terminated strings in a terminated list.
        unsafe { libc::execvp(arguments[0], arguments.as_ptr()) };
        false
    });
    store.free(first, run);
    while store.free_slots() > 0 {
        store.allocate(256).unwrap();
    }
    let start = std::time::Instant::now();
    let found = loop {
        match store.allocate(256) {
            Some((_, run)) => break run,
            None => assert!(start.elapsed().as_secs() < 4, "the exec is not noticed"),
        }
    };
    assert_eq!(found, 256);
    // SAFETY: our child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    wait(child);
}

#[test]
fn injected_failures_name_slot_and_offset() {
    let directory = directory();
    for (text, direction, errno) in [
        ("read-eio@1", Direction::Read, Some(libc::EIO)),
        ("write-enospc@1", Direction::Write, Some(libc::ENOSPC)),
        ("read-short@1", Direction::Read, None),
    ] {
        let store = SwapStore::open(&SwapOptions {
            inject: Injection::parse(text).unwrap(),
            ..options(&four(directory.path()))
        })
        .unwrap();
        let memory = pages(2);
        let list = [piece(memory, 0, 1), piece(memory, 1, 1)];
        let mut batch =
            [0, 1].map(|page| Transfer::new(direction, Slot(40 + page), &list[page as usize], 1));
        // SAFETY: living buffers.
        let error = unsafe { store.transfer(&mut batch) }.unwrap_err();
        assert!(batch.iter().all(|transfer| !transfer.done));
        match (error, errno) {
            (
                SwapError::Transfer {
                    slot: 40,
                    byte_offset: 163_840,
                    errno,
                    ..
                },
                Some(expected),
            ) => {
                assert_eq!(errno, expected);
            }
            (
                SwapError::Short {
                    slot: 40,
                    byte_offset: 163_840,
                    moved_bytes: 512,
                    ..
                },
                None,
            ) => {}
            other => panic!("{other:?}"),
        }
        let line = error.to_string();
        assert!(
            line.contains("slot 40 at byte 163840") && line.contains("; next: "),
            "{line}"
        );
    }
}

#[test]
fn a_file_cut_short_is_an_error_and_never_data() {
    let directory = directory();
    let path = directory.path().join("swap");
    std::fs::write(&path, vec![0; 2 << 20]).unwrap();
    let store = SwapStore::open(&SwapOptions {
        ..options(&place(&path, None))
    })
    .unwrap();
    assert_eq!(store.kinds().collect::<Vec<_>>(), ["file"]);
    let memory = pages(4);
    // SAFETY: living buffers.
    unsafe { store.write(Slot(100), &[piece(memory, 0, 4)]) }.unwrap();
    // Slots begin one page in: the cut leaves two of the four.
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(103 * 4096)
        .unwrap();
    // SAFETY: as above.
    let plain = unsafe { store.read(Slot(100), memory.as_mut_ptr(), 4) }.unwrap_err();
    let list = [piece(memory, 0, 2), piece(memory, 2, 2)];
    let mut batch = [0, 2].map(|page| {
        Transfer::new(
            Direction::Read,
            Slot(100 + page),
            &list[page as usize / 2],
            1,
        )
    });
    // SAFETY: as above.
    let ring = unsafe { store.transfer(&mut batch) }.unwrap_err();
    for error in [plain, ring] {
        assert_eq!(
            error,
            SwapError::Short {
                place: path.to_str().unwrap().to_owned().leak(),
                direction: Direction::Read,
                slot: 102,
                byte_offset: 103 * 4096,
                moved_bytes: 0
            }
        );
    }
    assert!(batch[0].done && !batch[1].done);
}

#[test]
fn other_data_is_never_overwritten() {
    let directory = directory();
    let path = directory.path().join("precious");
    let mut content = vec![0u8; 2 << 20];
    content[65_600] = 1;
    std::fs::write(&path, &content).unwrap();
    let refused = SwapStore::open(&SwapOptions {
        ..options(&place(&path, None))
    });
    assert_eq!(
        refused.unwrap_err().to_string(),
        format!("swap place {}: {}", path.display(), PlaceError::HoldsData)
    );
    assert!(std::fs::read(&path).unwrap() == content);
    std::fs::write(&path, vec![0; 2 << 20]).unwrap();
    let open = || {
        SwapStore::open(&SwapOptions {
            ..options(&place(&path, None))
        })
        .unwrap()
    };
    let first = open();
    // Another program gets what is left: of a file this small, nothing.
    let (slot, _) = first.allocate(1).unwrap();
    let second = open();
    assert_eq!(second.allocate(1), None);
    // So it stays while the first is there, even if that needs none.
    first.free(slot, 1);
    assert_eq!(second.allocate(1), None);
    let memory = pages(1);
    memory.fill(9);
    // SAFETY: a living buffer.
    unsafe { first.write(Slot(0), &[piece(memory, 0, 1)]) }.unwrap();
    drop(first);
    // What an earlier run left is not precious, and its part is free at once: the lock is
    // not the rings', which the kernel drops later.
    let third = open();
    assert!(third.allocate(1).is_some());
    let file = std::fs::File::open(&path).unwrap();
    let mut head = [0; 19];
    file.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(&head, b"demeter extmem swap");
}

#[test]
fn programs_share_a_file_by_parts_and_never_a_slot() {
    let directory = directory();
    let path = directory.path().join("shared");
    std::fs::write(&path, vec![0; 100 << 20]).unwrap();
    let open = || {
        SwapStore::open(&SwapOptions {
            ..options(&place(&path, None))
        })
        .unwrap()
    };
    let stores = [open(), open(), open()];
    let mut owners = vec![None; stores[0].capacity_slots() as usize];
    let mut full = [false; 3];
    while full.contains(&false) {
        for (owner, store) in stores.iter().enumerate() {
            let Some((first, run)) = store.allocate(64) else {
                full[owner] = true;
                continue;
            };
            for slot in first.0..first.0 + run {
                assert_eq!(owners[slot as usize].replace(owner), None, "slot {slot}");
            }
        }
    }
    assert!(owners.iter().all(Option::is_some));
    for owner in 0..3 {
        let held = owners.iter().filter(|&&other| other == Some(owner)).count();
        assert!(held >= 4096, "{owner} got {held}");
    }
}

#[test]
fn bad_paths_are_told_apart() {
    let directory = directory();
    let open =
        |path: &Path, capacity_bytes| match SwapStore::open(&options(&place(path, capacity_bytes)))
            .unwrap_err()
        {
            SwapError::Place { place, cause } => {
                assert_eq!(Path::new(place), path);
                cause
            }
            other => panic!("{other}"),
        };
    assert_eq!(
        open(&directory.path().join("none"), None),
        PlaceError::Missing
    );
    assert_eq!(open(Path::new("/dev/null"), None), PlaceError::Kind);
    assert!(matches!(
        open(directory.path(), Some(1 << 60)),
        PlaceError::TooSmall { needed_bytes, .. } if needed_bytes == 1 << 60
    ));
    let small = directory.path().join("small");
    std::fs::write(&small, vec![0; 4096]).unwrap();
    assert!(matches!(
        open(&small, None),
        PlaceError::Short {
            total_bytes: 4096,
            ..
        }
    ));
    assert!(matches!(
        open(Path::new("/proc/self"), Some(MIB)),
        PlaceError::Open { .. } | PlaceError::TooSmall { .. }
    ));
}

#[test]
fn a_full_store_says_so() {
    let directory = directory();
    let store = SwapStore::open(&options(&four(directory.path()))).unwrap();
    assert_eq!(store.capacity_slots(), 1024);
    let mut runs = 0;
    while store.allocate(256).is_some() {
        runs += 1;
    }
    assert_eq!((runs, store.free_slots()), (4, 0));
    store.free(Slot(77), 1);
    assert_eq!(store.allocate(256), Some((Slot(77), 1)));
}

/// Refuses io_uring_setup to this thread, as a container's filter does.
fn refuse_uring() {
    const NUMBER_OFFSET: u32 = 0;
    // SAFETY: plain constructors of filter instructions.
    let program = unsafe {
        [
            libc::BPF_STMT(
                (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
                NUMBER_OFFSET,
            ),
            libc::BPF_JUMP(
                (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
                libc::SYS_io_uring_setup as u32,
                0,
                1,
            ),
            libc::BPF_STMT(
                (libc::BPF_RET | libc::BPF_K) as u16,
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            ),
            libc::BPF_STMT(
                (libc::BPF_RET | libc::BPF_K) as u16,
                libc::SECCOMP_RET_ALLOW,
            ),
        ]
    };
    let filter = libc::sock_fprog {
        len: 4,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the program is valid for the call; it binds this thread only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const filter), 0);
    }
}

#[test]
fn without_io_uring_the_store_works_and_says_so() {
    let directory = directory();
    let path = directory.path().to_owned();
    std::thread::spawn(move || {
        refuse_uring();
        let named = SwapStore::open(&SwapOptions {
            engine: EngineChoice::Uring,
            ..options(&four(&path))
        });
        assert_eq!(named.unwrap_err(), SwapError::Uring { errno: libc::EPERM });
        let store = SwapStore::open(&options(&four(&path))).unwrap();
        assert!(!store.uses_uring());
        let memory = pages(2);
        paint(memory, 5);
        let copy = memory.to_vec();
        let list = [piece(memory, 0, 1), piece(memory, 1, 1)];
        for direction in [Direction::Write, Direction::Read] {
            let mut batch =
                [0, 1].map(|page| Transfer::new(direction, Slot(page), &list[page as usize], 1));
            // SAFETY: living buffers.
            unsafe { store.transfer(&mut batch) }.unwrap();
            if direction == Direction::Write {
                memory.fill(0);
            }
        }
        assert!(memory == copy);
    })
    .join()
    .unwrap();
}
