// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine and what its worker may say.

use super::*;
use crate::pair::{Pair, driven};
use demeter_balloon::wire::{OP_DEFLATE, OP_INFLATED, Range, Report, Status};
use std::os::unix::fs::FileExt;

#[test]
fn a_wish_is_seen_before_the_worker_knows_it() {
    let directory = tempfile::tempdir().unwrap();
    let pair = driven(directory.path(), "a");
    let ticket = pair.vm.ask(0, 10 << PAGE_SHIFT, "test").unwrap();
    let tier = pair.vm.view().tiers.remove(0);
    assert_eq!(tier.wanted_size_bytes, Some(10 << PAGE_SHIFT));
    assert!(tier.busy && tier.ticket == ticket && tier.ended_ticket < ticket);
    let too_much = pair.vm.ask(0, 17 << PAGE_SHIFT, "test");
    assert!(matches!(too_much, Err(TargetError::Size { .. })));
}

#[test]
fn a_worker_that_lies_or_talks_too_much_is_not_heard() {
    let directory = tempfile::tempdir().unwrap();
    let pair = driven(directory.path(), "a");
    let news = |spoil: fn(&mut News)| {
        let mut news = pair.guest.take_news().0;
        spoil(&mut news);
        pair.vm.hear(Word::News(Box::new(news)), Vec::new())
    };
    assert!(news(|_| {}).is_ok());
    assert!(news(|news| news.nodes[0].held_pages = 17).is_err());
    // An answer to what nobody asked would be one that is not counted.
    assert!(news(|news| news.look += 1).is_err());
    let said = (0..10_000).find_map(|_| news(|_| {}).err());
    assert!(matches!(said, Some(WordError::Flood)), "{said:?}");
}

/// Memory is as the driver has it: pages go into the balloon, and are touched again.
#[test]
fn what_is_touched_of_the_balloon_is_seen() {
    // On a file system that allocates by page: tmpfs where there is one.
    let shm = std::path::Path::new("/dev/shm");
    let directory = if shm.is_dir() {
        tempfile::tempdir_in(shm).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    };
    let pair = driven(directory.path(), "a");
    let memory = File::options().write(true).open(directory.path().join("a"));
    let memory = memory.unwrap();
    let is_told = crate::by_page::is_by_page(&memory);
    let touch = |page: u64| memory.write_all_at(&[1], page << PAGE_SHIFT).unwrap();
    let kept = || {
        pair.carry();
        pair.vm.measure(Asker::Views);
        pair.vm.view().tiers[0].kept_bytes
    };
    let pages = |pages: u64| is_told.then_some(pages << PAGE_SHIFT);
    let report = |op, current_pages, range| {
        let report = Report {
            op,
            current_pages,
            ..Report::default()
        };
        let ack = pair.guest.report(0, &report.message(&[range]));
        assert_eq!(ack.status, Status::Ok);
    };
    let range = |first: u64, nr_pages| Range {
        gpa: first << PAGE_SHIFT,
        nr_pages,
    };
    (0..16).for_each(touch);
    assert_eq!(kept(), pages(0));
    report(OP_INFLATED, 4, range(12, 4));
    assert_eq!(kept(), pages(0));
    // Out of the balloon first, as it should be.
    report(OP_DEFLATE, 3, range(12, 1));
    touch(12);
    assert_eq!(kept(), pages(0));
    (12..15).for_each(touch);
    assert_eq!(kept(), pages(2));
    report(OP_DEFLATE, 2, range(13, 1));
    assert_eq!(kept(), pages(1));
}

#[test]
fn what_is_kept_is_told_only_where_it_is_certain() {
    let node = NodeNews {
        node_pages: 100,
        held_pages: 40,
        ..NodeNews::default()
    };
    let bytes = |pages: u64| pages << PAGE_SHIFT;
    let kept = |node: &NodeNews, pages, length_pages: Option<u64>| {
        let backing = Allocated {
            bytes: bytes(pages),
            length_bytes: length_pages.map(bytes),
        };
        kept_bytes(node, backing)
    };
    assert_eq!(kept(&node, 60, Some(100)), Some(0));
    assert_eq!(kept(&node, 75, Some(100)), Some(bytes(15)));
    assert_eq!(kept(&node, 75, None), None);
    // Part of the file is no memory of the tier, and may be touched by anybody.
    assert_eq!(kept(&node, 75, Some(110)), Some(bytes(5)));
    assert_eq!(kept(&node, 75, Some(99)), None);
    // What is being dropped is not dropped yet.
    let punching = NodeNews {
        punching_pages: 10,
        ..node
    };
    assert_eq!(kept(&punching, 75, Some(100)), Some(bytes(5)));
}

#[test]
fn files_of_others_are_not_measured() {
    let directory = tempfile::tempdir().unwrap();
    let pair = driven(directory.path(), "a");
    let backing = || {
        pair.vm.measure_by(Asker::Views, Files::allocated);
        pair.vm.view().tiers[0].backing_bytes
    };
    assert!(backing().is_some());
    let hand = |nodes: Vec<u16>, first| {
        let fds = nodes.iter().map(|_| tempfile::tempfile().unwrap().into());
        let fds: Vec<OwnedFd> = fds.collect();
        pair.vm.hear(Word::Files { nodes, first }, fds)
    };
    hand(vec![0], true).unwrap();
    assert_eq!(backing(), None, "a file that is not the tier's");
    assert!(hand(vec![1], true).is_err(), "a tier that is not there");
    let word = Word::Which;
    let fd = tempfile::tempfile().unwrap().into();
    assert!(pair.vm.hear(word, vec![fd]).is_err(), "files of nothing");
}

/// A guest can have its monitor send a new table at any time, right before a decision, too.
#[test]
fn the_same_files_again_hide_nothing_of_what_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let pair = driven(directory.path(), "a");
    let hand = |count: usize| {
        let open = |_| File::open(directory.path().join("a")).unwrap().into();
        let word = Word::Files {
            nodes: vec![0; count],
            first: true,
        };
        pair.vm.hear(word, (0..count).map(open).collect()).unwrap();
    };
    let backing_bytes = || pair.vm.view().tiers[0].backing_bytes;
    pair.vm.measure(Asker::Decisions);
    let measured = backing_bytes();
    assert!(measured.is_some());
    hand(1);
    assert_eq!(backing_bytes(), measured);
    // Also while somebody measures.
    pair.vm.measure_by(Asker::Decisions, |_, _| {
        hand(2);
        Some(Allocated {
            bytes: 7 << PAGE_SHIFT,
            length_bytes: None,
        })
    });
    assert_eq!(backing_bytes(), Some(7 << PAGE_SHIFT));
    // In pieces: what is not there is not counted, and is as it was when it is there again.
    let other = tempfile::tempfile().unwrap();
    let word = Word::Files {
        nodes: vec![0],
        first: true,
    };
    pair.vm.hear(word, vec![other.into()]).unwrap();
    assert_eq!(backing_bytes(), None);
    hand(1);
    assert_eq!(backing_bytes(), Some(7 << PAGE_SHIFT));
}

#[test]
fn a_death_is_told_and_wishes_outlive_it() {
    let directory = tempfile::tempdir().unwrap();
    let pair = driven(directory.path(), "a");
    pair.vm.worker_gone(Some("test"));
    let view = pair.vm.view();
    assert_eq!(view.stage, Stage::Waiting);
    assert_eq!(
        (view.worker.deaths, view.worker.last_death),
        (1, Some("test".into()))
    );
    let entries = pair.vm.ledger.recent();
    let died = entries.iter().find(|entry| entry.what == What::WorkerDied);
    assert_eq!(died.unwrap().why.as_deref(), Some("test"));
    let link = Arc::new(Channel::pair().unwrap().0);
    let begin = pair.vm.begin(link, Some(7), None, |begin| begin);
    assert_eq!(begin.wishes[0].unwrap().balloon_pages, 4);
}

/// Without anybody who answers.
fn mute(directory: &std::path::Path, name: &str) -> (Pair, Channel) {
    let pair = driven(directory, name);
    let (link, theirs) = Channel::pair().unwrap();
    pair.vm.begin(Arc::new(link), Some(7), None, drop);
    (pair, Channel::from_fd(theirs))
}

#[test]
fn workers_that_do_not_answer_have_one_second_together() {
    let directory = tempfile::tempdir().unwrap();
    let all: Vec<_> = (["a", "b", "c", "d", "e"].iter())
        .map(|name| mute(directory.path(), name))
        .collect();
    all.iter().for_each(|(pair, _)| pair.vm.look());
    std::thread::sleep(MEASURING_LIMIT);
    let began = Instant::now();
    all.iter().for_each(|(pair, _)| pair.vm.wait_look());
    assert!(began.elapsed() < MEASURING_LIMIT / 2);
    let is_mute = |pair: &Pair| pair.vm.view().problem.as_deref() == Some(MUTE);
    assert!(all.iter().all(|(pair, _)| is_mute(pair)));
    // News are an answer if they come after the question only.
    let (pair, _) = &all[0];
    let news = |look| {
        let mut news = pair.guest.take_news().0;
        news.look = look;
        pair.vm
            .hear(Word::News(Box::new(news)), Vec::new())
            .unwrap();
    };
    let asked = pair.vm.state().look;
    news(asked - 1);
    assert!(is_mute(pair));
    news(asked);
    assert!(!is_mute(pair));
}

#[test]
fn a_worker_that_does_not_answer_for_long_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let (pair, theirs) = mute(directory.path(), "a");
    pair.vm.look();
    pair.vm.state().mute_since = Some(Instant::now());
    pair.vm.look();
    assert!(pair.vm.heard_all().is_ok());
    pair.vm.state().mute_since = Instant::now().checked_sub(MUTE_LIMIT);
    pair.vm.look();
    assert!(matches!(pair.vm.heard_all(), Err(WordError::Mute)));
    assert!(matches!(
        theirs.receive::<Order>().unwrap().unwrap().0,
        Order::Look(_)
    ));
    assert!(theirs.receive::<Order>().unwrap().is_none());
}
