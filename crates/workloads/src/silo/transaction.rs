// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transactions with optimistic concurrency control, by Silo's commit protocol:
//! lock what is written in one order, take the epoch, validate what was read
//! and the leaves that were scanned, then install.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::mix::Operation;
use super::store::{self, Store, Value};
use super::tree::Tree;
use crate::page::mix;

/// Commits of the first thread after which the epoch advances. Silo goes by
/// 40 ms; work instead of time keeps runs alike.
const EPOCH_COMMITS: u64 = 1024;

/// What all threads share.
pub struct Database {
    /// The index
    pub tree: Tree,
    /// The records
    pub store: Store,
    /// Silo's global epoch
    pub epoch: AtomicU64,
    /// Numbers commits in an order that they are serial in; for the replay, not Silo's
    pub serial: AtomicU64,
}

/// A pending write.
struct Write {
    record: u64,
    /// New value; its number of writes is how many are added
    value: Value,
    /// TID before, once locked
    tid: u64,
}

/// Somebody else was faster.
#[derive(Debug, PartialEq, Eq)]
pub struct Conflict;

/// What a commit came to.
pub struct Committed {
    /// Its place in the serial order
    pub serial: u64,
    /// Digest of all that was read
    pub digest: u64,
}

/// A thread's own state.
#[derive(Default)]
pub struct Worker {
    thread: u64,
    last_tid: u64,
    commits: u64,
    reads: Vec<(u64, u64)>,
    writes: Vec<Write>,
    /// Leaves that were scanned, and their versions
    leaves: Vec<(u64, u64)>,
    digest: u64,
}

/// Adds a value that was read to a digest.
#[inline]
pub fn fold(digest: u64, value: u64) -> u64 {
    mix(digest ^ value).rotate_left(11)
}

/// What a digest gets where there is no record.
pub const MISSING: u64 = 0x6d69_7373;

impl Worker {
    /// Of thread `thread`.
    pub fn new(thread: u64) -> Self {
        Self {
            thread,
            ..Self::default()
        }
    }

    /// Tries a transaction once.
    pub fn attempt(
        &mut self,
        database: &Database,
        operations: &[Operation],
    ) -> Result<Committed, Conflict> {
        self.reads.clear();
        self.writes.clear();
        self.leaves.clear();
        self.digest = 0;
        for operation in operations {
            self.execute(database, operation);
        }
        self.commit(database)
    }

    fn execute(&mut self, database: &Database, operation: &Operation) {
        match *operation {
            Operation::Read { key } => {
                let digest = match self.find(database, key) {
                    Some(record) => self.read(database, record).map(|value| value.digest()),
                    None => None,
                };
                self.digest = fold(self.digest, digest.unwrap_or(MISSING));
            }
            Operation::Update { key, seed } => {
                if let Some(record) = self.find(database, key) {
                    self.write(record, Value::of(key, seed));
                }
            }
            Operation::Modify { key, seed } => {
                if let Some(record) = self.find(database, key)
                    && let Some(value) = self.read(database, record)
                {
                    self.digest = fold(self.digest, value.digest());
                    self.write(record, value.modified(seed));
                }
            }
            Operation::Insert { key } => self.insert(database, key),
            Operation::Scan { key, records } => self.scan(database, key, records),
        }
    }

    fn find(&mut self, database: &Database, key: u64) -> Option<u64> {
        match database.tree.find(key) {
            Ok(record) => Some(record),
            Err(leaf) => {
                self.leaves.push(leaf);
                None
            }
        }
    }

    /// The value of a record, own writes included; none if it is absent.
    fn read(&mut self, database: &Database, record: u64) -> Option<Value> {
        if let Some(write) = self.writes.iter().find(|write| write.record == record) {
            return Some(write.value);
        }
        let mut value = Value([0; store::WORDS]);
        let tid = database.store.read(record, &mut value);
        self.reads.push((record, tid));
        (tid & store::ABSENT == 0).then_some(value)
    }

    /// Notes a value to be written: one write more than those before.
    fn write(&mut self, record: u64, mut value: Value) {
        let before = self.writes.iter_mut().find(|write| write.record == record);
        value.0[1] = before.as_ref().map_or(0, |write| write.value.writes()) + 1;
        match before {
            Some(write) => write.value = value,
            None => self.writes.push(Write {
                record,
                value,
                tid: 0,
            }),
        }
    }

    /// Puts an absent record into the tree; the commit makes it present. After
    /// a conflict it is still there for the next attempt.
    fn insert(&mut self, database: &Database, key: u64) {
        let record = match database.tree.find(key) {
            Ok(record) => record,
            Err(_) => {
                let record = database.store.make();
                let leaves = &mut self.leaves;
                let outcome = database.tree.insert(key, record, |change| {
                    // Own insertions do not spoil own scans.
                    let mut seen = false;
                    for leaf in leaves.iter_mut() {
                        if *leaf == (change.node, change.before) {
                            leaf.1 = change.after;
                            seen = true;
                        }
                    }
                    if let (true, Some(split)) = (seen, change.split) {
                        leaves.push(split);
                    }
                });
                outcome.err().unwrap_or(record)
            }
        };
        let mut value = Value([0; store::WORDS]);
        let tid = database.store.read(record, &mut value);
        self.reads.push((record, tid));
        self.writes.push(Write {
            record,
            value: Value::of(key, 0),
            tid: 0,
        });
    }

    fn scan(&mut self, database: &Database, key: u64, records: u64) {
        let mut left = records;
        let mut leaf = Some(database.tree.leaf(key));
        while let Some(one) = leaf {
            self.leaves.push((one.node, one.version));
            for &(_, record) in one.entries().iter().filter(|entry| entry.0 >= key) {
                if left == 0 {
                    return;
                }
                if let Some(value) = self.read(database, record) {
                    self.digest = fold(self.digest, value.digest());
                    left -= 1;
                }
            }
            if left == 0 {
                return;
            }
            leaf = database.tree.next(&one);
        }
    }

    fn commit(&mut self, database: &Database) -> Result<Committed, Conflict> {
        let store = &database.store;
        // One order for all, so that nobody waits in a circle.
        self.writes.sort_unstable_by_key(|write| write.record);
        for write in &mut self.writes {
            write.tid = store.lock(write.record);
        }
        // Locks are seen by others before anything is validated here.
        fence(Ordering::SeqCst);
        let epoch = database.epoch.load(Ordering::Acquire);
        // Between locking and validating: whoever overwrites what is read here
        // locks it after the validation, so gets a later number.
        let serial = database.serial.fetch_add(1, Ordering::SeqCst);
        let valid = self.reads.iter().all(|&(record, tid)| {
            let own = self
                .writes
                .binary_search_by_key(&record, |write| write.record)
                .is_ok();
            store.is_unchanged(record, tid, own)
        }) && self
            .leaves
            .iter()
            .all(|&(node, version)| database.tree.is_unchanged(node, version));
        if !valid {
            for write in &self.writes {
                store.unlock(write.record, write.tid);
            }
            return Err(Conflict);
        }
        let reads = self.reads.iter().map(|read| read.1);
        let seen = reads.chain(self.writes.iter().map(|write| write.tid)).max();
        self.last_tid = store::next_tid(seen.unwrap_or(0), self.last_tid, epoch);
        for write in &self.writes {
            store.install(write.record, &write.value, self.last_tid);
        }
        self.commits += 1;
        if self.thread == 0 && self.commits.is_multiple_of(EPOCH_COMMITS) {
            database.epoch.fetch_add(1, Ordering::Release);
        }
        Ok(Committed {
            serial,
            digest: self.digest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Pages;

    fn database(records: u64) -> Database {
        let database = Database {
            tree: Tree::new(1000, Pages::System).unwrap(),
            store: Store::new(1000, Pages::System).unwrap(),
            epoch: AtomicU64::new(1),
            serial: AtomicU64::new(0),
        };
        for key in 0..records {
            let record = database.store.make();
            database.store.reset(record, &Value::of(key, 0), 0);
            database.tree.insert(key, record, |_| {}).unwrap();
        }
        database
    }

    /// Executes one transaction, and another inside it before its commit.
    fn between(
        database: &Database,
        outer: &[Operation],
        inner: &[Operation],
    ) -> Result<Committed, Conflict> {
        let mut worker = Worker::new(0);
        for operation in outer {
            worker.execute(database, operation);
        }
        Worker::new(1).attempt(database, inner).unwrap();
        worker.commit(database)
    }

    const READ: Operation = Operation::Read { key: 1 };
    const UPDATE: Operation = Operation::Update { key: 1, seed: 5 };
    const OTHER: Operation = Operation::Update { key: 2, seed: 5 };
    const SCAN: Operation = Operation::Scan { key: 0, records: 9 };

    #[test]
    fn conflicts_are_found_and_no_others() {
        let conflict =
            |outer: &[Operation], inner: &[Operation]| between(&database(5), outer, inner).is_err();
        assert!(conflict(&[READ], &[UPDATE]));
        assert!(!conflict(&[READ], &[OTHER]));
        assert!(!conflict(&[UPDATE], &[UPDATE]), "blind writes do not read");
        let modify = Operation::Modify { key: 1, seed: 1 };
        assert!(conflict(&[modify], &[UPDATE]));
        assert!(!conflict(&[UPDATE], &[READ]));
        // A phantom: a new key in a range that was scanned.
        let insert = Operation::Insert { key: 6 };
        assert!(conflict(&[SCAN], &[insert]));
        assert!(conflict(&[Operation::Read { key: 6 }], &[insert]));
        // Own insertions are no phantoms, however the leaf is split.
        let mut outer = vec![SCAN];
        outer.extend((100..150).map(|key| Operation::Insert { key }));
        assert!(!conflict(&outer, &[READ]));
        // But those of others are, in the new leaves too.
        assert!(conflict(&outer, &[Operation::Insert { key: 200 }]));
        let mut alone = vec![Operation::Scan { key: 0, records: 1 }];
        alone.extend((100..150).map(|key| Operation::Insert { key }));
        assert!(!conflict(&alone, &[OTHER]));
    }

    #[test]
    fn own_writes_are_read_and_conflicts_leave_nothing() {
        let database = database(3);
        let digest_of = |operations: &[Operation]| {
            let committed = Worker::new(0).attempt(&database, operations).unwrap();
            committed.digest
        };
        let before = digest_of(&[READ]);
        assert!(between(&database, &[READ, OTHER], &[UPDATE]).is_err());
        let after = digest_of(&[READ]);
        assert_ne!(before, after, "the inner one is committed");
        assert_eq!(after, fold(0, Value::of(1, 5).digest()));
        let two = digest_of(&[Operation::Read { key: 2 }]);
        assert_eq!(two, fold(0, Value::of(2, 0).digest()), "the outer is not");
        let own = digest_of(&[OTHER, Operation::Read { key: 2 }]);
        assert_eq!(own, fold(0, Value::of(2, 5).digest()));
    }

    #[test]
    fn an_insertion_is_seen_from_its_commit_on() {
        let database = database(3);
        let read = [Operation::Read { key: 7 }];
        let missing = fold(0, MISSING);
        let mut worker = Worker::new(0);
        worker.execute(&database, &Operation::Insert { key: 7 });
        let seen = Worker::new(1).attempt(&database, &read).unwrap();
        assert_eq!(seen.digest, missing, "in the tree, but absent");
        worker.commit(&database).unwrap();
        let seen = Worker::new(1).attempt(&database, &read).unwrap();
        assert_eq!(seen.digest, fold(0, Value::of(7, 0).digest()));
    }
}
