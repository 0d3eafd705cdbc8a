// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One swap file without a name for a whole tree of programs.
//!
//! It is sparse. It is divided into parts, and a program takes the disk space of a part
//! when it first needs it, under a lock on that part's range of slots that goes with the
//! program and its forks. A part that nobody holds may have disk space left, from whoever
//! had it before: the next to take it uses that, or [`SwapFile::give_back`] frees it.
//!
//! On a memory node it is the same, and "disk space" is that node's memory.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::cgroup;
use crate::node::Node;
use crate::place::{
    LEAST_BYTES, MOST_SLOTS, SLOT_BYTES, free_bytes, largest_file_bytes, open_direct,
};
use crate::place_error::PlaceError;
use crate::promises::Promises;

/// Parts at most.
pub const MOST_PARTS: usize = 16384;
/// Where the locks on parts begin, far behind the end of every file.
pub const PARTS: i64 = 1 << 61;
/// Slots of a word, the unit of allocation.
pub const SLOTS_PER_WORD: u64 = 64;
/// Words of a part at least: 4 MiB.
const LEAST_WORDS: usize = 16;
/// Without a size: this many times DRAM.
const DRAM_MULTIPLE: u64 = 4;

/// Words of a part, of a file of so many slots.
pub fn part_words(slots: u64) -> usize {
    words(slots).div_ceil(MOST_PARTS).max(LEAST_WORDS)
}

/// Parts of a file of so many slots.
pub fn parts(slots: u64) -> usize {
    words(slots).div_ceil(part_words(slots))
}

fn words(slots: u64) -> usize {
    slots.div_ceil(SLOTS_PER_WORD) as usize
}

/// The file. All programs of a run have this one description of it.
#[derive(Debug)]
pub struct SwapFile {
    /// The file.
    pub file: File,
    /// Slots it may grow to.
    pub slots: u64,
    /// The page cache is bypassed.
    pub direct: bool,
}

impl SwapFile {
    /// A file in `directory`, of `capacity_bytes` or of a multiple of `dram_bytes` that
    /// leaves a tenth of the space that is free now and promised to nobody. It takes none of it
    /// yet, and has it promised.
    ///
    /// # Errors
    /// The directory cannot hold such a file.
    pub fn create(
        directory: &Path,
        capacity_bytes: Option<u64>,
        dram_bytes: u64,
        promises: &mut Promises,
    ) -> Result<Self, PlaceError> {
        let (file, direct) = match open_direct(directory, libc::O_TMPFILE | libc::O_EXCL) {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)
                ) =>
            {
                create_and_unlink(directory)?
            }
            other => other?,
        };
        // Without a name only its descriptor leads to it; a program that has changed its user
        // must still be able to open it once more, for locks of its own.
        file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
        let device = file.metadata()?.dev();
        let promised_bytes = promises.on(device);
        let available_bytes = free_bytes(&file)?.saturating_sub(promised_bytes);
        let wanted_bytes = wanted(capacity_bytes, dram_bytes, available_bytes, promised_bytes)?;
        promises.add(device, wanted_bytes);
        Ok(Self {
            file,
            slots: wanted_bytes / SLOT_BYTES,
            direct,
        })
    }

    /// The same in memory of a node, whose room is also that of this process's cgroup, where what is
    /// in DRAM counts as well.
    ///
    /// # Errors
    /// The node cannot be used, or has no such room.
    pub fn create_on(
        node: Node,
        capacity_bytes: Option<u64>,
        dram_bytes: u64,
        promises: &mut Promises,
    ) -> Result<Self, PlaceError> {
        node.check()?;
        let of_cgroup = cgroup::room_bytes().map_or(u64::MAX, |bytes| {
            (bytes.saturating_sub(dram_bytes)).saturating_sub(promises.on(Promises::CGROUP))
        });
        let made = Self::sized_on(node, capacity_bytes, dram_bytes, of_cgroup)?;
        promises.add(Promises::CGROUP, made.slots * SLOT_BYTES);
        Ok(made)
    }

    /// On a node that may be used.
    fn sized_on(
        node: Node,
        capacity_bytes: Option<u64>,
        dram_bytes: u64,
        of_cgroup_bytes: u64,
    ) -> Result<Self, PlaceError> {
        let of_node_bytes = node.room_bytes()?;
        let available_bytes = of_node_bytes.min(of_cgroup_bytes);
        let wanted_bytes = match wanted(capacity_bytes, dram_bytes, available_bytes, 0) {
            Err(PlaceError::TooSmall { needed_bytes, .. }) if needed_bytes <= of_node_bytes => {
                return Err(PlaceError::Cgroup {
                    available_bytes,
                    needed_bytes,
                });
            }
            outcome => outcome?,
        };
        let file = node.create_file()?;
        file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
        node.bind(&file, wanted_bytes)?;
        Ok(Self {
            file,
            slots: wanted_bytes / SLOT_BYTES,
            direct: false,
        })
    }

    /// Frees the disk space of all parts that nobody holds. True when that was all of it.
    pub fn give_back(&self) -> bool {
        // The lock of a range excludes others only through a description of one's own.
        let Ok(locks) = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
        else {
            return false;
        };
        let part_bytes = part_words(self.slots) as u64 * SLOTS_PER_WORD * SLOT_BYTES;
        let length_bytes = self.file.metadata().map_or(0, |about| about.len());
        let mut all = true;
        for part in 0..length_bytes.div_ceil(part_bytes) {
            if !lock(&locks, part, self.slots, libc::F_WRLCK) {
                all = false;
                continue;
            }
            // SAFETY: an open descriptor; nobody has anything in this part.
            unsafe {
                libc::fallocate(
                    self.file.as_raw_fd(),
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    (part * part_bytes) as libc::off_t,
                    part_bytes as libc::off_t,
                );
            }
            lock(&locks, part, self.slots, libc::F_UNLCK);
        }
        all
    }

    /// Disk space that the file takes.
    pub fn taken_bytes(&self) -> u64 {
        const BLOCK_BYTES: u64 = 512;
        self.file
            .metadata()
            .map_or(0, |about| about.blocks() * BLOCK_BYTES)
    }
}

/// The size of a file where so much is left: what is asked for, or a multiple of DRAM.
fn wanted(
    capacity_bytes: Option<u64>,
    dram_bytes: u64,
    available_bytes: u64,
    promised_bytes: u64,
) -> Result<u64, PlaceError> {
    let limit_bytes = largest_file_bytes();
    let wanted_bytes = capacity_bytes
        .unwrap_or_else(|| {
            (dram_bytes.saturating_mul(DRAM_MULTIPLE))
                .min(available_bytes / 10 * 9)
                .min(limit_bytes)
                .min(MOST_SLOTS * SLOT_BYTES)
        })
        .max(LEAST_BYTES);
    if wanted_bytes > limit_bytes {
        return Err(PlaceError::Limited {
            limit_bytes,
            needed_bytes: wanted_bytes,
        });
    }
    if wanted_bytes > available_bytes {
        return Err(PlaceError::TooSmall {
            available_bytes,
            promised_bytes,
            needed_bytes: wanted_bytes,
        });
    }
    if wanted_bytes > MOST_SLOTS * SLOT_BYTES {
        return Err(PlaceError::TooLarge {
            needed_bytes: wanted_bytes,
        });
    }
    Ok(wanted_bytes)
}

/// Locks or unlocks a part, without waiting.
pub fn lock(file: &File, part: u64, slots: u64, kind: libc::c_int) -> bool {
    let words = part_words(slots) as i64;
    crate::lock::bytes(file, PARTS + part as i64 * words, words, kind)
}

/// For file systems that have no unnamed files.
fn create_and_unlink(directory: &Path) -> std::io::Result<(File, bool)> {
    for attempt in 0..100u32 {
        let path = directory.join(format!(".demeter-extmem-{}-{attempt}", std::process::id()));
        match open_direct(&path, libc::O_CREAT | libc::O_EXCL) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Ok(opened) => {
                std::fs::remove_file(&path)?;
                return Ok(opened);
            }
            Err(error) => return Err(error),
        }
    }
    Err(std::io::Error::from_raw_os_error(libc::EEXIST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    #[test]
    fn parts_cover_the_file_and_are_not_too_many() {
        for slots in [1, 256, 1023, 1 << 20, (1 << 28) + 7, MOST_SLOTS] {
            let (words, count) = (part_words(slots), parts(slots));
            assert!((1..=MOST_PARTS).contains(&count), "{slots}: {count}");
            assert!(words as u64 * 64 * count as u64 >= slots);
            assert!(words as u64 * 64 * (count as u64 - 1) < slots);
        }
    }

    #[test]
    fn space_is_taken_when_used_and_given_back_unless_somebody_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let swap =
            SwapFile::create(folder.path(), Some(64 * MIB), 1, &mut Promises::default()).unwrap();
        assert_eq!((swap.slots, swap.taken_bytes()), (16384, 0));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let path = format!("/proc/self/fd/{}", swap.file.as_raw_fd());
        let other = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        assert!(lock(&other, 1, swap.slots, libc::F_WRLCK));
        for part in 0..3 {
            other
                .write_all_at(&vec![1; MIB as usize], part * 4 * MIB)
                .unwrap();
        }
        other.sync_all().unwrap();
        assert!(swap.taken_bytes() >= 3 * MIB);
        assert!(!swap.give_back());
        let left = swap.taken_bytes();
        assert!((MIB..2 * MIB).contains(&left), "{left}");
        drop(other);
        assert!(swap.give_back());
        assert_eq!(swap.taken_bytes(), 0);
    }

    /// Of any node: that it is our own is not asked here.
    #[test]
    fn a_file_on_a_node_is_like_one_in_a_directory() {
        let node = Node::named(Path::new("node:0")).unwrap().unwrap();
        if Node::all().is_empty() {
            assert_eq!(node.check(), Err(PlaceError::NoNodes));
            return;
        }
        let made =
            |bytes, of_cgroup_bytes| SwapFile::sized_on(node, bytes, 16 * MIB, of_cgroup_bytes);
        let swap = match made(Some(64 * MIB), u64::MAX) {
            // A container that allows no mbind().
            Err(PlaceError::NodeRefused { .. }) => return,
            made => made.unwrap(),
        };
        assert_eq!((swap.slots, swap.taken_bytes()), (16384, 0));
        swap.file.write_all_at(&[1; 8192], 5 * MIB).unwrap();
        assert_eq!(swap.taken_bytes(), 8192);
        let time = crate::time_copies(&swap.file, swap.slots).unwrap();
        assert!(time < std::time::Duration::from_millis(100), "{time:?}");
        assert!(swap.give_back());
        assert_eq!(swap.taken_bytes(), 0);
        // Without a size four times DRAM; no more than the cgroup leaves.
        assert_eq!(made(None, u64::MAX).unwrap().slots, 16384);
        assert_eq!(made(None, 20 * MIB).unwrap().slots, 18 * 256);
        assert_eq!(
            made(Some(64 * MIB), 20 * MIB).unwrap_err(),
            PlaceError::Cgroup {
                available_bytes: 20 * MIB,
                needed_bytes: 64 * MIB
            }
        );
        let refused = made(Some(1 << 60), u64::MAX).unwrap_err();
        assert!(matches!(refused, PlaceError::TooSmall { .. }), "{refused}");
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut none = Promises::default();
        let refused = SwapFile::create(folder.path(), Some(1 << 60), 1, &mut none).unwrap_err();
        assert!(
            matches!(refused, PlaceError::TooSmall { needed_bytes, .. } if needed_bytes == 1 << 60)
        );
        let nowhere = folder.path().join("none");
        let nowhere = SwapFile::create(&nowhere, None, 1 << 20, &mut none).unwrap_err();
        assert_eq!(
            nowhere,
            PlaceError::Open {
                errno: libc::ENOENT
            }
        );
    }

    /// Two thirds of what is free, whatever others take meanwhile, cannot be had twice.
    #[test]
    fn what_is_free_is_promised_once() {
        let folder = tempfile::tempdir().unwrap();
        let free_bytes = free_bytes(&File::open(folder.path()).unwrap()).unwrap();
        let create = |bytes, promises: &mut Promises| {
            SwapFile::create(folder.path(), bytes, 1 << 60, promises)
        };
        let mut promises = Promises::default();
        let most = (free_bytes / 3 * 2).min(MOST_SLOTS * SLOT_BYTES);
        create(Some(most), &mut promises).unwrap();
        if free_bytes < 12 << 40 {
            let refused = create(Some(most), &mut promises).unwrap_err();
            assert!(
                matches!(refused, PlaceError::TooSmall { promised_bytes, .. } if promised_bytes == most)
            );
            // Without a size it is most of what is left.
            let rest = create(None, &mut promises).unwrap().slots * SLOT_BYTES;
            assert!(rest < free_bytes / 3, "{rest} of {free_bytes}");
        }
        // On another file system it is not missing.
        let mut elsewhere = Promises::default();
        elsewhere.add(u64::MAX, 1 << 60);
        create(Some(most), &mut elsewhere).unwrap();
    }
}
