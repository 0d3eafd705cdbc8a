// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of the guest that nobody has written yet. Touching it makes the host
//! allocate it, for the account of whoever touches it: a guest could let us do so
//! with message after message.

use std::fs::File;
use std::os::fd::AsRawFd;

use virtio_queue::DescriptorChain;
use vm_memory::{
    Address, GuestAddress, GuestMemoryBackend, GuestMemoryLoadGuard, GuestMemoryMmap,
    GuestMemoryRegion,
};

const PAGE_BYTES: u64 = 4096;

/// How many pages a message's first `read_bytes` to read and `write_bytes` to write
/// would make the host allocate.
pub fn untouched_pages(
    memory: &GuestMemoryMmap,
    chain: DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>,
    read_bytes: usize,
    write_bytes: usize,
) -> u64 {
    let mut left = [read_bytes as u64, write_bytes as u64];
    let mut pages = 0;
    for descriptor in chain {
        let left = &mut left[usize::from(descriptor.is_write_only())];
        let bytes = u64::from(descriptor.len()).min(*left);
        *left -= bytes;
        pages += untouched_in(memory, descriptor.addr(), bytes);
    }
    pages
}

/// The same of a stretch.
pub fn untouched_in(memory: &GuestMemoryMmap, from: GuestAddress, bytes: u64) -> u64 {
    let mut at = from;
    let mut left = bytes;
    let mut pages = 0;
    while left > 0 {
        let Some((region, inside)) = memory.to_region_addr(at) else {
            break;
        };
        let part = left.min(region.len() - inside.raw_value());
        if let Some(file) = region.file_offset() {
            let begin = file.start() + inside.raw_value();
            pages += holes(file.file(), begin, begin + part);
        }
        left -= part;
        let Some(next) = at.checked_add(part) else {
            break;
        };
        at = next;
    }
    pages
}

/// Pages of the file between these that it has not allocated. Files that cannot
/// tell have none.
fn holes(file: &File, begin: u64, end: u64) -> u64 {
    let mut at = begin / PAGE_BYTES * PAGE_BYTES;
    let mut pages = 0;
    while at < end {
        let Ok(offset) = libc::off_t::try_from(at) else {
            break;
        };
        // SAFETY: the descriptor is open as long as `file` is borrowed. The offset
        // that this moves is used by nobody.
        let data = unsafe { libc::lseek(file.as_raw_fd(), offset, libc::SEEK_DATA) };
        let data = match u64::try_from(data) {
            Ok(data) => data,
            Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                // No more data.
                Some(libc::ENXIO) => end,
                _ => break,
            },
        };
        if data <= at {
            at += PAGE_BYTES;
        } else {
            let next = data.min(end).div_ceil(PAGE_BYTES) * PAGE_BYTES;
            pages += (next - at) / PAGE_BYTES;
            at = next;
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_counted_by_page() {
        // On a file system that tells holes: tmpfs where there is one.
        let shm = std::path::Path::new("/dev/shm");
        let file = if shm.is_dir() {
            tempfile::tempfile_in(shm).unwrap()
        } else {
            tempfile::tempfile().unwrap()
        };
        file.set_len(16 * PAGE_BYTES).unwrap();
        file.write_all_at(&[1], 4 * PAGE_BYTES).unwrap();
        assert_eq!(holes(&file, 0, 16 * PAGE_BYTES), 15);
        assert_eq!(holes(&file, PAGE_BYTES - 1, PAGE_BYTES + 1), 2);
        assert_eq!(holes(&file, 4 * PAGE_BYTES + 8, 4 * PAGE_BYTES + 16), 0);
        assert_eq!(holes(&file, 15 * PAGE_BYTES + 4000, 16 * PAGE_BYTES), 1);
        assert_eq!(holes(&file, 0, 0), 0);
    }
}
