// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A linear system of 5x5 blocks on a 7-point stencil, and Bi-CGSTAB (van der
//! Vorst, SIAM J. Sci. Stat. Comput. 13, 1992) to solve it. All blocks are
//! stored, in seven arrays, as in the SPEC benchmark's program.

use super::gas::{Block, State};
use super::grid::Grid;
use crate::Error;
use crate::array::{Pages, filled};
use crate::interest::Interest;

/// Iterations after which a system counts as unsolvable.
const ITERATIONS_MAX: u32 = 500;

/// The matrix.
pub struct Matrix {
    pub grid: Grid,
    pub diagonal: Vec<Block>,
    /// Of the next cell, along each axis
    pub next: [Vec<Block>; 3],
    /// Of the last cell, along each axis
    pub last: [Vec<Block>; 3],
}

/// The vectors that the solver works with, one state a cell each.
pub struct Work {
    residual: Vec<State>,
    shadow: Vec<State>,
    direction: Vec<State>,
    applied_direction: Vec<State>,
    applied_residual: Vec<State>,
}

/// How a system was solved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Solution {
    pub iterations: u32,
    /// Norm of what is left, as the recurrence has it
    pub residual_norm: f64,
    /// Norm of the right-hand side
    pub norm: f64,
}

/// Counts cells that matrix products went over and puts marks into the time series.
pub struct Progress<'a> {
    pub interest: Option<&'a Interest>,
    pub cells: u64,
}

impl Matrix {
    /// Bytes of its blocks and of the solver's vectors, for each cell.
    pub const BYTES_PER_CELL: u64 = (7 * size_of::<Block>() + 5 * size_of::<State>()) as u64;

    /// Zeros, touched.
    pub fn new(grid: Grid, pages: Pages) -> Result<Self, Error> {
        let blocks = || filled([0.0; 25], grid.count(), pages);
        Ok(Self {
            grid,
            diagonal: blocks()?,
            next: [blocks()?, blocks()?, blocks()?],
            last: [blocks()?, blocks()?, blocks()?],
        })
    }

    /// `result` = matrix times `vector`.
    pub fn apply(&self, vector: &[State], result: &mut [State], progress: &mut Progress) {
        let grid = self.grid;
        grid.each_row(|first, [j, k]| {
            let (along_y, along_z) = (grid.steps(1, j), grid.steps(2, k));
            for i in 0..grid.cells[0] {
                let along = [grid.steps(0, i), along_y, along_z];
                let cell = first + i;
                let mut sum = [0.0; 5];
                add_product(&mut sum, &self.diagonal[cell], &vector[cell]);
                for (axis, steps) in along.iter().enumerate() {
                    let next = &vector[cell.wrapping_add(steps.next)];
                    add_product(&mut sum, &self.next[axis][cell], next);
                    let last = &vector[cell.wrapping_add(steps.last)];
                    add_product(&mut sum, &self.last[axis][cell], last);
                }
                result[cell] = sum;
            }
            progress.add(grid.cells[0] as u64);
        });
    }

    /// Norm of `right` minus matrix times `solution`.
    pub fn residual_norm(&self, right: &[State], solution: &[State]) -> f64 {
        let mut applied = vec![[0.0; 5]; right.len()];
        self.apply(solution, &mut applied, &mut Progress::none());
        for (applied, right) in applied.iter_mut().zip(right) {
            for (applied, right) in applied.iter_mut().zip(right) {
                *applied = right - *applied;
            }
        }
        dot(&applied, &applied).sqrt()
    }

    /// Solves for `right`, from zero, until the residual's norm is `tolerance`
    /// times that of `right`. None if Bi-CGSTAB breaks down or takes too long.
    pub fn solve(
        &self,
        right: &[State],
        solution: &mut [State],
        work: &mut Work,
        tolerance: f64,
        progress: &mut Progress,
    ) -> Option<Solution> {
        let norm = dot(right, right).sqrt();
        let enough = tolerance * norm;
        solution.fill([0.0; 5]);
        work.residual.copy_from_slice(right);
        work.shadow.copy_from_slice(right);
        work.direction.copy_from_slice(right);
        let mut residual_norm = norm;
        let mut rho = norm * norm;
        let mut iterations = 0;
        while residual_norm > enough {
            if iterations == ITERATIONS_MAX {
                return None;
            }
            iterations += 1;
            self.apply(&work.direction, &mut work.applied_direction, progress);
            let alpha = nonzero(rho / dot(&work.shadow, &work.applied_direction))?;
            subtract(&mut work.residual, alpha, &work.applied_direction);
            self.apply(&work.residual, &mut work.applied_residual, progress);
            let (along, square) = dots(&work.applied_residual, &work.residual);
            // A residual of zero: the half step was the whole way.
            let omega = if square == 0.0 { 0.0 } else { along / square };
            for (((solution, direction), residual), applied) in solution
                .iter_mut()
                .zip(&work.direction)
                .zip(&mut work.residual)
                .zip(&work.applied_residual)
            {
                for l in 0..5 {
                    solution[l] += alpha * direction[l] + omega * residual[l];
                    residual[l] -= omega * applied[l];
                }
            }
            let (rho_next, square) = dots(&work.residual, &work.shadow);
            residual_norm = square.sqrt();
            if !residual_norm.is_finite() {
                return None;
            }
            if residual_norm <= enough {
                break;
            }
            let beta = nonzero(rho_next / rho * (alpha / omega))?;
            rho = rho_next;
            for ((direction, residual), applied) in work
                .direction
                .iter_mut()
                .zip(&work.residual)
                .zip(&work.applied_direction)
            {
                for l in 0..5 {
                    direction[l] = residual[l] + beta * (direction[l] - omega * applied[l]);
                }
            }
        }
        Some(Solution {
            iterations,
            residual_norm,
            norm,
        })
    }
}

impl Work {
    /// Zeros, touched.
    pub fn new(cells: usize, pages: Pages) -> Result<Self, Error> {
        let states = || filled([0.0; 5], cells, pages);
        Ok(Self {
            residual: states()?,
            shadow: states()?,
            direction: states()?,
            applied_direction: states()?,
            applied_residual: states()?,
        })
    }
}

impl Progress<'_> {
    /// Counts, marks nothing.
    pub fn none() -> Self {
        Progress {
            interest: None,
            cells: 0,
        }
    }

    fn add(&mut self, cells: u64) {
        self.cells += cells;
        if let Some(interest) = self.interest {
            interest.reach(self.cells);
        }
    }
}

/// The number, if a division by it means something.
fn nonzero(number: f64) -> Option<f64> {
    (number.is_finite() && number != 0.0).then_some(number)
}

/// `sum` += `block` times `vector`.
#[inline(always)]
fn add_product(sum: &mut State, block: &Block, vector: &State) {
    for (column, &factor) in block.as_chunks::<5>().0.iter().zip(vector) {
        for (sum, element) in sum.iter_mut().zip(column) {
            *sum += element * factor;
        }
    }
}

/// `vector` -= `factor` times `other`.
fn subtract(vector: &mut [State], factor: f64, other: &[State]) {
    for (vector, other) in vector.iter_mut().zip(other) {
        for (vector, other) in vector.iter_mut().zip(other) {
            *vector -= factor * other;
        }
    }
}

/// Scalar product. Five sums, one a component: that order is part of the result.
fn dot(one: &[State], other: &[State]) -> f64 {
    let mut sums = [0.0; 5];
    for (one, other) in one.iter().zip(other) {
        for l in 0..5 {
            sums[l] += one[l] * other[l];
        }
    }
    sums.iter().sum()
}

/// `vector` times `other`, and `vector` times itself, in one pass.
fn dots(vector: &[State], other: &[State]) -> (f64, f64) {
    let (mut sums, mut squares) = ([0.0; 5], [0.0; 5]);
    for (vector, other) in vector.iter().zip(other) {
        for l in 0..5 {
            sums[l] += vector[l] * other[l];
            squares[l] += vector[l] * vector[l];
        }
    }
    (sums.iter().sum(), squares.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const GRID: Grid = Grid { cells: [3, 4, 5] };

    /// A diagonally dominant matrix of random numbers.
    fn matrix() -> Matrix {
        let mut matrix = Matrix::new(GRID, Pages::System).unwrap();
        let mut random = Random::new(1, 0);
        let mut fill = |blocks: &mut Vec<Block>, diagonal: f64| {
            for block in blocks {
                for (at, element) in block.iter_mut().enumerate() {
                    let add = if at % 6 == 0 { diagonal } else { 0.0 };
                    *element = random.unit() - 0.5 + add;
                }
            }
        };
        fill(&mut matrix.diagonal, 12.0);
        for axis in 0..3 {
            fill(&mut matrix.next[axis], 0.0);
            fill(&mut matrix.last[axis], 0.0);
        }
        matrix
    }

    fn vector(stream: u64) -> Vec<State> {
        let mut random = Random::new(2, stream);
        (0..GRID.count())
            .map(|_| std::array::from_fn(|_| random.unit() - 0.5))
            .collect()
    }

    fn solve(matrix: &Matrix, right: &[State], tolerance: f64) -> (Vec<State>, Option<Solution>) {
        let mut work = Work::new(GRID.count(), Pages::System).unwrap();
        let mut found = vec![[1.0; 5]; GRID.count()];
        let solution = matrix.solve(
            right,
            &mut found,
            &mut work,
            tolerance,
            &mut Progress::none(),
        );
        (found, solution)
    }

    #[test]
    fn product_is_that_of_the_dense_matrix() {
        let (matrix, vector) = (matrix(), vector(0));
        let mut found = vector.clone();
        let mut progress = Progress::none();
        matrix.apply(&vector, &mut found, &mut progress);
        assert_eq!(progress.cells, 60);
        for (cell, found) in found.iter().enumerate() {
            let at = GRID.position(cell);
            let mut expected = [0.0; 5];
            let mut add = |block: &Block, other: usize| {
                for l in 0..5 {
                    for m in 0..5 {
                        expected[l] += block[5 * m + l] * vector[other][m];
                    }
                }
            };
            add(&matrix.diagonal[cell], cell);
            for axis in 0..3 {
                let n = GRID.cells[axis];
                let mut other = at;
                other[axis] = (at[axis] + 1) % n;
                add(&matrix.next[axis][cell], GRID.cell(other));
                other[axis] = (at[axis] + n - 1) % n;
                add(&matrix.last[axis][cell], GRID.cell(other));
            }
            for l in 0..5 {
                assert!((found[l] - expected[l]).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn a_known_solution_is_found() {
        let (mut matrix, known) = (matrix(), vector(1));
        let mut right = known.clone();
        matrix.apply(&known, &mut right, &mut Progress::none());
        let (found, solution) = solve(&matrix, &right, 1e-12);
        let solution = solution.unwrap();
        assert!(solution.iterations > 2 && solution.residual_norm <= 1e-12 * solution.norm);
        for (found, known) in found.as_flattened().iter().zip(known.as_flattened()) {
            assert!((found - known).abs() < 1e-9);
        }
        // The residual is that of the matrix as it is: a block that changed shows.
        assert!(matrix.residual_norm(&right, &found) < 1e-11 * solution.norm);
        matrix.next[1][7][3] += 0.01;
        assert!(matrix.residual_norm(&right, &found) > 1e-6 * solution.norm);
    }

    #[test]
    fn nothing_to_solve_and_nothing_that_solves() {
        let (found, solution) = solve(&matrix(), &vec![[0.0; 5]; 60], 1e-9);
        assert_eq!(solution.unwrap().iterations, 0);
        assert!(found.as_flattened().iter().all(|&value| value == 0.0));
        let zero = Matrix::new(GRID, Pages::System).unwrap();
        assert_eq!(solve(&zero, &vector(0), 1e-9).1, None);
    }
}
