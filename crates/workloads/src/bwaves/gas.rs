// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A calorically perfect gas: state, fluxes through a face and their
//! derivatives. Units are of the gas at rest: density 1, pressure 1, so the
//! temperature p/rho is 1 and the speed of sound sqrt(GAMMA).

/// Ratio of specific heats of air.
pub const GAMMA: f64 = 1.4;
/// Prandtl number of air.
const PRANDTL: f64 = 0.72;

/// Density, momentum (three), total energy: per volume.
pub type State = [f64; 5];
/// A 5x5 block by columns, as Fortran stores `a(5,5)`.
pub type Block = [f64; 25];

/// What a cell's fluxes and their derivatives need, worked out once a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Primitive {
    pub velocity: [f64; 3],
    pub pressure: f64,
    /// p/rho
    pub temperature: f64,
}

impl Primitive {
    /// Of a state.
    #[inline]
    pub fn of(state: &State) -> Self {
        let volume = 1.0 / state[0];
        let velocity = [state[1] * volume, state[2] * volume, state[3] * volume];
        let kinetic =
            0.5 * (state[1] * velocity[0] + state[2] * velocity[1] + state[3] * velocity[2]);
        let pressure = (GAMMA - 1.0) * (state[4] - kinetic);
        Self {
            velocity,
            pressure,
            temperature: pressure * volume,
        }
    }

    /// The state of this density.
    #[cfg(test)]
    pub fn state(&self, density: f64) -> State {
        let [u, v, w] = self.velocity;
        let energy = self.pressure / (GAMMA - 1.0) + 0.5 * density * (u * u + v * v + w * w);
        [density, density * u, density * v, density * w, energy]
    }

    /// Of the fastest wave along an axis.
    #[inline]
    pub fn wave_speed(&self, axis: usize) -> f64 {
        self.velocity[axis].abs() + (GAMMA * self.temperature).sqrt()
    }
}

/// Euler flux along `axis`.
#[inline]
pub fn euler(axis: usize, state: &State, of: &Primitive) -> State {
    let speed = of.velocity[axis];
    let mut flux = state.map(|density| density * speed);
    flux[1 + axis] += of.pressure;
    flux[4] += of.pressure * speed;
    flux
}

/// Adds `factor` times the derivative of [`euler`] to a block.
#[inline]
pub fn add_euler_jacobian(
    block: &mut Block,
    factor: f64,
    axis: usize,
    state: &State,
    of: &Primitive,
) {
    let u = of.velocity;
    let speed = u[axis];
    let phi = 0.5 * (GAMMA - 1.0) * (u[0] * u[0] + u[1] * u[1] + u[2] * u[2]);
    let enthalpy = (state[4] + of.pressure) / state[0];
    // Column of the density.
    for i in 0..3 {
        block[1 + i] -= factor * u[i] * speed;
    }
    block[1 + axis] += factor * phi;
    block[4] += factor * (phi - enthalpy) * speed;
    // Columns of the momentum.
    for k in 0..3 {
        let column = 5 * (1 + k);
        block[column + 1 + k] += factor * speed;
        block[column + 1 + axis] -= factor * (GAMMA - 1.0) * u[k];
        block[column + 4] -= factor * (GAMMA - 1.0) * u[k] * speed;
    }
    let column = 5 * (1 + axis);
    block[column] += factor;
    for i in 0..3 {
        block[column + 1 + i] += factor * u[i];
    }
    block[column + 4] += factor * enthalpy;
    // Column of the energy.
    block[20 + 1 + axis] += factor * (GAMMA - 1.0);
    block[20 + 4] += factor * GAMMA * speed;
}

/// Viscous flux along `axis`, from the velocities' derivatives (`gradient[i][k]`
/// is of component i along axis k), the temperature's along `axis`, and the
/// velocity on the face.
#[inline]
pub fn viscous(
    axis: usize,
    viscosity: f64,
    gradient: &[[f64; 3]; 3],
    temperature_gradient: f64,
    velocity: &[f64; 3],
) -> State {
    let divergence = gradient[0][0] + gradient[1][1] + gradient[2][2];
    let mut flux = [0.0; 5];
    for i in 0..3 {
        flux[1 + i] = viscosity * (gradient[i][axis] + gradient[axis][i]);
    }
    flux[1 + axis] -= viscosity * (2.0 / 3.0) * divergence;
    flux[4] = conductivity(viscosity) * temperature_gradient
        + velocity[0] * flux[1]
        + velocity[1] * flux[2]
        + velocity[2] * flux[3];
    flux
}

/// Heat conductivity, for temperatures as p/rho.
fn conductivity(viscosity: f64) -> f64 {
    viscosity * GAMMA / ((GAMMA - 1.0) * PRANDTL)
}

/// Adds `factor` times the derivative of the viscous flux by the state on one
/// side of a face, for a difference of that side along `axis` alone (the thin
/// layer's part; the stencil has no corners). `velocity` is the face's.
#[inline]
pub fn add_viscous_jacobian(
    block: &mut Block,
    factor: f64,
    axis: usize,
    viscosity: f64,
    state: &State,
    of: &Primitive,
    velocity: &[f64; 3],
) {
    let per_density = factor / state[0];
    let u = of.velocity;
    let heat = per_density * conductivity(viscosity) * (GAMMA - 1.0);
    let mut work_of_density = 0.0;
    for i in 0..3 {
        let stress = per_density * viscosity * if i == axis { 4.0 / 3.0 } else { 1.0 };
        block[1 + i] -= stress * u[i];
        block[5 * (1 + i) + 1 + i] += stress;
        block[5 * (1 + i) + 4] += stress * velocity[i] - heat * u[i];
        work_of_density -= stress * u[i] * velocity[i];
    }
    let square = u[0] * u[0] + u[1] * u[1] + u[2] * u[2];
    block[4] += work_of_density + heat * (square - state[4] / state[0]);
    block[24] += heat;
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: State = [1.3, 0.4, -0.7, 0.2, 3.9];

    /// Column `k` of a derivative by central differences.
    fn difference(k: usize, of: impl Fn(&State) -> State) -> State {
        let step = 1e-6;
        let (mut above, mut below) = (STATE, STATE);
        above[k] += step;
        below[k] -= step;
        let (above, below) = (of(&above), of(&below));
        std::array::from_fn(|l| (above[l] - below[l]) / (2.0 * step))
    }

    #[test]
    fn euler_jacobian_is_the_derivative() {
        for axis in 0..3 {
            let mut block = [0.0; 25];
            add_euler_jacobian(&mut block, 2.0, axis, &STATE, &Primitive::of(&STATE));
            for k in 0..5 {
                let column = difference(k, |state| euler(axis, state, &Primitive::of(state)));
                for l in 0..5 {
                    let (found, expected) = (block[5 * k + l], 2.0 * column[l]);
                    assert!((found - expected).abs() < 1e-7, "{axis} {l} {k}");
                }
            }
        }
    }

    #[test]
    fn viscous_jacobian_is_the_derivative() {
        let (viscosity, face) = (0.1, [0.3, -0.2, 0.6]);
        let flux = |axis: usize, state: &State| {
            let primitive = Primitive::of(state);
            let mut gradient = [[0.0; 3]; 3];
            for (gradient, speed) in gradient.iter_mut().zip(primitive.velocity) {
                gradient[axis] = speed;
            }
            viscous(axis, viscosity, &gradient, primitive.temperature, &face)
        };
        for axis in 0..3 {
            let mut block = [0.0; 25];
            let primitive = Primitive::of(&STATE);
            add_viscous_jacobian(&mut block, 1.0, axis, viscosity, &STATE, &primitive, &face);
            for k in 0..5 {
                let column = difference(k, |state| flux(axis, state));
                for l in 0..5 {
                    assert!(
                        (block[5 * k + l] - column[l]).abs() < 1e-7,
                        "{axis} {l} {k}"
                    );
                }
            }
        }
    }

    #[test]
    fn states_and_primitives_are_the_same_thing() {
        let again = Primitive::of(&STATE).state(STATE[0]);
        for l in 0..5 {
            assert!((again[l] - STATE[l]).abs() < 1e-15);
        }
    }
}
