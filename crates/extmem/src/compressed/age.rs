// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects in the order they came: a list through their headers.
//!
//! There are several lists, so that threads seldom meet. Neighbouring pages share one:
//! those that are written out together lie together.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::CompressedError;
use super::slab::{Handle, Header, Slab};
use crate::lock::Lock;
use crate::region::{Region, carved_bytes};

const LISTS: usize = 8;
/// Pages in a row that share a list.
const NEIGHBOURS: u32 = 64;
/// No object: never a handle.
const NONE: u32 = u32::MAX;

/// Both ends of a list.
#[derive(Debug)]
struct Ends {
    oldest: u32,
    newest: u32,
}

/// The lists.
#[derive(Debug)]
pub struct Age {
    lists: &'static [Lock<Ends>],
    next: AtomicUsize,
}

impl Age {
    /// Bytes of its tables.
    pub fn footprint_bytes() -> usize {
        carved_bytes::<Lock<Ends>>(LISTS)
    }

    /// Empty lists.
    pub fn new(region: &mut Region) -> Result<Self, CompressedError> {
        // SAFETY: zero is an open lock over two numbers.
        let lists = unsafe { region.carve::<Lock<Ends>>(LISTS) }.ok_or(CompressedError::Memory)?;
        for list in lists.iter() {
            *list.lock() = Ends {
                oldest: NONE,
                newest: NONE,
            };
        }
        Ok(Self {
            lists,
            next: AtomicUsize::new(0),
        })
    }

    fn list(&self, owner: u32) -> &'static Lock<Ends> {
        &self.lists[(owner / NEIGHBOURS) as usize % LISTS]
    }

    /// A new object.
    pub fn enter(&self, slab: &Slab, handle: Handle, header: &Header) {
        let mut ends = self.list(header.owner()).lock();
        link_newest(slab, &mut ends, handle, header);
    }

    /// An object will be freed in a moment: fetches what `leave` will want.
    pub fn prepare(&self, slab: &Slab, header: &Header) {
        for link in [&header.older, &header.newer] {
            slab.fetch(Handle(link.load(RELAXED)), 0);
        }
    }

    /// An object that is about to be freed.
    pub fn leave(&self, slab: &Slab, header: &Header) {
        let mut ends = self.list(header.owner()).lock();
        unlink(slab, &mut ends, header);
    }

    /// An object moved; its age stays.
    pub fn moved(&self, slab: &Slab, from: &Header, to: Handle, header: &Header) {
        let mut ends = self.list(from.owner()).lock();
        let (older, newer) = (from.older.load(RELAXED), from.newer.load(RELAXED));
        header.older.store(older, RELAXED);
        header.newer.store(newer, RELAXED);
        match slab.header(Handle(older)) {
            Some(older) => older.newer.store(to.0, RELAXED),
            None => ends.oldest = to.0,
        }
        match slab.header(Handle(newer)) {
            Some(newer) => newer.older.store(to.0, RELAXED),
            None => ends.newest = to.0,
        }
    }

    /// The oldest objects, some of each list in turn, until `each` has enough. They count
    /// as the newest then, so that the next calls see others.
    pub fn oldest(&self, slab: &Slab, mut each: impl FnMut(u32, Handle) -> bool) {
        for _ in 0..LISTS {
            let list = &self.lists[self.next.fetch_add(1, RELAXED) % LISTS];
            let mut ends = list.lock();
            let end = ends.newest;
            for _ in 0..NEIGHBOURS {
                let handle = Handle(ends.oldest);
                let Some(header) = slab.header(handle) else {
                    break;
                };
                if !each(header.owner(), handle) {
                    return;
                }
                unlink(slab, &mut ends, header);
                link_newest(slab, &mut ends, handle, header);
                if handle.0 == end {
                    break;
                }
            }
        }
    }
}

const RELAXED: Ordering = Ordering::Relaxed;

fn link_newest(slab: &Slab, ends: &mut Ends, handle: Handle, header: &Header) {
    header.older.store(ends.newest, RELAXED);
    header.newer.store(NONE, RELAXED);
    match slab.header(Handle(ends.newest)) {
        Some(newest) => newest.newer.store(handle.0, RELAXED),
        None => ends.oldest = handle.0,
    }
    ends.newest = handle.0;
}

fn unlink(slab: &Slab, ends: &mut Ends, header: &Header) {
    let (older, newer) = (header.older.load(RELAXED), header.newer.load(RELAXED));
    match slab.header(Handle(older)) {
        Some(header) => header.newer.store(newer, RELAXED),
        None => ends.oldest = newer,
    }
    match slab.header(Handle(newer)) {
        Some(header) => header.older.store(older, RELAXED),
        None => ends.newest = older,
    }
}
