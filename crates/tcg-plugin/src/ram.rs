// SPDX-License-Identifier: GPL-2.0-or-later
//! Guest memory and the BAR, mapped from the files QEMU maps too.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;

use demeter_machine::{MemoryLayout, Place, Translation};

/// A shared, writable mapping of a whole file; lives until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// Maps `path`, creating or extending it to `bytes`.
    pub fn shared(path: &Path, bytes: usize) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        if file.metadata()?.len() < bytes as u64 {
            file.set_len(bytes as u64)?;
        }
        // The host's huge pages, if the file is made of them, can be mapped only where
        // addresses are aligned like them: reserve more, map inside it.
        let reserved = bytes.saturating_add(HUGE_BYTES);
        // SAFETY: a fresh reservation at an address of the kernel's choice.
        let place = unsafe {
            libc::mmap(
                ptr::null_mut(),
                reserved,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let aligned = (place as usize).next_multiple_of(HUGE_BYTES);
        // SAFETY: inside the reservation made above, which nobody else knows of;
        // the file is at least `bytes` long. What is not covered stays reserved.
        let start = unsafe {
            libc::mmap(
                aligned as *mut libc::c_void,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping made above. Advice: a kernel that knows none refuses it.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        Ok(Self {
            start: start.cast(),
            bytes,
        })
    }

    /// Address of a `T` at `offset`, if it lies inside and is aligned.
    pub fn at<T>(&self, offset: usize) -> Option<*mut T> {
        let inside = offset.checked_add(size_of::<T>())? <= self.bytes;
        if !inside || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: `offset` is inside the mapping.
        Some(unsafe { self.start.add(offset) }.cast())
    }
}

/// The guest's two memory nodes.
#[derive(Debug)]
pub struct Ram {
    nodes: [Mapping; 2],
    layout: MemoryLayout,
}

/// Size of a huge page of the host.
const HUGE_BYTES: usize = 2 << 20;

const PRESENT: u64 = 1;
const PAGE_SIZE_BIT: u64 = 0x80;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

impl Ram {
    pub const fn new(nodes: [Mapping; 2], layout: MemoryLayout) -> Self {
        Self { nodes, layout }
    }

    fn read(&self, pa: u64) -> Option<u64> {
        let Place::Node { node, offset } = self.layout.locate(pa) else {
            return None;
        };
        let word = self.nodes[node].at::<u64>(usize::try_from(offset).ok()?)?;
        // SAFETY: inside the mapping. Volatile: the guest changes it behind the compiler's back.
        Some(unsafe { word.read_volatile() })
    }

    /// Walks the four-level page table at `cr3`.
    pub fn walk(&self, cr3: u64, va: u64) -> Option<Translation> {
        let mut table = cr3 & FRAME;
        for shift in [39u32, 30, 21, 12] {
            let entry = self.read(table + (va >> shift & 511) * 8)?;
            if entry & PRESENT == 0 {
                return None;
            }
            if shift == 12 || (shift < 39 && entry & PAGE_SIZE_BIT != 0) {
                let mask = (1u64 << shift) - 1;
                let pa = (entry & FRAME & !mask) | (va & mask);
                return Some(Translation {
                    pa,
                    large: shift > 12,
                    fallback: false,
                });
            }
            table = entry & FRAME;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ram() -> Ram {
        // Tests run side by side, each in a thread of its own.
        let test = std::thread::current().id();
        let path = |node| {
            let name = format!("demeter-ram-test-{}-{test:?}-{node}", std::process::id());
            std::env::temp_dir().join(name)
        };
        let nodes = [0, 1].map(|node| {
            let mapping = Mapping::shared(&path(node), 4 << 20).unwrap();
            std::fs::remove_file(path(node)).unwrap();
            mapping
        });
        Ram::new(nodes, MemoryLayout::new(4 * MIB, 4 * MIB))
    }

    fn write(ram: &Ram, pa: u64, value: u64) {
        let Place::Node { node, offset } = ram.layout.locate(pa) else {
            panic!("outside")
        };
        // SAFETY: checked to be inside the mapping, which only this test uses.
        unsafe {
            ram.nodes[node]
                .at::<u64>(offset as usize)
                .unwrap()
                .write(value)
        };
    }

    #[test]
    fn walks_pages_of_each_size_across_nodes() {
        let ram = ram();
        write(&ram, 0x1000, 0x40_0000 | 0x67); // table in the second node
        write(&ram, 0x40_0000, 0x3000 | 0x67);
        write(&ram, 0x40_0000 + 8, 0x4000_0000 | 0xe7); // 1 GiB
        write(&ram, 0x3000, 0x4000 | 0x67);
        write(&ram, 0x3000 + 8, 0x60_0000 | 0x80 << 56 | 0xe7); // 2 MiB, no-execute
        write(&ram, 0x4000 + 5 * 8, 0x7000 | 0x67);
        let at = |va| {
            ram.walk(0x1000 | 0x18, va)
                .map(|found| (found.pa, found.large))
        };
        assert_eq!(at(0x5123), Some((0x7123, false)));
        assert_eq!(
            at(0x20_0000 + 0x1f_0001),
            Some((0x60_0000 + 0x1f_0001, true))
        );
        assert_eq!(
            at(0x4000_0000 + 0x1234_5678),
            Some((0x4000_0000 + 0x1234_5678, true))
        );
        assert_eq!(at(0x6000), None);
        assert_eq!(at(1 << 39), None);
        assert_eq!(ram.walk(0xdead_beef_0000, 0), None);
    }

    #[test]
    fn mapping_bounds() {
        let ram = ram();
        assert!(ram.nodes[0].at::<u64>((4 << 20) - 8).is_some());
        assert!(ram.nodes[0].at::<u64>((4 << 20) - 4).is_none());
        assert!(ram.nodes[0].at::<u64>(4).is_none());
        assert!(ram.nodes[0].at::<u8>(usize::MAX).is_none());
    }
}
