// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which page a thread touches next.

use std::fmt;
use std::str::FromStr;

use crate::page::mix;

/// The order of touches.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each thread scans its share again and again
    Sequential,
    /// Any page, evenly
    Random,
    /// Most touches go to a small part of the pages
    Hot,
}

/// What is done to a page.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read
    Read,
    /// Read, then write
    Write,
}

/// An order and an access, written `sequential-read`, or `first-touch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Touches of pages that were filled before
    Steady(Order, Access),
    /// Fills a new mapping
    FirstTouch,
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Steady(order, access) = self else {
            return out.write_str("first-touch");
        };
        let order = match order {
            Order::Sequential => "sequential",
            Order::Random => "random",
            Order::Hot => "hot",
        };
        let access = match access {
            Access::Read => "read",
            Access::Write => "write",
        };
        write!(out, "{order}-{access}")
    }
}

/// There is no such pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no pattern '{0}'")]
pub struct UnknownPattern(String);

impl FromStr for Pattern {
    type Err = UnknownPattern;

    fn from_str(name: &str) -> Result<Self, UnknownPattern> {
        let steady = [Order::Sequential, Order::Random, Order::Hot]
            .into_iter()
            .flat_map(|order| {
                [Access::Read, Access::Write].map(|access| Self::Steady(order, access))
            });
        std::iter::once(Self::FirstTouch)
            .chain(steady)
            .find(|pattern| pattern.to_string() == name)
            .ok_or_else(|| UnknownPattern(name.to_owned()))
    }
}

/// The hot set, as shares.
#[derive(Clone, Copy, Debug)]
pub struct HotSet {
    /// Share of the pages that are hot, in permille
    pub pages_permille: u64,
    /// Share of touches that go to them, in permille
    pub touches_permille: u64,
    /// Hot pages lie apart from each other instead of side by side
    pub scattered: bool,
}

/// Pages of one thread, one after the other. Writers own every page whose
/// number is `thread` modulo `threads`, so that each page has one writer; of a
/// writer's own pages as large a share is hot as of all.
pub struct Walk {
    /// Pages to draw from: all, or those that the thread owns.
    pages: u64,
    /// The page of that number among them is `first + number * step`.
    first: u64,
    step: u64,
    order: Order,
    hot: HotSet,
    hot_pages: u64,
    state: u64,
    scan_first: u64,
    scan_pages: u64,
    scan_at: u64,
}

/// Odd, and prime to every page count that is not a multiple of it: a step of
/// this many pages visits all pages.
const SCATTER_STEP: u64 = 7919;

impl Walk {
    /// The walk of `thread`; `scanned` is where its scan goes on.
    pub fn new(
        pages: u64,
        (thread, threads): (u64, u64),
        (order, access): (Order, Access),
        hot: HotSet,
        seed: u64,
        scanned: u64,
    ) -> Self {
        let share = |index: u64| pages / threads * index + (pages % threads).min(index);
        let scan_first = share(thread);
        let scan_pages = (share(thread + 1) - scan_first).max(1);
        let (pages, first, step) = if access == Access::Write && order != Order::Sequential {
            ((pages - thread).div_ceil(threads), thread, threads)
        } else {
            (pages, 0, 1)
        };
        Self {
            pages,
            first,
            step,
            order,
            hot,
            hot_pages: (pages * hot.pages_permille / 1000).max(1),
            state: mix(seed ^ mix(thread)) | 1,
            scan_first,
            scan_pages,
            scan_at: scanned % scan_pages,
        }
    }

    /// Pages scanned so far, modulo the share.
    pub fn scanned(&self) -> u64 {
        self.scan_at
    }

    /// The next page.
    #[inline(always)]
    pub fn page(&mut self) -> u64 {
        if self.order == Order::Sequential {
            let page = self.scan_first + self.scan_at;
            self.scan_at += 1;
            if self.scan_at == self.scan_pages {
                self.scan_at = 0;
            }
            return page;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let (high, low) = (self.state >> 32, self.state & 0xffff_ffff);
        let mut page = if self.order == Order::Hot && (low * 1000) >> 32 < self.hot.touches_permille
        {
            (high * self.hot_pages) >> 32
        } else {
            (high * self.pages) >> 32
        };
        if self.order == Order::Hot && self.hot.scattered {
            page = page * SCATTER_STEP % self.pages;
        }
        self.first + page * self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const HOT: HotSet = HotSet {
        pages_permille: 250,
        touches_permille: 900,
        scattered: true,
    };

    fn walk(pages: u64, thread: u64, threads: u64, order: Order, access: Access) -> Walk {
        Walk::new(pages, (thread, threads), (order, access), HOT, 1, 0)
    }

    #[test]
    fn names_go_both_ways() {
        for name in ["first-touch", "sequential-read", "random-write", "hot-read"] {
            assert_eq!(name.parse::<Pattern>().unwrap().to_string(), name);
        }
        assert!("random".parse::<Pattern>().is_err());
    }

    #[test]
    fn scans_cover_all_pages_once() {
        let mut seen = Vec::new();
        for thread in 0..3 {
            let mut walk = walk(1001, thread, 3, Order::Sequential, Access::Write);
            let pages = walk.scan_pages;
            seen.extend((0..pages).map(|_| walk.page()));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..1001).collect::<Vec<_>>());
    }

    #[test]
    fn writers_share_no_page() {
        for order in [Order::Random, Order::Hot] {
            for thread in 0..3 {
                let mut walk = walk(1000, thread, 3, order, Access::Write);
                assert!((0..10_000).all(|_| {
                    let page = walk.page();
                    page < 1000 && page % 3 == thread
                }));
            }
        }
    }

    /// Rounded to pages they own, four writers had 86 % of all pages hot.
    #[test]
    fn writers_together_have_as_many_hot_pages_as_one() {
        for threads in [1, 2, 3, 4] {
            let mut touched = vec![0; 4096];
            for thread in 0..threads {
                let mut walk = walk(4096, thread, threads, Order::Hot, Access::Write);
                (0..400_000 / threads).for_each(|_| touched[walk.page() as usize] += 1);
            }
            // 90 % and a quarter of the rest go to 1024 pages: 361 each, and 10 to others.
            let hot = touched.iter().filter(|&&touches| touches > 100).count();
            assert!((1020..=1025).contains(&hot), "{threads}: {hot}");
            let untouched = touched.iter().filter(|&&touches| touches == 0).count();
            assert!(untouched < 10, "{threads}: {untouched}");
        }
    }

    #[test]
    fn hot_set_takes_its_share() {
        let mut walk = walk(4096, 0, 1, Order::Hot, Access::Read);
        let hot: HashSet<u64> = (0..1024).map(|page| page * SCATTER_STEP % 4096).collect();
        assert_eq!(hot.len(), 1024);
        let hits = (0..100_000).filter(|_| hot.contains(&walk.page())).count();
        // 90 % aimed at it and a quarter of the rest.
        assert!((92_000..93_000).contains(&hits), "{hits}");
    }
}
