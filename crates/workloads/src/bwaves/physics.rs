// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flows whose solution is known: sound, layers sliding along each other, and
//! a blast in a cube. The bounds are the scheme's own errors, worked out below.

use std::f64::consts::PI;

use super::flow::{Blast, Flow, Scheme};
use super::gas::{GAMMA, Primitive, State};
use super::grid::Grid;
use super::system::Progress;
use crate::array::Pages;

const WAVE: f64 = 2.0 * PI;

fn scheme(grid: Grid, viscosity: f64, dissipation: f64, courant: f64) -> Scheme {
    Scheme {
        width: 1.0 / grid.cells[0] as f64,
        viscosity,
        dissipation,
        courant,
        tolerance: 1e-9,
    }
}

fn flow(grid: Grid, scheme: Scheme, state: impl Fn([f64; 3]) -> (f64, Primitive)) -> Flow {
    let of = |at: [usize; 3]| {
        let (density, primitive) = state(at.map(|i| (i as f64 + 0.5) * scheme.width));
        primitive.state(density)
    };
    Flow::new(grid, scheme, Pages::System, of).unwrap()
}

fn gas(velocity: [f64; 3], pressure: f64) -> Primitive {
    Primitive {
        velocity,
        pressure,
        temperature: 0.0, // not part of a state
    }
}

/// Steps until at least `time` has passed; how much has.
fn advance(flow: &mut Flow, time: f64) -> f64 {
    let mut passed = 0.0;
    while passed < time {
        passed += flow.step(&mut Progress::none()).unwrap().0;
    }
    passed
}

/// Twice the mean of a component times a wave: that wave's amplitude.
fn amplitude(flow: &Flow, component: usize, wave: impl Fn([f64; 3]) -> f64) -> f64 {
    let grid = flow.grid;
    let product = |(cell, state): (usize, &State)| {
        let at = grid
            .position(cell)
            .map(|i| (i as f64 + 0.5) * flow.scheme.width);
        state[component] * wave(at)
    };
    2.0 * flow.states.iter().enumerate().map(product).sum::<f64>() / grid.count() as f64
}

/// A standing wave of sound returns to its middle after a quarter of its period,
/// on any axis, and to its negative after half, less what backward Euler damps.
#[test]
fn sound_has_its_speed() {
    for axis in 0..3 {
        let mut cells = [3; 3];
        cells[axis] = 64;
        let grid = Grid { cells };
        let scheme = Scheme {
            width: 1.0 / 64.0,
            ..scheme(grid, 0.0, 0.0, 0.1)
        };
        let loud = 1e-4;
        let wave = |at: [f64; 3]| (WAVE * at[axis]).cos();
        let mut flow = flow(grid, scheme, |at| {
            let density = 1.0 + loud * wave(at);
            (density, gas([0.0; 3], 1.0 + GAMMA * loud * wave(at)))
        });
        let speed = GAMMA.sqrt();
        let quarter = 0.25 / speed;
        let passed = advance(&mut flow, quarter);
        let found = amplitude(&flow, 0, wave) / loud;
        // Of a wave 1 % too fast or slow 0.016 would be left.
        let expected = (WAVE * speed * passed).cos();
        assert!(
            (found - expected).abs() < 5e-3,
            "{axis}: {found} {expected}"
        );
        let passed = passed + advance(&mut flow, 2.0 * quarter - passed);
        let step = scheme.courant * scheme.width / speed;
        let frequency = WAVE * speed;
        let damped = (-0.5 * frequency * frequency * step * passed).exp();
        let found = amplitude(&flow, 0, wave) / loud;
        assert!((found + damped).abs() < 3e-3, "{axis}: {found} {damped}");
    }
}

/// Layers that slide along each other, across two axes: their speed decays by
/// viscosity times the square of the wave number, if the stress is whole.
#[test]
fn layers_decay_by_viscosity() {
    for (one, other) in [(0, 1), (1, 2), (2, 0)] {
        let mut cells = [32; 3];
        cells[3 - one - other] = 3;
        let grid = Grid { cells };
        let viscosity = 0.01;
        let scheme = Scheme {
            width: 1.0 / 32.0,
            ..scheme(grid, viscosity, 0.0, 0.5)
        };
        let speed = 0.01;
        let wave = |at: [f64; 3]| (WAVE * (at[one] + at[other])).sin();
        let mut flow = flow(grid, scheme, |at| {
            let mut velocity = [0.0; 3];
            velocity[one] = speed * wave(at);
            velocity[other] = -velocity[one];
            (1.0, gas(velocity, 1.0))
        });
        let passed = advance(&mut flow, 0.5);
        let expected = (-viscosity * 2.0 * WAVE * WAVE * passed).exp();
        for (component, sign) in [(1 + one, 1.0), (1 + other, -1.0)] {
            let found = sign * amplitude(&flow, component, wave) / speed;
            assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
        }
    }
}

/// Without viscosity layers decay by the dissipation alone: half the speed of
/// sound times the width of a cell.
#[test]
fn layers_decay_by_dissipation() {
    let grid = Grid { cells: [64, 3, 3] };
    let scheme = scheme(grid, 0.0, 1.0, 0.5);
    let speed = 1e-3;
    let wave = |at: [f64; 3]| (WAVE * at[0]).sin();
    let mut flow = flow(grid, scheme, |at| {
        (1.0, gas([0.0, 0.0, speed * wave(at)], 1.0))
    });
    let passed = advance(&mut flow, 0.5);
    let dissipation = 0.5 * GAMMA.sqrt() * scheme.width;
    let expected = (-dissipation * WAVE * WAVE * passed).exp();
    let found = amplitude(&flow, 3, wave) / speed;
    assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
}

/// Heat spreads by conduction: a wave of temperature at one pressure.
#[test]
fn heat_is_conducted() {
    let grid = Grid { cells: [3, 64, 3] };
    let viscosity = 0.01;
    let scheme = Scheme {
        width: 1.0 / 64.0,
        ..scheme(grid, viscosity, 0.0, 0.5)
    };
    let warm = 1e-4;
    let wave = |at: [f64; 3]| (WAVE * at[1]).cos();
    // At constant pressure: conductivity over density and heat capacity. The gas
    // moves at the speed that spreading needs, so that no sound is made.
    let diffusivity = viscosity / 0.72;
    let mut flow = flow(grid, scheme, |at| {
        let speed = -diffusivity * WAVE * warm * (WAVE * at[1]).sin();
        (1.0 - warm * wave(at), gas([0.0, speed, 0.0], 1.0))
    });
    let passed = advance(&mut flow, 0.5);
    let expected = (-diffusivity * WAVE * WAVE * passed).exp();
    let found = -amplitude(&flow, 0, wave) / warm;
    assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
}

/// A blast in a cube is the same along every axis.
#[test]
fn axes_are_alike() {
    let grid = Grid { cells: [11; 3] };
    let mut blast = Blast::new(grid, 1);
    blast.centre = [5; 3];
    let scheme = scheme(grid, 1e-3, 1.0, 1.0);
    let state = |at| blast.state(grid, at);
    let mut flow = Flow::new(grid, scheme, Pages::System, state).unwrap();
    let before = flow.states.clone();
    advance(&mut flow, 0.05);
    let mut moved = 0.0_f64;
    for (cell, state) in flow.states.iter().enumerate() {
        let [i, j, k] = grid.position(cell);
        let turned = flow.states[grid.cell([k, i, j])];
        let turned = [turned[0], turned[2], turned[3], turned[1], turned[4]];
        for l in 0..5 {
            assert!((state[l] - turned[l]).abs() < 1e-9, "{cell} {l}");
            moved = moved.max((state[l] - before[cell][l]).abs());
        }
    }
    assert!(moved > 1.0);
}
