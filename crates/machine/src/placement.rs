// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clairvoyant static placement: a bound for managers of any program.
//!
//! A first run is recorded: for every page, how much time more its line fills
//! cost from SMEM than they would have from FMEM. [`choose`] gives FMEM to the
//! pages with most of it. In a second run each fill is charged as if its page had
//! been in its chosen tier from the start; the guest neither moves it nor knows.
//!
//! Which pages compete, and for what:
//!
//! - Pages at user addresses are told apart by address space and address, as
//!   managers of guest-virtual memory do. Address spaces are numbered as their page
//!   tables first appear; the boot up to the region of interest is the same
//!   in both runs, so that the numbers are too.
//! - Fills at kernel addresses from FMEM stay there, and for nothing: memory of the
//!   kernel is in FMEM to begin with and no manager moves it. Those from SMEM (page
//!   cache, pages being zeroed) compete by frame.
//! - All compete for the FMEM that COMMAND may use, to the byte; what the recording
//!   never saw takes what is left over, first come.
//!
//! A static placement is no bound for a program whose hot set changes: a manager
//! that follows it may be faster.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Set in the key of a frame.
const FRAME_KEY: u64 = 1 << 63;
const PAGE_SHIFT: u32 = 12;
/// Bits of a user address.
const USER_BITS: u32 = 47;
/// Pages that a recording follows: 64 GiB.
const MAX_PAGES: usize = 1 << 24;
/// Address spaces told apart; all later ones count as one.
const MAX_SPACES: u64 = 1 << 24;

/// Hashes page numbers; never used for an order.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// By page number.
pub type PageMap<T> = HashMap<u64, T, BuildHasherDefault<PageHasher>>;
type PageSet = HashSet<u64, BuildHasherDefault<PageHasher>>;

/// How pages at user addresses are named from run to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NameBy {
    /// Address space and virtual address.
    #[default]
    Virtual,
    /// Physical frame.
    Physical,
}

/// Names of pages.
#[derive(Clone, Debug)]
pub struct Names {
    by: NameBy,
    spaces: PageMap<u64>,
    /// Ordinal of each vCPU's address space.
    current: Vec<u64>,
}

impl Names {
    /// For a machine of so many vCPUs.
    #[must_use]
    pub fn new(by: NameBy, vcpus: usize) -> Self {
        Self {
            by,
            spaces: PageMap::default(),
            current: vec![0; vcpus],
        }
    }

    /// `vcpu` uses the page tables at `root` from here on.
    pub fn address_space(&mut self, vcpu: usize, root: u64) {
        let next = self.spaces.len() as u64;
        let ordinal = if next < MAX_SPACES {
            *self.spaces.entry(root).or_insert(next)
        } else {
            (self.spaces.get(&root).copied()).unwrap_or(MAX_SPACES)
        };
        if let Some(current) = self.current.get_mut(vcpu) {
            *current = ordinal;
        }
    }

    /// Ordinal of the address space of `vcpu`.
    #[must_use]
    pub fn space(&self, vcpu: usize) -> u64 {
        self.current.get(vcpu).copied().unwrap_or(0)
    }

    /// The key of a page.
    #[must_use]
    pub fn key(&self, vcpu: usize, va: u64, pa: u64) -> u64 {
        if self.by == NameBy::Physical || is_kernel(va) {
            FRAME_KEY | pa >> PAGE_SHIFT
        } else {
            self.space(vcpu) << (USER_BITS - PAGE_SHIFT) | va >> PAGE_SHIFT
        }
    }
}

/// Whether an address is the kernel's.
#[must_use]
pub const fn is_kernel(va: u64) -> bool {
    va >> USER_BITS != 0
}

/// What a page's fills cost beyond what FMEM takes, or would have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCost {
    /// Of fills that FMEM served: what SMEM would have cost more.
    pub fmem_ps: u64,
    /// Of fills that SMEM served: what it cost more.
    pub smem_ps: u64,
}

/// Adds up costs by page.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pages: PageMap<PageCost>,
    missed_ps: u64,
}

impl Tally {
    /// A fill of the page `key` that `node` served, and what SMEM costs more for it.
    pub fn fill(&mut self, key: u64, kernel: bool, node: usize, dearer_ps: u64) {
        if kernel && node == 0 {
            return;
        }
        if self.pages.len() >= MAX_PAGES && !self.pages.contains_key(&key) {
            self.missed_ps += dearer_ps;
            return;
        }
        let cost = self.pages.entry(key).or_default();
        if node == 0 {
            cost.fmem_ps += dearer_ps;
        } else {
            cost.smem_ps += dearer_ps;
        }
    }

    /// What has been recorded.
    #[must_use]
    pub fn recording(&self) -> Recording {
        let mut pages: Vec<_> = self.pages.iter().map(|(&key, &cost)| (key, cost)).collect();
        pages.sort_unstable_by_key(|&(key, _)| key);
        Recording {
            pages,
            missed_ps: self.missed_ps,
        }
    }
}

/// Something is not the file it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {0} of this version, or cut short")]
pub struct FormatError(&'static str);

/// A recorded run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Key and cost of each page, by key.
    pub pages: Vec<(u64, PageCost)>,
    /// Cost of pages beyond what can be followed.
    pub missed_ps: u64,
}

const RECORDING_MAGIC: u64 = u64::from_le_bytes(*b"DMTRPAG1");
const PLACEMENT_MAGIC: u64 = u64::from_le_bytes(*b"DMTRPLC1");

fn words(bytes: &[u8]) -> Option<impl ExactSizeIterator<Item = u64>> {
    let (words, rest) = bytes.as_chunks::<8>();
    rest.is_empty()
        .then(|| words.iter().map(|&word| u64::from_le_bytes(word)))
}

impl Recording {
    /// As a file: 64-bit little-endian words, a header and three for each page.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = [RECORDING_MAGIC, self.pages.len() as u64, self.missed_ps];
        let pages = (self.pages.iter()).flat_map(|(key, cost)| [*key, cost.fmem_ps, cost.smem_ps]);
        (header.into_iter().chain(pages))
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    /// From a file.
    ///
    /// # Errors
    /// It is not one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let wrong = FormatError("recording");
        let mut words = words(bytes).ok_or(wrong)?;
        let mut next = || words.next().ok_or(wrong);
        if next()? != RECORDING_MAGIC {
            return Err(wrong);
        }
        let (count, missed_ps) = (next()?, next()?);
        if words.len() as u64 != count.saturating_mul(3) {
            return Err(wrong);
        }
        let mut pages = Vec::with_capacity(words.len() / 3);
        while let (Some(key), Some(fmem_ps), Some(smem_ps)) =
            (words.next(), words.next(), words.next())
        {
            pages.push((key, PageCost { fmem_ps, smem_ps }));
        }
        Ok(Self { pages, missed_ps })
    }
}

/// Which granules FMEM serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Base pages of a granule, as a power of two.
    pub order: u32,
    /// Keys of the first pages of the granules, in order.
    pub fast: Vec<u64>,
    /// Granules that still fit.
    pub spare: u64,
}

/// A placement and what it promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The placement.
    pub placement: Placement,
    /// By how much the recorded run would have been shorter; negative where the
    /// granule wastes more than choosing gains.
    pub saving_ps: i64,
}

/// The granules of 2^`order` pages that save most, as many as `capacity_bytes` hold.
#[must_use]
pub fn choose(recording: &Recording, order: u32, capacity_bytes: u64) -> Choice {
    let order = order.min(18);
    // Sorted by key, so a granule's pages lie together.
    let mut granules: Vec<(u64, PageCost)> = Vec::new();
    for &(key, cost) in &recording.pages {
        let key = key >> order << order;
        match granules.last_mut() {
            Some((last, sum)) if *last == key => {
                sum.fmem_ps = sum.fmem_ps.saturating_add(cost.fmem_ps);
                sum.smem_ps = sum.smem_ps.saturating_add(cost.smem_ps);
            }
            _ => granules.push((key, cost)),
        }
    }
    let gain = |cost: &PageCost| cost.fmem_ps.saturating_add(cost.smem_ps);
    granules.sort_by(|(a_key, a), (b_key, b)| gain(b).cmp(&gain(a)).then(a_key.cmp(b_key)));
    let capacity = capacity_bytes >> (PAGE_SHIFT + order);
    let taken = granules.len().min(capacity as usize);
    let (fast, slow) = granules.split_at(taken);
    let sum = |of: &[(u64, PageCost)], cost: fn(&PageCost) -> u64| {
        of.iter()
            .map(|(_, page)| i128::from(cost(page)))
            .sum::<i128>()
    };
    let saving_ps = sum(fast, |page| page.smem_ps) - sum(slow, |page| page.fmem_ps);
    let mut fast: Vec<u64> = fast.iter().map(|&(key, _)| key).collect();
    fast.sort_unstable();
    Choice {
        placement: Placement {
            order,
            spare: capacity - taken as u64,
            fast,
        },
        saving_ps: saving_ps.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
    }
}

impl Placement {
    /// As a file: 64-bit little-endian words.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = [PLACEMENT_MAGIC, u64::from(self.order), self.spare];
        (header.iter().chain(&self.fast))
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    /// From a file.
    ///
    /// # Errors
    /// It is not one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let wrong = FormatError("placement");
        let mut words = words(bytes).ok_or(wrong)?;
        let mut next = || words.next().ok_or(wrong);
        let (magic, order, spare) = (next()?, next()?, next()?);
        let order = u32::try_from(order).ok().filter(|&order| order <= 18);
        match order {
            Some(order) if magic == PLACEMENT_MAGIC => Ok(Self {
                order,
                spare,
                fast: words.collect(),
            }),
            _ => Err(wrong),
        }
    }
}

/// A placement in force.
#[derive(Clone, Debug)]
pub struct Placed {
    order: u32,
    spare: u64,
    fast: PageSet,
}

impl From<Placement> for Placed {
    fn from(placement: Placement) -> Self {
        Self {
            order: placement.order,
            spare: placement.spare,
            fast: placement.fast.into_iter().collect(),
        }
    }
}

impl Placed {
    /// The node that serves a fill of the page `key`, which lies in `node`.
    pub fn serving(&mut self, key: u64, kernel: bool, node: usize) -> usize {
        if kernel && node == 0 {
            return 0;
        }
        let granule = key >> self.order << self.order;
        if self.fast.contains(&granule) {
            return 0;
        }
        if self.spare > 0 {
            self.spare -= 1;
            self.fast.insert(granule);
            return 0;
        }
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KERNEL: u64 = 0xffff_8880_0000_0000;

    #[test]
    fn pages_are_named_by_space_and_address() {
        let mut names = Names::new(NameBy::Virtual, 2);
        names.address_space(0, 0x1000);
        names.address_space(1, 0x2000);
        assert_eq!(names.key(0, 0x5123, 0x9000), 5);
        assert_eq!(names.key(1, 0x5123, 0x9000), 1 << 35 | 5);
        assert_eq!(names.key(1, KERNEL | 0x5123, 0x9000), FRAME_KEY | 9);
        names.address_space(0, 0x2000);
        assert_eq!(names.space(0), names.space(1));
        names.address_space(0, 0x1000);
        assert_eq!(names.space(0), 0);
        names.address_space(9, 0x3000);
        let physical = Names::new(NameBy::Physical, 1);
        assert_eq!(physical.key(0, 0x5123, 0x9000), FRAME_KEY | 9);
    }

    fn recording(pages: &[(u64, u64, u64)]) -> Recording {
        let mut tally = Tally::default();
        for &(key, fmem_ps, smem_ps) in pages {
            tally.fill(key, false, 0, fmem_ps);
            tally.fill(key, false, 1, smem_ps);
        }
        tally.recording()
    }

    #[test]
    fn the_dearest_pages_are_chosen() {
        let recording = recording(&[(1, 7, 0), (2, 0, 9), (3, 2, 2), (600, 0, 4), (601, 0, 4)]);
        let Choice {
            placement,
            saving_ps,
        } = choose(&recording, 0, 3 * 4096 + 5);
        // 3 and 600 and 601 weigh the same: the first by key goes.
        assert_eq!(placement.fast, [1, 2, 3]);
        assert_eq!((placement.spare, saving_ps), (0, 9 + 2));
        let huge = choose(&recording, 9, 2 << 20);
        assert_eq!(huge.placement.fast, [0]);
        assert_eq!(huge.saving_ps, 9 + 2);
        let all = choose(&recording, 0, 1 << 20);
        assert_eq!(all.placement.spare, 256 - 5);
        assert_eq!(choose(&recording, 0, 0).saving_ps, -9);
    }

    #[test]
    fn memory_of_the_kernel_in_fmem_stays_and_takes_no_room() {
        let mut tally = Tally::default();
        tally.fill(FRAME_KEY | 1, true, 0, 100);
        tally.fill(FRAME_KEY | 2, true, 1, 5);
        tally.fill(7, false, 1, 3);
        let choice = choose(&tally.recording(), 0, 4096);
        assert_eq!(choice.placement.fast, [FRAME_KEY | 2]);
        let mut placed = Placed::from(choice.placement);
        assert_eq!(placed.serving(FRAME_KEY | 1, true, 0), 0);
        assert_eq!(placed.serving(FRAME_KEY | 2, true, 1), 0);
        assert_eq!(placed.serving(7, false, 0), 1);
        assert_eq!(placed.serving(8, false, 0), 1);
    }

    #[test]
    fn what_was_never_seen_takes_what_is_left() {
        let mut placed = Placed::from(choose(&recording(&[(0, 0, 1)]), 9, 4 << 20).placement);
        assert_eq!(placed.serving(511, false, 1), 0);
        assert_eq!(placed.serving(513, false, 1), 0);
        assert_eq!(placed.serving(1025, false, 1), 1);
        assert_eq!(placed.serving(514, false, 1), 0);
    }

    proptest! {
        #[test]
        fn files_give_back_what_was_written(
            pages in prop::collection::btree_map(any::<u64>(), (any::<u64>(), any::<u64>()), 0..50),
            missed_ps in any::<u64>(), order in 0_u32..10, capacity in 0_u64..100 << 20,
        ) {
            let recording = Recording {
                pages: (pages.into_iter())
                    .map(|(key, (fmem_ps, smem_ps))| (key, PageCost { fmem_ps, smem_ps }))
                    .collect(),
                missed_ps,
            };
            let bytes = recording.to_bytes();
            prop_assert_eq!(Recording::from_bytes(&bytes), Ok(recording.clone()));
            let placement = choose(&recording, order, capacity).placement;
            prop_assert_eq!(Placement::from_bytes(&placement.to_bytes()), Ok(placement));
            for cut in [1, 8, 24] {
                prop_assert!(Recording::from_bytes(&bytes[..bytes.len() - cut]).is_err());
            }
        }

        /// Bytes of anything are refused or read, and never more than that.
        #[test]
        fn foreign_files_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(Recording::from_bytes(&bytes).is_err());
            prop_assert!(Placement::from_bytes(&bytes).is_err());
        }

        /// Replaying the recorded fills saves what was promised, and no other
        /// choice of as many pages saves more.
        #[test]
        fn promises_are_kept(
            fills in prop::collection::vec((0_u64..64, 0_usize..2, 0_u64..1000), 0..200),
            capacity_pages in 0_u64..40, other in prop::collection::btree_set(0_u64..64, 0..40),
        ) {
            // A page is in one node only, as in a run in which nothing moves.
            let node_of = |key: u64| usize::from(!key.is_multiple_of(3));
            let mut tally = Tally::default();
            for &(key, _, ps) in &fills {
                tally.fill(key, false, node_of(key), ps);
            }
            let choice = choose(&tally.recording(), 0, capacity_pages << 12);
            let cost = |fast: &dyn Fn(u64) -> bool| {
                fills.iter().filter(|(key, ..)| !fast(*key)).map(|fill| fill.2 as i64).sum::<i64>()
            };
            let before = cost(&|key| node_of(key) == 0);
            let chosen = &choice.placement.fast;
            prop_assert!(chosen.len() as u64 + choice.placement.spare == capacity_pages);
            let after = cost(&|key| chosen.contains(&key));
            prop_assert_eq!(before - after, choice.saving_ps);
            let other: Vec<u64> = other.into_iter().take(capacity_pages as usize).collect();
            prop_assert!(after <= cost(&|key| other.contains(&key)));
        }
    }
}
