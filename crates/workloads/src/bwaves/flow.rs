// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compressible Navier-Stokes equations on a periodic grid, by finite
//! volumes, implicit in time: backward Euler, linearised once a step and not
//! factored (Beam and Warming, AIAA Journal 16, 1978, in delta form).
//!
//! The convective flux through a face is the mean of both sides less a
//! dissipation of the fastest wave's speed (Rusanov); the viscous flux is the
//! whole stress tensor. The matrix is the flux's derivative face by face, so
//! that what leaves a cell enters its neighbour in the linear system too:
//! nothing is lost but what the solver leaves.

use super::gas::{self, Primitive, State};
use super::grid::Grid;
use super::system::{Matrix, Progress, Solution, Work};
use crate::Error;
use crate::array::{Pages, filled};
use crate::number;
use crate::random::Random;

/// How the equations are solved.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Length of a cell's edge; the first axis is 1 long
    pub width: f64,
    /// Dynamic viscosity
    pub viscosity: f64,
    /// Share of the fastest wave's speed in the dissipation
    pub dissipation: f64,
    /// Cells that the fastest wave crosses in a step
    pub courant: f64,
    /// Residual at which a linear system counts as solved, of its right-hand side
    pub tolerance: f64,
}

/// The gas and all that a step needs.
pub struct Flow {
    pub grid: Grid,
    pub scheme: Scheme,
    pub states: Vec<State>,
    primitives: Vec<Primitive>,
    pub matrix: Matrix,
    pub right: Vec<State>,
    pub change: Vec<State>,
    work: Work,
}

impl Flow {
    /// Memory for each cell.
    pub const BYTES_PER_CELL: u64 =
        Matrix::BYTES_PER_CELL + (3 * size_of::<State>() + size_of::<Primitive>()) as u64;

    /// A gas of these states, all memory touched.
    pub fn new(
        grid: Grid,
        scheme: Scheme,
        pages: Pages,
        state: impl Fn([usize; 3]) -> State,
    ) -> Result<Self, Error> {
        let states = || filled([0.0; 5], grid.count(), pages);
        let mut flow = Self {
            grid,
            scheme,
            states: states()?,
            primitives: filled(Primitive::of(&[1.0; 5]), grid.count(), pages)?,
            matrix: Matrix::new(grid, pages)?,
            right: states()?,
            change: states()?,
            work: Work::new(grid.count(), pages)?,
        };
        for (cell, to) in flow.states.iter_mut().enumerate() {
            *to = state(grid.position(cell));
        }
        Ok(flow)
    }

    /// One time step; the time it took in the gas. None if the linear system was not solved.
    pub fn step(&mut self, progress: &mut Progress) -> Option<(f64, Solution)> {
        let mut fastest = 0.0_f64;
        for (primitive, state) in self.primitives.iter_mut().zip(&self.states) {
            *primitive = Primitive::of(state);
            for axis in 0..3 {
                fastest = fastest.max(primitive.wave_speed(axis));
            }
        }
        let time = self.scheme.courant * self.scheme.width / fastest;
        self.assemble(time);
        let solution = self.matrix.solve(
            &self.right,
            &mut self.change,
            &mut self.work,
            self.scheme.tolerance,
            progress,
        )?;
        for (state, change) in self.states.iter_mut().zip(&self.change) {
            for (state, change) in state.iter_mut().zip(change) {
                *state += change;
            }
        }
        Some((time, solution))
    }

    /// Sets up (I + time * dR/dU) change = - time * R(U), where R is what flows
    /// out of a cell by volume and time.
    fn assemble(&mut self, time: f64) {
        let mut identity = [0.0; 25];
        identity.iter_mut().step_by(6).for_each(|one| *one = 1.0);
        self.matrix.diagonal.fill(identity);
        self.right.fill([0.0; 5]);
        let grid = self.grid;
        grid.each_row(|first, [j, k]| {
            for i in 0..grid.cells[0] {
                self.assemble_cell(first + i, [i, j, k], time);
            }
        });
    }

    /// Adds the fluxes through a cell's three faces towards its next neighbours.
    #[inline]
    fn assemble_cell(&mut self, cell: usize, position: [usize; 3], time: f64) {
        let Scheme {
            width,
            viscosity,
            dissipation,
            ..
        } = self.scheme;
        let ratio = time / width;
        let steps: [_; 3] = std::array::from_fn(|axis| self.grid.steps(axis, position[axis]));
        for axis in 0..3 {
            let next = cell.wrapping_add(steps[axis].next);
            let (state, next_state) = (&self.states[cell], &self.states[next]);
            let (here, there) = (&self.primitives[cell], &self.primitives[next]);
            let speed = dissipation * here.wave_speed(axis).max(there.wave_speed(axis));

            let mut gradient = [[0.0; 3]; 3];
            for (gradient, (there, here)) in gradient
                .iter_mut()
                .zip(there.velocity.iter().zip(&here.velocity))
            {
                gradient[axis] = (there - here) / width;
            }
            for across in (0..3).filter(|&across| across != axis) {
                let (up, down) = (steps[across].next, steps[across].last);
                let above =
                    [cell, next].map(|cell| &self.primitives[cell.wrapping_add(up)].velocity);
                let below =
                    [cell, next].map(|cell| &self.primitives[cell.wrapping_add(down)].velocity);
                for i in [axis, across] {
                    gradient[i][across] =
                        (above[0][i] - below[0][i] + above[1][i] - below[1][i]) / (4.0 * width);
                }
            }
            let temperature_gradient = (there.temperature - here.temperature) / width;
            let velocity: [f64; 3] =
                std::array::from_fn(|i| 0.5 * (here.velocity[i] + there.velocity[i]));
            let viscous = gas::viscous(axis, viscosity, &gradient, temperature_gradient, &velocity);
            let from = gas::euler(axis, state, here);
            let to = gas::euler(axis, next_state, there);

            let (mut of_this, mut of_next) = ([0.0; 25], [0.0; 25]);
            gas::add_euler_jacobian(&mut of_this, 0.5 * ratio, axis, state, here);
            gas::add_euler_jacobian(&mut of_next, 0.5 * ratio, axis, next_state, there);
            for l in 0..5 {
                of_this[6 * l] += 0.5 * ratio * speed;
                of_next[6 * l] -= 0.5 * ratio * speed;
            }
            let thin = ratio / width;
            gas::add_viscous_jacobian(&mut of_this, thin, axis, viscosity, state, here, &velocity);
            gas::add_viscous_jacobian(
                &mut of_next,
                -thin,
                axis,
                viscosity,
                next_state,
                there,
                &velocity,
            );

            for l in 0..5 {
                let flux =
                    0.5 * (from[l] + to[l]) - 0.5 * speed * (next_state[l] - state[l]) - viscous[l];
                self.right[cell][l] -= ratio * flux;
                self.right[next][l] += ratio * flux;
            }
            for (diagonal, element) in self.matrix.diagonal[cell].iter_mut().zip(&of_this) {
                *diagonal += element;
            }
            for (diagonal, element) in self.matrix.diagonal[next].iter_mut().zip(&of_next) {
                *diagonal -= element;
            }
            self.matrix.next[axis][cell] = of_next;
            self.matrix.last[axis][next] = of_this.map(|element| -element);
        }
    }

    /// Mass, momentum and energy of all cells together, by the volume of one.
    pub fn totals(&self) -> State {
        // Row by row, so that few roundings are of large sums.
        let mut totals = [0.0; 5];
        for row in self.states.chunks(self.grid.cells[0]) {
            let mut sums = [0.0; 5];
            for state in row {
                for l in 0..5 {
                    sums[l] += state[l];
                }
            }
            for l in 0..5 {
                totals[l] += sums[l];
            }
        }
        totals
    }

    /// Largest difference between a cell and its image in the three planes
    /// through the cell `centre`, by the largest value of the component.
    pub fn asymmetry(&self, centre: [usize; 3]) -> f64 {
        let (mut largest, mut differences) = ([0.0_f64; 5], [0.0_f64; 5]);
        for (cell, state) in self.states.iter().enumerate() {
            let position = self.grid.position(cell);
            for axis in 0..3 {
                let n = self.grid.cells[axis];
                let mut image = position;
                image[axis] = (2 * centre[axis] + n - position[axis]) % n;
                let mut mirrored = self.states[self.grid.cell(image)];
                mirrored[1 + axis] = -mirrored[1 + axis];
                for l in 0..5 {
                    // `max` would pass over what is no number.
                    let difference = (state[l] - mirrored[l]).abs();
                    if difference.is_nan() || difference > differences[l] {
                        differences[l] = difference;
                    }
                    largest[l] = largest[l].max(state[l].abs());
                }
            }
        }
        // Momentum may be none: its scale is density times the speed of sound, about 1.
        let momentum = largest[1..4].iter().copied().fold(largest[0], f64::max);
        let scales = [largest[0], momentum, momentum, momentum, largest[4]];
        let relative = differences.iter().zip(scales).map(|(&difference, scale)| {
            if difference == 0.0 {
                0.0
            } else {
                difference / scale
            }
        });
        relative.fold(0.0, |worst, one| if one <= worst { worst } else { one })
    }

    /// Whether every cell's density and pressure are positive numbers, and the
    /// highest Mach number.
    pub fn mach(&self) -> Option<f64> {
        let mut highest = 0.0_f64;
        for state in &self.states {
            let of = Primitive::of(state);
            if !(state[0] > 0.0 && of.pressure > 0.0 && of.pressure.is_finite()) {
                return None;
            }
            let square: f64 = of.velocity.iter().map(|speed| speed * speed).sum();
            highest = highest.max(square / (gas::GAMMA * of.temperature));
        }
        Some(highest.sqrt())
    }

    /// Digest of all states.
    pub fn checksum(&self) -> u64 {
        number::digest(self.states.as_flattened())
    }
}

/// A blast: gas at rest under a pressure that is highest in one place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blast {
    pub centre: [usize; 3],
    /// Pressure in the centre, of that around
    pressure: f64,
    /// In cells
    radius: f64,
}

impl Blast {
    /// Its place and strength follow from the seed.
    pub fn new(grid: Grid, seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let shortest = grid.cells.iter().min().copied().unwrap_or(0);
        Self {
            centre: grid.cells.map(|n| random.below(n as u64) as usize),
            pressure: 30.0 + 10.0 * random.unit(),
            radius: 0.3 * shortest as f64,
        }
    }

    /// State of a cell.
    pub fn state(&self, grid: Grid, position: [usize; 3]) -> State {
        let mut square = 0.0;
        for ((at, centre), cells) in position.into_iter().zip(self.centre).zip(grid.cells) {
            let apart = at.abs_diff(centre);
            let apart = apart.min(cells - apart) as f64;
            square += apart * apart;
        }
        let inside = (1.0 - square / (self.radius * self.radius)).max(0.0);
        let pressure = 1.0 + (self.pressure - 1.0) * inside * inside;
        [1.0, 0.0, 0.0, 0.0, pressure / (gas::GAMMA - 1.0)]
    }
}
