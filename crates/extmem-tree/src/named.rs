// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file or block device that the user names for swap.
//!
//! It is overwritten from its second page on, and therefore refused if it holds anything but
//! zeros or what an earlier run left there. What is refused is left as it is.

use std::fs::{File, Metadata};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use crate::claim::{holds_data, mark};
use crate::place::{
    LEAST_BYTES, MOST_SLOTS, SLOT_BYTES, free_bytes, largest_file_bytes, open_direct,
};
use crate::place_error::PlaceError;
use crate::promises::Promises;

const BLOCK_BYTES: u64 = 512;

/// It, open, marked and with its space.
#[derive(Debug)]
pub struct NamedPlace {
    /// The file or device.
    pub file: File,
    /// The page cache is bypassed.
    pub direct: bool,
    /// It is a device.
    pub is_device: bool,
    /// Slots that fit.
    pub slots: u64,
}

impl NamedPlace {
    /// Where slot 0 begins.
    pub const START_BYTES: u64 = SLOT_BYTES;

    /// Opens `path` for `capacity_bytes`, or for what is there. What a sparse file lacks is
    /// not taken from what others were promised.
    ///
    /// # Errors
    /// It is not there, in use, not ours to overwrite, or not as large.
    pub fn open(
        path: &Path,
        capacity_bytes: Option<u64>,
        promises: &Promises,
    ) -> Result<Self, PlaceError> {
        let about = look_at(path)?;
        let is_device = about.file_type().is_block_device();
        if !is_device && !about.is_file() {
            return Err(PlaceError::Kind);
        }
        if is_device {
            refuse_mounted(path)?;
        }
        let (file, direct) = open_direct(path, 0)?;
        let used_bytes = used_bytes(&file, is_device, capacity_bytes)?;
        if holds_data(path)? {
            return Err(PlaceError::HoldsData);
        }
        if !is_device {
            // A sparse file would run out of space in the middle of a run.
            allocate(&file, Self::START_BYTES + used_bytes, promises)?;
        }
        mark(path)?;
        Ok(Self {
            file,
            direct,
            is_device,
            slots: (used_bytes / SLOT_BYTES).min(MOST_SLOTS),
        })
    }

    /// The space that a file is yet to take of its disk, noted among what is promised. Nothing
    /// is taken yet, so that of several all are left as they are if they do not fit together.
    ///
    /// # Errors
    /// That much is not left, or the file is not as large. What else may be wrong,
    /// [`NamedPlace::open`] says.
    pub fn promise_missing(
        path: &Path,
        capacity_bytes: Option<u64>,
        promises: &mut Promises,
    ) -> Result<(), PlaceError> {
        let is_file = std::fs::metadata(path).is_ok_and(|about| about.is_file());
        let Some(file) = is_file.then(|| File::open(path).ok()).flatten() else {
            return Ok(());
        };
        let used_bytes = used_bytes(&file, false, capacity_bytes)?;
        let lack = Lack::of(&file, Self::START_BYTES + used_bytes, promises)?;
        lack.check(&file)?;
        promises.add(lack.device, lack.needed_bytes);
        Ok(())
    }
}

/// What a file is yet to take of its disk, beside what others were promised of that.
struct Lack {
    device: u64,
    needed_bytes: u64,
    promised_bytes: u64,
}

impl Lack {
    /// Of a file that is to have the space of its first `bytes`.
    fn of(file: &File, bytes: u64, promises: &Promises) -> Result<Self, PlaceError> {
        let about = file.metadata()?;
        Ok(Self {
            device: about.dev(),
            needed_bytes: bytes.saturating_sub(about.blocks() * BLOCK_BYTES),
            promised_bytes: promises.on(about.dev()),
        })
    }

    /// Whether that much is left, as far as that is told.
    fn check(&self, file: &File) -> Result<(), PlaceError> {
        match free_bytes(file) {
            Ok(free_bytes) if self.left_of(free_bytes) < self.needed_bytes => {
                Err(self.refusal(free_bytes))
            }
            _ => Ok(()),
        }
    }

    fn left_of(&self, free_bytes: u64) -> u64 {
        free_bytes.saturating_sub(self.promised_bytes)
    }

    fn refusal(&self, free_bytes: u64) -> PlaceError {
        PlaceError::Holes {
            available_bytes: self.left_of(free_bytes),
            promised_bytes: self.promised_bytes,
            needed_bytes: self.needed_bytes,
        }
    }
}

fn look_at(path: &Path) -> Result<Metadata, PlaceError> {
    std::fs::metadata(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => PlaceError::Missing,
        _ => error.into(),
    })
}

/// How much of it is swapped to.
fn used_bytes(
    mut file: &File,
    is_device: bool,
    capacity_bytes: Option<u64>,
) -> Result<u64, PlaceError> {
    // The metadata of a device says 0.
    let total_bytes = file.seek(SeekFrom::End(0))?;
    let room_bytes = total_bytes.saturating_sub(NamedPlace::START_BYTES);
    let limit_bytes = match is_device {
        true => u64::MAX,
        false => largest_file_bytes().saturating_sub(NamedPlace::START_BYTES),
    };
    let needed_bytes = (capacity_bytes.unwrap_or(room_bytes))
        .min(limit_bytes)
        .max(LEAST_BYTES);
    if needed_bytes > limit_bytes {
        return Err(PlaceError::Limited {
            limit_bytes,
            needed_bytes,
        });
    }
    if room_bytes < needed_bytes {
        return Err(PlaceError::Short {
            total_bytes,
            needed_bytes: needed_bytes.saturating_add(NamedPlace::START_BYTES),
        });
    }
    let most_bytes = MOST_SLOTS * SLOT_BYTES;
    match capacity_bytes {
        Some(_) if needed_bytes > most_bytes => Err(PlaceError::TooLarge { needed_bytes }),
        _ => Ok(needed_bytes.min(most_bytes)),
    }
}

/// Takes the blocks now, so that the disk cannot fill up under the run.
fn allocate(file: &File, bytes: u64, promises: &Promises) -> Result<(), PlaceError> {
    let lack = Lack::of(file, bytes, promises)?;
    // Where nobody was promised anything the call knows best, also what only root is given.
    if lack.promised_bytes > 0 {
        lack.check(file)?;
    }
    // SAFETY: the descriptor is open.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        // As large as it is: `bytes` are not more.
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(()),
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Err(lack.refusal(free_bytes(file)?)),
        _ => Err(error.into()),
    }
}

/// For a block device O_EXCL means: not while it is mounted, nor while another does the
/// same. So it is only asked for a moment, and again if somebody else was asking.
fn refuse_mounted(path: &Path) -> Result<(), PlaceError> {
    const TRIES: u32 = 10;
    let mut outcome = Ok(());
    for _ in 0..TRIES {
        outcome = open_direct(path, libc::O_EXCL)
            .map(drop)
            .map_err(PlaceError::from);
        if outcome != Err(PlaceError::Busy) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sparse(folder: &tempfile::TempDir, bytes: u64) -> std::path::PathBuf {
        let path = folder.path().join("file");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    #[test]
    fn its_space_is_taken_and_not_what_others_were_promised() {
        let folder = tempfile::tempdir().unwrap();
        let path = sparse(&folder, 64 * MIB);
        let about = std::fs::metadata(&path).unwrap();
        let mut promises = Promises::default();
        NamedPlace::promise_missing(&path, Some(16 * MIB), &mut promises).unwrap();
        assert_eq!(promises.on(about.dev()), 16 * MIB + SLOT_BYTES);
        promises.add(about.dev(), 1 << 60);
        let refused = NamedPlace::open(&path, Some(16 * MIB), &promises).unwrap_err();
        assert!(
            matches!(
                refused,
                PlaceError::Holes {
                    available_bytes: 0,
                    ..
                }
            ),
            "{refused}"
        );
        assert!(refused.to_string().contains("promised"), "{refused}");
        assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 0);
        let place = NamedPlace::open(&path, Some(16 * MIB), &Promises::default()).unwrap();
        assert_eq!((place.slots, place.is_device), (4096, false));
        // What has its space may be opened whatever is promised.
        assert!(NamedPlace::open(&path, Some(16 * MIB), &promises).is_ok());
    }

    /// Each would fit alone, whatever others take meanwhile. In memory, where a file may be as
    /// large as what is free: on disks some may not.
    #[test]
    fn several_are_promised_their_space_together() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let free_bytes = free_bytes(&File::open(folder.path()).unwrap()).unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        for path in &paths {
            let file = File::create(path).unwrap();
            file.set_len(free_bytes / 3 * 2).unwrap();
        }
        let mut promises = Promises::default();
        NamedPlace::promise_missing(&paths[0], None, &mut promises).unwrap();
        let refused = NamedPlace::promise_missing(&paths[1], None, &mut promises).unwrap_err();
        assert!(
            matches!(refused, PlaceError::Holes { promised_bytes, .. } if promised_bytes > 0),
            "{refused}"
        );
        NamedPlace::promise_missing(&paths[1], None, &mut Promises::default()).unwrap();
        for path in &paths {
            assert_eq!(std::fs::metadata(path).unwrap().blocks(), 0);
        }
    }

    #[test]
    fn the_header_is_counted_and_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = sparse(&folder, 64 * MIB);
        let none = Promises::default();
        let refused = NamedPlace::open(&path, Some(64 * MIB), &none).unwrap_err();
        let told = refused.to_string();
        assert!(
            told.starts_with("it has 65536 KiB where swap needs 65540 KiB"),
            "{told}"
        );
        assert!(told.contains("`fallocate -l 65540KiB`"), "{told}");
        assert!(NamedPlace::open(&path, Some(64 * MIB - SLOT_BYTES), &none).is_ok());
    }

    #[test]
    fn what_is_refused_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = sparse(&folder, 64 * MIB);
        let write = |bytes: &[u8]| {
            use std::os::unix::fs::FileExt;
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(bytes, 4096).unwrap();
        };
        write(b"precious");
        let none = Promises::default();
        let before = std::fs::metadata(&path).unwrap().blocks();
        let refused = |capacity_bytes| NamedPlace::open(&path, capacity_bytes, &none).unwrap_err();
        assert_eq!(refused(None), PlaceError::HoldsData);
        assert!(matches!(refused(Some(1 << 60)), PlaceError::Short { .. }));
        assert_eq!(std::fs::metadata(&path).unwrap().blocks(), before);
        write(&[0; 8]);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(10 << 40)
            .unwrap();
        assert_eq!(
            refused(Some(9 << 40)),
            PlaceError::TooLarge {
                needed_bytes: 9 << 40
            }
        );
        assert_eq!(
            NamedPlace::open(&folder.path().join("none"), None, &none).unwrap_err(),
            PlaceError::Missing
        );
        assert_eq!(
            NamedPlace::open(folder.path(), None, &none).unwrap_err(),
            PlaceError::Kind
        );
    }
}
