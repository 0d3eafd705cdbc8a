// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a page takes from a file or device, found by reading some.
//!
//! What faults wait for is one page, from anywhere. So a part of the file is written, as a
//! place that was never written may be read without its disk, and pages of it are read one
//! by one. The part is locked meanwhile: another run may have the same file. Reads are to come
//! from the disk: past the page cache, and where a file system does not do that, or only says
//! so, after what is there was dropped.

use std::alloc::Layout;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use crate::place::SLOT_BYTES;
use crate::swap_file::{SLOTS_PER_WORD, lock, part_words, parts};

/// Bytes written, less where a part has less.
const WRITTEN_BYTES: u64 = 4 << 20;
/// At a time.
const PIECE_BYTES: usize = 64 << 10;
/// Pages read at most.
const READS: usize = 128;
/// Pages read at least, however long they take.
const LEAST_READS: usize = 3;
/// The writes are ended after so long, and so are the reads: the program waits for them. What
/// was written or read by then says enough of a disk that is so slow.
const MOST_TIME: Duration = Duration::from_secs(1);

/// The median time of a read of a page from a file whose slots, so many, begin at
/// `start_bytes`. Disk space that it took is given back where the file is `sparse`.
///
/// # Errors
/// Those of the system; all parts are in use.
pub fn time_reads(file: &File, start_bytes: u64, slots: u64, sparse: bool) -> io::Result<Duration> {
    time(file, start_bytes, slots, sparse, false)
}

/// The same of a file in memory of a node. The CPU's caches would tell of themselves, so what is
/// read is taken out of them before.
///
/// # Errors
/// Those of the system; all parts are in use.
pub fn time_copies(file: &File, slots: u64) -> io::Result<Duration> {
    time(file, 0, slots, true, true)
}

fn time(
    file: &File,
    start_bytes: u64,
    slots: u64,
    sparse: bool,
    in_memory: bool,
) -> io::Result<Duration> {
    // The lock of a range excludes others only through a description of one's own.
    let open = |flags| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags | libc::O_CLOEXEC)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
    };
    let own = open(0)?;
    let part = (0..parts(slots) as u64)
        .find(|&part| lock(&own, part, slots, libc::F_WRLCK))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EBUSY))?;
    let part_bytes = part_words(slots) as u64 * SLOTS_PER_WORD * SLOT_BYTES;
    let first = part * part_bytes;
    let bytes = (slots * SLOT_BYTES - first)
        .min(part_bytes)
        .min(WRITTEN_BYTES);
    let start = start_bytes + first;
    let tried = |file: &File| write_and_read(file, start, bytes, MOST_TIME, in_memory);
    let outcome = match open(libc::O_DIRECT).and_then(|past| tried(&past)) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => tried(&own),
        outcome => outcome,
    };
    if sparse {
        // SAFETY: an open descriptor; nobody has anything in this part.
        unsafe {
            libc::fallocate(
                own.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                start as libc::off_t,
                bytes as libc::off_t,
            );
        }
    }
    // With the description goes the lock.
    outcome.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    })
}

/// What the reads took, one at least.
fn write_and_read(
    file: &File,
    start: u64,
    bytes: u64,
    most_time: Duration,
    in_memory: bool,
) -> io::Result<Vec<Duration>> {
    let mut piece = Aligned::new();
    let mut noise = 1u64;
    let mut written = 0;
    let begun = Instant::now();
    while written < bytes && (written == 0 || begun.elapsed() < most_time) {
        // Not to be stored as nothing, nor as the same.
        for word in piece.bytes().chunks_exact_mut(8) {
            noise = next(noise);
            word.copy_from_slice(&noise.to_le_bytes());
        }
        let length = (bytes - written).min(PIECE_BYTES as u64);
        file.write_all_at(&piece.bytes()[..length as usize], start + written)?;
        written += length;
        // Through a cache only this waits for the disk: now and then, so that the time is seen.
        if written.is_power_of_two() {
            file.sync_data()?;
        }
    }
    file.sync_data()?;
    let bytes = written;
    let advise = |advice| {
        // SAFETY: an open descriptor; failure changes nothing.
        unsafe {
            libc::posix_fadvise(
                file.as_raw_fd(),
                start as libc::off_t,
                bytes as libc::off_t,
                advice,
            );
        }
    };
    // Nothing is to be read ahead of what is asked for.
    advise(libc::POSIX_FADV_RANDOM);
    let mapped = in_memory.then(|| Mapped::of(file, start, bytes)).flatten();
    let mut times = Vec::with_capacity(READS);
    let begun = Instant::now();
    while times.len() < LEAST_READS || (times.len() < READS && begun.elapsed() < most_time) {
        noise = next(noise);
        let page = (noise >> 32) % (bytes / SLOT_BYTES);
        // In a cache are what was written, and pages that were read before.
        advise(libc::POSIX_FADV_DONTNEED);
        if let Some(mapped) = &mapped {
            mapped.flush(page);
        }
        let asked = Instant::now();
        file.read_exact_at(
            &mut piece.bytes()[..SLOT_BYTES as usize],
            start + page * SLOT_BYTES,
        )?;
        times.push(asked.elapsed());
    }
    Ok(times)
}

fn next(noise: u64) -> u64 {
    noise
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}

/// Memory at a page boundary, as reads past the page cache want it.
struct Aligned(*mut u8);

impl Aligned {
    const LAYOUT: Layout = match Layout::from_size_align(PIECE_BYTES, SLOT_BYTES as usize) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    };

    fn new() -> Self {
        // SAFETY: the layout has a size.
        let memory = unsafe { std::alloc::alloc_zeroed(Self::LAYOUT) };
        if memory.is_null() {
            std::alloc::handle_alloc_error(Self::LAYOUT);
        }
        Self(memory)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size, filled with zeros, and ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.0, PIECE_BYTES) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.0, Self::LAYOUT) };
    }
}

/// Part of a file in memory as the CPU sees it.
struct Mapped {
    at: *mut libc::c_void,
    bytes: usize,
}

impl Mapped {
    /// None where it cannot be mapped.
    fn of(file: &File, start: u64, bytes: u64) -> Option<Self> {
        // SAFETY: a new mapping.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                start as libc::off_t,
            )
        };
        (at != libc::MAP_FAILED).then_some(Self {
            at,
            bytes: bytes as usize,
        })
    }

    /// Takes a page out of the caches, where the CPU can.
    fn flush(&self, page: u64) {
        let first = (page * SLOT_BYTES) as usize;
        debug_assert!(first + SLOT_BYTES as usize <= self.bytes);
        #[cfg(target_arch = "x86_64")]
        for line in (first..first + SLOT_BYTES as usize).step_by(64) {
            // SAFETY: inside the mapping, whose pages were written and are cut off by nobody; all
            // of these processors have the instruction.
            unsafe { std::arch::x86_64::_mm_clflush(self.at.cast::<u8>().add(line)) };
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        unsafe {
            std::arch::x86_64::_mm_mfence();
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Promises, SwapFile};

    #[test]
    fn reads_are_timed_and_nothing_stays() {
        let folder = tempfile::tempdir().unwrap();
        let swap =
            SwapFile::create(folder.path(), Some(64 << 20), 1, &mut Promises::default()).unwrap();
        let time = time_reads(&swap.file, 0, swap.slots, true).unwrap();
        assert!(time > Duration::ZERO && time < Duration::from_secs(1));
        assert_eq!(swap.taken_bytes(), 0);
        // Who shares the file has its parts as before.
        assert!(swap.give_back());
    }

    /// What this thread had read from disks so far.
    fn read_bytes() -> u64 {
        // SAFETY: zero is a rusage, and one is filled.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage
        };
        usage.ru_inblock as u64 * 512
    }

    #[test]
    fn every_read_is_the_disks_also_through_the_page_cache() {
        // Where the test binary lies is a disk: /tmp may be memory.
        let target = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(target.parent().unwrap()).unwrap();
        let path = folder.path().join("swap");
        let file = (File::options().read(true).write(true).create(true))
            .truncate(true)
            .open(&path)
            .unwrap();
        // So few pages that most are read more than once.
        const BYTES: u64 = 16 * SLOT_BYTES;
        for flags in [libc::O_DIRECT, 0] {
            let opened = (File::options().read(true).write(true))
                .custom_flags(flags)
                .open(&path)
                .unwrap_or_else(|_| file.try_clone().unwrap());
            let before = read_bytes();
            let times = write_and_read(&opened, SLOT_BYTES, BYTES, Duration::MAX, false).unwrap();
            assert_eq!(times.len(), READS);
            let read = read_bytes() - before;
            if read == 0 && flags != 0 {
                let lacks = std::env::var("DEMETER_TEST_LACKS").unwrap_or_default();
                assert!(
                    lacks.split(',').any(|one| one == "disk"),
                    "no disk is under {}; next: build on one (CARGO_TARGET_DIR), or leave this out by DEMETER_TEST_LACKS=disk",
                    folder.path().display()
                );
                return;
            }
            assert!(
                read >= READS as u64 * SLOT_BYTES,
                "flags {flags:#o}: {read}"
            );
        }
    }

    #[test]
    fn a_slow_disk_is_written_and_read_less() {
        let folder = tempfile::tempdir().unwrap();
        let file = (File::options().read(true).write(true).create(true))
            .truncate(true)
            .open(folder.path().join("swap"))
            .unwrap();
        let slow = write_and_read(&file, 0, WRITTEN_BYTES, Duration::ZERO, false).unwrap();
        assert_eq!(slow.len(), LEAST_READS);
        assert_eq!(file.metadata().unwrap().len(), PIECE_BYTES as u64);
    }

    /// It takes flags that it does not honour, or, in older kernels, refuses them.
    #[test]
    fn files_in_memory_are_tried_too() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let swap = SwapFile::create(folder.path(), Some(8 << 20), 1, &mut Promises::default());
        let swap = swap.unwrap();
        assert!(time_reads(&swap.file, 0, swap.slots, true).unwrap() < Duration::from_secs(1));
        assert_eq!(swap.taken_bytes(), 0);
    }

    #[test]
    fn what_somebody_has_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("swap");
        std::fs::write(&path, vec![7; 5 << 20]).unwrap();
        let (file, other) = (
            File::open(&path).unwrap(),
            File::options().write(true).open(&path).unwrap(),
        );
        let slots = (5 << 20) / SLOT_BYTES - 1;
        for part in 0..parts(slots) as u64 {
            assert!(lock(&other, part, slots, libc::F_WRLCK));
        }
        let refused = time_reads(&file, SLOT_BYTES, slots, false).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 5 << 20]);
    }
}
