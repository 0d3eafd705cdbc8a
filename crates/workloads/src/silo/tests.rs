// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of whole runs, and of a check that must notice what is wrong.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    silo: Arguments,
}

fn arguments(line: &str) -> Arguments {
    Line::parse_from(std::iter::once("silo").chain(line.split_whitespace())).silo
}

/// A finished run of 2000 records.
struct Finished {
    database: Database,
    plan: Plan,
    order: Vec<Vec<u64>>,
    found: Summary,
    aborts: u64,
}

fn finished(line: &str) -> Finished {
    let arguments = arguments(line);
    let plan = Plan {
        mix: arguments.mix,
        distribution: arguments
            .distribution
            .unwrap_or_else(|| arguments.mix.distribution()),
        theta: arguments.theta.unwrap_or_else(|| arguments.mix.theta()),
        ranks: arguments.ranks,
        operations: arguments.operations,
        records: 2000,
        threads: arguments.threads,
        seed: arguments.seed,
    };
    let database = load(&arguments, &plan).unwrap();
    let (shares, _) = transact(&arguments, &database, &plan).unwrap();
    Finished {
        found: Summary {
            state: replay::state(&database).unwrap(),
            reads: shares.iter().map(|share| share.reads).collect(),
        },
        aborts: shares.iter().map(|share| share.aborts).sum(),
        order: order_of(shares, arguments.transactions),
        database,
        plan,
    }
}

impl Finished {
    fn check(&self) -> Result<(), Error> {
        replay::check(&self.database, &self.plan, &self.order, &self.found)
    }
}

const MIXES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "original", "memtis"];

#[test]
fn every_mix_is_serial_and_the_same_again() {
    for mix in MIXES {
        for operations in [1, 8] {
            let line = format!("--mix {mix} --transactions 3000 --operations {operations}");
            let one = finished(&line);
            one.check().unwrap();
            assert_eq!(one.found, finished(&line).found, "{mix}");
            assert_eq!(one.aborts, 0, "{mix}: nobody to meet");
            let other = finished(&format!("{line} --seed 2"));
            assert_ne!(one.found.reads, other.found.reads, "{mix}");
        }
    }
}

#[test]
fn several_threads_are_serial() {
    for mix in MIXES {
        let finished = finished(&format!(
            "--mix {mix} --transactions 6000 --operations 8 --threads 4 --ranks ordered"
        ));
        finished.check().unwrap();
    }
}

#[test]
fn threads_that_meet_are_serial() {
    // All in a few records, long enough for the scheduler to cut in.
    let finished = finished(
        "--mix f --theta 0.999 --transactions 20000 --operations 64 --threads 4 --ranks ordered",
    );
    finished.check().unwrap();
    assert!(finished.found.state.writes > 500_000);
}

#[test]
fn a_lost_write_and_a_wrong_byte_are_noticed() {
    let spoilt = |spoil: &dyn Fn(&mut Finished)| {
        let mut finished = finished("--mix f --transactions 2000 --threads 2");
        spoil(&mut finished);
        assert!(finished.check().is_err());
    };
    // The number of writes of a record, a byte of it, its key.
    for word in [1, 5, store::WORDS - 1] {
        spoilt(&|finished| {
            finished.database.store.spoil(77, word);
            finished.found.state = replay::state(&finished.database).unwrap();
        });
    }
    let finished = finished("--mix c --transactions 10");
    finished.database.store.spoil(77, 0);
    assert!(replay::state(&finished.database).is_err());
    // A read that saw something else, and an order that was none.
    spoilt(&|finished| finished.found.reads[1] ^= 1);
    spoilt(&|finished| {
        let at = finished.order[0].len() / 2;
        finished.order[0].truncate(at);
    });
}

#[test]
fn a_wrong_serial_order_is_noticed() {
    let mut finished =
        finished("--mix f --transactions 4000 --operations 8 --threads 2 --ranks ordered");
    // All of one thread before all of the other: they share hot records, so
    // one has read what the other wrote, or the state differs.
    finished.order[1]
        .iter_mut()
        .for_each(|serial| *serial += 1 << 40);
    let first = finished.check().is_err();
    finished.order[0]
        .iter_mut()
        .for_each(|serial| *serial += 1 << 41);
    assert!(first || finished.check().is_err());
}

#[test]
fn sizes_follow_the_footprint() {
    for megabytes in [1, 100, 560] {
        let records = records_of(megabytes << 20);
        let bytes = bytes_of(records);
        assert!(bytes <= megabytes << 20 && bytes > (megabytes << 20) * 999 / 1000);
        // 149 bytes a record with Memtis.
        assert!((125..150).contains(&(bytes / records)));
    }
    assert!(matches!(
        run(&arguments("--footprint 64K")),
        Err(Error::Usage(_))
    ));
    for line in ["--theta 1", "--theta 0", "--theta x"] {
        let words = std::iter::once("silo").chain(line.split_whitespace());
        assert!(Line::try_parse_from(words).is_err());
    }
    run(&arguments("--footprint 2M --transactions 1000")).unwrap();
}
