// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `liblinear`: L1-regularised logistic regression, as LIBLINEAR's solver 6
//! (Fan et al., JMLR 9, 2008), on a made data set of the shape of kdda. What
//! is measured is the training. The solver walks over columns in random order
//! and looks up each node's instance in small arrays: those are hot, columns of
//! features that say nothing grow cold, rows are not used any more.

mod checks;
mod elementary;
mod problem;
mod solver;

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use demeter_agent::size;
use serde::Serialize;

use self::checks::Checks;
use self::problem::{Node, Source};
use self::solver::{Limits, Solver};
use crate::Error;
use crate::array::Pages;
use crate::interest::Interest;
use crate::number::{self, OutOfBounds};
use crate::report;

/// Progress marks for each time that all columns are read.
const MARKS_PER_PASS: u64 = 16;
/// Of a line of a sparse matrix: where it begins.
const OFFSET_BYTES: u64 = 8;

/// Arguments of `liblinear`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// Memory of the data and the solver; numbers of instances, features and values follow
    #[arg(long, default_value = "560M", value_parser = size::parse)]
    footprint: u64,
    /// What becomes of the rows once there are columns
    #[arg(long, value_enum, default_value_t = Rows::Keep)]
    rows: Rows,
    /// Newton steps at most
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
    /// Stop at this violation of the optimality conditions, as liblinear-train's -e
    #[arg(long, default_value_t = 0.01, value_parser = epsilon)]
    epsilon: f64,
    /// Weight of the losses, as liblinear-train's -c
    #[arg(long, default_value_t = 1.0, value_parser = cost)]
    cost: f64,
    /// Seed of the data and of the order of coordinates
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Advice on huge pages
    #[arg(long, value_enum, default_value_t = Pages::System)]
    pages: Pages,
    /// Write the data to this file in libsvm's form and stop
    #[arg(long)]
    save: Option<PathBuf>,
}

/// What becomes of the rows.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// They stay in memory, as liblinear-train has it
    Keep,
    /// There are none: nearly twice the columns in the same memory
    Drop,
}

fn epsilon(text: &str) -> Result<f64, OutOfBounds> {
    number::within(text, "a number", 1e-12, 1.0)
}

fn cost(text: &str) -> Result<f64, OutOfBounds> {
    number::within(text, "a number", 1e-6, 1e6)
}

/// What `liblinear` prints, one JSON object.
#[derive(Serialize, Debug)]
struct Outcome {
    workload: &'static str,
    instances: u64,
    features: u64,
    nonzeros: u64,
    footprint_bytes: u64,
    resident_bytes: u64,
    /// Newton steps
    iterations: u32,
    /// Passes of coordinate descent, in all Newton steps
    passes: u32,
    converged: bool,
    /// Nodes of columns that the solver went over
    nodes: u64,
    seconds: f64,
    nodes_per_s: f64,
    objective: f64,
    #[serde(flatten)]
    checks: Checks,
    /// Digest of the weights
    checksum: String,
    verified: bool,
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    if let Some(path) = &arguments.save {
        let failed = |cause| Error::File {
            path: path.clone(),
            cause,
        };
        let file = File::create(path).map_err(failed)?;
        return source(arguments)?
            .save(BufWriter::with_capacity(1 << 20, file))
            .map_err(failed);
    }
    let outcome = whole(arguments)?;
    report::line(&mut std::io::stdout().lock(), &outcome)?;
    match outcome.checks.failed() {
        Some((found, expected)) => Err(Error::Checksum { found, expected }),
        None => Ok(()),
    }
}

/// Bytes of a value, a feature and an instance.
fn bytes(rows: Rows) -> [u64; 3] {
    let node = size_of::<Node>() as u64;
    let feature = OFFSET_BYTES + solver::BYTES_PER_FEATURE;
    match rows {
        Rows::Keep => [2 * node, feature, OFFSET_BYTES + solver::BYTES_PER_INSTANCE],
        Rows::Drop => [node, feature, solver::BYTES_PER_INSTANCE],
    }
}

fn source(arguments: &Arguments) -> Result<Source, Error> {
    let [value, feature, instance] = bytes(arguments.rows);
    Source::new(
        arguments.footprint,
        value,
        feature,
        instance,
        arguments.seed,
    )
}

fn whole(arguments: &Arguments) -> Result<Outcome, Error> {
    let source = source(arguments)?;
    let pages = arguments.pages;
    let (labels, rows) = match arguments.rows {
        Rows::Keep => {
            let (labels, rows) = source.rows(pages)?;
            (labels, Some(rows))
        }
        Rows::Drop => (source.labels(pages)?, None),
    };
    let rows = rows.as_ref();
    let columns = source.columns(rows, pages)?;
    let nonzeros = columns.nodes.len() as u64;
    // liblinear-train's -e is for balanced labels: of the rarer one's share.
    let positive = labels.iter().filter(|&&label| label > 0).count();
    let rarer = positive.min(labels.len() - positive).max(1);
    let limits = Limits {
        cost: arguments.cost,
        tolerance: arguments.epsilon * rarer as f64 / labels.len() as f64,
        newton_steps: arguments.iterations,
        seed: arguments.seed,
    };
    let mut solver = Solver::new(&columns, &labels, limits, pages)?;

    let interest = Interest::begin(nonzeros, MARKS_PER_PASS);
    let training = solver.train(Some(&interest));
    let times = interest.end();

    let checks = Checks::new(&solver.weights, &training, &limits, &source, &labels, rows);
    let [value, feature, instance] = bytes(arguments.rows);
    Ok(Outcome {
        workload: "liblinear",
        instances: source.instances,
        features: source.features,
        nonzeros,
        footprint_bytes: nonzeros * value + source.features * feature + source.instances * instance,
        resident_bytes: times.resident_bytes,
        iterations: training.newton_steps,
        passes: training.passes,
        converged: training.converged,
        nodes: solver.visited,
        seconds: times.seconds,
        nodes_per_s: solver.visited as f64 / times.seconds.max(1e-9),
        objective: training.objective,
        verified: checks.failed().is_none(),
        checks,
        checksum: format!("{:016x}", number::digest(&solver.weights)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        liblinear: Arguments,
    }

    fn arguments(line: &str) -> Arguments {
        let words = std::iter::once("liblinear").chain(line.split_whitespace());
        Line::parse_from(words).liblinear
    }

    fn outcome(line: &str) -> Outcome {
        whole(&arguments(line)).unwrap()
    }

    #[test]
    fn same_arguments_same_digest_and_rows_do_not_matter() {
        let once = outcome("--footprint 8M");
        assert!(once.verified && once.iterations == 3, "{:?}", once.checks);
        assert_eq!(outcome("--footprint 8M").checksum, once.checksum);
        for other in [
            "--footprint 8M --seed 2",
            "--footprint 9M",
            "--footprint 8M --cost 2",
        ] {
            assert_ne!(outcome(other).checksum, once.checksum, "{other}");
        }
        // As many instances without rows.
        let [value, feature, instance] = bytes(Rows::Drop);
        let dropped = Source::new(5 << 20, value, feature, instance, 1).unwrap();
        let line = format!("--rows drop --footprint {}", 5 << 20);
        let dropped_outcome = outcome(&line);
        assert_eq!(dropped_outcome.instances, dropped.instances);
        assert!(dropped_outcome.verified);
    }

    #[test]
    fn sizes_are_as_asked_for() {
        for (footprint, rows) in [(8 << 20, "keep"), (8 << 20, "drop"), (1 << 20, "keep")] {
            let outcome = outcome(&format!("--footprint {footprint} --rows {rows}"));
            let ratio = outcome.footprint_bytes as f64 / f64::from(footprint);
            assert!((0.97..1.03).contains(&ratio), "{footprint} {rows} {ratio}");
        }
    }

    #[test]
    fn the_default_is_kdda_at_a_tenth_or_less() {
        let kept = source(&arguments("")).unwrap();
        assert!((400_000..500_000).contains(&kept.instances), "{kept:?}");
        let dropped = source(&arguments("--rows drop")).unwrap();
        assert!(
            (1_800_000..2_000_000).contains(&dropped.features),
            "{dropped:?}"
        );
    }

    #[test]
    fn bad_arguments_are_refused() {
        assert!(whole(&arguments("--footprint 10K")).is_err());
        assert!(source(&arguments("--footprint 9000000G")).is_err());
        for bad in ["--epsilon 0", "--cost nan", "--iterations 0", "--rows some"] {
            let words = std::iter::once("liblinear").chain(bad.split(' '));
            assert!(Line::try_parse_from(words).is_err(), "{bad}");
        }
        let save = arguments("--footprint 1M --save /no/such/folder/file");
        assert!(run(&save).is_err());
    }
}
