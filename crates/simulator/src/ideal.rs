// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clairvoyant static placement, from totals by page.

use std::collections::BTreeMap;

use demeter_recording::Window;

use crate::{HUGE_PAGES, HUGE_SHIFT};

/// Line fills of a page: random ones, and those of streams.
type Fills = [u64; 2];

/// Fills of all pages of a record.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    chunks: BTreeMap<(u64, u64), Box<[Fills]>>,
    base_ps: u64,
}

impl Tally {
    /// Adds a window's.
    pub fn window(&mut self, window: &Window) {
        self.base_ps += window.base_ps;
        let mut begin = 0;
        for &(space, end) in &window.spaces {
            let mut rows = window.rows[begin..end].iter().peekable();
            while let Some(&first) = rows.peek() {
                let at = first.page >> HUGE_SHIFT;
                let chunk = (self.chunks.entry((space, at)))
                    .or_insert_with(|| vec![[0; 2]; HUGE_PAGES as usize].into());
                while let Some(row) = rows.next_if(|row| row.page >> HUGE_SHIFT == at) {
                    let fills = &mut chunk[(row.page % HUGE_PAGES) as usize];
                    fills[0] += u64::from(row.random);
                    fills[1] += u64::from(row.streamed);
                }
            }
            begin = end;
        }
    }

    /// Pages with any fill.
    #[must_use]
    pub fn pages(&self) -> u64 {
        let touched = |chunk: &[Fills]| chunk.iter().filter(|fills| **fills != [0; 2]).count();
        self.chunks
            .values()
            .map(|chunk| touched(chunk) as u64)
            .sum()
    }

    /// Time if so many pages, the best ones, were in FMEM from the start on and nothing
    /// else differed; `dearer_ps` is what a fill costs more from SMEM, by its kind.
    #[must_use]
    pub fn ideal_ps(&self, fmem_pages: u64, dearer_ps: [u64; 2]) -> u64 {
        let mut costs: Vec<u64> = (self.chunks.values())
            .flat_map(|chunk| chunk.iter())
            .map(|fills| fills[0] * dearer_ps[0] + fills[1] * dearer_ps[1])
            .filter(|&cost_ps| cost_ps > 0)
            .collect();
        costs.sort_unstable_by(|a, b| b.cmp(a));
        let left = usize::try_from(fmem_pages).unwrap_or(usize::MAX);
        self.base_ps + costs.iter().skip(left).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_recording::Row;

    #[test]
    fn the_dearest_pages_have_fmem() {
        let row = |page, random, streamed| Row {
            page,
            random,
            streamed,
            ..Row::default()
        };
        let window = Window {
            base_ps: 1000,
            spaces: vec![(1, 2), (2, 3)],
            rows: vec![row(1, 3, 0), row(900, 0, 40), row(1, 5, 0)],
            ..Window::default()
        };
        let mut tally = Tally::default();
        tally.window(&window);
        tally.window(&window);
        assert_eq!(tally.pages(), 3);
        let ideal = |pages| tally.ideal_ps(pages, [10, 1]);
        assert_eq!(ideal(0), 2000 + 60 + 80 + 100);
        assert_eq!(ideal(1), 2000 + 60 + 80);
        assert_eq!(ideal(2), 2000 + 60);
        assert_eq!(ideal(9), 2000);
    }
}
