// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes each node's free memory exactly as large as asked for.
//!
//! What is too much goes into the pool of huge pages of that node (no process
//! owns them, no reclaim, migration or scanning touches them), the rest below
//! 2 MiB into small locked pages of this process.
//!
//! Free memory is as whole, too: a manager that was loaded leaves pieces, and in so
//! small a tier every huge page that does not fit shows. So pieces are held, those that
//! a process can have and those that the kernel keeps for itself (pipes have these), and
//! huge pages of the pool come free in their place, until all but [`PIECES_BYTES`] is whole.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use demeter_agent::protocol::{Record, Tier};
use nix::fcntl::OFlag;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

use crate::error::Error;
use crate::report::{Reporter, node_free_bytes};

const HUGE_BYTES: u64 = 2 << 20;
const SMALL_BYTES: u64 = 4096;
/// Free memory in pieces smaller than a huge page that a node is left with: as little as any
/// guest of one vCPU can be brought to, beside managers whose own pages lie among them.
const PIECES_BYTES: u64 = 8 << 20;
/// Pieces held at a time, to see what that breaks: what a pipe holds.
const BITE_BYTES: u64 = 64 << 10;
/// Of the 1024 that a process may have, so that COMMAND can still be started.
const MOST_DESCRIPTORS: RawFd = 768;
/// How close is close enough.
const TOLERANCE_BYTES: u64 = 64 << 10;
const ROUNDS: u32 = 32;
const SETTLE: std::time::Duration = std::time::Duration::from_millis(20);

/// Small pages that are held, given back when dropped.
enum Pages {
    /// A locked mapping of this process: address and bytes.
    Locked(std::ptr::NonNull<libc::c_void>, usize),
    /// A full pipe, whose pages are of the kind that the kernel has for itself.
    Piped { _ends: (OwnedFd, OwnedFd) },
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Self::Locked(address, bytes) = *self {
            // SAFETY: the range is a mapping made by `lock_small`, which nothing refers to.
            let _ = unsafe { munmap(address, bytes) };
        }
    }
}

/// Small pages held until the machine is switched off.
pub struct Ballast {
    _pages: Vec<Pages>,
}

/// Brings all nodes to their sizes.
pub fn take(tiers: &[Tier], reporter: &mut Reporter) -> Result<Ballast, Error> {
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
    let settings = Settings::set();
    let mut held = Held::default();
    held.settle(tiers)?;
    for tier in tiers {
        held.trade_pieces(tier);
    }
    held.settle(tiers)?;
    drop(settings);
    for tier in tiers {
        let free_bytes = node_free_bytes(tier.node);
        reporter.send(&Record::Tier {
            node: tier.node,
            wanted_bytes: tier.free_bytes,
            free_bytes,
            whole_bytes: whole_bytes(tier.node),
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
    Ok(Ballast { _pages: held.pages })
}

/// What the kernel is told meanwhile, by file; as before when dropped.
struct Settings(Vec<(&'static str, String)>);

impl Settings {
    fn set() -> Self {
        let settings = [
            // What a CPU keeps for itself is neither whole nor a piece: as little as can be.
            ("/proc/sys/vm/percpu_pagelist_high_fraction", "1000000"),
            // A huge page that is broken makes it want more free memory, which is not there.
            ("/proc/sys/vm/watermark_boost_factor", "0"),
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
    pages: Vec<Pages>,
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
        let Some(locked) = lock_small(node, pages) else {
            return false;
        };
        *self.small_bytes.entry(node).or_default() += pages * SMALL_BYTES;
        self.pages.push(locked);
        true
    }

    /// Trades free pieces of a node for huge pages of its pool, until no more than
    /// [`PIECES_BYTES`] are left in pieces, or no more can be had without breaking what is
    /// whole.
    fn trade_pieces(&mut self, tier: &Tier) {
        let most = tier.free_bytes.saturating_sub(PIECES_BYTES) / HUGE_BYTES * HUGE_BYTES;
        while whole_bytes(tier.node) < most && huge_pages(tier.node) > 0 {
            let Some(pages) = take_pieces(tier.node) else {
                break;
            };
            if !give_back_huge(tier.node) {
                break;
            }
            *self.small_bytes.entry(tier.node).or_default() += HUGE_BYTES;
            self.pages.extend(pages);
        }
    }
}

/// Takes as much as a huge page in pieces; none where that would break what is whole.
fn take_pieces(node: u32) -> Option<Vec<Pages>> {
    let mut taken = Vec::new();
    let whole = whole_bytes(node);
    let free_bytes = node_free_bytes(node);
    let got_bytes = || free_bytes.saturating_sub(node_free_bytes(node));
    for bite in [lock_bite, fill_pipe] {
        // Some bites take nothing, from what the kernel has at hand: not so many.
        for _ in 0..2 * HUGE_BYTES / BITE_BYTES {
            if got_bytes() >= HUGE_BYTES {
                break;
            }
            match bite(node) {
                Some(pages) if whole_bytes(node) >= whole => taken.push(pages),
                _ => break,
            }
        }
    }
    (got_bytes() >= HUGE_BYTES - TOLERANCE_BYTES).then_some(taken)
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
fn lock_small(node: u32, pages: u64) -> Option<Pages> {
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
    let locked = Pages::Locked(map, bytes.get());
    // SAFETY: the range is the mapping made above.
    unsafe {
        madvise(map, bytes.get(), MmapAdvise::MADV_NOHUGEPAGE).ok()?;
        mlock(map, bytes.get()).ok()?;
    }
    Some(locked)
}

fn lock_bite(node: u32) -> Option<Pages> {
    lock_small(node, BITE_BYTES / SMALL_BYTES)
}

/// Fills a pipe of [`BITE_BYTES`] with pages of one node.
fn fill_pipe(node: u32) -> Option<Pages> {
    let ends = nix::unistd::pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).ok()?;
    if ends.1.as_raw_fd() >= MOST_DESCRIPTORS {
        return None;
    }
    let bound = set_policy(libc::MPOL_BIND, 1_u64.checked_shl(node)?);
    let written = bound.then(|| nix::unistd::write(&ends.1, &[0; BITE_BYTES as usize]));
    set_policy(libc::MPOL_DEFAULT, 0);
    (written? == Ok(BITE_BYTES as usize)).then_some(Pages::Piped { _ends: ends })
}

/// Says which nodes this thread's memory comes from, and whether the kernel agrees.
fn set_policy(mode: libc::c_int, mask: libc::c_ulong) -> bool {
    // SAFETY: the mask outlives the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            mode,
            &raw const mask,
            libc::c_ulong::BITS as libc::c_ulong,
        )
    };
    done == 0
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
