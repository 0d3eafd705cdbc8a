// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where guest-physical memory lies on the q35 machine.

use std::ops::Range;

/// Total RAM at which q35 leaves a gigabyte more room below 4 GiB for PCI.
const SPLIT_TOTAL: u64 = 0xb000_0000;
const SPLIT_LOW: u64 = 0x8000_0000;
const FOUR_GIB: u64 = 1 << 32;

/// Where a physical address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a node, at this offset of its file.
    Node {
        /// 0 = FMEM, 1 = SMEM.
        node: usize,
        /// Bytes from the start of the node.
        offset: u64,
    },
    /// In neither: a BAR, the DAX root image, MMIO.
    Outside,
}

/// The two nodes in the physical address space.
///
/// RAM is one run of node 0 followed by node 1. It starts at 0; what does not
/// fit below the PCI hole continues at 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    low: u64,
    first: u64,
    total: u64,
}

impl MemoryLayout {
    /// The layout for nodes of these sizes.
    #[must_use]
    pub const fn new(fmem_bytes: u64, smem_bytes: u64) -> Self {
        let total = fmem_bytes.saturating_add(smem_bytes);
        let low = if total >= SPLIT_TOTAL {
            SPLIT_LOW
        } else {
            total
        };
        Self {
            low,
            first: fmem_bytes,
            total,
        }
    }

    /// The physical address ranges of a node, lowest first.
    #[must_use]
    pub fn ranges(&self, node: usize) -> Vec<Range<u64>> {
        let (start, end) = match node {
            0 => (0, self.first),
            1 => (self.first, self.total),
            _ => return Vec::new(),
        };
        let below = start..end.min(self.low);
        let above = start.max(self.low)..end;
        let shift = FOUR_GIB - self.low;
        [below, above.start + shift..above.end.saturating_add(shift)]
            .into_iter()
            .filter(|range| range.start < range.end)
            .collect()
    }

    /// Where `pa` lies.
    #[inline]
    #[must_use]
    pub const fn locate(&self, pa: u64) -> Place {
        let offset = if pa < self.low {
            pa
        } else if pa >= FOUR_GIB && self.total > self.low {
            pa - FOUR_GIB + self.low
        } else {
            return Place::Outside;
        };
        if offset < self.first {
            Place::Node { node: 0, offset }
        } else if offset < self.total {
            Place::Node {
                node: 1,
                offset: offset - self.first,
            }
        } else {
            Place::Outside
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn small_machine_lies_below_the_hole() {
        let layout = MemoryLayout::new(128 * MIB, 512 * MIB);
        assert_eq!(layout.locate(0), Place::Node { node: 0, offset: 0 });
        assert_eq!(
            layout.locate(128 * MIB - 1),
            Place::Node {
                node: 0,
                offset: 128 * MIB - 1
            }
        );
        assert_eq!(layout.locate(128 * MIB), Place::Node { node: 1, offset: 0 });
        assert_eq!(layout.locate(640 * MIB), Place::Outside);
        assert_eq!(layout.locate(4 * GIB), Place::Outside);
        assert_eq!(layout.locate(0xfe00_0000), Place::Outside);
    }

    #[test]
    fn just_below_the_split_nothing_moves() {
        let layout = MemoryLayout::new(GIB, 2815 * MIB - GIB);
        assert_eq!(
            layout.locate(2815 * MIB - 1),
            Place::Node {
                node: 1,
                offset: 2815 * MIB - GIB - 1
            }
        );
        assert_eq!(layout.locate(4 * GIB), Place::Outside);
    }

    #[test]
    fn large_machine_continues_at_4_gib() {
        let layout = MemoryLayout::new(GIB, 3 * GIB);
        assert_eq!(
            layout.locate(2 * GIB - 1),
            Place::Node {
                node: 1,
                offset: GIB - 1
            }
        );
        assert_eq!(layout.locate(2 * GIB), Place::Outside);
        assert_eq!(
            layout.locate(4 * GIB),
            Place::Node {
                node: 1,
                offset: GIB
            }
        );
        assert_eq!(
            layout.locate(6 * GIB - 1),
            Place::Node {
                node: 1,
                offset: 3 * GIB - 1
            }
        );
        assert_eq!(layout.locate(6 * GIB), Place::Outside);
    }

    #[test]
    fn ranges_are_what_is_located() {
        for (fmem, smem) in [(128 * MIB, 512 * MIB), (GIB, 3 * GIB), (3 * GIB, GIB)] {
            let layout = MemoryLayout::new(fmem, smem);
            for (node, bytes) in [(0, fmem), (1, smem)] {
                let mut expected = 0;
                for range in layout.ranges(node) {
                    for (pa, offset) in [
                        (range.start, expected),
                        (range.end - 1, expected + (range.end - range.start) - 1),
                    ] {
                        assert_eq!(layout.locate(pa), Place::Node { node, offset });
                    }
                    expected += range.end - range.start;
                }
                assert_eq!(expected, bytes);
            }
        }
        assert_eq!(MemoryLayout::new(3 * GIB, GIB).ranges(0).len(), 2);
        assert!(MemoryLayout::new(GIB, GIB).ranges(2).is_empty());
    }

    #[test]
    fn split_may_cut_fmem() {
        let layout = MemoryLayout::new(3 * GIB, GIB);
        assert_eq!(
            layout.locate(4 * GIB),
            Place::Node {
                node: 0,
                offset: 2 * GIB
            }
        );
        assert_eq!(layout.locate(5 * GIB), Place::Node { node: 1, offset: 0 });
    }
}
