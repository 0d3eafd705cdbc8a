// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What transactions do: the mixes of YCSB (Cooper et al., SoCC 2010) and the
//! two that the sources of this workload use.

use super::zipf::Zipf;
use crate::permutation::Permutation;
use crate::random::Random;

/// Longest scan, in records.
const LONGEST_SCAN: u64 = 100;

/// Shares of operations and which keys they go to.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// YCSB A: half reads, half updates
    A,
    /// YCSB B: 95 % reads, 5 % updates
    B,
    /// YCSB C: reads only
    C,
    /// YCSB D: 95 % reads of the latest, 5 % inserts
    D,
    /// YCSB E: 95 % scans, 5 % inserts
    E,
    /// YCSB F: half reads, half read-modify-writes
    F,
    /// As published with Silo: 80 % reads, 20 % read-modify-writes, uniform
    Original,
    /// As Memtis runs it: reads only, Zipf 0.5
    Memtis,
}

/// Which keys are taken.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// All alike
    Uniform,
    /// Some much more often than others
    Zipfian,
    /// The newer, the more often
    Latest,
}

/// Where frequent keys lie.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Anywhere, as in YCSB
    Scattered,
    /// The most frequent first
    Ordered,
}

/// Shares in percent; scans are the rest.
struct Shares {
    read: u64,
    update: u64,
    modify: u64,
    insert: u64,
}

impl Mix {
    fn shares(self) -> Shares {
        let (read, update, modify, insert) = match self {
            Self::A => (50, 50, 0, 0),
            Self::B => (95, 5, 0, 0),
            Self::C | Self::Memtis => (100, 0, 0, 0),
            Self::D => (95, 0, 0, 5),
            Self::E => (0, 0, 0, 5),
            Self::F => (50, 0, 50, 0),
            Self::Original => (80, 0, 20, 0),
        };
        Shares {
            read,
            update,
            modify,
            insert,
        }
    }

    /// New records are made.
    pub fn inserts(self) -> bool {
        self.shares().insert > 0
    }

    /// The distribution that belongs to the mix.
    pub fn distribution(self) -> Distribution {
        match self {
            Self::Original => Distribution::Uniform,
            Self::D => Distribution::Latest,
            _ => Distribution::Zipfian,
        }
    }

    /// The skew that belongs to the mix.
    pub fn theta(self) -> f64 {
        if self == Self::Memtis { 0.5 } else { 0.99 }
    }
}

/// One step of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read a record
    Read {
        /// Which
        key: u64,
    },
    /// Write a record without looking
    Update {
        /// Which
        key: u64,
        /// What the new value follows from
        seed: u64,
    },
    /// Read a record and write what follows from it
    Modify {
        /// Which
        key: u64,
        /// What the new value follows from, with the old
        seed: u64,
    },
    /// Make a record
    Insert {
        /// Which
        key: u64,
    },
    /// Read records in the order of their keys
    Scan {
        /// The first
        key: u64,
        /// How many
        records: u64,
    },
}

/// All that a thread does, in order; the same each time it is asked for, however
/// threads run.
#[derive(Clone)]
pub struct Stream {
    random: Random,
    mix: Mix,
    distribution: Distribution,
    zipf: Zipf,
    places: Option<Permutation>,
    operations: u64,
    records: u64,
    thread: u64,
    threads: u64,
    /// Own inserts of earlier transactions
    inserted: u64,
}

/// What all streams of a run have in common.
pub struct Plan {
    /// The mix
    pub mix: Mix,
    /// Which keys
    pub distribution: Distribution,
    /// Skew, above 0 and below 1
    pub theta: f64,
    /// Where frequent keys lie
    pub ranks: Ranks,
    /// Operations of a transaction
    pub operations: u64,
    /// Records at the beginning; their keys are the numbers below
    pub records: u64,
    /// Threads
    pub threads: u64,
    /// Seed
    pub seed: u64,
}

impl Plan {
    /// What one thread does.
    pub fn stream(&self, thread: u64) -> Stream {
        Stream {
            random: Random::new(self.seed, thread),
            mix: self.mix,
            distribution: self.distribution,
            zipf: Zipf::new(self.records, self.theta),
            places: (self.ranks == Ranks::Scattered)
                .then(|| Permutation::new(self.records, self.seed)),
            operations: self.operations,
            records: self.records,
            thread,
            threads: self.threads,
            inserted: 0,
        }
    }
}

impl Stream {
    fn own_key(&self, number: u64) -> u64 {
        self.records + self.thread + self.threads * number
    }

    fn key(&mut self) -> u64 {
        match self.distribution {
            Distribution::Uniform => self.random.below(self.records),
            Distribution::Zipfian => {
                let rank = self.zipf.rank(&mut self.random);
                self.places.as_ref().map_or(rank, |places| places.of(rank))
            }
            // Of own inserts only: those of others come when they come.
            Distribution::Latest => {
                let age = self.zipf.rank(&mut self.random);
                if age < self.inserted {
                    self.own_key(self.inserted - 1 - age)
                } else {
                    self.records - 1 - (age - self.inserted).min(self.records - 1)
                }
            }
        }
    }

    /// Puts the next transaction into `operations`.
    pub fn next(&mut self, operations: &mut Vec<Operation>) {
        operations.clear();
        let shares = self.mix.shares();
        let mut inserts = 0;
        for _ in 0..self.operations {
            let point = self.random.below(100);
            let until_update = shares.read + shares.update;
            let until_modify = until_update + shares.modify;
            operations.push(if point < shares.read {
                Operation::Read { key: self.key() }
            } else if point < until_update {
                Operation::Update {
                    key: self.key(),
                    seed: self.random.word(),
                }
            } else if point < until_modify {
                Operation::Modify {
                    key: self.key(),
                    seed: self.random.word(),
                }
            } else if point < until_modify + shares.insert {
                inserts += 1;
                Operation::Insert {
                    key: self.own_key(self.inserted + inserts - 1),
                }
            } else {
                Operation::Scan {
                    key: self.key(),
                    records: 1 + self.random.below(LONGEST_SCAN),
                }
            });
        }
        self.inserted += inserts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(mix: Mix) -> Plan {
        Plan {
            mix,
            distribution: mix.distribution(),
            theta: mix.theta(),
            ranks: Ranks::Scattered,
            operations: 10,
            records: 1000,
            threads: 2,
            seed: 1,
        }
    }

    fn operations(mix: Mix) -> Vec<Operation> {
        let plan = plan(mix);
        let mut stream = plan.stream(1);
        let mut again = plan.stream(1);
        let (mut all, mut some, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2000 {
            stream.next(&mut some);
            again.next(&mut other);
            assert_eq!(some, other);
            all.extend_from_slice(&some);
        }
        all
    }

    #[test]
    fn shares_are_kept() {
        let share = |mix, is: fn(&Operation) -> bool| {
            let all = operations(mix);
            (all.iter().filter(|one| is(one)).count() * 100 + 50 * 200) / all.len()
        };
        let near = |found: usize, expected: usize| {
            assert!(found.abs_diff(expected) <= 1, "{found} {expected}");
        };
        near(share(Mix::A, |o| matches!(o, Operation::Update { .. })), 50);
        near(share(Mix::B, |o| matches!(o, Operation::Update { .. })), 5);
        near(share(Mix::C, |o| matches!(o, Operation::Read { .. })), 100);
        near(share(Mix::D, |o| matches!(o, Operation::Insert { .. })), 5);
        near(share(Mix::E, |o| matches!(o, Operation::Scan { .. })), 95);
        near(share(Mix::F, |o| matches!(o, Operation::Modify { .. })), 50);
        let original = share(Mix::Original, |o| matches!(o, Operation::Modify { .. }));
        near(original, 20);
    }

    #[test]
    fn keys_exist_and_new_ones_come_once() {
        let mut made = Vec::new();
        for operation in operations(Mix::D) {
            match operation {
                Operation::Insert { key } => {
                    assert!(key >= 1000 && key % 2 == 1, "thread 1 makes odd keys");
                    assert!(!made.contains(&key));
                    made.push(key);
                }
                Operation::Read { key } => assert!(key < 1000 || made.contains(&key)),
                _ => {}
            }
        }
        assert!(made.len() > 500);
    }

    #[test]
    fn the_latest_are_read_most() {
        let new = operations(Mix::D)
            .iter()
            .filter(|one| matches!(one, Operation::Read { key } if *key >= 1000))
            .count();
        assert!(new > 10_000, "{new}");
    }
}
