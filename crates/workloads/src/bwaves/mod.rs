// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bwaves`: a blast wave in a viscous compressible gas, implicit in time, as
//! in the program of that name in SPEC CPU 2017: every step assembles a matrix
//! of 5x5 blocks on a 7-point stencil and solves it by Bi-CGSTAB. Nearly all
//! memory is the matrix, read from end to end twice an iteration; the vectors
//! are hotter. Written from the published methods, no code is shared.

mod checks;
mod flow;
mod gas;
mod grid;
#[cfg(test)]
mod physics;
mod system;

use demeter_agent::size;
use serde::Serialize;

use self::checks::Checks;
use self::flow::{Blast, Flow, Scheme};
use self::grid::Grid;
use self::system::Progress;
use crate::Error;
use crate::array::Pages;
use crate::interest::Interest;
use crate::number::{self, OutOfBounds};
use crate::report;

/// Progress marks for each time that the matrix is read.
const MARKS_PER_PRODUCT: u64 = 8;

/// Arguments of `bwaves`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// Memory of all arrays; the grid is the nearest to a cube that has it
    #[arg(long, default_value = "560M", value_parser = size::parse)]
    footprint: u64,
    /// Time steps
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Seed of the blast's place and strength
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cells that the fastest wave crosses in a step
    #[arg(long, default_value_t = 1.0, value_parser = courant)]
    courant: f64,
    /// Residual at which a step's linear system is solved, of its right-hand side
    #[arg(long, default_value_t = 1e-4, value_parser = tolerance)]
    tolerance: f64,
    /// Advice on huge pages
    #[arg(long, value_enum, default_value_t = Pages::System)]
    pages: Pages,
}

fn courant(text: &str) -> Result<f64, OutOfBounds> {
    number::within(text, "a number", 0.01, 100.0)
}

fn tolerance(text: &str) -> Result<f64, OutOfBounds> {
    number::within(text, "a number", 1e-12, 1e-2)
}

/// What `bwaves` prints, one JSON object.
#[derive(Serialize, Debug)]
struct Outcome {
    workload: &'static str,
    cells: [usize; 3],
    footprint_bytes: u64,
    resident_bytes: u64,
    steps: u32,
    /// Of Bi-CGSTAB, in all steps
    iterations: u32,
    seconds: f64,
    /// Cells that matrix products went over, a second
    cells_per_s: f64,
    /// Time that passed in the gas
    time: f64,
    highest_mach: Option<f64>,
    #[serde(flatten)]
    checks: Checks,
    /// Digest of the gas at the end
    checksum: String,
    verified: bool,
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    let outcome = whole(arguments)?;
    report::line(&mut std::io::stdout().lock(), &outcome)?;
    match outcome.checks.failed() {
        Some((found, expected)) => Err(Error::Checksum { found, expected }),
        None => Ok(()),
    }
}

fn whole(arguments: &Arguments) -> Result<Outcome, Error> {
    let grid = Grid::of_cells(arguments.footprint / Flow::BYTES_PER_CELL);
    let scheme = Scheme {
        width: 1.0 / grid.cells[0] as f64,
        viscosity: 1e-3,
        dissipation: 1.0,
        courant: arguments.courant,
        tolerance: arguments.tolerance,
    };
    let blast = Blast::new(grid, arguments.seed);
    let mut flow = Flow::new(grid, scheme, arguments.pages, |at| blast.state(grid, at))?;
    let mut checks = Checks::before(&flow)?;

    let products = grid.count() as u64;
    let interest = Interest::begin(products, MARKS_PER_PRODUCT);
    let mut progress = Progress {
        interest: Some(&interest),
        cells: 0,
    };
    let (mut iterations, mut time) = (0, 0.0);
    for step in 1..=arguments.steps {
        let Some((took, solution)) = flow.step(&mut progress) else {
            interest.end();
            return Err(Error::Usage(format!(
                "Bi-CGSTAB does not solve step {step}: choose a smaller --courant"
            )));
        };
        iterations += solution.iterations;
        time += took;
        checks.step(&solution);
    }
    let cells = progress.cells;
    let times = interest.end();

    checks.after(&flow, blast.centre);
    Ok(Outcome {
        workload: "bwaves",
        cells: grid.cells,
        footprint_bytes: grid.count() as u64 * Flow::BYTES_PER_CELL,
        resident_bytes: times.resident_bytes,
        steps: arguments.steps,
        iterations,
        seconds: times.seconds,
        cells_per_s: cells as f64 / times.seconds.max(1e-9),
        time,
        highest_mach: flow.mach(),
        verified: checks.failed().is_none(),
        checks,
        checksum: format!("{:016x}", flow.checksum()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bwaves: Arguments,
    }

    fn outcome(line: &str) -> Outcome {
        let words = std::iter::once("bwaves").chain(line.split_whitespace());
        whole(&Line::parse_from(words).bwaves).unwrap()
    }

    #[test]
    fn same_arguments_same_digest() {
        let once = outcome("--footprint 8M --steps 2");
        assert!(once.verified, "{:?}", once.checks);
        assert!(once.iterations > 4);
        assert_eq!(outcome("--footprint 8M --steps 2").checksum, once.checksum);
        for other in ["--steps 3", "--steps 2 --seed 2", "--steps 2 --courant 1.5"] {
            let line = format!("--footprint 8M {other}");
            assert_ne!(outcome(&line).checksum, once.checksum, "{other}");
        }
    }

    #[test]
    fn a_long_run_and_odd_grids_pass_their_checks() {
        for line in [
            "--footprint 2M --steps 60",
            "--footprint 5M --steps 20 --seed 3",
            "--footprint 1",
        ] {
            let outcome = outcome(line);
            assert!(outcome.verified, "{line}: {:?}", outcome.checks);
            assert!(outcome.footprint_bytes <= 5_200_000);
        }
    }

    #[test]
    fn bad_arguments_are_refused() {
        for bad in [
            "--courant 0",
            "--tolerance nan",
            "--steps 0",
            "--footprint x",
        ] {
            let words = std::iter::once("bwaves").chain(bad.split(' '));
            assert!(Line::try_parse_from(words).is_err(), "{bad}");
        }
    }
}
