// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes each node's free memory exactly as large as asked for, and as whole.
//!
//! What is too much goes into the pool of huge pages of that node (no process
//! owns them, no reclaim, migration or scanning touches them), the rest below
//! 2 MiB into small locked pages of this process.
//!
//! A manager that was loaded leaves pieces, and in so small a tier every huge page
//! that does not fit shows. So first the pool takes all that is whole. What is left are
//! pieces, of whatever kind, and what is locked now comes out of them, down to as many as
//! every guest has. Then as many huge pages come out of the pool again.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;

use demeter_agent::protocol::{Record, Tier};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

use crate::error::Error;
use crate::report::{Reporter, node_free_bytes};

const HUGE_BYTES: u64 = 2 << 20;
const SMALL_BYTES: u64 = 4096;
/// Free memory in pieces smaller than a huge page that a node is left with. No more: Linux
/// takes a node with some room above its watermarks for one that it can promote to, and makes
/// none, also where a huge page finds no whole one.
const PIECES_BYTES: u64 = 4 << 20;
/// Pieces locked at a time, and let go of.
const BITE_BYTES: u64 = 128 << 10;
/// How close is close enough.
const TOLERANCE_BYTES: u64 = 64 << 10;
const ROUNDS: u32 = 32;
const SETTLE: std::time::Duration = std::time::Duration::from_millis(20);

/// A mapping of this process: address and bytes. Gone when it is dropped.
struct Map(std::ptr::NonNull<libc::c_void>, usize);

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is a mapping made by `lock`, which nothing refers to.
        let _ = unsafe { munmap(self.0, self.1) };
    }
}

/// Small pages held until the machine is switched off.
pub struct Ballast {
    _maps: BTreeMap<u32, Vec<Map>>,
}

/// Brings all nodes to their sizes.
pub fn take(tiers: &[Tier], reporter: &mut Reporter) -> Result<Ballast, Error> {
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
    let settings = Settings::set();
    let mut held = Held::default();
    // One by one: the kernel needs memory as well, and finds it on another node. Where there
    // is none, nothing competes for huge pages of it either.
    for tier in tiers {
        if tiers.len() > 1 {
            held.settle_pieces(tier);
        } else {
            let excess = node_free_bytes(tier.node).saturating_sub(tier.free_bytes);
            grow_huge(tier.node, excess / HUGE_BYTES);
        }
        held.settle(tier)?;
    }
    drop(settings);
    for tier in tiers {
        let free_bytes = node_free_bytes(tier.node);
        reporter.send(&Record::Tier {
            node: tier.node,
            wanted_bytes: tier.free_bytes,
            free_bytes,
            whole_bytes: whole_bytes(tier.node),
            huge_bytes: huge_pages(tier.node) * HUGE_BYTES,
            small_bytes: held.small_bytes(tier.node),
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

/// What a node is left with in pieces, so that the rest is whole.
fn pieces_of(tier: &Tier) -> u64 {
    let most = PIECES_BYTES.min(tier.free_bytes);
    most + (tier.free_bytes - most) % HUGE_BYTES
}

/// What the kernel is told meanwhile, by file; as before when dropped.
struct Settings(Vec<(&'static str, String)>);

impl Settings {
    fn set() -> Self {
        let settings = [
            // Where kswapd is woken often and finds nothing to reclaim, it is woken no more:
            // NUMA balancing would then promote nothing.
            ("/proc/sys/vm/min_free_kbytes", "64"),
            // A huge page that is broken makes it want more free memory, which is not there.
            ("/proc/sys/vm/watermark_boost_factor", "0"),
            // Nor is what a CPU keeps for itself, huge pages too: as little as can be.
            ("/proc/sys/vm/percpu_pagelist_high_fraction", "1000000"),
        ];
        let before = (settings.into_iter())
            .filter_map(|(path, value)| {
                let before = fs::read_to_string(path).ok()?;
                fs::write(path, value).ok()?;
                Some((path, before))
            })
            .collect();
        Self(before)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (path, before) in &self.0 {
            let _ = fs::write(path, before);
        }
    }
}

/// What has been taken so far.
#[derive(Default)]
struct Held {
    maps: BTreeMap<u32, Vec<Map>>,
}

impl Held {
    /// Has the pool take all that is whole, and brings the pieces of a node to what they
    /// should be.
    fn settle_pieces(&mut self, tier: &Tier) {
        let mut grows = true;
        for _ in 0..ROUNDS {
            // What the kernel frees late (RCU, per-CPU lists) must be free first.
            std::thread::sleep(SETTLE);
            while grows && whole_bytes(tier.node) > 0 {
                grows = grow_huge(tier.node, whole_bytes(tier.node) / HUGE_BYTES);
            }
            if self.step(tier) {
                break;
            }
        }
    }

    /// Brings a node's free memory to what it should be.
    fn settle(&mut self, tier: &Tier) -> Result<(), Error> {
        // A node with fewer pieces than others has as much more in whole.
        let missing_bytes = tier.free_bytes.saturating_sub(node_free_bytes(tier.node));
        let missing = missing_bytes
            .saturating_sub(TOLERANCE_BYTES)
            .div_ceil(HUGE_BYTES);
        if !give_back_huge(tier.node, missing) {
            return Err(Error::TooSmall {
                node: tier.node,
                free_bytes: node_free_bytes(tier.node),
                wanted_bytes: tier.free_bytes,
            });
        }
        self.lock_down_to(tier.node, tier.free_bytes, node_free_bytes);
        Ok(())
    }

    /// One step towards a node's pieces; true when it has them, or as many as there are.
    fn step(&mut self, tier: &Tier) -> bool {
        let wanted_bytes = pieces_of(tier);
        if pieces_bytes(tier.node) + TOLERANCE_BYTES < wanted_bytes {
            return self.maps.entry(tier.node).or_default().pop().is_none();
        }
        !self.lock_down_to(tier.node, wanted_bytes, pieces_bytes)
    }

    /// Locks small pages of a node until no more than so much is free, to within
    /// [`TOLERANCE_BYTES`]; true when there was anything to lock. Looks before each bite:
    /// what another CPU keeps for itself is not free, and the last page of a node is one
    /// that the kernel ends this process for.
    fn lock_down_to(&mut self, node: u32, rest_bytes: u64, free_bytes: fn(u32) -> u64) -> bool {
        let maps = self.maps.entry(node).or_default();
        let had = maps.len();
        while free_bytes(node) > rest_bytes + TOLERANCE_BYTES
            && let Some(map) = Map::lock(node, BITE_BYTES / SMALL_BYTES)
        {
            maps.push(map);
        }
        maps.len() > had
    }

    fn small_bytes(&self, node: u32) -> u64 {
        (self.maps.get(&node)).map_or(0, |maps| maps.iter().map(|map| map.1 as u64).sum())
    }
}

/// Free memory of a node in pieces that no huge page fits into.
fn pieces_bytes(node: u32) -> u64 {
    node_free_bytes(node).saturating_sub(whole_bytes(node))
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

/// True when the pool of huge pages has grown, by so many at most.
fn grow_huge(node: u32, pages: u64) -> bool {
    let had = huge_pages(node);
    pages > 0
        && fs::write(pool_path(node), (had + pages).to_string()).is_ok()
        && huge_pages(node) > had
}

/// True when all of them are free now.
fn give_back_huge(node: u32, pages: u64) -> bool {
    let Some(rest) = huge_pages(node).checked_sub(pages) else {
        return false;
    };
    fs::write(pool_path(node), rest.to_string()).is_ok() && huge_pages(node) == rest
}

impl Map {
    /// Maps, binds, locks and touches small pages on one node.
    fn lock(node: u32, pages: u64) -> Option<Self> {
        let bytes = usize::try_from(pages * SMALL_BYTES).ok()?;
        // SAFETY: a new private anonymous mapping overlaps nothing.
        let map = unsafe {
            mmap_anonymous(
                None,
                NonZeroUsize::new(bytes)?,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE,
            )
        }
        .ok()?;
        let map = Self(map, bytes);
        let mask: libc::c_ulong = 1_u64.checked_shl(node)?;
        // SAFETY: the range is the mapping made above; the mask outlives the call.
        let bound = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                map.0.as_ptr(),
                bytes,
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
            madvise(map.0, bytes, MmapAdvise::MADV_NOHUGEPAGE).ok()?;
            mlock(map.0, bytes).ok()?;
        }
        Some(map)
    }
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
