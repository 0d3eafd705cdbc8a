// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recorded accesses: line fills by page and window of time, for a simulator that
//! places the pages otherwise.
//!
//! Windows are of equal *progress*: of time less what fills cost more from SMEM than
//! they would have from FMEM, which is a matter of placement and not of the program.
//! Only user addresses are told by page. What the kernel did is in the time.

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use demeter_recording::{First, Resident, Row, Window};
use serde::{Deserialize, Serialize};

use crate::placement::{PageHasher, PageMap, is_kernel};
use crate::{Access, Served};

/// Pages that are told where they were when first seen: 64 GiB.
const MAX_PAGES: usize = 1 << 24;
const PAGE_SHIFT: u32 = 12;
/// Bits of a user page's number.
const PAGE_BITS: u32 = 47 - PAGE_SHIFT;

/// What to record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessesConfig {
    /// Progress of a window.
    pub window_ns: u64,
    /// Loads of user code from this latency on could be sampled.
    pub threshold_ns: u64,
    /// What the file begins with, as its readers understand it.
    pub header: String,
}

/// An access that may be a line fill.
#[derive(Clone, Copy, Debug)]
pub struct Accessed {
    /// Number of the address space.
    pub space: u64,
    /// Virtual address.
    pub va: u64,
    /// A load by user code.
    pub user_load: bool,
    /// What it came to.
    pub access: Access,
    /// What it costs more from SMEM than from FMEM if it is a fill.
    pub dearer_ps: u64,
}

/// Counts by page, window after window.
#[derive(Clone, Debug)]
pub struct Accesses {
    window_ps: u64,
    threshold_ps: u64,
    began_ns: Option<u64>,
    dearer_ps: u64,
    walks: [(u64, u64); 2],
    pages: PageMap<Row>,
    seen: HashSet<u64, BuildHasherDefault<PageHasher>>,
    done: VecDeque<Window>,
}

impl Accesses {
    /// Nothing so far.
    #[must_use]
    pub fn new(config: &AccessesConfig) -> Self {
        Self {
            window_ps: config.window_ns.max(1) * 1000,
            threshold_ps: config.threshold_ns * 1000,
            began_ns: None,
            dearer_ps: 0,
            walks: [(0, 0); 2],
            pages: PageMap::default(),
            seen: HashSet::default(),
            done: VecDeque::new(),
        }
    }

    /// Pages that are told apart from those that come later.
    pub fn resident(&mut self, resident: &Resident) {
        for run in &resident.runs {
            for page in run.page..run.page + run.pages {
                if self.seen.len() < MAX_PAGES {
                    self.seen.insert(key(resident.space, page));
                }
            }
        }
    }

    /// It is `now_ns` on the guest's clock.
    pub fn at(&mut self, now_ns: u64) {
        let began_ns = *self.began_ns.get_or_insert(now_ns);
        let elapsed_ps = now_ns.saturating_sub(began_ns) * 1000;
        if elapsed_ps.saturating_sub(self.dearer_ps) >= self.window_ps {
            self.close(now_ns);
            self.began_ns = Some(now_ns);
        }
    }

    /// The model is switched off at `now_ns`: time that passes meanwhile is nobody's.
    pub fn pause(&mut self, now_ns: u64) {
        if self.began_ns.is_some() {
            self.close(now_ns);
        }
        self.began_ns = None;
    }

    fn close(&mut self, now_ns: u64) {
        let elapsed_ps = now_ns.saturating_sub(self.began_ns.unwrap_or(now_ns)) * 1000;
        let mut window = Window {
            base_ps: elapsed_ps.saturating_sub(std::mem::take(&mut self.dearer_ps)),
            elapsed_ps,
            walks: std::mem::take(&mut self.walks),
            ..Window::default()
        };
        let mut pages: Vec<(u64, Row)> = self.pages.drain().collect();
        pages.sort_unstable_by_key(|&(key, _)| key);
        for (key, row) in pages {
            let space = key >> PAGE_BITS;
            match window.spaces.last_mut() {
                Some((last, end)) if *last == space => *end += 1,
                _ => window.spaces.push((space, window.rows.len() + 1)),
            }
            window.rows.push(row);
        }
        self.done.push_back(window);
    }

    /// Takes the oldest window that is complete.
    pub fn next_window(&mut self) -> Option<Window> {
        self.done.pop_front()
    }

    /// An access.
    pub fn access(&mut self, accessed: &Accessed) {
        let access = &accessed.access;
        if is_kernel(accessed.va) {
            return;
        }
        let slow = access.served == Served::Smem;
        let fill = slow || access.served == Served::Fmem;
        let eligible = accessed.user_load && access.latency_ps >= self.threshold_ps;
        let (walk_ps, fills) = &mut self.walks[usize::from(access.large)];
        *walk_ps += access.walk_ps;
        *fills += u64::from(fill);
        if !fill && !eligible {
            return;
        }
        if slow {
            self.dearer_ps += accessed.dearer_ps;
        }
        let page = accessed.va >> PAGE_SHIFT;
        let key = key(accessed.space, page);
        let row = self.pages.entry(key).or_insert_with(|| Row {
            page,
            ..Row::default()
        });
        let count = |counter: &mut u32, one: bool| *counter = counter.saturating_add(one.into());
        count(&mut row.random, fill && !access.streamed);
        count(&mut row.streamed, fill && access.streamed);
        count(&mut row.eligible, eligible);
        // Where a page is that no line came from, only a fill tells.
        if fill && row.first.is_none() && self.seen.len() < MAX_PAGES && self.seen.insert(key) {
            row.first = Some(First {
                slow,
                huge: access.large,
            });
        }
    }
}

const fn key(space: u64, page: u64) -> u64 {
    space << PAGE_BITS | page
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_recording::Run;

    fn accesses() -> Accesses {
        Accesses::new(&AccessesConfig {
            window_ns: 10,
            threshold_ns: 64,
            header: String::new(),
        })
    }

    fn accessed(space: u64, va: u64, served: Served) -> Accessed {
        Accessed {
            space,
            va,
            user_load: true,
            access: Access {
                latency_ps: 70_000,
                pa: 0,
                served,
                walked: true,
                walk_ps: 5,
                streamed: false,
                large: false,
                remote: false,
            },
            dearer_ps: 2_000,
        }
    }

    #[test]
    fn windows_are_of_progress() {
        let mut accesses = accesses();
        accesses.at(100);
        for _ in 0..4 {
            accesses.access(&accessed(0, 0x1000, Served::Smem));
        }
        // 17 ns of which SMEM cost 8: 9 ns of progress.
        accesses.at(117);
        assert_eq!(accesses.next_window(), None);
        accesses.access(&accessed(0, 0x1000, Served::Fmem));
        accesses.at(118);
        let window = accesses.next_window().unwrap();
        assert_eq!((window.base_ps, window.elapsed_ps), (10_000, 18_000));
        assert_eq!(window.walks, [(25, 5), (0, 0)]);
        let first = Some(First {
            slow: true,
            huge: false,
        });
        let row = |page, count, first| Row {
            page,
            random: count,
            streamed: 0,
            eligible: count,
            first,
        };
        assert_eq!(window.rows, [row(1, 5, first)]);
        // Known now; the model is off from 120 to 500.
        accesses.access(&accessed(0, 0x1000, Served::Smem));
        accesses.pause(120);
        accesses.at(500);
        accesses.at(509);
        let window = accesses.next_window().unwrap();
        assert_eq!((window.base_ps, window.elapsed_ps), (0, 2_000));
        assert_eq!(window.rows, [row(1, 1, None)]);
        assert_eq!(accesses.next_window(), None);
    }

    #[test]
    fn what_is_no_fill_tells_no_place_and_what_is_resident_is_no_news() {
        let mut accesses = accesses();
        accesses.at(0);
        accesses.resident(&Resident {
            space: 3,
            runs: vec![Run {
                page: 4,
                pages: 2,
                first: First::default(),
            }],
        });
        accesses.access(&accessed(3, 0x5000, Served::Fmem));
        accesses.access(&accessed(3, 0x6000, Served::Llc));
        accesses.access(&accessed(1, 0x5000, Served::Fmem));
        let mut short = accessed(3, 0x7000, Served::L2);
        short.access.latency_ps = 63_999;
        accesses.access(&short);
        accesses.access(&accessed(3, u64::MAX, Served::Fmem));
        accesses.at(10);
        let window = accesses.next_window().unwrap();
        assert_eq!(window.spaces, [(1, 1), (3, 3)]);
        let told: Vec<_> = (window.rows.iter())
            .map(|row| (row.page, row.random, row.eligible, row.first.is_some()))
            .collect();
        assert_eq!(told, [(5, 1, 1, true), (5, 1, 1, false), (6, 0, 1, false)]);
    }
}
