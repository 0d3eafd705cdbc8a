// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A private anonymous mapping beside a model of what every page of it holds,
//! and the ways to change both.

use std::ptr::null_mut;

use super::dice::Dice;
use super::trouble::{Check, Trouble};
use crate::page::{Contents, WORDS};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bits of a page's number in its name: mappings stay below 64 MiB.
pub const PAGE_BITS: u32 = 14;

/// A mapping and its model.
pub struct Mapping {
    base: *mut u8,
    /// Makes page names differ between mappings
    name: u64,
    /// Version of each page; 0: never written since it was last zero
    versions: Vec<u32>,
    contents: Contents,
}

/// `mmap` of private anonymous memory.
fn map(at: *mut u8, pages: usize, protection: i32, more: i32) -> Check<*mut u8> {
    // SAFETY: either a new mapping, or with MAP_FIXED one over pages that this
    // thread owns.
    let base = unsafe {
        libc::mmap(
            at.cast(),
            pages * PAGE,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | more,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(Trouble::of_call("mmap"));
    }
    Ok(base.cast())
}

fn outcome(call: &str, result: i32) -> Check<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(Trouble::of_call(call))
    }
}

impl Mapping {
    /// Maps `pages` pages of zeros.
    pub fn new(pages: usize, name: u64, contents: Contents) -> Check<Self> {
        Ok(Self {
            base: map(null_mut(), pages, libc::PROT_READ | libc::PROT_WRITE, 0)?,
            name: name << PAGE_BITS,
            versions: vec![0; pages],
            contents,
        })
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.versions.len()
    }

    /// Address of a page.
    pub fn at(&self, page: usize) -> *mut u8 {
        assert!(page <= self.pages());
        self.base.wrapping_add(page * PAGE)
    }

    fn words(&self, page: usize) -> *mut u64 {
        self.at(page).cast()
    }

    fn key(&self, page: usize) -> u64 {
        self.name | page as u64
    }

    /// A random range of pages, at most `limit` long.
    pub fn range(&self, dice: &mut Dice, limit: usize) -> std::ops::Range<usize> {
        let first = dice.below(self.pages());
        let count = 1 + dice.below(limit.min(self.pages() - first));
        first..first + count
    }

    /// Words of a page that are not what the model says.
    pub fn wrong_words(&self, page: usize) -> u64 {
        let words = self.words(page);
        match self.versions[page] {
            0 => (0..WORDS)
                // SAFETY: inside the mapping, which this thread alone changes.
                .map(|word| u64::from(unsafe { words.add(word).read_volatile() } != 0))
                .sum(),
            // SAFETY: as above.
            version => unsafe { self.contents.wrong_words(words, self.key(page), version) },
        }
    }

    /// Compares a page with the model.
    pub fn check(&self, page: usize) -> Check<()> {
        let wrong = self.wrong_words(page);
        if wrong == 0 {
            return Ok(());
        }
        // SAFETY: inside the mapping.
        let header = unsafe { self.words(page).read_volatile() };
        Err(Trouble::Page {
            page,
            pages: self.pages(),
            address: self.at(page) as usize,
            wrong,
            header,
            key: self.key(page) & 0xffff_ffff,
            version: self.versions[page],
        })
    }

    /// Compares a buffer with what the model says of a page.
    pub fn check_copy(&self, page: usize, copy: *const u8) -> Check<()> {
        let wrong = match self.versions[page] {
            0 => (0..PAGE)
                // SAFETY: the caller gives a page's worth of readable bytes.
                .map(|byte| u64::from(unsafe { copy.add(byte).read_volatile() } != 0))
                .sum(),
            // SAFETY: as above; copies are page aligned.
            version => unsafe {
                self.contents
                    .wrong_words(copy.cast(), self.key(page), version)
            },
        };
        if wrong == 0 {
            Ok(())
        } else {
            Err(Trouble::Copy { page, wrong })
        }
    }

    /// Writes the next version of a page without looking at it first.
    pub fn renew(&mut self, page: usize) {
        let version = self.versions[page].wrapping_add(1).max(1);
        self.versions[page] = version;
        // SAFETY: inside the mapping, which this thread alone changes.
        unsafe {
            self.contents
                .write(self.words(page), self.key(page), version)
        };
    }

    /// Checks a page and writes its next version.
    pub fn rewrite(&mut self, page: usize) -> Check<()> {
        self.check(page)?;
        self.renew(page);
        Ok(())
    }

    /// Checks all pages.
    pub fn sweep(&self) -> Check<()> {
        (0..self.pages()).try_for_each(|page| self.check(page))
    }

    /// What a failed `mremap` means. The kernel refuses a range that it keeps as
    /// several areas, which advice and protection of parts can leave behind:
    /// nothing has changed then.
    fn refused() -> Check<()> {
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EFAULT) => Ok(()),
            _ => Err(Trouble::of_call("mremap")),
        }
    }

    /// Grows or shrinks it, wherever it may come to lie.
    pub fn resize(&mut self, pages: usize) -> Check<()> {
        // SAFETY: the mapping is this value's; its address is renewed.
        let base = unsafe {
            libc::mremap(
                self.base.cast(),
                self.pages() * PAGE,
                pages * PAGE,
                libc::MREMAP_MAYMOVE,
            )
        };
        if base == libc::MAP_FAILED {
            return Self::refused();
        }
        self.base = base.cast();
        self.versions.resize(pages, 0);
        Ok(())
    }

    /// Moves it to an address of the caller's choice.
    pub fn relocate(&mut self) -> Check<()> {
        let target = map(null_mut(), self.pages(), libc::PROT_NONE, 0)?;
        // SAFETY: source and target are this value's own.
        let base = unsafe {
            libc::mremap(
                self.base.cast(),
                self.pages() * PAGE,
                self.pages() * PAGE,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                target,
            )
        };
        if base == libc::MAP_FAILED {
            // SAFETY: mapped above, or gone already, and nobody else's.
            unsafe { libc::munmap(target.cast(), self.pages() * PAGE) };
            return Self::refused();
        }
        if base != target.cast() {
            return Err(Trouble::Moved {
                target: target as usize,
                base: base as usize,
            });
        }
        self.base = target;
        Ok(())
    }

    /// Unmaps a part in the middle and maps zeros there again.
    pub fn punch(&mut self, range: std::ops::Range<usize>) -> Check<()> {
        // SAFETY: the range is inside the mapping and mapped again at once.
        outcome("munmap", unsafe {
            libc::munmap(self.at(range.start).cast(), range.len() * PAGE)
        })?;
        let again = map(
            self.at(range.start),
            range.len(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_FIXED_NOREPLACE,
        );
        match again {
            Ok(base) if base == self.at(range.start) => {
                self.versions[range].fill(0);
                Ok(())
            }
            // Another thread's mapping came to lie there in between: what is
            // left of this one is its beginning.
            _ => {
                let rest = range.end..self.pages();
                if !rest.is_empty() {
                    // SAFETY: the end of this value's mapping.
                    outcome("munmap", unsafe {
                        libc::munmap(self.at(rest.start).cast(), rest.len() * PAGE)
                    })?;
                }
                self.versions.truncate(range.start);
                if self.versions.is_empty() {
                    *self = Self::new(1, self.name >> PAGE_BITS, self.contents)?;
                }
                Ok(())
            }
        }
    }

    /// Maps zeros over a part.
    pub fn overlay(&mut self, range: std::ops::Range<usize>) -> Check<()> {
        map(
            self.at(range.start),
            range.len(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_FIXED,
        )?;
        self.versions[range].fill(0);
        Ok(())
    }

    /// Gives advice on a part.
    pub fn advise(&mut self, range: std::ops::Range<usize>, advice: i32) -> Check<()> {
        // SAFETY: the range is inside the mapping; the model follows below.
        outcome("madvise", unsafe {
            libc::madvise(self.at(range.start).cast(), range.len() * PAGE, advice)
        })?;
        if advice == libc::MADV_DONTNEED {
            self.versions[range].fill(0);
        } else if advice == libc::MADV_FREE {
            for page in range {
                // Either is right, a mixture is not.
                if self.check(page).is_err() {
                    self.versions[page] = 0;
                    self.check(page)?;
                }
                self.renew(page);
            }
        }
        Ok(())
    }

    /// Changes the protection of a part.
    pub fn protect(&self, range: &std::ops::Range<usize>, protection: i32) -> Check<()> {
        // SAFETY: the range is inside the mapping.
        outcome("mprotect", unsafe {
            libc::mprotect(self.at(range.start).cast(), range.len() * PAGE, protection)
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's and not used after this.
        unsafe { libc::munmap(self.base.cast(), self.pages() * PAGE) };
    }
}
