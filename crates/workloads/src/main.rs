// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter-workloads`: one binary, one workload a verb. Runs in a guest of
//! the testbed and on any Linux machine.

mod alternate;
mod array;
mod btree;
mod bwaves;
mod graph500;
mod grow;
mod gups;
mod hold;
mod interest;
mod liblinear;
mod memory;
mod mmapbench;
mod number;
mod page;
mod pagerank;
mod permutation;
mod random;
mod report;
mod silo;
mod static_array;
mod torture;
mod xsbench;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use demeter_agent::{magic, roi};

#[derive(Parser)]
#[command(name = "demeter-workloads", version, about)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Breadth-first searches over a Kronecker graph
    Graph500(graph500::Arguments),
    /// Random updates of a large array, most of them in a small hot part
    Gups(gups::Arguments),
    /// Random updates in every other phase, idle in between
    Alternate(alternate::Arguments),
    /// Random updates of an array that grows and shrinks, beside a file that is cold
    Grow(grow::Arguments),
    /// Look-ups in a B+-tree, half of them hits
    Btree(btree::Arguments),
    /// Allocate and touch memory, then hold it while a command runs
    Hold(hold::Arguments),
    /// Touch pages of a large mapping in several orders; one CSV row a second
    Mmapbench(mmapbench::Arguments),
    /// PageRank on a generated graph, as in the GAP Benchmark Suite
    Pagerank(pagerank::Arguments),
    /// Transactions on an in-memory database, as in Silo
    Silo(silo::Arguments),
    /// Cross-section look-ups, as in XSBench
    Xsbench(xsbench::Arguments),
    /// A blast wave in a gas by an implicit solver, as SPEC's bwaves
    Bwaves(bwaves::Arguments),
    /// L1-regularised logistic regression, as LIBLINEAR's solver 6
    Liblinear(liblinear::Arguments),
    /// Do everything to anonymous memory that a program may, and check every byte
    Torture(torture::Arguments),
    /// Mark the region of interest from a script
    Roi {
        #[command(subcommand)]
        edge: Edge,
    },
    /// Put the work done so far into the time series
    Progress {
        /// Work done, in any unit
        done: u64,
    },
}

#[derive(Subcommand)]
enum Edge {
    /// Begin: start modelling
    On,
    /// End: stop modelling
    Off,
    /// Put a label into the time series
    Mark {
        /// The label
        label: u64,
    },
}

/// What a workload can fail with.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}; next: see `demeter-workloads help`")]
    Usage(String),
    #[error(
        "cannot map {bytes} bytes: {cause}; next: ask for less or give the machine more memory"
    )]
    Memory { bytes: u64, cause: std::io::Error },
    #[error(
        "cannot bind memory to node {node}: {cause}; next: choose a node of `numactl --hardware`"
    )]
    Bind { node: u32, cause: std::io::Error },
    #[error(
        "{wrong} of {words} words are wrong after verification; next: report it, memory was corrupted"
    )]
    Verification { wrong: u64, words: u64 },
    #[error("found {found}, expected {expected}; next: report it, memory was corrupted")]
    Checksum { found: String, expected: String },
    #[error("{0}; next: run it without a pager to see whose fault it is")]
    Torture(#[from] torture::Trouble),
    #[error("{path}: {cause}; next: check the path")]
    File {
        path: std::path::PathBuf,
        cause: std::io::Error,
    },
    #[error("this is no graph of GAP's .sg form: {0}; next: write one with --save")]
    Graph(String),
    #[error("cannot start '{program}': {cause}; next: check the name")]
    Start {
        program: String,
        cause: std::io::Error,
    },
    #[error("cannot print the result: {0}; next: check standard output")]
    Output(#[from] std::io::Error),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Graph500(arguments) => graph500::run(&arguments).map(|()| 0),
        Verb::Gups(arguments) => gups::run(&arguments).map(|()| 0),
        Verb::Alternate(arguments) => alternate::run(&arguments).map(|()| 0),
        Verb::Grow(arguments) => grow::run(&arguments).map(|()| 0),
        Verb::Btree(arguments) => btree::run(&arguments).map(|()| 0),
        Verb::Hold(arguments) => hold::run(&arguments),
        Verb::Mmapbench(arguments) => mmapbench::run(&arguments).map(|()| 0),
        Verb::Pagerank(arguments) => pagerank::run(&arguments).map(|()| 0),
        Verb::Silo(arguments) => silo::run(&arguments).map(|()| 0),
        Verb::Xsbench(arguments) => xsbench::run(&arguments).map(|()| 0),
        Verb::Bwaves(arguments) => bwaves::run(&arguments).map(|()| 0),
        Verb::Liblinear(arguments) => liblinear::run(&arguments).map(|()| 0),
        Verb::Torture(arguments) => torture::run(&arguments).map(|()| 0),
        Verb::Roi { edge } => {
            match edge {
                Edge::On => begin(),
                Edge::Off => roi::end(),
                Edge::Mark { label } => magic::mark(label),
            }
            Ok(0)
        }
        Verb::Progress { done } => {
            magic::progress(done);
            Ok(0)
        }
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("demeter-workloads: error: {error}");
            ExitCode::from(if matches!(error, Error::Usage(_)) {
                2
            } else {
                1
            })
        }
    }
}

/// Begins the region of interest; says which values the kernel refused.
fn begin() {
    for (path, cause) in roi::begin() {
        eprintln!("demeter-workloads: warning: cannot write to {path}: {cause}");
    }
}
