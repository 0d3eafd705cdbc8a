// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two-level TLB.
//!
//! First level: 64 entries for 4 KiB pages and 32 for larger ones, both 4-way.
//! Second level: 1536 entries for both sizes, 12-way. Sizes are those of Intel
//! server cores since Skylake. Pages larger than 2 MiB are held as 2 MiB
//! entries. Entries of the upper half of the address space count as global.

/// One array of translations, `WAYS` ways, replaced round robin.
#[derive(Clone, Debug)]
struct Array<const SETS: usize, const WAYS: usize> {
    keys: Box<[[u64; WAYS]; SETS]>,
    frames: Box<[[u64; WAYS]; SETS]>,
    next: Box<[u8; SETS]>,
}

impl<const SETS: usize, const WAYS: usize> Array<SETS, WAYS> {
    fn new() -> Self {
        Self {
            keys: Box::new([[0; WAYS]; SETS]),
            frames: Box::new([[0; WAYS]; SETS]),
            next: Box::new([0; SETS]),
        }
    }

    #[inline]
    fn find(&self, page: u64, key: u64) -> Option<u64> {
        let set = page as usize % SETS;
        let way = self.keys[set].iter().position(|&k| k == key)?;
        Some(self.frames[set][way])
    }

    #[inline]
    fn insert(&mut self, page: u64, key: u64, frame: u64) {
        let set = page as usize % SETS;
        let way = self.next[set] as usize;
        self.keys[set][way] = key;
        self.frames[set][way] = frame;
        self.next[set] = if way + 1 == WAYS { 0 } else { way as u8 + 1 };
    }

    fn forget(&mut self, page: u64, key: u64) {
        for k in &mut self.keys[page as usize % SETS] {
            if *k == key {
                *k = 0;
            }
        }
    }

    fn forget_user(&mut self) {
        for key in self.keys.iter_mut().flatten() {
            if *key & GLOBAL == 0 {
                *key = 0;
            }
        }
    }

    fn clear(&mut self) {
        for set in self.keys.iter_mut() {
            set.fill(0);
        }
        self.next.fill(0);
    }
}

/// Bits of a key: page number (52 bits at most), size, half, and one that is always set.
const VALID: u64 = 1 << 63;
const GLOBAL: u64 = 1 << 62;
const LARGE: u64 = 1 << 61;

const SMALL_SHIFT: u32 = 12;
const LARGE_SHIFT: u32 = 21;

#[inline]
const fn key(va: u64, large: bool) -> (u64, u64) {
    let page = va >> if large { LARGE_SHIFT } else { SMALL_SHIFT };
    let half = if va >> 63 != 0 { GLOBAL } else { 0 };
    (page, page | VALID | half | if large { LARGE } else { 0 })
}

/// Which level answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The first.
    Dtlb,
    /// The second.
    Stlb,
}

/// A translation found in the TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The physical address.
    pub pa: u64,
    /// Whether the page is 2 MiB or larger.
    pub large: bool,
    /// Which level answered.
    pub level: Level,
}

/// The TLB of one vCPU.
#[derive(Clone, Debug)]
pub struct Tlb {
    small: Array<16, 4>,
    large: Array<8, 4>,
    second: Array<128, 12>,
}

impl Default for Tlb {
    fn default() -> Self {
        Self {
            small: Array::new(),
            large: Array::new(),
            second: Array::new(),
        }
    }
}

impl Tlb {
    /// Looks `va` up; an entry of the second level moves into the first.
    #[inline]
    pub fn lookup(&mut self, va: u64) -> Option<Hit> {
        let (page, small_key) = key(va, false);
        let offset = va & ((1 << SMALL_SHIFT) - 1);
        if let Some(frame) = self.small.find(page, small_key) {
            return Some(Hit {
                pa: frame | offset,
                large: false,
                level: Level::Dtlb,
            });
        }
        let (large_page, large_key) = key(va, true);
        let large_offset = va & ((1 << LARGE_SHIFT) - 1);
        if let Some(frame) = self.large.find(large_page, large_key) {
            return Some(Hit {
                pa: frame | large_offset,
                large: true,
                level: Level::Dtlb,
            });
        }
        if let Some(frame) = self.second.find(page, small_key) {
            self.small.insert(page, small_key, frame);
            return Some(Hit {
                pa: frame | offset,
                large: false,
                level: Level::Stlb,
            });
        }
        let frame = self.second.find(large_page, large_key)?;
        self.large.insert(large_page, large_key, frame);
        Some(Hit {
            pa: frame | large_offset,
            large: true,
            level: Level::Stlb,
        })
    }

    /// Puts the result of a page walk into both levels.
    #[inline]
    pub fn insert(&mut self, va: u64, pa: u64, large: bool) {
        let (page, key) = key(va, large);
        if large {
            let frame = pa & !((1 << LARGE_SHIFT) - 1);
            self.large.insert(page, key, frame);
            self.second.insert(page, key, frame);
        } else {
            let frame = pa & !((1 << SMALL_SHIFT) - 1);
            self.small.insert(page, key, frame);
            self.second.insert(page, key, frame);
        }
    }

    /// Forgets the page at `va`, of either size.
    pub fn forget_page(&mut self, va: u64) {
        let (page, small_key) = key(va, false);
        self.small.forget(page, small_key);
        self.second.forget(page, small_key);
        let (page, large_key) = key(va, true);
        self.large.forget(page, large_key);
        self.second.forget(page, large_key);
    }

    /// Forgets all but global entries.
    pub fn forget_user(&mut self) {
        self.small.forget_user();
        self.large.forget_user();
        self.second.forget_user();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.small.clear();
        self.large.clear();
        self.second.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const KERNEL: u64 = 0xffff_8880_0000_0000;

    #[test]
    fn fifth_page_of_a_set_falls_back_to_the_second_level() {
        let mut tlb = Tlb::default();
        for i in 0..5u64 {
            tlb.insert(i * 16 * 4096, (100 + i) << 12, false);
        }
        assert_eq!(
            tlb.lookup(5),
            Some(Hit {
                pa: 100 << 12 | 5,
                large: false,
                level: Level::Stlb
            })
        );
        assert_eq!(
            tlb.lookup(5),
            Some(Hit {
                pa: 100 << 12 | 5,
                large: false,
                level: Level::Dtlb
            })
        );
    }

    #[test]
    fn capacity_of_the_second_level_is_1536_pages() {
        let mut tlb = Tlb::default();
        for page in 0..1536u64 {
            tlb.insert(page << 12, page << 12, false);
        }
        assert!((0..1536u64).all(|page| tlb.lookup(page << 12).is_some()));
        tlb.insert(1536 << 12, 0, false);
        assert_eq!(tlb.lookup(0), None);
    }

    #[test]
    fn sizes_do_not_mix() {
        let mut tlb = Tlb::default();
        tlb.insert(0x40_0000, 0x1000, false);
        tlb.insert(0x60_0000, 0x20_0000, true);
        assert_eq!(tlb.lookup(0x40_1000), None);
        assert_eq!(
            tlb.lookup(0x7f_ffff).map(|hit| (hit.pa, hit.large)),
            Some((0x3f_ffff, true))
        );
    }

    #[test]
    fn user_flush_keeps_global_entries() {
        let mut tlb = Tlb::default();
        tlb.insert(0x1000, 0x1000, false);
        tlb.insert(KERNEL, 0x2000, false);
        tlb.insert(KERNEL + (2 << 20), 0x20_0000, true);
        tlb.forget_user();
        assert_eq!(tlb.lookup(0x1000), None);
        assert!(tlb.lookup(KERNEL).is_some() && tlb.lookup(KERNEL + (3 << 20)).is_some());
        tlb.clear();
        assert_eq!(tlb.lookup(KERNEL), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Access(u64),
        Remap(u64, u64),
        FlushPage(u64),
        FlushUser,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0u64..4096).prop_map(Step::Access),
            2 => (0u64..4096, 0u64..1 << 20).prop_map(|(page, frame)| Step::Remap(page, frame)),
            1 => (0u64..4096).prop_map(Step::FlushPage),
            1 => Just(Step::FlushUser),
        ]
    }

    proptest! {
        /// A page that is invalidated when its mapping changes is never seen at its old place.
        #[test]
        fn never_stale(steps in prop::collection::vec(step(), 1..2000)) {
            let mut tlb = Tlb::default();
            let mut table: HashMap<u64, u64> = HashMap::new();
            for step in steps {
                match step {
                    Step::Access(page) => {
                        let frame = *table.entry(page).or_insert(page + 7);
                        match tlb.lookup(page << 12) {
                            Some(hit) => prop_assert_eq!(hit.pa, frame << 12),
                            None => tlb.insert(page << 12, frame << 12, false),
                        }
                    }
                    Step::Remap(page, frame) => { table.insert(page, frame); tlb.forget_page(page << 12); }
                    Step::FlushPage(page) => { tlb.forget_page(page << 12); prop_assert!(tlb.lookup(page << 12).is_none()); }
                    Step::FlushUser => tlb.forget_user(),
                }
            }
        }
    }
}
