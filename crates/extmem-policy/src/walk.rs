// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which part of a walk that is repeated stays in DRAM.
//!
//! Of a walk over more than fits, any part may stay: the gain is the same, as long as it
//! is always the same part. The part with the lowest addresses is as good as any for a
//! walk that goes all the way round, and better for others: one that begins anew before
//! it came to the end meets it first, and of several threads that walk in parts of an
//! array some find all of theirs in DRAM.

use crate::{Memory, PageSet};

/// Words of pages looked at in one search for the highest that is kept.
const MOST_STEPS: usize = 1 << 14;

/// The border, and bits for pages.
#[derive(Debug)]
pub struct KeptWalk {
    /// Came as part of a stream before.
    seen: PageSet,
    /// Was kept, and may still be.
    kept: PageSet,
    /// What is kept lies below this page.
    below: u32,
}

impl KeptWalk {
    /// Bytes of tables.
    pub fn memory_bytes(pages: u32) -> usize {
        2 * PageSet::memory_bytes(pages)
    }

    /// Nothing is kept.
    pub fn new(pages: u32, memory: &mut Memory) -> Option<Self> {
        Some(Self {
            seen: PageSet::new(pages, memory)?,
            kept: PageSet::new(pages, memory)?,
            below: 0,
        })
    }

    /// A page came as part of a stream. Whether it did before.
    pub fn passes(&mut self, page: u32) -> bool {
        self.seen.insert(page) == Some(true)
    }

    /// Whether to keep such a page: if there is room, and the border is behind it then; or
    /// instead of the highest, if that is `margin` pages higher at least. Those next to the
    /// border may just have been prefetched.
    pub fn keeps(&mut self, page: u32, has_room: bool, margin: u32) -> bool {
        let keeps = has_room || page < self.below.saturating_sub(margin);
        if keeps && self.kept.insert(page).is_some() {
            self.below = self.below.max(page + 1);
        }
        keeps
    }

    /// The highest page that is kept, and from now on is not.
    pub fn give_up(&mut self, is_kept: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..MOST_STEPS {
            match self.kept.highest_nearby(self.below)? {
                Err(first) => {
                    self.below = first;
                    continue;
                }
                Ok(highest) => self.below = highest,
            }
            self.kept.remove(self.below);
            if is_kept(self.below) {
                return Some(self.below);
            }
        }
        None
    }

    /// A range went.
    pub fn forget(&mut self, first: u32, pages: u32) {
        self.seen.remove_range(first, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::memory;

    #[test]
    fn the_lowest_pages_stay() {
        let mut walk = KeptWalk::new(1000, &mut memory(KeptWalk::memory_bytes(1000))).unwrap();
        assert!(!walk.passes(7) && walk.passes(7));
        assert!(!walk.keeps(7, false, 2) && walk.keeps(7, true, 2));
        assert!(walk.keeps(3, false, 2) && !walk.keeps(7, false, 2));
        assert!(walk.keeps(100, true, 2) && walk.keeps(98, false, 2) && !walk.keeps(99, false, 2));
        let kept = [3, 7, 100];
        assert_eq!(walk.give_up(|page| kept.contains(&page)), Some(100));
        assert!(!walk.keeps(100, false, 0));
        assert_eq!(walk.give_up(|page| kept.contains(&page)), Some(7));
        assert_eq!(walk.give_up(|_| false), None);
        assert!(!walk.keeps(0, false, 0));
        // Pages that do not exist are nobody's.
        assert!(!walk.passes(5000) && !walk.passes(5000));
    }

    #[test]
    fn what_went_was_never_seen() {
        let mut walk = KeptWalk::new(300, &mut memory(KeptWalk::memory_bytes(300))).unwrap();
        (0..300).for_each(|page| {
            walk.passes(page);
        });
        walk.forget(60, 70);
        walk.forget(290, u32::MAX);
        let seen: Vec<_> = (0..300).filter(|&page| walk.passes(page)).collect();
        assert_eq!(seen, (0..60).chain(130..290).collect::<Vec<_>>());
    }
}
