// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What blocks hold.

use crate::varint::{Numbers, put};

/// Where a page was when it was first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct First {
    /// In SMEM.
    pub slow: bool,
    /// Part of a mapping of 2 MiB.
    pub huge: bool,
}

impl First {
    fn bits(self) -> u64 {
        u64::from(self.slow) | u64::from(self.huge) << 1
    }

    fn from_bits(bits: u64) -> Option<Self> {
        (bits < 4).then_some(Self {
            slow: bits & 1 != 0,
            huge: bits & 2 != 0,
        })
    }
}

/// What one 4 KiB page was accessed in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Virtual page number.
    pub page: u64,
    /// Line fills from memory at the tier's latency.
    pub random: u32,
    /// Line fills that a sequential stream had covered.
    pub streamed: u32,
    /// Loads of user code that took as long as the sampling unit asks for.
    pub eligible: u32,
    /// Said with the first row of a page that was not resident at the beginning.
    pub first: Option<First>,
}

/// Most that a window may say of time: an hour. Recorded ones are of milliseconds.
pub const MOST_PS: u64 = 3600 * 1_000_000_000_000;

/// A part of the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// What it took, less what fills cost more from SMEM than from FMEM.
    pub base_ps: u64,
    /// What it took.
    pub elapsed_ps: u64,
    /// Page walks of accesses that were fills, and how many those were: of base pages
    /// and of huge ones.
    pub walks: [(u64, u64); 2],
    /// Address spaces, by number, each with the end of its rows.
    pub spaces: Vec<(u64, usize)>,
    /// By address space and page.
    pub rows: Vec<Row>,
}

/// Pages one after the other that were alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Virtual page number of the first.
    pub page: u64,
    /// How many.
    pub pages: u64,
    /// Where they are.
    pub first: First,
}

/// What was resident in an address space when the recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Number of the address space.
    pub space: u64,
    /// By address.
    pub runs: Vec<Run>,
}

/// Rows of one line fill that was random and could be sampled: most.
const COMMON: u64 = 0;
/// Rows that say what they count.
const COUNTED: u64 = 1;
/// Rows that say where their page is as well.
const NEW: u64 = 2;
/// Highest user page, and one.
const PAGES: u64 = 1 << 35;

impl Window {
    pub(crate) fn pack(&self, bytes: &mut Vec<u8>) {
        for number in [self.base_ps, self.elapsed_ps] {
            put(bytes, number);
        }
        for (ps, fills) in self.walks {
            put(bytes, ps);
            put(bytes, fills);
        }
        put(bytes, self.spaces.len() as u64);
        let mut begin = 0;
        for &(space, end) in &self.spaces {
            put(bytes, space);
            put(bytes, (end - begin) as u64);
            let mut before = 0;
            for row in &self.rows[begin..end] {
                let kind = match row {
                    Row { first: Some(_), .. } => NEW,
                    Row {
                        random: 1,
                        streamed: 0,
                        eligible: 1,
                        ..
                    } => COMMON,
                    _ => COUNTED,
                };
                put(bytes, row.page.wrapping_sub(before) << 2 | kind);
                before = row.page;
                if let Some(first) = row.first {
                    put(bytes, first.bits());
                }
                if kind != COMMON {
                    for count in [row.random, row.streamed, row.eligible] {
                        put(bytes, u64::from(count));
                    }
                }
            }
            begin = end;
        }
    }

    /// Whether each of its times, and what they are of, could have been: see [`MOST_PS`].
    pub(crate) fn is_of_this_world(&self) -> bool {
        let of_walks = self.walks.iter().flat_map(|&(ps, fills)| [ps, fills]);
        [self.base_ps, self.elapsed_ps]
            .into_iter()
            .chain(of_walks)
            .all(|number| number <= MOST_PS)
    }

    /// Replaces this one; `None` if it is malformed.
    pub(crate) fn unpack(&mut self, bytes: &[u8]) -> Option<()> {
        let mut numbers = Numbers::new(bytes);
        self.spaces.clear();
        self.rows.clear();
        self.base_ps = numbers.take()?;
        self.elapsed_ps = numbers.take()?;
        for walks in &mut self.walks {
            *walks = (numbers.take()?, numbers.take()?);
        }
        let spaces = numbers.take()?;
        for _ in 0..spaces {
            let space = numbers.take()?;
            let count = numbers.take()?;
            if count > numbers.left() as u64 {
                return None;
            }
            let mut page = 0u64;
            for at in 0..count {
                let head = numbers.take()?;
                let step = head >> 2;
                // By address, and each page once.
                if at > 0 && step == 0 {
                    return None;
                }
                page = page.checked_add(step).filter(|&page| page < PAGES)?;
                let mut row = Row {
                    page,
                    random: 1,
                    streamed: 0,
                    eligible: 1,
                    first: None,
                };
                let kind = head & 3;
                if kind == NEW {
                    row.first = Some(First::from_bits(numbers.take()?)?);
                }
                if kind == COUNTED || kind == NEW {
                    for count in [&mut row.random, &mut row.streamed, &mut row.eligible] {
                        *count = u32::try_from(numbers.take()?).ok()?;
                    }
                } else if kind != COMMON {
                    return None;
                }
                self.rows.push(row);
            }
            self.spaces.push((space, self.rows.len()));
        }
        numbers.is_empty().then_some(())
    }
}

impl Resident {
    pub(crate) fn pack(&self, bytes: &mut Vec<u8>) {
        put(bytes, self.space);
        let mut before = 0;
        for run in &self.runs {
            put(bytes, run.page.wrapping_sub(before) << 2 | run.first.bits());
            put(bytes, run.pages);
            before = run.page.wrapping_add(run.pages);
        }
    }

    pub(crate) fn unpack(bytes: &[u8]) -> Option<Self> {
        let mut numbers = Numbers::new(bytes);
        let mut resident = Self {
            space: numbers.take()?,
            runs: Vec::new(),
        };
        let mut before = 0u64;
        while !numbers.is_empty() {
            let head = numbers.take()?;
            let pages = numbers.take()?;
            let page = before.checked_add(head >> 2)?;
            before = page.checked_add(pages).filter(|&end| end <= PAGES)?;
            resident.runs.push(Run {
                page,
                pages,
                first: First::from_bits(head & 3)?,
            });
        }
        Some(resident)
    }
}
