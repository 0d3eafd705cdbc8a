// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory as the workloads use it: aligned to huge pages, bound to a node where
//! asked, seen as 64-bit words. Usually anonymous, on request anywhere that
//! programs have their data.

use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::AtomicU64;

use crate::{Error, static_array};

/// Alignment of every region: a huge page.
pub const HUGE_BYTES: u64 = 2 << 20;
/// First touch writes one word a page.
pub const PAGE_BYTES: u64 = 4096;

/// Where `low` memory begins, as the heap of java does.
const LOW_START: usize = 0x8000_0000;

/// Kinds of memory.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Anonymous, where the kernel puts it
    #[default]
    Anonymous,
    /// Anonymous, at 0x80000000
    Low,
    /// A static array: .bss
    Bss,
    /// Shared memory: a memfd
    Shared,
}

/// A mapping.
pub struct Region {
    start: *mut u64,
    words: usize,
    map: *mut libc::c_void,
    map_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and lives as long as it;
// all shared access goes through `xor`, which is a relaxed atomic access.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes`, aligned to a huge page. Nothing is touched.
    pub fn map(bytes: u64) -> Result<Self, Error> {
        Self::map_as(bytes, Memory::Anonymous)
    }

    /// The same of a kind of memory.
    pub fn map_as(bytes: u64, memory: Memory) -> Result<Self, Error> {
        let failed = |cause| Error::Memory { bytes, cause };
        let too_large = || failed(std::io::Error::from(std::io::ErrorKind::OutOfMemory));
        let size = usize::try_from(bytes).map_err(|_| too_large())?;
        if memory == Memory::Bss {
            let start = static_array::array(bytes, HUGE_BYTES)?;
            return Ok(Self {
                start: start.cast(),
                words: size / 8,
                map: start.cast(),
                map_bytes: size,
            });
        }
        let map_bytes = size
            .checked_add(HUGE_BYTES as usize)
            .ok_or_else(too_large)?;
        let (at, flags, fd) = match memory {
            Memory::Low => (
                LOW_START as *mut libc::c_void,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                None,
            ),
            Memory::Shared => {
                let fd = shared_memory(map_bytes).map_err(failed)?;
                (std::ptr::null_mut(), libc::MAP_SHARED, Some(fd))
            }
            Memory::Anonymous | Memory::Bss => (
                std::ptr::null_mut(),
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                None,
            ),
        };
        // SAFETY: a new mapping overlaps nothing: at a fixed address it fails instead.
        let map = unsafe {
            libc::mmap(
                at,
                map_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags | libc::MAP_NORESERVE,
                fd.as_ref().map_or(-1, AsRawFd::as_raw_fd),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(failed(std::io::Error::last_os_error()));
        }
        let pad = map.align_offset(HUGE_BYTES as usize);
        Ok(Self {
            start: map.cast::<u8>().wrapping_add(pad).cast(),
            words: size / 8,
            map,
            map_bytes,
        })
    }

    /// Number of 64-bit words.
    pub fn words(&self) -> u64 {
        self.words as u64
    }

    /// Address of a word; `word` is below [`Self::words`].
    #[inline(always)]
    fn at(&self, word: u64) -> *mut u64 {
        debug_assert!(word < self.words());
        self.start.wrapping_add(word as usize)
    }

    /// Base for the inner loops.
    pub fn base(&self) -> *mut u64 {
        self.start
    }

    /// Reads a word.
    #[inline(always)]
    pub fn get(&self, word: u64) -> u64 {
        assert!(word < self.words());
        // SAFETY: inside the mapping, aligned; workers have ended.
        unsafe { self.at(word).read() }
    }

    /// Writes a word.
    #[inline(always)]
    pub fn set(&self, word: u64, value: u64) {
        assert!(word < self.words());
        // SAFETY: inside the mapping, aligned; workers have not started.
        unsafe { self.at(word).write(value) }
    }

    /// All words, for threads that share them. Zero until written; nobody may
    /// use [`Self::set`] meanwhile.
    pub fn atomics(&self) -> &[AtomicU64] {
        // SAFETY: that many aligned words, of the layout of atomics, which live
        // as long as this value.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.words) }
    }

    /// Writes the number of the first word into every page of a part.
    pub fn touch(&self, first_word: u64, words: u64) {
        let end = (first_word + words).min(self.words());
        let mut word = first_word;
        while word < end {
            self.set(word, word);
            word += PAGE_BYTES / 8;
        }
    }

    /// Gives a part back to the kernel; it reads as zeros then.
    pub fn forget(&self, first_word: u64, words: u64) {
        let first = first_word.min(self.words());
        let words = words.min(self.words() - first) as usize;
        let at = self.start.wrapping_add(first as usize);
        // SAFETY: the range lies inside the mapping.
        unsafe { libc::madvise(at.cast(), words * 8, libc::MADV_DONTNEED) };
    }

    /// Binds a part to a node, before its first touch.
    pub fn bind(&self, first_word: u64, words: u64, node: u32) -> Result<(), Error> {
        let failed = |cause| Error::Bind { node, cause };
        let Some(mask) = 1_u64.checked_shl(node) else {
            return Err(failed(std::io::ErrorKind::InvalidInput.into()));
        };
        // SAFETY: the part lies inside the mapping; the mask outlives the call.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.at(first_word),
                words * 8,
                libc::MPOL_BIND,
                &raw const mask,
                u64::from(u64::BITS),
                0,
            )
        };
        if outcome == 0 {
            Ok(())
        } else {
            Err(failed(std::io::Error::last_os_error()))
        }
    }

    /// Advises for or against huge pages.
    pub fn advise_huge(&self, huge: bool) {
        self.advise(if huge {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        });
    }

    /// Gives a piece of advice that changes no contents, such as `MADV_RANDOM`.
    pub fn advise(&self, advice: libc::c_int) {
        // SAFETY: the range is the mapping; the call is a hint.
        unsafe { libc::madvise(self.start.cast(), self.words * 8, advice) };
    }
}

/// Shared memory of this many bytes that nobody else has.
fn shared_memory(bytes: usize) -> std::io::Result<std::fs::File> {
    // SAFETY: the name is a string that outlives the call.
    let fd = unsafe { libc::memfd_create(c"demeter-workloads".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let file = unsafe { std::fs::File::from_raw_fd(fd) };
    file.set_len(bytes as u64)?;
    Ok(file)
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, not used after this.
        unsafe { libc::munmap(self.map, self.map_bytes) };
    }
}
