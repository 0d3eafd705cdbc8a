// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What must hold after any number of steps, whatever the memory went through.

use serde::Serialize;

use super::flow::{Flow, Scheme};
use super::gas::State;
use super::grid::Grid;
use super::system::{Progress, Solution};
use crate::Error;
use crate::array::Pages;

/// How far a uniform flow may depart from itself.
const FREE_STREAM_MOST: f64 = 1e-12;
/// The residual that Bi-CGSTAB computes departs from the true one by rounding.
const RESIDUAL_SLACK: f64 = 1.5;
/// Roundings of the sums over all cells, for each iteration: what flows from
/// cell to cell cancels in the sum of the right-hand side and of every product
/// with the matrix, thus in all that Bi-CGSTAB makes of them, solved or not.
const CONSERVATION_ROUNDING: f64 = 1e-13;
/// Asymmetry comes of roundings alone, the order of a cell's sums, but the
/// solver and the gas amplify it; a hundred times what is seen.
const SYMMETRY_MOST: f64 = 1e-7;

/// The checks' outcomes, and what is needed to make them.
#[derive(Serialize, Clone, Debug)]
pub struct Checks {
    /// Largest departure of a uniform flow from itself in three steps of a small grid
    free_stream_error: f64,
    /// Largest change of mass, momentum or energy, of the whole
    conservation_error: f64,
    conservation_most: f64,
    /// True residual of the last step's linear system, of its right-hand side
    linear_residual: f64,
    linear_residual_most: f64,
    /// Largest difference between the gas and its mirror image
    symmetry_error: f64,
    symmetry_most: f64,
    /// Whether density and pressure are positive everywhere
    positive: bool,
    #[serde(skip)]
    totals: State,
    #[serde(skip)]
    iterations: u32,
}

impl Checks {
    /// Notes what must be kept.
    pub fn before(flow: &Flow) -> Result<Self, Error> {
        Ok(Self {
            free_stream_error: free_stream_error(UNIFORM, |_| UNIFORM)?,
            conservation_error: f64::INFINITY,
            conservation_most: 0.0,
            linear_residual: f64::INFINITY,
            linear_residual_most: flow.scheme.tolerance * RESIDUAL_SLACK,
            symmetry_error: f64::INFINITY,
            symmetry_most: SYMMETRY_MOST,
            positive: false,
            totals: flow.totals(),
            iterations: 0,
        })
    }

    /// Notes a step's work.
    pub fn step(&mut self, solution: &Solution) {
        self.iterations += solution.iterations;
    }

    /// Compares.
    pub fn after(&mut self, flow: &Flow, centre: [usize; 3]) {
        // Momentum is zero in sum: its scale is that of mass times the speed of sound, about 1.
        let (before, after) = (self.totals, flow.totals());
        let whole = before[0].min(before[4]);
        self.conservation_error = worst((0..5).map(|l| (after[l] - before[l]).abs() / whole));
        self.conservation_most = CONSERVATION_ROUNDING * f64::from(self.iterations.max(1));
        let norm = flow.right.as_flattened().iter().map(|value| value * value);
        let norm = norm.sum::<f64>().sqrt();
        self.linear_residual = flow.matrix.residual_norm(&flow.right, &flow.change) / norm;
        self.symmetry_error = flow.asymmetry(centre);
        self.positive = flow.mach().is_some();
    }

    /// The first check that failed: what was found and what was expected.
    pub fn failed(&self) -> Option<(String, String)> {
        let checks = [
            (
                "free stream error",
                self.free_stream_error,
                FREE_STREAM_MOST,
            ),
            (
                "conservation error",
                self.conservation_error,
                self.conservation_most,
            ),
            (
                "linear residual",
                self.linear_residual,
                self.linear_residual_most,
            ),
            ("symmetry error", self.symmetry_error, self.symmetry_most),
        ];
        if let Some((name, found, most)) = checks
            .into_iter()
            .find(|(_, found, most)| found.is_nan() || found > most)
        {
            return Some((format!("{name} {found:e}"), format!("at most {most:e}")));
        }
        (!self.positive).then(|| {
            (
                "a density or pressure that is not positive".to_owned(),
                "positive ones everywhere".to_owned(),
            )
        })
    }
}

/// The largest; what is no number counts as largest.
fn worst(errors: impl Iterator<Item = f64>) -> f64 {
    errors.fold(
        0.0,
        |worst, error| if error <= worst { worst } else { error },
    )
}

/// A uniform flow.
const UNIFORM: State = [1.1, 0.5, -0.9, 0.2, 4.0];

/// How far three steps on a small grid take a flow from a uniform one.
fn free_stream_error(uniform: State, flow: impl Fn([usize; 3]) -> State) -> Result<f64, Error> {
    let scheme = Scheme {
        width: 0.1,
        viscosity: 0.01,
        dissipation: 1.0,
        courant: 2.0,
        tolerance: 1e-6,
    };
    let grid = Grid { cells: [5, 4, 3] };
    let mut flow = Flow::new(grid, scheme, Pages::System, flow)?;
    for _ in 0..3 {
        // A right-hand side of nothing but roundings need not be solvable.
        if flow.step(&mut Progress::none()).is_none() {
            break;
        }
    }
    let differences = flow.states.iter().flat_map(|state| {
        state
            .iter()
            .zip(uniform)
            .map(|(value, of_uniform)| (value - of_uniform).abs())
    });
    Ok(worst(differences))
}

#[cfg(test)]
mod tests {
    use super::super::flow::Blast;
    use super::*;

    const GRID: Grid = Grid {
        cells: [12, 12, 13],
    };

    /// Two steps of a blast, with something done to the gas after the first and
    /// to all after the second; the check that failed.
    fn failed(between: impl Fn(&mut Flow), after: impl Fn(&mut Flow)) -> Option<String> {
        let scheme = Scheme {
            width: 1.0 / 12.0,
            viscosity: 1e-3,
            dissipation: 1.0,
            courant: 1.0,
            tolerance: 1e-4,
        };
        let blast = Blast::new(GRID, 5);
        let state = |at| blast.state(GRID, at);
        let mut flow = Flow::new(GRID, scheme, Pages::System, state).unwrap();
        let mut checks = Checks::before(&flow).unwrap();
        for step in 0..2 {
            let (_, solution) = flow.step(&mut Progress::none()).unwrap();
            checks.step(&solution);
            if step == 0 {
                between(&mut flow);
            }
        }
        after(&mut flow);
        checks.after(&flow, blast.centre);
        checks.failed().map(|(found, _)| found)
    }

    #[test]
    fn what_is_right_passes() {
        assert_eq!(failed(|_| (), |_| ()), None);
    }

    #[test]
    fn what_is_wrong_fails() {
        let fails = |name: &str, between: fn(&mut Flow), after: fn(&mut Flow)| {
            let found = failed(between, after).unwrap_or_else(|| panic!("{name} passed"));
            assert!(found.starts_with(name), "{name}: {found}");
        };
        fails("conservation", |flow| flow.states[77][0] += 1e-6, |_| ());
        fails("conservation", |_| (), |flow| flow.states[77][4] = f64::NAN);
        // Two cells swapped: nothing is lost, but it is not the mirror image.
        fails("symmetry", |flow| flow.states.swap(3, 700), |_| ());
        let wrong_block = |flow: &mut Flow| {
            let energy = |&cell: &usize| flow.change[cell][4].abs();
            let cells = 0..flow.grid.count();
            let cell = cells.max_by(|one, other| energy(one).total_cmp(&energy(other)));
            flow.matrix.diagonal[cell.unwrap()][24] += 0.1;
        };
        fails("linear residual", |_| (), wrong_block);
        let wrong_change = |flow: &mut Flow| flow.change[500][0] += 1.0;
        fails("linear residual", |_| (), wrong_change);
        let empty = |flow: &mut Flow| {
            let nothing = [1.0, 0.0, 0.0, 0.0, -1.0];
            flow.states.fill(nothing);
        };
        assert!(failed(|_| (), empty).is_some());
    }

    #[test]
    fn a_uniform_flow_stays_so_and_another_does_not() {
        let error = free_stream_error(UNIFORM, |_| UNIFORM).unwrap();
        assert!(error <= FREE_STREAM_MOST, "{error}");
        let dented = |at: [usize; 3]| {
            let dent = if at == [1, 2, 1] { 1e-9 } else { 0.0 };
            UNIFORM.map(|value| value + dent)
        };
        assert!(free_stream_error(UNIFORM, dented).unwrap() > FREE_STREAM_MOST);
    }
}
