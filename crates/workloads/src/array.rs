// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Large arrays of the workloads, with advice on huge pages given before the
//! first touch.

use crate::Error;
use crate::memory::{HUGE_BYTES, Memory, Region};

/// Advice on huge pages.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// As the system does it
    System,
    /// Ask for huge pages
    Huge,
    /// Ask for small pages
    Small,
}

/// A mapping of `bytes`, untouched.
///
/// # Errors
/// As [`Region::map`].
pub fn region(bytes: u64, pages: Pages) -> Result<Region, Error> {
    region_of(bytes, Memory::Anonymous, pages)
}

/// The same of a kind of memory.
///
/// # Errors
/// As [`Region::map_as`].
pub fn region_of(bytes: u64, memory: Memory, pages: Pages) -> Result<Region, Error> {
    let region = Region::map_as(bytes, memory)?;
    match pages {
        Pages::System => {}
        Pages::Huge => region.advise_huge(true),
        Pages::Small => region.advise_huge(false),
    }
    Ok(region)
}

/// An empty vector with room for exactly `capacity` values. A large one is a
/// mapping of its own, as allocators do it; nothing of it is touched.
///
/// # Errors
/// [`Error::Memory`] where that much cannot be mapped.
pub fn with_capacity<T>(capacity: usize, pages: Pages) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    let bytes = (capacity as u64).saturating_mul(size_of::<T>() as u64);
    values
        .try_reserve_exact(capacity)
        .map_err(|_| Error::Memory {
            bytes,
            cause: std::io::ErrorKind::OutOfMemory.into(),
        })?;
    let advice = match pages {
        Pages::System => return Ok(values),
        Pages::Huge => libc::MADV_HUGEPAGE,
        Pages::Small => libc::MADV_NOHUGEPAGE,
    };
    // Only whole huge pages, so that nothing of the allocator's own is advised.
    let first = (values.as_ptr() as u64).next_multiple_of(HUGE_BYTES);
    let end = (values.as_ptr() as u64 + bytes) / HUGE_BYTES * HUGE_BYTES;
    if end > first {
        // SAFETY: the range lies inside the vector's own memory; the call is a
        // hint that changes no contents.
        unsafe { libc::madvise(first as *mut libc::c_void, (end - first) as usize, advice) };
    }
    Ok(values)
}

/// A vector of `count` times `value`, touched from its beginning to its end.
///
/// # Errors
/// As [`with_capacity`].
pub fn filled<T: Clone>(value: T, count: usize, pages: Pages) -> Result<Vec<T>, Error> {
    let mut values = with_capacity(count, pages)?;
    values.resize(count, value);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_as_asked_for() {
        for pages in [Pages::System, Pages::Huge, Pages::Small] {
            for count in [0, 1, 1 << 20] {
                let values = filled(7_u64, count, pages).unwrap();
                assert_eq!(values.len(), count);
                assert!(values.iter().all(|&value| value == 7));
                assert_eq!(values.capacity(), count);
            }
        }
        assert!(with_capacity::<u64>(usize::MAX / 16, Pages::Huge).is_err());
    }
}
