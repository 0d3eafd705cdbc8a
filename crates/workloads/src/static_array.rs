// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Static arrays of any size, as Fortran programs have them.
//!
//! The size of `.bss` is fixed when a program is linked. So the program starts
//! itself again as a copy whose last segment is larger in memory: to the kernel
//! that is a program with a static array of that size, which lies between its
//! data and its heap.

use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;

use crate::Error;

/// Set for the copy: the bytes that its last segment is larger by.
const STATIC_BYTES_ENV: &str = "DEMETER_STATIC_BYTES";

/// Of the ELF header (64-bit, little endian): where the program headers are, the
/// length of one, and their number.
const PROGRAM_HEADERS_AT: usize = 32;
const PROGRAM_HEADER_BYTES_AT: usize = 54;
const PROGRAM_HEADERS_NR_AT: usize = 56;
/// Of a program header: its kind, and its size in memory.
const KIND_AT: usize = 0;
const MEMORY_BYTES_AT: usize = 40;
const KIND_LOAD: u32 = 1;

/// The static array, `bytes` long and aligned to `alignment`: returns its address.
/// Starts the program again where it has no such array yet.
///
/// # Errors
/// [`Error::Memory`] where the copy cannot be made or started.
pub fn array(bytes: u64, alignment: u64) -> Result<*mut u8, Error> {
    let failed = |cause| Error::Memory { bytes, cause };
    // Whole pages, and room to align.
    let larger_by = bytes.next_multiple_of(alignment).saturating_add(alignment);
    let has = std::env::var(STATIC_BYTES_ENV).ok();
    if has.and_then(|has| has.parse().ok()) == Some(larger_by) {
        let end = end_of_program();
        return Ok(((end - larger_by).next_multiple_of(alignment)) as *mut u8);
    }
    let mut image = std::fs::read("/proc/self/exe").map_err(failed)?;
    if enlarge(&mut image, larger_by).is_none() {
        return Err(failed(std::io::ErrorKind::InvalidData.into()));
    }
    let name = CString::from(c"demeter-workloads");
    // SAFETY: the name is a string that outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(failed(std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and nobody else's.
    let mut copy = unsafe { std::fs::File::from_raw_fd(fd) };
    copy.write_all(&image).map_err(failed)?;
    let mut arguments = std::env::args_os();
    let mut command = std::process::Command::new(format!("/proc/self/fd/{}", copy.as_raw_fd()));
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    Err(failed(
        command
            .args(arguments)
            .env(STATIC_BYTES_ENV, larger_by.to_string())
            .exec(),
    ))
}

/// Makes the last segment of a program larger in memory, by zeroes.
fn enlarge(image: &mut [u8], larger_by: u64) -> Option<()> {
    let first = u64_at(image, PROGRAM_HEADERS_AT)? as usize;
    let length = usize::from(u16_at(image, PROGRAM_HEADER_BYTES_AT)?);
    let headers = usize::from(u16_at(image, PROGRAM_HEADERS_NR_AT)?);
    let at = (0..headers)
        .map(|index| first + index * length)
        .rfind(|&at| u32_at(image, at + KIND_AT) == Some(KIND_LOAD))?
        + MEMORY_BYTES_AT;
    let memory = u64_at(image, at)?.checked_add(larger_by)?;
    image
        .get_mut(at..at + 8)?
        .copy_from_slice(&memory.to_le_bytes());
    Some(())
}

fn u16_at(image: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(image.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(image: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(image: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(image.get(at..at + 8)?.try_into().ok()?))
}

/// Where the last segment of this program ends in memory.
fn end_of_program() -> u64 {
    unsafe extern "C" fn visit(
        object: *mut libc::dl_phdr_info,
        _size: usize,
        end: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: the loader hands over a valid object, and `end` is as below.
        let (object, end) = unsafe { (&*object, &mut *end.cast::<u64>()) };
        for index in 0..usize::from(object.dlpi_phnum) {
            // SAFETY: that many headers are there.
            let header = unsafe { &*object.dlpi_phdr.add(index) };
            if header.p_type == KIND_LOAD {
                *end = object.dlpi_addr + header.p_vaddr + header.p_memsz;
            }
        }
        // The first object is the program itself: no need to see more.
        1
    }
    let mut end = 0_u64;
    // SAFETY: the callback matches, and `end` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut end).cast()) };
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_segment_grows_and_nothing_else() {
        let old = std::fs::read("/proc/self/exe").unwrap();
        let mut new = old.clone();
        enlarge(&mut new, 0x1234_5000).unwrap();
        let changed = (0..old.len()).filter(|&at| old[at] != new[at]).count();
        assert!((1..=8).contains(&changed), "{changed}");
        assert!(enlarge(&mut old[..60].to_vec(), 1).is_none());
        assert!(enlarge(&mut old[..100].to_vec(), 1).is_none());
    }

    #[test]
    fn a_program_ends_behind_its_statics() {
        static NR: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        assert!(end_of_program() > (&raw const NR) as u64);
    }
}
