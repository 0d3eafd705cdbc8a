// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cross sections by nuclide and energy, and the unionised grid that finds a
//! position in every nuclide's table with one search.

use super::lcg::Lcg;
use crate::Error;
use crate::array::{self, Pages};

/// Reaction channels of a cross section.
pub const CHANNELS: usize = 5;
const SEED: u64 = 42;

/// A row of a nuclide's table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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

/// The next rows of a nuclide's table, by energy.
fn table(random: &mut Lcg, rows: usize, table: &mut Vec<Point>) {
    let first = table.len();
    table.extend((0..rows).map(|_| {
        let energy = random.unit();
        Point {
            energy,
            sections: std::array::from_fn(|_| random.unit()),
        }
    }));
    table[first..].sort_unstable_by(|a, b| a.energy.total_cmp(&b.energy));
}

/// Bytes of tables for so many nuclides, for each row of one of them.
pub fn row_bytes(kind: Kind, nuclides: usize) -> u64 {
    let union_bytes = match kind {
        Kind::Unionized => size_of::<f64>() + nuclides * size_of::<u32>(),
        Kind::Nuclide => 0,
    };
    (nuclides * (size_of::<Point>() + union_bytes)) as u64
}

impl Grid {
    /// Makes the tables, `rows` rows for each nuclide (at least 2).
    pub fn new(kind: Kind, nuclides: usize, rows: usize, pages: Pages) -> Result<Self, Error> {
        let mut random = Lcg(SEED);
        let mut points = array::with_capacity(nuclides * rows, pages)?;
        for _ in 0..nuclides {
            table(&mut random, rows, &mut points);
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
            grid.unionize(pages)?;
        }
        Ok(grid)
    }

    /// Notes, for every energy of any nuclide, the position in each table.
    fn unionize(&mut self, pages: Pages) -> Result<(), Error> {
        self.energies = array::with_capacity(self.points.len(), pages)?;
        self.energies
            .extend(self.points.iter().map(|point| point.energy));
        self.energies.sort_unstable_by(f64::total_cmp);
        let mut position = vec![0_usize; self.nuclides];
        self.positions = array::with_capacity(self.energies.len() * self.nuclides, pages)?;
        for &energy in &self.energies {
            for (nuclide, at) in position.iter_mut().enumerate() {
                let next = &self.points[nuclide * self.rows + *at + 1];
                if energy >= next.energy && *at + 2 < self.rows {
                    *at += 1;
                }
                self.positions.push(*at as u32);
            }
        }
        Ok(())
    }

    /// Makes every table once more and compares; follows every position through
    /// the union. Returns how many rows are wrong.
    pub fn wrong_rows(&self) -> u64 {
        let mut random = Lcg(SEED);
        let mut wrong = 0;
        let mut expected = Vec::with_capacity(self.rows);
        for found in self.points.chunks(self.rows) {
            expected.clear();
            table(&mut random, self.rows, &mut expected);
            wrong += found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        }
        let mut last = f64::MIN;
        for (&energy, positions) in self
            .energies
            .iter()
            .zip(self.positions.chunks(self.nuclides))
        {
            let positions = || {
                (0..)
                    .zip(positions)
                    .map(|(nuclide, &at)| (nuclide, at as usize))
            };
            let right = energy >= last
                && positions().all(|(nuclide, at)| self.is_position(nuclide, at, energy))
                && positions().any(|(nuclide, at)| self.is_row(nuclide, at, energy));
            wrong += usize::from(!right);
            last = energy;
        }
        wrong as u64
    }

    /// An energy is that of row `at` of a table, or of the last one.
    fn is_row(&self, nuclide: usize, at: usize, energy: f64) -> bool {
        let row = nuclide * self.rows + at;
        self.points[row].energy == energy || self.points[row + 1].energy == energy
    }

    /// `at` is the last row of a table that is not above an energy; the first
    /// and the last but one stand for what is outside.
    fn is_position(&self, nuclide: usize, at: usize, energy: f64) -> bool {
        if at + 2 > self.rows {
            return false;
        }
        let table = &self.points[nuclide * self.rows..(nuclide + 1) * self.rows];
        (at == 0 || table[at].energy <= energy)
            && (at + 2 == self.rows || energy < table[at + 1].energy)
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.points[..])
            + size_of_val(&self.energies[..])
            + size_of_val(&self.positions[..])) as u64
    }

    /// How positions are found.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Adds up the cross sections of a material at an energy. `kind` is that of
    /// the grid or `Nuclide`, which every grid can do.
    #[inline]
    pub fn macroscopic(&self, kind: Kind, energy: f64, nuclides: &[(u32, f64)]) -> [f64; CHANNELS] {
        let mut sum = [0.0; CHANNELS];
        let union_row = match kind {
            Kind::Unionized => lower(self.energies.len(), energy, |row| self.energies[row]),
            Kind::Nuclide => 0,
        };
        for &(nuclide, concentration) in nuclides {
            let nuclide = nuclide as usize;
            let table = &self.points[nuclide * self.rows..(nuclide + 1) * self.rows];
            let position = match kind {
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
        let unionized = Grid::new(Kind::Unionized, 5, 50, Pages::System).unwrap();
        let nuclide = Grid::new(Kind::Nuclide, 5, 50, Pages::Huge).unwrap();
        let material: Vec<(u32, f64)> = (0..5).map(|name| (name, 0.5)).collect();
        let mut random = Lcg(3);
        for _ in 0..10_000 {
            let energy = random.unit();
            let found = unionized.macroscopic(Kind::Unionized, energy, &material);
            assert_eq!(found, nuclide.macroscopic(Kind::Nuclide, energy, &material));
            assert_eq!(
                found,
                unionized.macroscopic(Kind::Nuclide, energy, &material)
            );
        }
        assert!(unionized.bytes() > nuclide.bytes());
        for (grid, kind) in [(unionized, Kind::Unionized), (nuclide, Kind::Nuclide)] {
            assert_eq!(grid.bytes(), 50 * row_bytes(kind, 5));
        }
    }

    #[test]
    fn damage_is_noticed() {
        let grid = || Grid::new(Kind::Unionized, 5, 50, Pages::System).unwrap();
        assert_eq!(grid().wrong_rows(), 0);
        for row in [0, 1, 77, 249] {
            let mut one = grid();
            one.points[row].sections[2] += 1e-9;
            assert_eq!(one.wrong_rows(), 1);
            let mut one = grid();
            one.energies[row] = -1.0;
            assert!(one.wrong_rows() > 0, "{row}");
            let mut one = grid();
            one.positions[row * 5 + 3] ^= 1;
            assert_eq!(one.wrong_rows(), 1, "{row}");
        }
    }
}
