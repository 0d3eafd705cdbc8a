// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A periodic grid of cubic cells, the first axis fastest.

/// Cells along each axis; at least three, so that no two neighbours of a cell are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub cells: [usize; 3],
}

impl Grid {
    /// As near a cube as whole planes allow, of about so many cells.
    pub fn of_cells(cells: u64) -> Self {
        let cells = cells.clamp(27, 1 << 40);
        let mut edge = 3;
        while (edge + 1) * (edge + 1) * (edge + 1) <= cells {
            edge += 1;
        }
        let planes = (cells + edge * edge / 2) / (edge * edge);
        Self {
            cells: [edge as usize, edge as usize, planes as usize],
        }
    }

    /// All cells.
    pub fn count(&self) -> usize {
        self.cells.iter().product()
    }

    /// Steps from a cell at `position` along `axis` to the next and from the last.
    #[inline]
    pub fn steps(&self, axis: usize, position: usize) -> Steps {
        let stride: usize = self.cells[..axis].iter().product();
        let around = stride * (self.cells[axis] - 1);
        Steps {
            next: if position + 1 == self.cells[axis] {
                stride.wrapping_sub(around + stride)
            } else {
                stride
            },
            last: if position == 0 {
                around
            } else {
                stride.wrapping_neg()
            },
        }
    }

    /// Calls `row` for each row of cells along the first axis, with the number
    /// of its first cell and its position along the other two.
    #[inline]
    pub fn each_row(&self, mut row: impl FnMut(usize, [usize; 2])) {
        let [nx, ny, nz] = self.cells;
        for k in 0..nz {
            for j in 0..ny {
                row(nx * (j + ny * k), [j, k]);
            }
        }
    }

    /// Position of a cell.
    pub fn position(&self, cell: usize) -> [usize; 3] {
        let [nx, ny, _] = self.cells;
        [cell % nx, cell / nx % ny, cell / (nx * ny)]
    }

    /// The cell at a position.
    pub fn cell(&self, position: [usize; 3]) -> usize {
        position[0] + self.cells[0] * (position[1] + self.cells[1] * position[2])
    }
}

/// What to add to a cell's number, wrapping, for its neighbours along an axis.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    pub next: usize,
    pub last: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_around_the_corner() {
        let grid = Grid { cells: [3, 4, 5] };
        for cell in 0..grid.count() {
            let at = grid.position(cell);
            assert_eq!(grid.cell(at), cell);
            for axis in 0..3 {
                let steps = grid.steps(axis, at[axis]);
                let n = grid.cells[axis];
                let (mut next, mut last) = (at, at);
                next[axis] = (at[axis] + 1) % n;
                last[axis] = (at[axis] + n - 1) % n;
                assert_eq!(cell.wrapping_add(steps.next), grid.cell(next));
                assert_eq!(cell.wrapping_add(steps.last), grid.cell(last));
            }
        }
    }

    #[test]
    fn rows_are_all_cells() {
        let grid = Grid { cells: [3, 4, 5] };
        let mut firsts = Vec::new();
        grid.each_row(|first, [j, k]| {
            assert_eq!(grid.cell([0, j, k]), first);
            firsts.push(first);
        });
        assert_eq!(firsts, (0..60).step_by(3).collect::<Vec<_>>());
    }

    #[test]
    fn any_number_of_cells_is_met_within_two_percent() {
        for cells in (8_000..400_000).step_by(1_237) {
            let count = Grid::of_cells(cells).count() as f64;
            assert!((count / cells as f64 - 1.0).abs() < 0.03, "{cells}");
        }
        assert_eq!(Grid::of_cells(314_432).cells, [68, 68, 68]);
        assert_eq!(Grid::of_cells(0).cells, [3, 3, 3]);
    }
}
