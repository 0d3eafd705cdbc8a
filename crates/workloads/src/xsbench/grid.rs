// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cross sections by nuclide and energy, and the unionised grid that finds a
//! position in every nuclide's table with one search.

use super::lcg::Lcg;

/// Reaction channels of a cross section.
pub const CHANNELS: usize = 5;
const SEED: u64 = 42;

/// A row of a nuclide's table.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Point {
    /// Normalised energy, 0 to 1
    pub energy: f64,
    /// Cross sections: total, elastic, absorption, fission, nu-fission
    pub sections: [f64; CHANNELS],
}

/// How a position in the tables is found.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One search over the energies of all nuclides, then a table of positions
    Unionized,
    /// One search in each nuclide's own table
    Nuclide,
}

/// All tables.
pub struct Grid {
    kind: Kind,
    nuclides: usize,
    rows: usize,
    points: Vec<Point>,
    energies: Vec<f64>,
    positions: Vec<u32>,
}

impl Grid {
    /// Makes the tables, `rows` rows for each nuclide (at least 2).
    pub fn new(kind: Kind, nuclides: usize, rows: usize) -> Self {
        let mut random = Lcg(SEED);
        let mut points: Vec<Point> = (0..nuclides * rows)
            .map(|_| {
                let energy = random.unit();
                Point {
                    energy,
                    sections: std::array::from_fn(|_| random.unit()),
                }
            })
            .collect();
        for table in points.chunks_mut(rows) {
            table.sort_unstable_by(|a, b| a.energy.total_cmp(&b.energy));
        }
        let mut grid = Self {
            kind,
            nuclides,
            rows,
            points,
            energies: Vec::new(),
            positions: Vec::new(),
        };
        if kind == Kind::Unionized {
            grid.unionize();
        }
        grid
    }

    /// Notes, for every energy of any nuclide, the position in each table.
    fn unionize(&mut self) {
        self.energies = self.points.iter().map(|point| point.energy).collect();
        self.energies.sort_unstable_by(f64::total_cmp);
        let mut position = vec![0_usize; self.nuclides];
        self.positions = Vec::with_capacity(self.energies.len() * self.nuclides);
        for &energy in &self.energies {
            for (nuclide, at) in position.iter_mut().enumerate() {
                let next = &self.points[nuclide * self.rows + *at + 1];
                if energy >= next.energy && *at + 2 < self.rows {
                    *at += 1;
                }
                self.positions.push(*at as u32);
            }
        }
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.points[..])
            + size_of_val(&self.energies[..])
            + size_of_val(&self.positions[..])) as u64
    }

    /// Adds up the cross sections of a material at an energy.
    pub fn macroscopic(&self, energy: f64, nuclides: &[(u32, f64)]) -> [f64; CHANNELS] {
        let mut sum = [0.0; CHANNELS];
        let union_row = match self.kind {
            Kind::Unionized => lower(self.energies.len(), energy, |row| self.energies[row]),
            Kind::Nuclide => 0,
        };
        for &(nuclide, concentration) in nuclides {
            let nuclide = nuclide as usize;
            let table = &self.points[nuclide * self.rows..(nuclide + 1) * self.rows];
            let position = match self.kind {
                Kind::Unionized => self.positions[union_row * self.nuclides + nuclide] as usize,
                Kind::Nuclide => lower(self.rows, energy, |row| table[row].energy),
            };
            let low = position.min(self.rows - 2);
            let (low, high) = (&table[low], &table[low + 1]);
            let part = (high.energy - energy) / (high.energy - low.energy);
            for (channel, sum) in sum.iter_mut().enumerate() {
                let (below, above) = (low.sections[channel], high.sections[channel]);
                *sum += (above - part * (above - below)) * concentration;
            }
        }
        sum
    }
}

/// The last of `count` ascending values that is not above `wanted`, by halving.
#[inline]
fn lower(count: usize, wanted: f64, value: impl Fn(usize) -> f64) -> usize {
    let (mut low, mut high) = (0, count - 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if value(middle) > wanted {
            high = middle;
        } else {
            low = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_grids_find_the_same() {
        let unionized = Grid::new(Kind::Unionized, 5, 50);
        let nuclide = Grid::new(Kind::Nuclide, 5, 50);
        let material: Vec<(u32, f64)> = (0..5).map(|name| (name, 0.5)).collect();
        let mut random = Lcg(3);
        for _ in 0..10_000 {
            let energy = random.unit();
            assert_eq!(
                unionized.macroscopic(energy, &material),
                nuclide.macroscopic(energy, &material)
            );
        }
        assert!(unionized.bytes() > nuclide.bytes());
    }
}
