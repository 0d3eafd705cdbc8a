// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The check: all that was committed is done once more, one transaction after
//! the other and without concurrency control, on records put back to their
//! first values. Every read and the state at the end must be the same.
//!
//! The order is that of the numbers drawn at commit. Silo's TIDs would not do:
//! within an epoch they say nothing of a transaction that reads what a later
//! one overwrites (Tu et al., section 4.2).

use super::mix::{Operation, Plan};
use super::store::{ABSENT, Value};
use super::transaction::{Database, MISSING, fold};
use crate::Error;

/// What all records come to.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub struct State {
    /// Records that are present
    pub records: u64,
    /// Writes that they have seen
    pub writes: u64,
    /// Of all keys and values, in the order of keys
    pub digest: u64,
}

/// A state and what each thread has read.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct Summary {
    /// The records
    pub state: State,
    /// Digests of what threads have read
    pub reads: Vec<u64>,
}

fn wrong(found: impl std::fmt::Debug, expected: impl std::fmt::Debug) -> Error {
    Error::Checksum {
        found: format!("{found:x?}"),
        expected: format!("{expected:x?}"),
    }
}

/// Calls `use_record` with every key and record, in the order of keys.
fn each(
    database: &Database,
    mut use_record: impl FnMut(u64, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut last = None;
    let mut leaf = Some(database.tree.leaf(0));
    while let Some(one) = leaf {
        for &(key, record) in one.entries() {
            if last.is_some_and(|last| last >= key) {
                return Err(wrong(format!("key {key} out of order"), "ascending keys"));
            }
            if record >= database.store.records() {
                return Err(wrong(format!("key {key} of record {record}"), "a record"));
            }
            last = Some(key);
            use_record(key, record)?;
        }
        leaf = database.tree.next(&one);
    }
    Ok(())
}

/// Goes over all records, when no thread works.
pub fn state(database: &Database) -> Result<State, Error> {
    let mut state = State::default();
    let mut value = Value::of(0, 0);
    each(database, |key, record| {
        if database.store.read(record, &mut value) & ABSENT == 0 {
            if value.key() != key {
                return Err(wrong(value.key(), key));
            }
            state.records += 1;
            state.writes += value.writes();
            state.digest = fold(state.digest, value.digest() ^ value.writes());
        }
        Ok(())
    })?;
    Ok(state)
}

/// Does everything once more; `order` has the numbers of each thread's commits.
/// Afterwards the records are as this leaves them.
pub fn check(
    database: &Database,
    plan: &Plan,
    order: &[Vec<u64>],
    found: &Summary,
) -> Result<(), Error> {
    // Invariants first: they need no replay.
    let mut expected = State {
        records: plan.records,
        ..State::default()
    };
    let mut operations = Vec::new();
    for (thread, commits) in (0..).zip(order) {
        let mut stream = plan.stream(thread);
        for _ in commits {
            stream.next(&mut operations);
            for operation in &operations {
                match operation {
                    Operation::Insert { .. } => expected.records += 1,
                    Operation::Update { .. } | Operation::Modify { .. } => expected.writes += 1,
                    Operation::Read { .. } | Operation::Scan { .. } => {}
                }
            }
        }
    }
    expected.digest = found.state.digest;
    if found.state != expected {
        return Err(wrong(found.state, expected));
    }
    let replayed = replay(database, plan, order)?;
    if *found == replayed {
        Ok(())
    } else {
        Err(wrong(found, replayed))
    }
}

fn replay(database: &Database, plan: &Plan, order: &[Vec<u64>]) -> Result<Summary, Error> {
    each(database, |key, record| {
        let tid = if key < plan.records { 0 } else { ABSENT };
        database.store.reset(record, &Value::of(key, 0), tid);
        Ok(())
    })?;
    let mut streams: Vec<_> = (0..plan.threads)
        .map(|thread| plan.stream(thread))
        .collect();
    let mut reads = vec![0; order.len()];
    let mut next = vec![0_usize; order.len()];
    let mut operations = Vec::new();
    loop {
        let first = (0..order.len())
            .filter_map(|thread| Some((order[thread].get(next[thread])?, thread)))
            .min();
        let Some((_, thread)) = first else {
            break;
        };
        next[thread] += 1;
        streams[thread].next(&mut operations);
        let digest = operations
            .iter()
            .fold(0, |digest, operation| execute(database, operation, digest));
        reads[thread] = fold(reads[thread], digest);
    }
    Ok(Summary {
        state: state(database)?,
        reads,
    })
}

/// Does one operation; returns the digest with all that it read.
fn execute(database: &Database, operation: &Operation, mut digest: u64) -> u64 {
    let present = |key: u64| {
        let record = database.tree.find(key).ok()?;
        let mut value = Value::of(0, 0);
        let tid = database.store.read(record, &mut value);
        (tid & ABSENT == 0).then_some((record, value))
    };
    let write = |record: u64, mut value: Value| {
        value.0[1] = 1;
        database.store.install(record, &value, 0);
    };
    match *operation {
        Operation::Read { key } => fold(digest, present(key).map_or(MISSING, |one| one.1.digest())),
        Operation::Update { key, seed } => {
            if let Some((record, _)) = present(key) {
                write(record, Value::of(key, seed));
            }
            digest
        }
        Operation::Modify { key, seed } => {
            if let Some((record, value)) = present(key) {
                digest = fold(digest, value.digest());
                write(record, value.modified(seed));
            }
            digest
        }
        Operation::Insert { key } => {
            if let Ok(record) = database.tree.find(key) {
                database.store.reset(record, &Value::of(key, 0), 0);
            }
            digest
        }
        Operation::Scan { key, records } => {
            let mut left = records;
            let mut leaf = Some(database.tree.leaf(key));
            while let Some(one) = leaf {
                for entry in one.entries().iter().filter(|entry| entry.0 >= key) {
                    if left == 0 {
                        return digest;
                    }
                    if let Some((_, value)) = present(entry.0) {
                        digest = fold(digest, value.digest());
                        left -= 1;
                    }
                }
                leaf = database.tree.next(&one);
            }
            digest
        }
    }
}
