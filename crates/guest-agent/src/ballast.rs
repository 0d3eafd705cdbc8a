// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes each node's free memory exactly as large as asked for.
//!
//! What is too much goes into the pool of huge pages of that node (no process
//! owns them, no reclaim, migration or scanning touches them), the rest below
//! 2 MiB into small locked pages of this process.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;

use demeter_agent::protocol::{Record, Tier};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mlock, mmap_anonymous};

use crate::error::Error;
use crate::report::{Reporter, node_free_bytes};

const HUGE_BYTES: u64 = 2 << 20;
const SMALL_BYTES: u64 = 4096;
/// How close is close enough.
const TOLERANCE_BYTES: u64 = 64 << 10;
const ROUNDS: u32 = 32;
const SETTLE: std::time::Duration = std::time::Duration::from_millis(20);

/// Small pages held until the machine is switched off.
pub struct Ballast {
    _maps: Vec<(std::ptr::NonNull<libc::c_void>, usize)>,
}

/// Brings all nodes to their sizes.
pub fn take(tiers: &[Tier], reporter: &mut Reporter) -> Result<Ballast, Error> {
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
    let mut maps = Vec::new();
    let mut small_bytes: BTreeMap<u32, u64> = BTreeMap::new();
    // Taking memory on one node may use a little of the other one (page
    // tables, slabs): go round until all are right.
    for _ in 0..ROUNDS {
        let mut settled = true;
        // What the kernel frees late (RCU, per-CPU lists) must be free first.
        std::thread::sleep(SETTLE);
        for tier in tiers {
            let free_bytes = node_free_bytes(tier.node);
            let Some(excess) = free_bytes.checked_sub(tier.free_bytes) else {
                if tier.free_bytes - free_bytes <= TOLERANCE_BYTES {
                    continue;
                }
                settled = false;
                if give_back_huge(tier.node) {
                    continue;
                }
                return Err(Error::TooSmall {
                    node: tier.node,
                    free_bytes,
                    wanted_bytes: tier.free_bytes,
                });
            };
            if excess <= TOLERANCE_BYTES {
                continue;
            }
            settled = false;
            if excess >= HUGE_BYTES && grow_huge(tier.node, excess / HUGE_BYTES) {
                continue;
            }
            let pages = (excess - TOLERANCE_BYTES / 2) / SMALL_BYTES;
            if let Some(map) = lock_small(tier.node, pages) {
                *small_bytes.entry(tier.node).or_default() += pages * SMALL_BYTES;
                maps.push(map);
            }
        }
        if settled {
            break;
        }
    }
    for tier in tiers {
        let free_bytes = node_free_bytes(tier.node);
        reporter.send(&Record::Tier {
            node: tier.node,
            wanted_bytes: tier.free_bytes,
            free_bytes,
            huge_bytes: huge_pages(tier.node) * HUGE_BYTES,
            small_bytes: small_bytes.get(&tier.node).copied().unwrap_or(0),
        });
        if free_bytes.abs_diff(tier.free_bytes) > (1 << 20) {
            return Err(Error::Ballast {
                node: tier.node,
                free_bytes,
                wanted_bytes: tier.free_bytes,
            });
        }
    }
    Ok(Ballast { _maps: maps })
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
fn lock_small(node: u32, pages: u64) -> Option<(std::ptr::NonNull<libc::c_void>, usize)> {
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
