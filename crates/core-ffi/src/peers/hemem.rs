// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HeMem's pages of 2 MiB: counts, lists, and what is to be moved next.

use std::mem::offset_of;
use std::ptr::{NonNull, null_mut};

use super::hemem_sys::{self as sys, HememList, HememPage, HememRules};
use crate::sys::TIERS;
use crate::{FMEM, SMEM};

/// Thresholds; of each the least is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Sampled reads from which a page is hot.
    pub hot_reads: u32,
    /// Sampled writes from which it is.
    pub hot_writes: u32,
    /// With more of either kind in one page all counts are halved.
    pub cooling_samples: u32,
    /// What is hot by its writes is promoted first.
    pub writes_first: bool,
}

/// A page, by the order in which it was added; of the [`Hemem`] that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Page(usize);

impl Page {
    /// Pages that were added before it.
    #[must_use]
    pub fn index(self) -> usize {
        self.0
    }
}

/// What is to be moved next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// From SMEM to FMEM.
    pub up: Page,
    /// Before that, from FMEM to SMEM; none where there is room.
    pub down: Option<Page>,
}

/// A page with its number, which C does not know of.
#[repr(C)]
struct Node {
    page: HememPage,
    index: usize,
}

/// All pages of a manager.
///
/// C links them to each other, so each has a place of its own that it keeps: an allocation that
/// is only ever reached by this pointer, as a reference to it elsewhere would claim that nobody
/// else writes to it. Pages do not point back to the lists' heads, which may move with their owner.
pub struct Hemem {
    raw: sys::Hemem,
    nodes: Vec<NonNull<Node>>,
}

// SAFETY: the nodes are reached through their one owner alone.
unsafe impl Send for Hemem {}

const NO_PAGES: HememList = HememList {
    first: null_mut(),
    last: null_mut(),
    pages: 0,
};

impl Hemem {
    /// Without pages.
    #[must_use]
    pub fn new(rules: &Rules) -> Self {
        Self {
            raw: sys::Hemem {
                rules: HememRules {
                    hot_reads: rules.hot_reads.max(1),
                    hot_writes: rules.hot_writes.max(1),
                    cooling_samples: rules.cooling_samples.max(1),
                    writes_first: rules.writes_first,
                },
                lists: [[NO_PAGES; 2]; TIERS],
                cooling: [null_mut(); TIERS],
                clock: 0,
            },
            nodes: Vec::new(),
        }
    }

    /// The page of C; none for a page of another owner that has more of them.
    fn raw_page(&self, page: Page) -> Option<*mut HememPage> {
        const { assert!(offset_of!(Node, page) == 0) };
        self.nodes.get(page.0).map(|node| node.as_ptr().cast())
    }

    /// Adds a page, which is cold.
    pub fn add(&mut self, tier: usize) -> Page {
        let page = Page(self.nodes.len());
        let node = Box::new(Node {
            page: HememPage {
                before: null_mut(),
                after: null_mut(),
                clock: 0,
                reads: 0,
                writes: 0,
                tier: 0,
                hot: false,
            },
            index: page.0,
        });
        let node = NonNull::from(Box::leak(node));
        self.nodes.push(node);
        // SAFETY: the page is in no list yet, and stays where it is until all go.
        unsafe { sys::demeter_hemem_add(&mut self.raw, node.as_ptr().cast(), tier_of(tier)) };
        page
    }

    /// One more sample; whether counts are to be halved, so that [`Self::cool`] has work.
    pub fn count(&mut self, page: Page, write: bool) -> bool {
        let Some(raw) = self.raw_page(page) else {
            return false;
        };
        // SAFETY: a page that was added.
        unsafe { sys::demeter_hemem_count(&mut self.raw, raw, write) }
    }

    /// Goes on looking for hot pages that are hot no more, at so many; how many were.
    pub fn cool(&mut self, pages: u64) -> u64 {
        // SAFETY: all that is linked was added.
        unsafe { sys::demeter_hemem_cool(&mut self.raw, pages) }
    }

    /// What to move next, if FMEM has room for a page, or if not; none when nothing in SMEM is
    /// hot, or nothing in FMEM cold.
    #[must_use]
    pub fn choose(&self, room: bool) -> Option<Move> {
        let mut next = sys::HememMove {
            up: null_mut(),
            down: null_mut(),
        };
        // SAFETY: valid for the call; all that is linked was added.
        let any = unsafe { sys::demeter_hemem_choose(&self.raw, room, &mut next) };
        if !any {
            return None;
        }
        Some(Move {
            up: page_of(next.up)?,
            down: page_of(next.down),
        })
    }

    /// A page is in that tier, and last of its list; it may be where it was.
    pub fn moved(&mut self, page: Page, tier: usize) {
        if let Some(raw) = self.raw_page(page) {
            // SAFETY: a page that was added.
            unsafe { sys::demeter_hemem_moved(&mut self.raw, raw, tier_of(tier)) }
        }
    }

    /// Where a page is said to be.
    #[must_use]
    pub fn tier(&self, page: Page) -> Option<usize> {
        // SAFETY: a page that was added; nobody writes to it meanwhile.
        let tier = self.raw_page(page).map(|raw| unsafe { (*raw).tier })?;
        Some(if tier == SMEM as u32 { SMEM } else { FMEM })
    }

    /// Pages of a tier that are hot, or that are not.
    #[must_use]
    pub fn pages(&self, tier: usize, hot: bool) -> u64 {
        self.raw.lists[tier_of(tier) as usize][usize::from(hot)].pages
    }
}

impl Drop for Hemem {
    fn drop(&mut self) {
        for node in self.nodes.drain(..) {
            // SAFETY: from a box, and nothing uses the links any more.
            drop(unsafe { Box::from_raw(node.as_ptr()) });
        }
    }
}

/// Whatever is not FMEM is SMEM.
fn tier_of(tier: usize) -> u32 {
    u32::from(tier != FMEM)
}

fn page_of(raw: *mut HememPage) -> Option<Page> {
    let node = NonNull::new(raw.cast::<Node>())?;
    // SAFETY: C knows pages only that are the first part of a node.
    Some(Page(unsafe { (*node.as_ptr()).index }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        hot_reads: 2,
        hot_writes: 3,
        cooling_samples: 5,
        writes_first: false,
    };

    fn hot(hemem: &mut Hemem, page: Page) {
        for _ in 0..RULES.hot_reads {
            hemem.count(page, false);
        }
    }

    #[test]
    fn first_in_first_out_between_the_tiers() {
        let mut hemem = Hemem::new(&RULES);
        let cold = [hemem.add(FMEM), hemem.add(FMEM)];
        let warm: Vec<Page> = (0..1000).map(|_| hemem.add(SMEM)).collect();
        assert_eq!(hemem.choose(true), None);
        hot(&mut hemem, warm[700]);
        hot(&mut hemem, warm[3]);
        let mut hemem = Box::new(hemem); // its heads move
        assert_eq!(
            (hemem.pages(SMEM, true), hemem.pages(SMEM, false)),
            (2, 998)
        );
        let first = Move {
            up: warm[700],
            down: Some(cold[0]),
        };
        assert_eq!(hemem.choose(false), Some(first));
        hemem.moved(cold[0], SMEM);
        hemem.moved(warm[700], FMEM);
        assert_eq!(
            (hemem.tier(warm[700]), hemem.tier(cold[0])),
            (Some(FMEM), Some(SMEM))
        );
        let second = Move {
            up: warm[3],
            down: None,
        };
        assert_eq!(hemem.choose(true), Some(second));
        assert_eq!(
            hemem.choose(false).and_then(|next| next.down),
            Some(cold[1])
        );
        hemem.moved(warm[3], SMEM); // was refused
        assert_eq!(hemem.choose(true), Some(second));
    }

    #[test]
    fn counts_are_halved_by_a_clock() {
        let mut hemem = Hemem::new(&RULES);
        let [one, other] = [hemem.add(SMEM), hemem.add(SMEM)];
        hot(&mut hemem, other);
        let halved: Vec<bool> = (0..6).map(|_| hemem.count(one, false)).collect();
        assert_eq!(halved, [false, false, false, false, false, true]);
        assert_eq!(hemem.cool(10), 1, "the other had just enough");
        assert_eq!(hemem.choose(true).map(|next| next.up), Some(one));
    }

    #[test]
    fn strangers_are_nothing() {
        let mut hemem = Hemem::new(&RULES);
        hemem.add(FMEM);
        let stranger = Page(1);
        assert!(!hemem.count(stranger, true));
        hemem.moved(stranger, SMEM);
        assert_eq!(hemem.tier(stranger), None);
        assert_eq!(hemem.pages(FMEM, false), 1);
    }
}
