// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where guest memory lies on the host, and which tier it is.
//!
//! The tier of a region is told by whoever configured the machine. It is never
//! guessed from sizes or order: a wrong guess punches holes into the wrong tier.

use crate::reason::Reason;
use crate::wire::{PAGE_SHIFT, Range};

/// Guest memory that lies in one piece on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First guest physical page number.
    pub first_page: u64,
    /// Number of pages.
    pub nr_pages: u64,
    /// Tier.
    pub node: u16,
    /// The caller's name for the backing object.
    pub backing: usize,
    /// Where the region begins in it.
    pub offset_bytes: u64,
}

impl Region {
    fn end_page(&self) -> u64 {
        self.first_page + self.nr_pages
    }
}

/// What is wrong with a memory table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// A region without pages or beyond 64 bits.
    #[error("memory region at page {first_page:#x} is empty or wraps")]
    Extent {
        /// Its begin.
        first_page: u64,
    },
    /// Two regions at one address.
    #[error("memory regions overlap at page {first_page:#x}")]
    Overlap {
        /// The begin of the second.
        first_page: u64,
    },
}

/// The memory table.
#[derive(Debug, Clone, Default)]
pub struct Regions(Vec<Region>);

/// Highest page number plus one: 64-bit addresses.
const END_OF_PAGES: u64 = 1 << (64 - PAGE_SHIFT);

impl Regions {
    /// Checks and sorts.
    ///
    /// # Errors
    /// Regions that overlap, are empty, or end beyond 64-bit addresses.
    pub fn new(mut regions: Vec<Region>) -> Result<Self, RegionError> {
        regions.sort_unstable_by_key(|region| region.first_page);
        for region in &regions {
            let ends_inside = region
                .first_page
                .checked_add(region.nr_pages)
                .is_some_and(|end| end <= END_OF_PAGES);
            let file_ends_inside = region
                .nr_pages
                .checked_mul(1 << PAGE_SHIFT)
                .and_then(|bytes| bytes.checked_add(region.offset_bytes))
                .is_some();
            if region.nr_pages == 0 || !ends_inside || !file_ends_inside {
                return Err(RegionError::Extent {
                    first_page: region.first_page,
                });
            }
        }
        for pair in regions.windows(2) {
            if pair[0].end_page() > pair[1].first_page {
                return Err(RegionError::Overlap {
                    first_page: pair[1].first_page,
                });
            }
        }
        Ok(Self(regions))
    }

    /// In ascending order of addresses.
    #[must_use]
    pub fn as_slice(&self) -> &[Region] {
        &self.0
    }

    /// Pages of a tier.
    #[must_use]
    pub fn node_pages(&self, node: u16) -> u64 {
        self.0
            .iter()
            .filter(|region| region.node == node)
            .map(|region| region.nr_pages)
            .sum()
    }

    /// The host pieces of a guest range, in ascending order. The range may span
    /// neighbouring regions: a guest does not know where the host cut its memory.
    ///
    /// # Errors
    /// The reason why this is not memory of that tier.
    pub fn pieces(&self, node: u16, range: Range) -> Result<Pieces<'_>, Reason> {
        if range.nr_pages == 0 {
            return Err(Reason::Empty);
        }
        if range.gpa & ((1 << PAGE_SHIFT) - 1) != 0 {
            return Err(Reason::Unaligned);
        }
        let first = range.gpa >> PAGE_SHIFT;
        let end = first
            .checked_add(range.nr_pages)
            .filter(|end| *end <= END_OF_PAGES)
            .ok_or(Reason::Wrapping)?;
        let from = self.0.partition_point(|region| region.end_page() <= first);
        let mut at = first;
        let mut wrong_tier = false;
        for region in &self.0[from..] {
            if at >= end {
                break;
            }
            if region.first_page > at {
                return Err(Reason::Outside);
            }
            wrong_tier |= region.node != node;
            at = region.end_page();
        }
        if at < end {
            return Err(Reason::Outside);
        }
        if wrong_tier {
            return Err(Reason::Tier);
        }
        Ok(Pieces {
            regions: &self.0[from..],
            first,
            end,
        })
    }
}

/// Part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The region's backing object.
    pub backing: usize,
    /// Begin in it.
    pub offset_bytes: u64,
    /// Length.
    pub length_bytes: u64,
}

/// Iterator of [`Regions::pieces`].
#[derive(Debug)]
pub struct Pieces<'a> {
    regions: &'a [Region],
    first: u64,
    end: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.first >= self.end {
            return None;
        }
        let (region, rest) = self.regions.split_first()?;
        let end = self.end.min(region.end_page());
        let piece = Piece {
            backing: region.backing,
            offset_bytes: region.offset_bytes + ((self.first - region.first_page) << PAGE_SHIFT),
            length_bytes: (end - self.first) << PAGE_SHIFT,
        };
        self.first = end;
        self.regions = rest;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(first_page: u64, nr_pages: u64, node: u16, offset_pages: u64) -> Region {
        Region {
            first_page,
            nr_pages,
            node,
            backing: usize::from(node),
            offset_bytes: offset_pages << PAGE_SHIFT,
        }
    }

    /// As QEMU cuts a q35 machine: low memory with a hole for legacy ROMs.
    fn table() -> Regions {
        Regions::new(vec![
            region(0x100, 0x300, 0, 0x100),
            region(0, 0xa0, 0, 0),
            region(0x400, 0x400, 1, 0),
            region(0x800, 0x100, 1, 0x400),
        ])
        .unwrap()
    }

    fn range(page: u64, nr_pages: u64) -> Range {
        Range {
            gpa: page << PAGE_SHIFT,
            nr_pages,
        }
    }

    #[test]
    fn finds_the_place_in_the_file() {
        let table = table();
        let pieces: Vec<_> = table.pieces(0, range(0x110, 2)).unwrap().collect();
        assert_eq!(
            pieces,
            [Piece {
                backing: 0,
                offset_bytes: 0x110 << 12,
                length_bytes: 2 << 12
            }]
        );
    }

    #[test]
    fn spans_neighbouring_regions_of_a_tier() {
        let table = table();
        let pieces: Vec<_> = table.pieces(1, range(0x7ff, 2)).unwrap().collect();
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[0].offset_bytes, 0x3ff << 12);
        assert_eq!(pieces[1].offset_bytes, 0x400 << 12);
    }

    #[test]
    fn refuses_what_is_not_memory_of_the_tier() {
        let table = table();
        let refused = |node, range| table.pieces(node, range).err();
        assert_eq!(refused(0, range(0x100, 0)), Some(Reason::Empty));
        assert_eq!(refused(0, range(0xa0, 1)), Some(Reason::Outside));
        assert_eq!(refused(0, range(0x9f, 2)), Some(Reason::Outside));
        assert_eq!(refused(0, range(0x9f, 0x62)), Some(Reason::Outside));
        assert_eq!(refused(1, range(0x8ff, 2)), Some(Reason::Outside));
        assert_eq!(refused(1, range(0x900, 1)), Some(Reason::Outside));
        assert_eq!(refused(1, range(0x3ff, 2)), Some(Reason::Tier));
        assert_eq!(refused(0, range(0x400, 1)), Some(Reason::Tier));
        assert_eq!(refused(2, range(0x400, 1)), Some(Reason::Tier));
        assert_eq!(refused(0, range(0x100, u64::MAX)), Some(Reason::Wrapping));
        assert_eq!(refused(0, range(0x100, 1 << 52)), Some(Reason::Wrapping));
        let unaligned = Range {
            gpa: 0x100_008,
            nr_pages: 1,
        };
        assert_eq!(refused(0, unaligned), Some(Reason::Unaligned));
        let last = Range {
            gpa: !0xfff,
            nr_pages: 2,
        };
        assert_eq!(refused(0, last), Some(Reason::Wrapping));
    }

    #[test]
    fn refuses_impossible_tables() {
        assert!(Regions::new(vec![region(0, 0, 0, 0)]).is_err());
        assert!(Regions::new(vec![region(1, u64::MAX, 0, 0)]).is_err());
        assert!(Regions::new(vec![region(0, 16, 0, 0), region(15, 1, 1, 0)]).is_err());
        let mut beyond = region(0, 2, 0, 0);
        beyond.offset_bytes = u64::MAX - 0x1000;
        assert!(Regions::new(vec![beyond]).is_err());
    }

    #[test]
    fn an_empty_table_has_no_memory() {
        assert_eq!(
            Regions::default().pieces(0, range(0, 1)).err(),
            Some(Reason::Outside)
        );
    }
}
