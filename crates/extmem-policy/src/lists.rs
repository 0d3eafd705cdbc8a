// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queues of pages, linked through tables of all pages.
//!
//! A page is in at most one list and leaves it from anywhere in constant time. The
//! tables take nine bytes a page, and only those of pages ever listed are physical.

use crate::ahead::fetch_line;
use crate::algorithm::Memory;

/// Number of a list: 0 to one less than there are.
pub type ListId = u8;

/// Links are page numbers plus one, so that zero-filled tables are empty.
const END: u32 = 0;

/// The neighbours of a page, side by side: a processor fetches both at once.
#[derive(Clone, Copy, Debug)]
struct Links {
    next: u32,
    previous: u32,
}

/// Up to `N` lists over the pages below a limit.
#[derive(Debug)]
pub struct Lists<const N: usize> {
    links: &'static mut [Links],
    /// List plus one, or 0.
    member: &'static mut [u8],
    heads: [u32; N],
    tails: [u32; N],
    lengths: [u32; N],
}

impl<const N: usize> Lists<N> {
    /// Bytes of tables.
    pub fn memory_bytes(pages: u32) -> usize {
        Memory::bytes::<Links>(pages as usize) + Memory::bytes::<u8>(pages as usize)
    }

    /// Empty lists.
    pub fn new(pages: u32, memory: &mut Memory) -> Option<Self> {
        // SAFETY: zero is valid for both.
        unsafe {
            Some(Self {
                links: memory.take(pages as usize)?,
                member: memory.take(pages as usize)?,
                heads: [END; N],
                tails: [END; N],
                lengths: [0; N],
            })
        }
    }

    /// Pages in a list.
    pub fn len(&self, list: ListId) -> u32 {
        self.lengths.get(usize::from(list)).copied().unwrap_or(0)
    }

    /// True when a list has no pages.
    pub fn is_empty(&self, list: ListId) -> bool {
        self.len(list) == 0
    }

    /// The list that a page is in.
    pub fn list_of(&self, page: u32) -> Option<ListId> {
        self.member.get(page as usize)?.checked_sub(1)
    }

    /// Puts a page at the end of a list, out of any other. Unknown pages and lists are
    /// left aside.
    pub fn push(&mut self, list: ListId, page: u32) {
        self.remove(page);
        let (Some(member), true) = (self.member.get_mut(page as usize), usize::from(list) < N)
        else {
            return;
        };
        *member = list + 1;
        let list = usize::from(list);
        let tail = self.tails[list];
        self.links[page as usize] = Links {
            next: END,
            previous: tail,
        };
        match tail {
            END => self.heads[list] = page + 1,
            tail => self.links[tail as usize - 1].next = page + 1,
        }
        self.tails[list] = page + 1;
        self.lengths[list] += 1;
    }

    /// Takes a page out of its list. False when it is in none.
    pub fn remove(&mut self, page: u32) -> bool {
        let Some(list) = self.list_of(page) else {
            return false;
        };
        let list = usize::from(list);
        let Links { next, previous } = self.links[page as usize];
        match previous {
            END => self.heads[list] = next,
            previous => self.links[previous as usize - 1].next = next,
        }
        match next {
            END => self.tails[list] = previous,
            next => self.links[next as usize - 1].previous = previous,
        }
        self.member[page as usize] = 0;
        self.lengths[list] -= 1;
        true
    }

    /// Takes the page that is longest in a list.
    pub fn pop_oldest(&mut self, list: ListId) -> Option<u32> {
        let page = self.heads.get(usize::from(list))?.checked_sub(1)?;
        self.remove(page);
        self.fetch(self.heads[usize::from(list)]);
        Some(page)
    }

    /// Fetches what is known of a page, by its number plus one: it is the oldest now, and
    /// seldom is one taken alone.
    fn fetch(&self, oldest: u32) {
        if let Some(at) = oldest.checked_sub(1)
            && let (Some(links), Some(member)) =
                (self.links.get(at as usize), self.member.get(at as usize))
        {
            fetch_line(links);
            fetch_line(member);
        }
    }

    /// Takes the page that came last.
    pub fn pop_newest(&mut self, list: ListId) -> Option<u32> {
        let page = self.tails.get(usize::from(list))?.checked_sub(1)?;
        self.remove(page);
        Some(page)
    }

    /// Takes a range of pages out of all lists.
    pub fn remove_range(&mut self, first: u32, pages: u32) {
        let end = u64::from(first) + u64::from(pages);
        let end = end.min(self.member.len() as u64) as u32;
        for page in first..end {
            self.remove(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::memory;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn lists_are_queues(steps in proptest::collection::vec((0u8..6, 0u8..4, 0u32..20), 0..300)) {
            let mut lists = Lists::<3>::new(16, &mut memory(Lists::<3>::memory_bytes(16))).unwrap();
            let mut model: [VecDeque<u32>; 3] = Default::default();
            for (step, list, page) in steps {
                let known = usize::from(list) < 3;
                match step {
                    0..=2 => {
                        lists.push(list, page);
                        if page < 16 {
                            model.iter_mut().for_each(|queue| queue.retain(|&other| other != page));
                            if known {
                                model[usize::from(list)].push_back(page);
                            }
                        }
                    }
                    3 => {
                        let expected = known.then(|| model[usize::from(list)].pop_front()).flatten();
                        prop_assert_eq!(lists.pop_oldest(list), expected);
                    }
                    4 => {
                        let expected = known.then(|| model[usize::from(list)].pop_back()).flatten();
                        prop_assert_eq!(lists.pop_newest(list), expected);
                    }
                    _ => {
                        lists.remove_range(page, 3);
                        model.iter_mut().for_each(|queue| queue.retain(|&other| !(page..page + 3).contains(&other)));
                    }
                }
                for list in 0..3u8 {
                    prop_assert_eq!(lists.len(list) as usize, model[usize::from(list)].len());
                    for &page in &model[usize::from(list)] {
                        prop_assert_eq!(lists.list_of(page), Some(list));
                    }
                }
            }
        }
    }
}
