// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Taking space of a swap file that lies in the memory of a node.
//!
//! The file prefers its node, and the kernel goes to another where that one is full: bound to
//! it, it would kill a program instead. What is taken is to be the node's and not DRAM, so it is
//! looked before whether the node has it, and afterwards whether it came from there. What did not
//! is given back, and the node counts as full.

use std::ops::Range;
use std::os::fd::{IntoRawFd, RawFd};

use demeter_extmem_tree::{MemoryOfNode, Node};

use super::SLOT_BYTES;
use crate::{descriptor, syscall};

/// Taken at a time, so that little is in the wrong place for a moment.
const PIECE_BYTES: u64 = 4 << 20;
/// Pages asked about by one call.
const ASKED_PAGES: usize = 64;

/// A node, as who swaps to it sees it.
#[derive(Debug)]
pub struct NodeMemory {
    node: Node,
    /// What the kernel tells of it; None where /sys is out of reach.
    meminfo: Option<RawFd>,
}

impl NodeMemory {
    /// Of this node.
    pub fn new(node: Node) -> Self {
        let meminfo = node.open_meminfo().ok();
        Self {
            node,
            meminfo: meminfo.map(|file| descriptor::keep(file.into_raw_fd())),
        }
    }

    /// Takes the space of a part of the file that nobody has. False, and none of it is taken,
    /// where the node has no room for it.
    pub fn take(&self, file: RawFd, part: Range<u64>) -> bool {
        let mut at = part.start;
        while at < part.end {
            let piece = at..part.end.min(at + PIECE_BYTES);
            let bytes = piece.end - piece.start;
            let taken = self.room_bytes().is_none_or(|room| room >= bytes)
                && allocate(file, &piece)
                && !self.is_elsewhere(file, &piece);
            if !taken {
                free(file, &part);
                return false;
            }
            at = piece.end;
        }
        true
    }

    fn room_bytes(&self) -> Option<u64> {
        let mut text = [0u8; MemoryOfNode::TEXT_BYTES];
        // SAFETY: an open descriptor, and room for what is read. Read from the start, it is new.
        let read = unsafe {
            syscall::call(
                libc::SYS_pread64,
                [
                    self.meminfo? as usize,
                    text.as_mut_ptr() as usize,
                    text.len(),
                    0,
                    0,
                    0,
                ],
            )
        };
        let read = text.get(..usize::try_from(read).ok()?)?;
        MemoryOfNode::read(read).map(MemoryOfNode::room_bytes)
    }

    /// Whether some of the pages are on another node. What cannot be found out is taken for
    /// there, as the node had room.
    fn is_elsewhere(&self, file: RawFd, piece: &Range<u64>) -> bool {
        let bytes = (piece.end - piece.start) as usize;
        // SAFETY: a new mapping, of pages that are all there.
        let mapped = unsafe {
            syscall::call(
                libc::SYS_mmap,
                [
                    0,
                    bytes,
                    libc::PROT_READ as usize,
                    (libc::MAP_SHARED | libc::MAP_POPULATE) as usize,
                    file as usize,
                    piece.start as usize,
                ],
            )
        };
        let Ok(mapped) = usize::try_from(mapped) else {
            return false;
        };
        let mut elsewhere = false;
        for first in (0..bytes / SLOT_BYTES).step_by(ASKED_PAGES) {
            let count = ASKED_PAGES.min(bytes / SLOT_BYTES - first);
            let pages: [usize; ASKED_PAGES] =
                std::array::from_fn(|page| mapped + (first + page) * SLOT_BYTES);
            let mut nodes = [-1i32; ASKED_PAGES];
            // Without nodes to move to, this call says where pages are.
            // SAFETY: so many addresses, which it does not follow, and room for the answers.
            unsafe {
                syscall::call(
                    libc::SYS_move_pages,
                    [
                        0,
                        count,
                        pages.as_ptr() as usize,
                        0,
                        nodes.as_mut_ptr() as usize,
                        0,
                    ],
                )
            };
            elsewhere |=
                (nodes[..count].iter()).any(|&node| node >= 0 && node != self.node.number() as i32);
        }
        // SAFETY: mapped above.
        unsafe { syscall::call(libc::SYS_munmap, [mapped, bytes, 0, 0, 0, 0]) };
        elsewhere
    }
}

impl Drop for NodeMemory {
    fn drop(&mut self) {
        if let Some(meminfo) = self.meminfo {
            // SAFETY: ours.
            unsafe { syscall::call(libc::SYS_close, [meminfo as usize, 0, 0, 0, 0, 0]) };
        }
    }
}

fn allocate(file: RawFd, piece: &Range<u64>) -> bool {
    loop {
        match space(file, 0, piece) {
            0 => return true,
            interrupted if interrupted == -(libc::EINTR as isize) => {}
            _ => return false,
        }
    }
}

fn free(file: RawFd, part: &Range<u64>) {
    space(
        file,
        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        part,
    );
}

fn space(file: RawFd, mode: libc::c_int, of: &Range<u64>) -> isize {
    // SAFETY: no pointers.
    unsafe {
        syscall::call(
            libc::SYS_fallocate,
            [
                file as usize,
                mode as usize,
                of.start as usize,
                (of.end - of.start) as usize,
                0,
                0,
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use demeter_extmem_tree::Handed;

    use super::*;
    use crate::region::Region;
    use crate::swap::{
        Direction, EngineChoice, Injection, Slot, SwapOptions, SwapPlace, SwapStore, Transfer,
    };

    fn node(number: u32) -> Node {
        Node::named(Path::new(&format!("node:{number}")))
            .unwrap()
            .unwrap()
    }

    fn file() -> File {
        // A file in memory, with no policy: its pages lie on the node that runs this.
        tempfile::tempfile_in("/dev/shm").unwrap()
    }

    #[test]
    fn space_on_the_node_is_kept_and_other_space_given_back() {
        let Some(&here) = Node::all().first() else {
            return;
        };
        if Node::all().len() > 1 {
            // Which one the pages come to is not known here.
            return;
        }
        let file = file();
        let part = 4096..(9 << 20) + 4096;
        assert!(NodeMemory::new(here).take(file.as_raw_fd(), part.clone()));
        assert_eq!(file.metadata().unwrap().blocks() * 512, 9 << 20);
        // The same pages are not those of another node, which is full then.
        let other = NodeMemory {
            node: node(here.number() + 1),
            meminfo: None,
        };
        let is_told = other.is_elsewhere(file.as_raw_fd(), &(4096..8192));
        assert_eq!(other.take(file.as_raw_fd(), part), !is_told);
        if is_told {
            assert_eq!(file.metadata().unwrap().blocks(), 0);
        }
    }

    /// As the runner hands it on.
    #[test]
    fn what_a_store_on_a_node_is_given_comes_back_and_goes_to_no_ring() {
        const PAGES: usize = 64;
        let [here] = Node::all()[..] else {
            // Which one the pages come to is not known here.
            return;
        };
        let file = file();
        let handed = Handed::hand_on(&file, descriptor::lowest(), 2048).unwrap();
        let path = std::path::PathBuf::from(here);
        let store = SwapStore::open(&SwapOptions {
            places: &[SwapPlace {
                handed: Some(handed),
                path: &path,
                capacity_bytes: None,
            }],
            dram_bytes: 1 << 20,
            engine: EngineChoice::Auto,
            rings: 2,
            inject: Injection::default(),
        })
        .unwrap();
        assert_eq!(store.kinds().collect::<Vec<_>>(), ["memory node"]);
        let mut region = Region::map_anonymous(2 * PAGES * SLOT_BYTES).unwrap();
        // SAFETY: zero is a u8.
        let memory = unsafe { region.carve::<u8>(2 * PAGES * SLOT_BYTES) }.unwrap();
        let (source, target) = memory.split_at_mut(PAGES * SLOT_BYTES);
        for (at, byte) in source.iter_mut().enumerate() {
            *byte = (at * 7 + at / SLOT_BYTES) as u8;
        }
        let (first, run) = store.allocate(PAGES as u32).unwrap();
        assert_eq!(run as usize, PAGES);
        // A part of 4 MiB has its space with the first slot.
        assert_eq!(file.metadata().unwrap().blocks() * 512, 4 << 20);
        let moved = |direction, memory: &mut [u8]| {
            let pieces: Vec<_> = (memory.chunks_exact_mut(SLOT_BYTES))
                .map(|page| libc::iovec {
                    iov_base: page.as_mut_ptr().cast(),
                    iov_len: SLOT_BYTES,
                })
                .collect();
            let mut batch: Vec<_> = (pieces.iter().zip(first.0..))
                .map(|(piece, slot)| Transfer::new(direction, Slot(slot), piece, 1))
                .collect();
            // SAFETY: pieces of living buffers.
            unsafe { store.transfer(&mut batch) }.unwrap();
            assert!(batch.iter().all(|transfer| transfer.done));
        };
        moved(Direction::Write, source);
        moved(Direction::Read, target);
        assert!(source == target);
        target.fill(0);
        // SAFETY: a living buffer.
        unsafe { store.read(first, target.as_mut_ptr(), 1) }.unwrap();
        assert!(source[..SLOT_BYTES] == target[..SLOT_BYTES]);
    }

    #[test]
    fn a_full_node_is_left_alone() {
        let full = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            full.path(),
            "Node 0 MemTotal: 1000000 kB\nNode 0 MemFree: 18000 kB\n",
        )
        .unwrap();
        let open = || Some(File::open(full.path()).unwrap().into_raw_fd());
        let memory = NodeMemory {
            node: node(0),
            meminfo: open(),
        };
        // 18000 KiB less a 64th of all.
        assert_eq!(memory.room_bytes(), Some((18000 << 10) - (1_000_000 << 4)));
        let file = file();
        assert!(!memory.take(file.as_raw_fd(), 0..4 << 20));
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        // It has room again.
        std::fs::write(
            full.path(),
            "Node 0 MemTotal: 1000000 kB\nNode 0 MemFree: 900000 kB\n",
        )
        .unwrap();
        assert_eq!(
            memory.room_bytes(),
            Some((900_000 << 10) - (1_000_000 << 4))
        );
    }
}
