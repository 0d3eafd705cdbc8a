// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `silo`: an in-memory database under YCSB, after Silo (Tu, Zheng, Kohler,
//! Liskov, Madden, "Speedy Transactions in Multicore In-Memory Databases",
//! SOSP 2013): optimistic concurrency control with TIDs and epochs over a
//! B+-tree of records of 100 bytes. Neither log nor snapshots nor deletions.
//!
//! Transactions are told by seed and thread; which of them meet depends on the
//! threads, so the final state is the same in every run with one thread, and
//! one of the serial ones with several.

mod histogram;
mod mix;
mod replay;
mod store;
mod transaction;
mod tree;
mod zipf;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use demeter_agent::size;
use serde::Serialize;

use self::histogram::Histogram;
use self::mix::{Distribution, Mix, Plan, Ranks};
use self::replay::Summary;
use self::store::{RECORD_BYTES, Store, Value};
use self::transaction::{Database, Worker, fold};
use self::tree::Tree;
use crate::Error;
use crate::array::{self, Pages};
use crate::interest::{Interest, Times};
use crate::number::{self, OutOfBounds};
use crate::report;

/// Records of the smallest database that is worth a measurement.
const LEAST_RECORDS: u64 = 1000;

/// Arguments of `silo`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// Size of records and index before the first transaction
    #[arg(long, default_value = "560M", value_parser = size::parse)]
    footprint: u64,
    /// What transactions do
    #[arg(long, value_enum, default_value_t = Mix::Memtis)]
    mix: Mix,
    /// Which keys they take [default: that of the mix]
    #[arg(long, value_enum)]
    distribution: Option<Distribution>,
    /// Skew of zipfian and latest, between 0 and 1 [default: that of the mix]
    #[arg(long, value_parser = theta)]
    theta: Option<f64>,
    /// Where frequent keys lie
    #[arg(long, value_enum, default_value_t = Ranks::Scattered)]
    ranks: Ranks,
    /// Transactions in all
    #[arg(long, default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    transactions: u64,
    /// Operations of a transaction
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    operations: u64,
    /// Threads; transactions are divided among them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Seed of keys and values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Times that progress is reported, evenly spread over the transactions
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    progress: u64,
    /// Advice on huge pages
    #[arg(long, value_enum, default_value_t = Pages::System)]
    pages: Pages,
}

fn theta(text: &str) -> Result<f64, OutOfBounds> {
    number::within(text, "a skew", 0.001, 0.999)
}

/// What `silo` prints, one JSON object.
#[derive(Serialize)]
struct Outcome {
    workload: &'static str,
    records: u64,
    footprint_bytes: u64,
    resident_bytes: u64,
    threads: u64,
    transactions: u64,
    /// Attempts that met another transaction and were done again
    aborts: u64,
    /// Epochs that have begun
    epochs: u64,
    seconds: f64,
    transactions_per_s: f64,
    transactions_per_s_last_quarter: f64,
    latency_ns: Latency,
    /// Digest of the final state and of all reads
    checksum: String,
    verified: bool,
}

/// Times of transactions, the attempts that failed included.
#[derive(Serialize)]
struct Latency {
    mean: u64,
    p50: u64,
    p90: u64,
    p95: u64,
    p99: u64,
    p99_9: u64,
    max: u64,
}

impl Latency {
    fn of(histogram: &Histogram) -> Self {
        Self {
            mean: histogram.mean(),
            p50: histogram.percentile(500),
            p90: histogram.percentile(900),
            p95: histogram.percentile(950),
            p99: histogram.percentile(990),
            p99_9: histogram.percentile(999),
            max: histogram.most(),
        }
    }
}

/// What a thread has done.
struct Share {
    latency: Histogram,
    aborts: u64,
    /// Digest of all reads
    reads: u64,
    /// Places of its commits in the serial order; empty if it is the only thread
    serials: Vec<u64>,
}

/// Bytes of this many records and their index.
fn bytes_of(records: u64) -> u64 {
    records
        .saturating_mul(RECORD_BYTES)
        .saturating_add(tree::bytes_of(tree::nodes_of(records)))
}

/// The most records that fit.
fn records_of(footprint: u64) -> u64 {
    let (mut low, mut high) = (0, footprint / RECORD_BYTES);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if bytes_of(middle) <= footprint {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Transactions of a thread; the parts add up.
fn share(arguments: &Arguments, thread: u64) -> u64 {
    let until = |threads: u64| arguments.transactions * threads / arguments.threads;
    until(thread + 1) - until(thread)
}

/// Loads the records in the order of keys.
fn load(arguments: &Arguments, plan: &Plan) -> Result<Database, Error> {
    // Room that is not touched costs nothing.
    let inserts = if plan.mix.inserts() {
        arguments
            .transactions
            .saturating_mul(arguments.operations)
            .saturating_add(arguments.operations * arguments.threads)
    } else {
        0
    };
    let most = plan.records.saturating_add(inserts);
    let nodes = tree::nodes_of(plan.records).saturating_add(inserts / 4 + 64);
    let database = Database {
        tree: Tree::new(nodes, arguments.pages)?,
        store: Store::new(most, arguments.pages)?,
        epoch: AtomicU64::new(1),
        serial: AtomicU64::new(0),
    };
    for key in 0..plan.records {
        let record = database.store.make();
        database.store.reset(record, &Value::of(key, 0), 0);
        if database.tree.insert(key, record, |_| {}).is_err() {
            return Err(Error::Usage(format!("key {key} is there twice")));
        }
    }
    Ok(database)
}

/// The work of one thread.
fn work(
    database: &Database,
    plan: &Plan,
    thread: u64,
    transactions: u64,
    committed: impl Fn(),
) -> Result<Share, Error> {
    let logged = if plan.threads == 1 { 0 } else { transactions };
    let mut share = Share {
        latency: Histogram::new(),
        aborts: 0,
        reads: 0,
        serials: array::with_capacity(logged as usize, Pages::System)?,
    };
    let mut stream = plan.stream(thread);
    let mut worker = Worker::new(thread);
    let mut operations = Vec::new();
    let mut began = Instant::now();
    for _ in 0..transactions {
        stream.next(&mut operations);
        let done = loop {
            match worker.attempt(database, &operations) {
                Ok(done) => break done,
                Err(transaction::Conflict) => {
                    share.aborts += 1;
                    std::thread::yield_now();
                }
            }
        };
        if logged > 0 {
            share.serials.push(done.serial);
        }
        share.reads = fold(share.reads, done.digest);
        // One reading of the clock for each: choosing keys counts too.
        let now = Instant::now();
        share.latency.add((now - began).as_nanos() as u64);
        began = now;
        committed();
    }
    Ok(share)
}

/// The measured phase.
fn transact(
    arguments: &Arguments,
    database: &Database,
    plan: &Plan,
) -> Result<(Vec<Share>, Times), Error> {
    let done = AtomicU64::new(0);
    let interest = Interest::begin(arguments.transactions, arguments.progress);
    let committed = || interest.reach(done.fetch_add(1, Ordering::Relaxed) + 1);
    let one = |thread| {
        let transactions = share(arguments, thread);
        work(database, plan, thread, transactions, committed)
    };
    let shares = std::thread::scope(|scope| {
        let others: Vec<_> = (1..arguments.threads)
            .map(|thread| scope.spawn(move || one(thread)))
            .collect();
        // The usual single thread is this one: nothing else to schedule.
        let first = one(0);
        let others = others.into_iter().map(|other| {
            other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        std::iter::once(first)
            .chain(others)
            .collect::<Result<Vec<_>, _>>()
    })?;
    let times = interest.end();
    Ok((shares, times))
}

/// Places of all commits in the serial order, by thread.
fn order_of(shares: Vec<Share>, transactions: u64) -> Vec<Vec<u64>> {
    if shares.len() == 1 {
        return vec![(0..transactions).collect()];
    }
    shares.into_iter().map(|share| share.serials).collect()
}

/// Runs the benchmark and prints its outcome.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    let records = records_of(arguments.footprint);
    if records < LEAST_RECORDS {
        return Err(Error::Usage(format!(
            "a footprint of {} bytes holds {records} records, not {LEAST_RECORDS}",
            arguments.footprint
        )));
    }
    let plan = Plan {
        mix: arguments.mix,
        distribution: arguments
            .distribution
            .unwrap_or_else(|| arguments.mix.distribution()),
        theta: arguments.theta.unwrap_or_else(|| arguments.mix.theta()),
        ranks: arguments.ranks,
        operations: arguments.operations,
        records,
        threads: arguments.threads,
        seed: arguments.seed,
    };
    let database = load(arguments, &plan)?;
    let footprint_bytes = database.store.bytes() + database.tree.bytes();
    let (shares, times) = transact(arguments, &database, &plan)?;

    let mut latency = Histogram::new();
    for share in &shares {
        latency.merge(&share.latency);
    }
    let found = Summary {
        state: replay::state(&database)?,
        reads: shares.iter().map(|share| share.reads).collect(),
    };
    let aborts = shares.iter().map(|share| share.aborts).sum();
    let order = order_of(shares, arguments.transactions);
    let epochs = database.epoch.load(Ordering::Relaxed);
    let checked = replay::check(&database, &plan, &order, &found);
    let checksum = found
        .reads
        .iter()
        .fold(found.state.digest, |sum, &reads| fold(sum, reads));
    report::line(
        &mut std::io::stdout().lock(),
        &Outcome {
            workload: "silo",
            records,
            footprint_bytes,
            resident_bytes: times.resident_bytes,
            threads: arguments.threads,
            transactions: arguments.transactions,
            aborts,
            epochs,
            seconds: times.seconds,
            transactions_per_s: times.per_s(),
            transactions_per_s_last_quarter: times.per_s_last_quarter(),
            latency_ns: Latency::of(&latency),
            checksum: format!("{checksum:016x}"),
            verified: checked.is_ok(),
        },
    )?;
    checked
}

#[cfg(test)]
mod tests;
