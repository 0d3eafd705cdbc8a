// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of a NUMA node as a place for swap: a CXL expander, or the memory of another socket.
//!
//! Swap there is a file in memory whose pages are to lie on that node: a policy of the file's
//! own says so, whichever program writes. The policy is a preference. Bound to a node that is
//! full, an allocation would reclaim there and then call the OOM killer, which takes the largest
//! program, ours; a preference goes to another node in its place, without a word. So whoever
//! takes space looks first whether the node has it, and then where it came to lie.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};

use crate::place_error::PlaceError;

/// What a place begins with that is a node.
const PREFIX: &str = "node:";
/// Linux has no more.
const MOST_NODES: u32 = 1024;
const FOLDER: &str = "/sys/devices/system/node";
/// This part of a node's memory stays free, …
const RESERVE_SHARE: u64 = 64;
/// … and so much of a small one: below its watermarks the kernel gives none away.
const LEAST_RESERVE_BYTES: u64 = 8 << 20;

/// One of them, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node(u32);

impl Node {
    /// The node that a place for swap names; None of a path.
    #[must_use]
    pub fn named(place: &Path) -> Option<Result<Self, PlaceError>> {
        let digits = place.to_str()?.strip_prefix(PREFIX)?;
        let number = Some(digits)
            .filter(|digits| digits.bytes().all(|one| one.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .filter(|&number| number < MOST_NODES);
        Some(number.map(Self).ok_or(PlaceError::NodeName))
    }

    /// All that have memory.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let has_memory = list(&format!("{FOLDER}/has_memory")).unwrap_or_default();
        has_memory.into_iter().map(Self).collect()
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Whether it is there, may be used by this process, and is not where the memory of this
    /// process is anyway.
    ///
    /// # Errors
    /// What keeps it from that.
    pub fn check(self) -> Result<(), PlaceError> {
        let online = list(&format!("{FOLDER}/online")).ok_or(PlaceError::NoNodes)?;
        if !online.contains(&self.0) {
            return Err(PlaceError::NoNode);
        }
        let has_memory = list(&format!("{FOLDER}/has_memory")).unwrap_or(online);
        let own = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let allowed = listed(&own, "Mems_allowed_list:");
        let ours = listed(&own, "Cpus_allowed_list:").unwrap_or_default();
        let cpus = list(&format!("{FOLDER}/node{}/cpulist", self.0)).unwrap_or_default();
        self.judge(
            &has_memory,
            allowed.as_deref(),
            cpus.iter().any(|cpu| ours.contains(cpu)),
        )
    }

    /// Of the nodes that have memory, and that this process is allowed.
    fn judge(
        self,
        has_memory: &[u32],
        allowed: Option<&[u32]>,
        has_our_cpus: bool,
    ) -> Result<(), PlaceError> {
        let may_use = |node: &u32| allowed.is_none_or(|allowed| allowed.contains(node));
        if !has_memory.contains(&self.0) {
            return Err(PlaceError::NodeWithoutMemory);
        }
        if !may_use(&self.0) {
            return Err(PlaceError::NodeForbidden);
        }
        let mut others = has_memory.iter().filter(|&&node| node != self.0);
        if has_our_cpus || !others.any(may_use) {
            return Err(PlaceError::OwnNode);
        }
        Ok(())
    }

    /// What it has free, to be read again and again ([`MemoryOfNode`]).
    ///
    /// # Errors
    /// Those of the system.
    pub fn open_meminfo(self) -> io::Result<File> {
        File::open(format!("{FOLDER}/node{}/meminfo", self.0))
    }

    /// What may be taken of it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn room_bytes(self) -> io::Result<u64> {
        let text = std::fs::read(format!("{FOLDER}/node{}/meminfo", self.0))?;
        let memory = MemoryOfNode::read(&text);
        memory.map_or(Err(io::ErrorKind::InvalidData.into()), |memory| {
            Ok(memory.room_bytes())
        })
    }

    /// A file in memory whose pages lie there, up to `bytes` of it, as long as there is room.
    ///
    /// # Errors
    /// The kernel has no such files or policies, or refuses them.
    pub(crate) fn create_file(self) -> Result<File, PlaceError> {
        // SAFETY: a constant name.
        let made =
            unsafe { libc::memfd_create(c"demeter-extmem-swap".as_ptr(), libc::MFD_CLOEXEC) };
        if made < 0 {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: just opened, and nobody else's.
        Ok(unsafe { File::from_raw_fd(made) })
    }

    /// Has the first `bytes` of a file in memory lie there.
    ///
    /// # Errors
    /// The kernel has no such policies, or refuses them.
    pub(crate) fn bind(self, file: &File, bytes: u64) -> Result<(), PlaceError> {
        const PREFERRED: libc::c_int = 1;
        const BITS: usize = u64::BITS as usize;
        const WORDS: usize = MOST_NODES as usize / BITS;
        // The policy is the file's, not the mapping's, and stays with it. Nothing is touched.
        // SAFETY: a new mapping.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_NONE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let mut mask = [0u64; WORDS];
        mask[self.0 as usize / BITS] = 1 << (self.0 as usize % BITS);
        // Kernels that count fewer nodes than the mask has bits want the rest to be zero, and
        // take one bit less than they are told.
        // SAFETY: the mapping from above, a mask of so many bits.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                mapped,
                bytes as usize,
                PREFERRED,
                mask.as_ptr(),
                MOST_NODES as usize + 1,
                0,
            )
        };
        let error = io::Error::last_os_error();
        // SAFETY: ours.
        unsafe { libc::munmap(mapped, bytes as usize) };
        if outcome == 0 {
            return Ok(());
        }
        Err(match error.raw_os_error() {
            // Checked before; the set of nodes has changed since.
            Some(libc::EINVAL) => PlaceError::NodeForbidden,
            errno => PlaceError::NodeRefused {
                errno: errno.unwrap_or(libc::EIO),
            },
        })
    }
}

impl fmt::Display for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{PREFIX}{}", self.0)
    }
}

impl From<Node> for PathBuf {
    fn from(node: Node) -> Self {
        node.to_string().into()
    }
}

/// Of a node, as the kernel tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryOfNode {
    total_bytes: u64,
    free_bytes: u64,
}

impl MemoryOfNode {
    /// As much of a node's `meminfo` as is needed.
    pub const TEXT_BYTES: usize = 256;

    /// Reads the beginning of it. Allocates nothing.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<Self> {
        let bytes = |name: &str| {
            let line = text
                .split(|&byte| byte == b'\n')
                .filter_map(|line| std::str::from_utf8(line).ok())
                .find(|line| line.contains(name))?;
            let kib = line.split_whitespace().nth(3)?;
            kib.parse::<u64>().ok()?.checked_mul(1 << 10)
        };
        Some(Self {
            total_bytes: bytes(" MemTotal:")?,
            free_bytes: bytes(" MemFree:")?,
        })
    }

    /// What is free but for what is to stay so.
    #[must_use]
    pub fn room_bytes(self) -> u64 {
        let reserve = (self.total_bytes / RESERVE_SHARE).max(LEAST_RESERVE_BYTES);
        self.free_bytes.saturating_sub(reserve)
    }
}

/// The numbers of a list such as `0-3,8` in a file; None without the file.
fn list(path: &str) -> Option<Vec<u32>> {
    Some(numbers(&std::fs::read_to_string(path).ok()?))
}

/// The same of a line of a text.
fn listed(text: &str, name: &str) -> Option<Vec<u32>> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(numbers(line))
}

fn numbers(text: &str) -> Vec<u32> {
    const MOST: u32 = 1 << 16;
    let mut found = Vec::new();
    for piece in text.trim().split(',') {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            found.extend(first..=last.min(MOST));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Option<Result<u32, PlaceError>> {
        Node::named(Path::new(text)).map(|node| node.map(Node::number))
    }

    #[test]
    fn a_node_is_named_by_its_number_and_nothing_else() {
        assert_eq!(named("node:1"), Some(Ok(1)));
        assert_eq!(named("node:01"), Some(Ok(1)));
        assert_eq!(named("node:1023"), Some(Ok(1023)));
        for path in ["/node:1", "./node:1", "node", "Node:1", "node1", "", "/"] {
            assert_eq!(named(path), None, "{path}");
        }
        for wrong in [
            "node:",
            "node:x",
            "node:-1",
            "node:+1",
            "node: 1",
            "node:0-1",
            "node:1,2",
            "node:1024",
            "node:99999999999999999999",
            "node:１",
        ] {
            assert_eq!(named(wrong), Some(Err(PlaceError::NodeName)), "{wrong}");
        }
        assert_eq!(Node(7).to_string(), "node:7");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let judge = |node, has_memory: &[u32], allowed: Option<&[u32]>, has_our_cpus| {
            Node(node).judge(has_memory, allowed, has_our_cpus)
        };
        assert_eq!(judge(1, &[0, 1], Some(&[0, 1]), false), Ok(()));
        assert_eq!(judge(1, &[0, 1], None, false), Ok(()));
        assert_eq!(
            judge(2, &[0, 1], None, false),
            Err(PlaceError::NodeWithoutMemory)
        );
        assert_eq!(
            judge(1, &[0, 1], Some(&[0]), false),
            Err(PlaceError::NodeForbidden)
        );
        assert_eq!(judge(1, &[0, 1], None, true), Err(PlaceError::OwnNode));
        // Without CPUs of ours, but all that we may use.
        assert_eq!(
            judge(1, &[0, 1], Some(&[1]), false),
            Err(PlaceError::OwnNode)
        );
        assert_eq!(judge(0, &[0], None, false), Err(PlaceError::OwnNode));
    }

    #[test]
    fn lists_and_meminfo_are_read() {
        assert_eq!(numbers("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(numbers("\n"), []);
        assert_eq!(numbers("x,4-2,3-y"), []);
        assert!(numbers("0-4294967295").len() < 1 << 17);
        assert_eq!(listed("a\nB:\t0-1\n", "B:"), Some(vec![0, 1]));
        assert_eq!(listed("a\n", "B:"), None);
        let text =
            b"Node 1 MemTotal:       6553600 kB\nNode 1 MemFree:         204800 kB\nNode 1 Mem";
        let memory = MemoryOfNode::read(text).unwrap();
        assert_eq!(memory.room_bytes(), (200 - 100) << 20);
        for cut in 0..text.len() - 30 {
            // Whatever is cut off, nothing panics, and no number is made up.
            let read = MemoryOfNode::read(&text[..cut]);
            assert!(read.is_none_or(|memory| memory.free_bytes <= 200 << 20));
        }
        assert_eq!(
            MemoryOfNode::read(b"Node 1 MemTotal: 9 kB\nNode 1 MemFree: 9 kB\n")
                .unwrap()
                .room_bytes(),
            0
        );
    }

    /// The only node that every machine has; that it is our own is not asked here.
    #[test]
    fn a_file_has_its_policy_beyond_the_mapping() {
        let node = Node::all().first().copied().unwrap_or(Node(0));
        let file = node.create_file().unwrap();
        match node.bind(&file, 1 << 40) {
            Ok(()) => {}
            // A kernel without nodes, or a container that allows no mbind().
            Err(PlaceError::NodeRefused { errno }) => {
                assert!([libc::ENOSYS, libc::EPERM].contains(&errno), "{errno}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let missing = Node(MOST_NODES - 1).bind(&file, 1 << 20);
        assert_eq!(missing, Err(PlaceError::NodeForbidden));
        assert!(node.room_bytes().unwrap() > 0);
    }
}
