// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory handed to a component once, at start. Components never allocate.

use std::ptr::NonNull;

use crate::syscall;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Zero-filled, page-aligned memory that lives as long as the process. Pages
/// are physical only once touched.
#[derive(Debug)]
pub struct Region {
    next: NonNull<u8>,
    left_bytes: usize,
}

// SAFETY: a region is plain memory that it alone owns.
unsafe impl Send for Region {}

impl Region {
    /// # Safety
    /// `base` must be page aligned, start `len_bytes` of zero-filled memory that nobody
    /// else uses, and stay mapped until the process ends.
    pub unsafe fn new(base: NonNull<u8>, len_bytes: usize) -> Self {
        Self {
            next: base,
            left_bytes: len_bytes,
        }
    }

    /// Maps private anonymous memory, whole pages, without reserving it and
    /// without huge pages (which would make more of it physical than is used).
    pub fn map_anonymous(len_bytes: usize) -> std::io::Result<Self> {
        Self::map(len_bytes, libc::MAP_PRIVATE, READ_WRITE)
    }

    /// Maps private memory that may not be accessed before it is made so.
    pub fn reserve(len_bytes: usize) -> std::io::Result<Self> {
        Self::map(len_bytes, libc::MAP_PRIVATE, libc::PROT_NONE)
    }

    /// The same, but shared with children of a fork.
    pub fn map_shared(len_bytes: usize) -> std::io::Result<Self> {
        Self::map(len_bytes, libc::MAP_SHARED, READ_WRITE)
    }

    fn map(
        len_bytes: usize,
        sharing: libc::c_int,
        protection: libc::c_int,
    ) -> std::io::Result<Self> {
        let len_bytes = round_up(len_bytes.max(1), PAGE_BYTES);
        let flags = (sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            syscall::call(
                libc::SYS_mmap,
                [0, len_bytes, protection as usize, flags, usize::MAX, 0],
            )
        };
        if base < 0 {
            return Err(std::io::Error::from_raw_os_error(-base as i32));
        }
        let Some(base) = NonNull::new(base as *mut u8) else {
            return Err(std::io::Error::from_raw_os_error(libc::ENOMEM));
        };
        // SAFETY: advice on the mapping just made; failure changes nothing.
        unsafe {
            syscall::call(
                libc::SYS_madvise,
                [
                    base.as_ptr() as usize,
                    len_bytes,
                    libc::MADV_NOHUGEPAGE as usize,
                    0,
                    0,
                    0,
                ],
            );
        }
        // SAFETY: just mapped, zero-filled, never unmapped.
        Ok(unsafe { Self::new(base, len_bytes) })
    }

    /// Where what is not carved yet begins.
    pub fn address(&self) -> usize {
        self.next.as_ptr() as usize
    }

    /// Bytes not carved yet.
    pub fn left_bytes(&self) -> usize {
        self.left_bytes
    }

    /// Cuts off room for `count` values of `T`, all bits zero, page aligned.
    /// None when the region is used up.
    ///
    /// # Safety
    /// All bits zero must be a value of `T`.
    pub unsafe fn carve<T>(&mut self, count: usize) -> Option<&'static mut [T]> {
        let bytes = carved_bytes::<T>(count);
        if bytes > self.left_bytes || align_of::<T>() > PAGE_BYTES {
            return None;
        }
        let start = self.next;
        // SAFETY: `bytes` lie ahead of `next`.
        self.next = unsafe { self.next.add(bytes) };
        self.left_bytes -= bytes;
        // SAFETY: page aligned, zero, ours alone, and zero is a `T` (the caller says).
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast::<T>(), count) })
    }
}

/// What [`Region::carve`] takes for `count` values of `T`.
pub const fn carved_bytes<T>(count: usize) -> usize {
    round_up(size_of::<T>() * count, PAGE_BYTES)
}

/// The next multiple of `unit`.
pub const fn round_up(value: usize, unit: usize) -> usize {
    value.div_ceil(unit) * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carves_aligned_zeroed_and_only_what_is_there() {
        let mut region = Region::map_anonymous(3 * PAGE_BYTES).unwrap();
        // SAFETY: zero is a u64.
        let first = unsafe { region.carve::<u64>(513) }.unwrap();
        assert!(first.iter().all(|&word| word == 0));
        assert_eq!(first.as_ptr() as usize % PAGE_BYTES, 0);
        assert_eq!(region.left_bytes(), PAGE_BYTES);
        // SAFETY: zero is a u8.
        assert!(unsafe { region.carve::<u8>(PAGE_BYTES + 1) }.is_none());
        // SAFETY: as above.
        assert!(unsafe { region.carve::<u8>(PAGE_BYTES) }.is_some());
        assert_eq!(region.left_bytes(), 0);
    }
}
