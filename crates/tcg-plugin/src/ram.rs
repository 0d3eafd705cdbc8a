// SPDX-License-Identifier: GPL-2.0-or-later
//! Guest memory and the BAR, mapped from the files QEMU maps too.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use demeter_machine::{MemoryLayout, Place, Translation};
use demeter_recording::{First, Run};

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
const WRITABLE: u64 = 2;
const ACCESSED: u64 = 0x20;
const DIRTY: u64 = 0x40;
const PAGE_SIZE_BIT: u64 = 0x80;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// Where a page table's levels start in an address, and which of them end a walk.
const SHIFTS: [u32; 4] = [39, 30, 21, 12];

const fn is_leaf(entry: u64, shift: u32) -> bool {
    shift == 12 || (shift < 39 && entry & PAGE_SIZE_BIT != 0)
}

/// Entries on the way to an address whose accessed bits were clear.
pub struct Unaccessed {
    entries: [Option<&'static AtomicU64>; 4],
    /// The last level, if it was clean as well.
    clean_leaf: Option<&'static AtomicU64>,
}

impl Unaccessed {
    /// Clears the bits that were clear before, where they have been set since.
    ///
    /// Not when the page has become dirty: then hardware walks again too.
    pub fn restore(&self) {
        let dirtied = |leaf: &AtomicU64| leaf.load(Relaxed) & DIRTY != 0;
        if self.clean_leaf.is_some_and(dirtied) {
            return;
        }
        for entry in self.entries.iter().flatten() {
            if entry.load(Relaxed) & ACCESSED != 0 {
                entry.fetch_and(!ACCESSED, Relaxed);
            }
        }
    }
}

impl Ram {
    pub const fn new(nodes: [Mapping; 2], layout: MemoryLayout) -> Self {
        Self { nodes, layout }
    }

    /// An entry of a page table. Guest, QEMU and model run in turns on one thread.
    #[inline]
    fn entry(&self, pa: u64) -> Option<&'static AtomicU64> {
        let Place::Node { node, offset } = self.layout.locate(pa) else {
            return None;
        };
        let word = self.nodes[node].at::<AtomicU64>(usize::try_from(offset).ok()?)?;
        // SAFETY: inside the mapping, which lives until the process ends; any bits are valid.
        Some(unsafe { &*word })
    }

    /// The word at `va`, if it is aligned and mapped to memory.
    fn word(&self, cr3: u64, va: u64) -> Option<&'static AtomicU64> {
        self.entry(self.walk(cr3, va)?.pa)
    }

    /// Reads words at a virtual address, as a device would; false if not all are mapped.
    pub fn read_virtual(&self, cr3: u64, va: u64, words: &mut [u64]) -> bool {
        words.iter_mut().enumerate().all(|(index, to)| {
            let from = self.word(cr3, va.wrapping_add(index as u64 * 8));
            if let Some(from) = from {
                *to = from.load(Relaxed);
            }
            from.is_some()
        })
    }

    /// Writes words at a virtual address as the CPU does for the kernel, with CR0.WP set;
    /// false if the guest may not write all of them: then nothing is changed.
    pub fn write_virtual(&self, cr3: u64, va: u64, words: &[u64]) -> bool {
        let place = |index: usize| {
            let va = va.wrapping_add(index as u64 * 8);
            let walked = self.descend(cr3, va, false)?;
            let (entries, to) = (self.writable(&walked)?, self.entry(walked.pa)?);
            Some((entries, usize::from(walked.levels), to))
        };
        if (0..words.len()).any(|index| place(index).is_none()) {
            return false;
        }
        for (index, &word) in words.iter().enumerate() {
            let Some((entries, levels, to)) = place(index) else {
                return false;
            };
            for (level, entry) in entries.into_iter().flatten().enumerate() {
                let leaf = level + 1 == levels;
                let bits = if leaf { ACCESSED | DIRTY } else { ACCESSED };
                if entry.load(Relaxed) & bits != bits {
                    entry.fetch_or(bits, Relaxed);
                }
            }
            to.store(word, Relaxed);
        }
        true
    }

    /// The entries of a walk, from the top, if each of them allows writes.
    fn writable(&self, walked: &Translation) -> Option<[Option<&'static AtomicU64>; 4]> {
        let mut entries = [None; 4];
        let places = &walked.entries[..usize::from(walked.levels)];
        for (slot, &pa) in entries.iter_mut().zip(places) {
            let entry = self.entry(pa)?;
            *slot = (entry.load(Relaxed) & WRITABLE != 0).then_some(entry);
            (*slot)?;
        }
        Some(entries)
    }

    /// Copies guest memory at `va`; false, and nothing of use in `bytes`, if any of it is
    /// not mapped to a node.
    pub fn copy(&self, cr3: u64, va: u64, bytes: &mut [u8]) -> bool {
        for (at, byte) in bytes.iter_mut().enumerate() {
            let Some(found) = self.descend(cr3, va.wrapping_add(at as u64), false) else {
                return false;
            };
            let Place::Node { node, offset } = self.layout.locate(found.pa) else {
                return false;
            };
            let Some(source) =
                (usize::try_from(offset).ok()).and_then(|offset| self.nodes[node].at::<u8>(offset))
            else {
                return false;
            };
            // SAFETY: inside the mapping; volatile: the guest's.
            *byte = unsafe { source.read_volatile() };
        }
        true
    }

    /// Walks the four-level page table at `cr3` as hardware does: every entry
    /// on the way is marked accessed.
    pub fn walk(&self, cr3: u64, va: u64) -> Option<Translation> {
        self.descend(cr3, va, true)
    }

    /// A walk that marks entries accessed, or looks only.
    #[inline]
    fn descend(&self, cr3: u64, va: u64, mark: bool) -> Option<Translation> {
        let mut table = cr3 & FRAME;
        let mut entries = [0; 4];
        for (level, shift) in SHIFTS.into_iter().enumerate() {
            entries[level] = table + (va >> shift & 511) * 8;
            let word = self.entry(entries[level])?;
            let entry = word.load(Relaxed);
            if entry & PRESENT == 0 {
                return None;
            }
            if mark && entry & ACCESSED == 0 {
                word.fetch_or(ACCESSED, Relaxed);
            }
            if is_leaf(entry, shift) {
                let mask = (1u64 << shift) - 1;
                let pa = (entry & FRAME & !mask) | (va & mask);
                return Some(Translation {
                    pa,
                    large: shift > 12,
                    fallback: false,
                    entries,
                    levels: level as u8 + 1,
                });
            }
            table = entry & FRAME;
        }
        None
    }

    /// Pages of user addresses that the table at `cr3` maps to a node, by address.
    pub fn resident(&self, cr3: u64) -> Vec<Run> {
        let mut runs = Vec::new();
        self.add_resident(cr3 & FRAME, 0, 0, &mut runs);
        runs
    }

    fn add_resident(&self, table: u64, level: usize, start: u64, runs: &mut Vec<Run>) {
        let shift = SHIFTS[level];
        // The upper half of the top level is the kernel's.
        let entries = if level == 0 { 256 } else { 512 };
        for index in 0..entries {
            let Some(word) = self.entry(table + index * 8) else {
                continue;
            };
            let entry = word.load(Relaxed);
            let va = start + (index << shift);
            if entry & PRESENT == 0 {
                continue;
            }
            if !is_leaf(entry, shift) {
                if level + 1 < SHIFTS.len() {
                    self.add_resident(entry & FRAME, level + 1, va, runs);
                }
                continue;
            }
            let frame = entry & FRAME & !((1 << shift) - 1);
            let Place::Node { node, .. } = self.layout.locate(frame) else {
                continue;
            };
            let run = Run {
                page: va >> 12,
                pages: 1 << (shift - 12),
                first: First {
                    slow: node != 0,
                    huge: shift > 12,
                },
            };
            match runs.last_mut() {
                Some(last) if last.page + last.pages == run.page && last.first == run.first => {
                    last.pages += run.pages;
                }
                _ => runs.push(run),
            }
        }
    }

    /// 4 KiB pages of user addresses that the table at `cr3` maps to a node, by address.
    pub fn resident_pages(&self, cr3: u64, mut each: impl FnMut(u64)) {
        for run in self.resident(cr3) {
            for page in run.page..run.page + run.pages {
                if let Some(found) = self.descend(cr3, page << 12, false) {
                    each(found.pa);
                }
            }
        }
    }

    /// Takes the accessed bits of the entries that map pages in the table at `table`, and tells
    /// of each that had one: where its page lies, and its size. False, and nothing is changed,
    /// if `root` does not translate `va` through that table: it may be anything by now.
    pub fn take_accessed(
        &self,
        root: u64,
        va: u64,
        table: u64,
        each: &mut dyn FnMut(u64, u64),
    ) -> bool {
        let mut at = root & FRAME;
        for shift in SHIFTS {
            if at == table {
                for word in (0..512).filter_map(|index| self.entry(at + index * 8)) {
                    let entry = word.load(Relaxed);
                    if entry & PRESENT == 0 || entry & ACCESSED == 0 || !is_leaf(entry, shift) {
                        continue;
                    }
                    word.fetch_and(!ACCESSED, Relaxed);
                    let bytes = 1_u64 << shift;
                    each(entry & FRAME & !(bytes - 1), bytes);
                }
                return true;
            }
            let Some(word) = self.entry(at + (va >> shift & 511) * 8) else {
                return false;
            };
            let entry = word.load(Relaxed);
            if entry & PRESENT == 0 || is_leaf(entry, shift) {
                return false;
            }
            at = entry & FRAME;
        }
        false
    }

    /// Whether the table at `root` has the kernel's half of that at `cr3`: what a process
    /// that has ended left behind, and others have overwritten, has not.
    pub fn same_kernel(&self, root: u64, cr3: u64) -> bool {
        let entry = |table: u64, index: u64| {
            // Walks mark them.
            let word = self.entry((table & FRAME) + index * 8)?;
            Some(word.load(Relaxed) & !(ACCESSED | DIRTY))
        };
        (256..512).all(|index| {
            let found = entry(root, index);
            found.is_some() && found == entry(cr3, index)
        })
    }

    /// The entries on the way to `va` that are not marked accessed; `None` if all
    /// are, or the walk ends early.
    pub fn unaccessed(&self, cr3: u64, va: u64) -> Option<Unaccessed> {
        let mut table = cr3 & FRAME;
        let mut found = Unaccessed {
            entries: [None; 4],
            clean_leaf: None,
        };
        let mut any = false;
        for (level, shift) in SHIFTS.into_iter().enumerate() {
            let word = self.entry(table + (va >> shift & 511) * 8)?;
            let entry = word.load(Relaxed);
            if entry & PRESENT == 0 {
                return None;
            }
            if entry & ACCESSED == 0 {
                found.entries[level] = Some(word);
                any = true;
            }
            if is_leaf(entry, shift) {
                found.clean_leaf = (entry & DIRTY == 0).then_some(word);
                return any.then_some(found);
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
    fn tables_of_processes_are_told_from_other_memory() {
        let ram = ram();
        for table in [0x1000, 0x2000] {
            write(&ram, table + 300 * 8, 0x5000 | 0x63);
            write(&ram, table, 0x3000 | 0x67);
        }
        write(&ram, 0x3000, 0x60_0000 | 0x67);
        write(&ram, 0x60_0000, 0x7000 | 0x67);
        write(&ram, 0x7000 + 5 * 8, 0x40_9000 | 0x67);
        write(&ram, 0x2000 + 300 * 8, 0x5000 | 0x43); // a walk has marked the other one
        assert!(ram.same_kernel(0x2000, 0x1000) && ram.same_kernel(0x1000 | 0x18, 0x2000));
        assert!(!ram.same_kernel(0x3000, 0x1000) && !ram.same_kernel(0xf000_0000, 0x1000));
        let mut found = Vec::new();
        ram.resident_pages(0x1000, |pa| found.push(pa));
        assert_eq!(found, [0x40_9000]);
    }

    #[test]
    fn what_is_resident_is_found_by_size_and_node() {
        let ram = ram();
        write(&ram, 0x1000, 0x2000 | 0x67);
        write(&ram, 0x1000 + 256 * 8, 0x2000 | 0x67); // the kernel's
        write(&ram, 0x2000, 0x3000 | 0x67);
        write(&ram, 0x3000, 0x4000 | 0x67);
        write(&ram, 0x3000 + 8, 0x60_0000 | 0xe7); // 2 MiB
        write(&ram, 0x4000 + 5 * 8, 0x7000 | 0x67);
        write(&ram, 0x4000 + 6 * 8, 0x9000 | 0x67);
        write(&ram, 0x4000 + 7 * 8, 0x40_0000 | 0x67); // the other node
        write(&ram, 0x4000 + 9 * 8, 0x9000 | 0x66); // not present
        write(&ram, 0x4000 + 10 * 8, 0xf000_0000 | 0x67); // a device
        let found: Vec<_> = (ram.resident(0x1000).iter())
            .map(|run| (run.page, run.pages, run.first.slow, run.first.huge))
            .collect();
        let wanted = [
            (5, 2, false, false),
            (7, 1, true, false),
            (512, 512, true, true),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn accessed_bits_are_taken_from_what_is_still_a_table() {
        let ram = ram();
        write(&ram, 0x1000, 0x2000 | 0x67);
        write(&ram, 0x2000, 0x3000 | 0x67);
        write(&ram, 0x3000, 0x4000 | 0x67);
        write(&ram, 0x3000 + 8, 0x60_0000 | 0xe7); // 2 MiB
        write(&ram, 0x4000 + 5 * 8, 0x7000 | 0x67);
        write(&ram, 0x4000 + 6 * 8, 0x8000 | 0x47); // not accessed
        write(&ram, 0x4000 + 7 * 8, 0x9000 | 0x66); // not present
        let taken = |root, va, table| {
            let mut found = Vec::new();
            let there =
                ram.take_accessed(root, va, table, &mut |pa, bytes| found.push((pa, bytes)));
            (there, found)
        };
        assert_eq!(taken(0x1018, 0x6000, 0x4000), (true, vec![(0x7000, 4096)]));
        assert_eq!(read(&ram, 0x4000 + 5 * 8), 0x7000 | 0x47);
        assert_eq!(read(&ram, 0x4000 + 7 * 8), 0x9000 | 0x66);
        assert_eq!(taken(0x1000, 0x5000, 0x4000), (true, vec![]));
        // Of the tables below it, a directory tells nothing.
        assert_eq!(
            taken(0x1000, 0x5000, 0x3000),
            (true, vec![(0x60_0000, 2 << 20)])
        );
        assert_eq!(read(&ram, 0x3000), 0x4000 | 0x67);
        // Unhooked: whatever lies there now is left alone.
        write(&ram, 0x4000 + 5 * 8, 0x7000 | 0x67);
        write(&ram, 0x3000, 0);
        assert_eq!(taken(0x1000, 0x5000, 0x4000), (false, vec![]));
        assert_eq!(taken(0xf000_0000, 0x5000, 0x4000), (false, vec![]));
        assert_eq!(read(&ram, 0x4000 + 5 * 8), 0x7000 | 0x67);
    }

    fn read(ram: &Ram, pa: u64) -> u64 {
        ram.entry(pa).unwrap().load(Relaxed)
    }

    #[test]
    fn a_walk_marks_every_level_and_names_its_entries() {
        let ram = ram();
        write(&ram, 0x1000, 0x2000 | 0x47); // dirty is left alone
        write(&ram, 0x2000, 0x3000 | 0x07);
        write(&ram, 0x3000, 0x40_0000 | 0x07); // table in the second node
        write(&ram, 0x40_0000 + 8, 0x7000 | 0x07);
        write(&ram, 0x3000 + 8, 0x60_0000 | 0x87); // 2 MiB
        let small = ram.walk(0x1000, 0x1000).unwrap();
        assert_eq!(small.entries, [0x1000, 0x2000, 0x3000, 0x40_0008]);
        assert_eq!(small.levels, 4);
        for (pa, entry) in [
            (0x1000, 0x2067),
            (0x2000, 0x3027),
            (0x3000, 0x40_0027),
            (0x40_0008, 0x7027),
            (0x3008, 0x60_0087), // not on the way
        ] {
            assert_eq!(read(&ram, pa), entry, "{pa:#x}");
        }
        let large = ram.walk(0x1000, 0x20_0000).unwrap();
        assert_eq!(
            (large.levels, large.entries),
            (3, [0x1000, 0x2000, 0x3008, 0])
        );
        assert_eq!(read(&ram, 0x3008), 0x60_00a7);
    }

    #[test]
    fn bits_set_behind_the_model_are_taken_back() {
        let ram = ram();
        write(&ram, 0x1000, 0x2000 | 0x27);
        write(&ram, 0x2000, 0x3000 | 0x07);
        write(&ram, 0x3000, 0x4000 | 0x27);
        write(&ram, 0x4000, 0x7000 | 0x07);
        write(&ram, 0x4008, 0x8000 | 0x27);
        let fill = |va: u64, bits: u64| {
            let before = ram.unaccessed(0x1000, va);
            let leaf = 0x4000 + va / 4096 * 8;
            for pa in [0x2000, leaf] {
                write(&ram, pa, read(&ram, pa) | bits);
            }
            if let Some(before) = before {
                before.restore();
            }
            (read(&ram, 0x2000), read(&ram, leaf))
        };
        assert_eq!(fill(0, 0x20), (0x3007, 0x7007));
        // The page becomes dirty: that is a walk on hardware too.
        assert_eq!(fill(0, 0x60), (0x3067, 0x7067));
        // All set before: nothing to take back. Not present: none of our business.
        assert!(ram.unaccessed(0x1000, 0x1000).is_none());
        assert!(ram.unaccessed(0x1000, 0x2000).is_none());
        // Dirty already, bit cleared by the guest: it stays clear.
        write(&ram, 0x4000, 0x7000 | 0x47);
        assert_eq!(fill(0, 0x20).1, 0x7047);
    }

    #[test]
    fn words_cross_pages_or_are_not_written() {
        let ram = ram();
        write(&ram, 0x1000, 0x2000 | 0x67);
        write(&ram, 0x2000, 0x3000 | 0x67);
        write(&ram, 0x3000, 0x4000 | 0x67);
        write(&ram, 0x4000 + 5 * 8, 0x7000 | 0x67);
        write(&ram, 0x4000 + 6 * 8, 0x9000 | 0x67);
        assert!(ram.write_virtual(0x1000, 0x5ff8, &[1, 2]));
        let mut words = [0; 2];
        assert!(ram.read_virtual(0x1000, 0x5ff8, &mut words));
        assert_eq!(
            (words, read(&ram, 0x7ff8), read(&ram, 0x9000)),
            ([1, 2], 1, 2)
        );
        // Not aligned, and beyond what is mapped.
        assert!(!ram.write_virtual(0x1000, 0x5ff9, &[7]));
        assert!(!ram.write_virtual(0x1000, 0x6ff8, &[7, 8]));
        assert_eq!(read(&ram, 0x9ff8), 0);
    }

    #[test]
    fn writes_only_where_the_guest_could() {
        const TABLES: [u64; 4] = [0x1000, 0x2000, 0x3000, 0x4000];
        let ram = ram();
        let map = |bits: u64| {
            for (pa, to) in [0x2000, 0x3000, 0x4000, 0x7000].into_iter().enumerate() {
                write(&ram, TABLES[pa], to | bits);
            }
            write(&ram, 0x3000 + 8, 0x60_0000 | 0x80 | bits);
            // The page after the first.
            write(&ram, 0x4000 + 8, 0x9000 | 0x01);
            write(&ram, 0x7ff8, 0);
        };
        // Reads need no right to write, and leave pages clean.
        map(0x01);
        assert!(ram.read_virtual(0x1000, 0xff8, &mut [0]));
        assert_eq!(read(&ram, 0x4000), 0x7000 | 0x21);
        // One level that is read-only is enough.
        for table in TABLES {
            map(0x03);
            write(&ram, table, read(&ram, table) & !WRITABLE);
            assert!(!ram.write_virtual(0x1000, 0xff8, &[7]), "{table:#x}");
            assert_eq!(read(&ram, 0x7ff8), 0);
            assert_eq!(read(&ram, table) & (ACCESSED | DIRTY), 0);
        }
        // A write marks the page dirty, and no table.
        map(0x03);
        assert!(ram.write_virtual(0x1000, 0xff8, &[7]));
        assert_eq!(read(&ram, 0x7ff8), 7);
        assert_eq!(
            TABLES.map(|pa| read(&ram, pa) & 0xfff),
            [0x23, 0x23, 0x23, 0x63]
        );
        assert!(ram.write_virtual(0x1000, 0x20_0008, &[8]));
        assert_eq!((read(&ram, 0x60_0008), read(&ram, 0x3008)), (8, 0x60_00e3));
        // Not in part: the second page is read-only.
        map(0x03);
        assert!(!ram.write_virtual(0x1000, 0xff8, &[7, 8]));
        assert_eq!((read(&ram, 0x7ff8), read(&ram, 0x4000)), (0, 0x7003));
    }

    #[test]
    fn copies_across_pages_and_refuses_holes() {
        let ram = ram();
        write(&ram, 0x1000, 0x2000 | 0x67);
        write(&ram, 0x2000, 0x3000 | 0x67);
        write(&ram, 0x3000, 0x4000 | 0x67);
        write(&ram, 0x4000, 0x7000 | 0x67);
        write(&ram, 0x4000 + 8, 0x6000 | 0x67);
        write(&ram, 0x7ff8, u64::from_le_bytes(*b"....tiny"));
        write(&ram, 0x6000, u64::from_le_bytes(*b" gups..."));
        let mut bytes = [0; 9];
        assert!(ram.copy(0x1000, 0xffc, &mut bytes));
        assert_eq!(&bytes, b"tiny gups");
        assert!(!ram.copy(0x1000, 0x1ffc, &mut bytes));
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
