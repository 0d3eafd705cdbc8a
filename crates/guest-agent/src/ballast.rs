// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes each node's free memory exactly as large as asked for.
//!
//! What is too much goes into the pool of huge pages of that node (no process
//! owns them, no reclaim, migration or scanning touches them), the rest below
//! 2 MiB into small locked pages of this process.
//!
//! Free memory is as whole, too: a manager that was loaded leaves pieces, and in so
//! small a tier every huge page that does not fit shows. So pieces are locked, and
//! huge pages of the pool come free in their place, until some pieces are left.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;

use demeter_agent::protocol::{Record, Tier};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mlock, mmap_anonymous};

use crate::error::Error;
use crate::report::{Reporter, node_free_bytes};

const HUGE_BYTES: u64 = 2 << 20;
const SMALL_BYTES: u64 = 4096;
/// Free memory in pieces smaller than a huge page that a node is left with.
const PIECES_BYTES: u64 = 4 << 20;
/// Pieces locked at a time, to see what that breaks.
const BITE_BYTES: u64 = 256 << 10;
/// How close is close enough.
const TOLERANCE_BYTES: u64 = 64 << 10;
const ROUNDS: u32 = 32;
const SETTLE: std::time::Duration = std::time::Duration::from_millis(20);

/// A mapping of this process: address and bytes.
type Map = (std::ptr::NonNull<libc::c_void>, usize);

/// Small pages held until the machine is switched off.
pub struct Ballast {
    _maps: Vec<Map>,
}

/// Brings all nodes to their sizes.
pub fn take(tiers: &[Tier], reporter: &mut Reporter) -> Result<Ballast, Error> {
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
    let mut held = Held::default();
    held.settle(tiers)?;
    for tier in tiers {
        held.trade_pieces(tier.node);
    }
    held.settle(tiers)?;
    for tier in tiers {
        let free_bytes = node_free_bytes(tier.node);
        reporter.send(&Record::Tier {
            node: tier.node,
            wanted_bytes: tier.free_bytes,
            free_bytes,
            huge_bytes: huge_pages(tier.node) * HUGE_BYTES,
            small_bytes: held.small_bytes.get(&tier.node).copied().unwrap_or(0),
        });
        if free_bytes.abs_diff(tier.free_bytes) > (1 << 20) {
            return Err(Error::Ballast {
                node: tier.node,
                free_bytes,
                wanted_bytes: tier.free_bytes,
            });
        }
    }
    Ok(Ballast { _maps: held.maps })
}

/// What has been taken so far.
#[derive(Default)]
struct Held {
    maps: Vec<Map>,
    small_bytes: BTreeMap<u32, u64>,
}

impl Held {
    /// Brings all nodes to their sizes, to within [`TOLERANCE_BYTES`].
    fn settle(&mut self, tiers: &[Tier]) -> Result<(), Error> {
        // Taking memory on one node may use a little of the other one (page
        // tables, slabs): go round until all are right.
        for _ in 0..ROUNDS {
            let mut settled = true;
            // What the kernel frees late (RCU, per-CPU lists) must be free first.
            std::thread::sleep(SETTLE);
            for tier in tiers {
                settled &= self.settle_node(tier)?;
            }
            if settled {
                break;
            }
        }
        Ok(())
    }

    /// One step towards a node's size; true when it has it.
    fn settle_node(&mut self, tier: &Tier) -> Result<bool, Error> {
        let free_bytes = node_free_bytes(tier.node);
        let Some(excess) = free_bytes.checked_sub(tier.free_bytes) else {
            if tier.free_bytes - free_bytes <= TOLERANCE_BYTES {
                return Ok(true);
            }
            if give_back_huge(tier.node) {
                return Ok(false);
            }
            return Err(Error::TooSmall {
                node: tier.node,
                free_bytes,
                wanted_bytes: tier.free_bytes,
            });
        };
        if excess <= TOLERANCE_BYTES {
            return Ok(true);
        }
        if excess < HUGE_BYTES || !grow_huge(tier.node, excess / HUGE_BYTES) {
            self.lock(tier.node, excess - TOLERANCE_BYTES / 2);
        }
        Ok(false)
    }

    /// Locks small pages, and says whether it could.
    fn lock(&mut self, node: u32, bytes: u64) -> bool {
        let pages = bytes / SMALL_BYTES;
        let Some(map) = lock_small(node, pages) else {
            return false;
        };
        *self.small_bytes.entry(node).or_default() += pages * SMALL_BYTES;
        self.maps.push(map);
        true
    }

    /// Locks free pieces of a node, and frees as much in huge pages of its pool: until
    /// [`PIECES_BYTES`] are left, or those that are left serve no process.
    fn trade_pieces(&mut self, node: u32) {
        let mut owed = 0;
        loop {
            let whole = whole_bytes(node);
            let pieces = node_free_bytes(node).saturating_sub(whole);
            if pieces < PIECES_BYTES + BITE_BYTES || !self.lock(node, BITE_BYTES) {
                break;
            }
            owed += BITE_BYTES;
            if whole_bytes(node) < whole {
                break;
            }
            if owed >= HUGE_BYTES {
                if !give_back_huge(node) {
                    break;
                }
                owed -= HUGE_BYTES;
            }
        }
    }
}

/// Free memory of a node in blocks that a huge page fits into.
fn whole_bytes(node: u32) -> u64 {
    let text = fs::read_to_string("/proc/buddyinfo").unwrap_or_default();
    whole_of(&text, node)
}

/// The same of the text of `/proc/buddyinfo`: a line a zone, a column an order of blocks.
fn whole_of(buddyinfo: &str, node: u32) -> u64 {
    let begins = format!("Node {node},");
    buddyinfo
        .lines()
        .filter_map(|line| line.trim().strip_prefix(&begins))
        .flat_map(|rest| rest.split_whitespace().skip(2).enumerate())
        .filter_map(|(order, blocks)| Some((SMALL_BYTES << order, blocks.parse::<u64>().ok()?)))
        .filter(|(bytes, _)| *bytes >= HUGE_BYTES)
        .map(|(bytes, blocks)| bytes * blocks)
        .sum()
}

fn pool_path(node: u32) -> String {
    format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages")
}

fn huge_pages(node: u32) -> u64 {
    fs::read_to_string(pool_path(node))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// True when the pool grew at all.
fn grow_huge(node: u32, pages: u64) -> bool {
    let had = huge_pages(node);
    let _ = fs::write(pool_path(node), (had + pages).to_string());
    huge_pages(node) > had
}

fn give_back_huge(node: u32) -> bool {
    let had = huge_pages(node);
    had > 0 && fs::write(pool_path(node), (had - 1).to_string()).is_ok() && huge_pages(node) < had
}

/// Maps, binds, locks and touches small pages on one node.
fn lock_small(node: u32, pages: u64) -> Option<Map> {
    let bytes = NonZeroUsize::new(usize::try_from(pages * SMALL_BYTES).ok()?)?;
    // SAFETY: a new private anonymous mapping overlaps nothing; it is only
    // used below and never unmapped.
    let map = unsafe {
        mmap_anonymous(
            None,
            bytes,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_PRIVATE,
        )
    }
    .ok()?;
    let mask: libc::c_ulong = 1_u64.checked_shl(node)?;
    // SAFETY: the range is the mapping made above; the mask outlives the call.
    let bound = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            map.as_ptr(),
            bytes.get(),
            libc::MPOL_BIND,
            &raw const mask,
            libc::c_ulong::BITS as libc::c_ulong,
            0,
        )
    };
    if bound != 0 {
        return None;
    }
    // SAFETY: the range is the mapping made above.
    unsafe {
        madvise(map, bytes.get(), MmapAdvise::MADV_NOHUGEPAGE).ok()?;
        mlock(map, bytes.get()).ok()?;
    }
    Some((map, bytes.get()))
}

#[cfg(test)]
mod tests {
    use super::whole_of;

    #[test]
    fn whole_blocks_are_those_of_a_huge_page_or_more() {
        let text = "\
Node 0, zone      DMA      0      0      0      0      0      1      1      1      0      1      3
Node 0, zone    DMA32      4      4      4      7      6      7      2      4      3      2      0
Node 1, zone    DMA32      0      1      5      2      3      1      2      2      2      3     29
Node 10, zone   Normal      0      1      5      2      3      1      2      2      2      3     29
";
        assert_eq!(whole_of(text, 0), (1 + 2) * (2 << 20) + 3 * (4 << 20));
        assert_eq!(whole_of(text, 1), 3 * (2 << 20) + 29 * (4 << 20));
        assert_eq!(whole_of(text, 2), 0);
        assert_eq!(whole_of("Node 0, zone", 0), 0);
    }
}
