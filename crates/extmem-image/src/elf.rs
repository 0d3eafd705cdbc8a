// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the loader would make of a file.

use crate::notes;

/// What a file is to a preloaded library of the GNU C library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nothing may be allocated, and it is looked at where it is made"
)]
pub enum Image {
    /// It loads the library, which can manage it.
    Dynamic,
    /// Another program runs it.
    Script(Interpreter),
    /// It loads no libraries.
    Static,
    /// It has the loader of another C library, which cannot load ours.
    OtherLibrary,
    /// Its run-time system wants to be the first library, or our addresses.
    Sanitized,
    /// Its run-time system blocks our signals by calls of its own.
    Go,
    /// It is for another machine, or for 32 bits.
    Foreign,
    /// It is no program.
    Unknown,
}

/// The interpreter in the first line of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interpreter {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Interpreter {
    /// Its path; empty where the line names none.
    pub fn path(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Its path as the system takes it.
    pub fn c_path(&self) -> Option<&std::ffi::CStr> {
        std::ffi::CStr::from_bytes_until_nul(&self.bytes).ok()
    }

    fn of(line: &[u8]) -> Self {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let word = line
            .split(|byte| byte.is_ascii_whitespace() || *byte == 0)
            .find(|word| !word.is_empty())
            .unwrap_or_default();
        // The last byte stays zero, so that it is a C string.
        let length = word.len().min(LINE_BYTES - 1);
        let mut bytes = [0; LINE_BYTES];
        bytes[..length].copy_from_slice(&word[..length]);
        Self { bytes, length }
    }
}

/// The kernel looks at so much of a script's first line.
const LINE_BYTES: usize = 256;
/// No program has more program headers, libraries or entries of its dynamic section.
const MOST_HEADERS: u64 = 64;
const MOST_LIBRARIES: usize = 64;
const MOST_ENTRIES: u64 = 512;
const MOST_NOTE_BYTES: usize = 1024;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// The machine that this was built for (`e_machine`).
const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else {
    183
};

/// Looks at a file. `read` fills a buffer from an offset on, as far as the file goes, and
/// says how far that was.
pub fn inspect(read: &mut dyn FnMut(u64, &mut [u8]) -> usize) -> Image {
    let mut head = [0; LINE_BYTES];
    let length = read(0, &mut head).min(head.len());
    let head = &head[..length];
    if let Some(line) = head.strip_prefix(b"#!") {
        return Image::Script(Interpreter::of(line));
    }
    if !head.starts_with(b"\x7fELF") {
        return Image::Unknown;
    }
    // Class 2 is 64 bit, data 1 little endian.
    if head.get(4..6) != Some(&[2, 1]) || half(head, 18) != Some(MACHINE) {
        return Image::Foreign;
    }
    Elf::of(head, read).map_or(Image::Unknown, |elf| elf.image(read))
}

/// Part of a file.
#[derive(Debug, Clone, Copy, Default)]
struct Segment {
    offset: u64,
    address: u64,
    bytes: u64,
}

/// The program headers that matter here.
#[derive(Debug, Default)]
struct Elf {
    interpreter: Option<Segment>,
    dynamic: Option<Segment>,
    loaded: [Segment; 16],
    loads: usize,
    of_go: bool,
}

impl Elf {
    fn of(head: &[u8], read: &mut dyn FnMut(u64, &mut [u8]) -> usize) -> Option<Self> {
        const HEADER_BYTES: usize = 56;
        let (table, size, count) = (word(head, 32)?, half(head, 54)?, half(head, 56)?);
        let mut elf = Self::default();
        for index in 0..u64::from(count).min(MOST_HEADERS) {
            let mut header = [0; HEADER_BYTES];
            let at = table.checked_add(index * u64::from(size))?;
            if read(at, &mut header) < HEADER_BYTES {
                return None;
            }
            let kind = u32::from_le_bytes(*header.first_chunk()?);
            let segment = Segment {
                offset: word(&header, 8)?,
                address: word(&header, 16)?,
                bytes: word(&header, 32)?,
            };
            match kind {
                PT_INTERP => elf.interpreter = Some(segment),
                PT_DYNAMIC => elf.dynamic = Some(segment),
                PT_LOAD if elf.loads < elf.loaded.len() => {
                    elf.loaded[elf.loads] = segment;
                    elf.loads += 1;
                }
                PT_NOTE => {
                    let mut text = [0; MOST_NOTE_BYTES];
                    let length = (segment.bytes as usize).min(text.len());
                    let length = read(segment.offset, &mut text[..length]).min(length);
                    elf.of_go |= notes::are_of_go(&text[..length]);
                }
                _ => {}
            }
        }
        Some(elf)
    }

    fn image(&self, read: &mut dyn FnMut(u64, &mut [u8]) -> usize) -> Image {
        let Some(interpreter) = self.interpreter else {
            return Image::Static;
        };
        let mut path = [0; LINE_BYTES];
        let path = text(interpreter.offset, &mut path, read);
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        // Bundles have the GNU library's own loader under names of theirs.
        let other: [&[u8]; 3] = [b"ld-musl-", b"ld-uClibc", b"linker64"];
        if other.iter().any(|&other| name.starts_with(other)) {
            Image::OtherLibrary
        } else if self.of_go {
            Image::Go
        } else if self.is_sanitized(read) {
            Image::Sanitized
        } else {
            Image::Dynamic
        }
    }

    /// Whether it is linked with the run-time system of a sanitizer.
    fn is_sanitized(&self, read: &mut dyn FnMut(u64, &mut [u8]) -> usize) -> bool {
        let Some(dynamic) = self.dynamic else {
            return false;
        };
        let mut names = [0; MOST_LIBRARIES];
        let (mut libraries, mut strings) = (0, None);
        for index in 0..(dynamic.bytes / 16).min(MOST_ENTRIES) {
            let mut entry = [0; 16];
            if read(dynamic.offset.saturating_add(index * 16), &mut entry) < entry.len() {
                break;
            }
            let (Some(tag), Some(value)) = (word(&entry, 0), word(&entry, 8)) else {
                break;
            };
            match tag {
                0 => break,
                DT_NEEDED if libraries < names.len() => {
                    names[libraries] = value;
                    libraries += 1;
                }
                DT_STRTAB => strings = self.offset_of(value),
                _ => {}
            }
        }
        strings.is_some_and(|strings| {
            names[..libraries].iter().any(|name| {
                let mut room = [0; 64];
                is_sanitizer(text(strings.saturating_add(*name), &mut room, read))
            })
        })
    }

    /// Where in the file an address of the program comes from.
    fn offset_of(&self, address: u64) -> Option<u64> {
        self.loaded[..self.loads].iter().find_map(|segment| {
            let inside = address.checked_sub(segment.address)?;
            (inside < segment.bytes).then(|| segment.offset.saturating_add(inside))
        })
    }
}

/// A text of a file up to its zero byte.
fn text<'a>(
    offset: u64,
    room: &'a mut [u8],
    read: &mut dyn FnMut(u64, &mut [u8]) -> usize,
) -> &'a [u8] {
    let length = read(offset, room).min(room.len());
    let text = &room[..length];
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Whether a library is one that lays out memory for itself.
fn is_sanitizer(library: &[u8]) -> bool {
    let of_gcc = library.strip_prefix(b"lib");
    let of_clang = library.strip_prefix(b"libclang_rt.");
    [of_clang, of_gcc].into_iter().flatten().any(|name| {
        [&b"asan"[..], b"tsan", b"hwasan", b"msan"]
            .into_iter()
            .any(|kind| name.starts_with(kind))
    })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk::<2>()
        .map(|half| u16::from_le_bytes(*half))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk::<8>()
        .map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(file: &[u8]) -> Image {
        inspect(&mut |offset, buffer| {
            let rest = usize::try_from(offset)
                .ok()
                .and_then(|offset| file.get(offset..))
                .unwrap_or_default();
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            length
        })
    }

    /// An ELF file of so many program headers: kind, offset, address, bytes.
    fn elf(headers: &[(u32, u64, u64, u64)], content: &[(usize, &[u8])]) -> Vec<u8> {
        let mut file = vec![0; 2048];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        file[32] = 64;
        file[54] = 56;
        file[56] = headers.len() as u8;
        for (index, &(kind, offset, address, bytes)) in headers.iter().enumerate() {
            let header = &mut file[64 + index * 56..];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            for (at, value) in [(8, offset), (16, address), (32, bytes)] {
                header[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
        for (at, bytes) in content {
            file[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        file
    }

    const GNU: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";

    #[test]
    fn what_runs_is_told_from_what_does_not() {
        assert_eq!(of(b""), Image::Unknown);
        assert_eq!(of(b"hello"), Image::Unknown);
        assert_eq!(of(b"\x7fELF\x01\x01"), Image::Foreign);
        assert_eq!(of(b"\x7fELF\x02\x01"), Image::Foreign);
        assert_eq!(of(&elf(&[], &[])), Image::Static);
        let interpreted = [(PT_INTERP, 1024, 0, 28)];
        assert_eq!(of(&elf(&interpreted, &[(1024, GNU)])), Image::Dynamic);
        let musl: (usize, &[u8]) = (1024, b"/lib/ld-musl-x86_64.so.1\0");
        assert_eq!(of(&elf(&interpreted, &[musl])), Image::OtherLibrary);
        let bundled: (usize, &[u8]) = (1024, b"/opt/bundle/lib/ld-2.36.so\0");
        assert_eq!(of(&elf(&interpreted, &[bundled])), Image::Dynamic);
        // Cut off in the middle of its headers.
        assert_eq!(of(&elf(&interpreted, &[])[..100]), Image::Unknown);
    }

    #[test]
    fn go_and_sanitizers_are_seen() {
        let go = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";
        let headers = [(PT_INTERP, 1024, 0, 28), (PT_NOTE, 1100, 0, 20)];
        assert_eq!(of(&elf(&headers, &[(1024, GNU), (1100, go)])), Image::Go);
        let headers = [
            (PT_INTERP, 1024, 0, 28),
            (PT_LOAD, 1024, 0x40_0000, 1024),
            (PT_DYNAMIC, 1200, 0x40_00b0, 64),
        ];
        let mut dynamic = Vec::new();
        for word in [
            DT_NEEDED,
            11,
            DT_NEEDED,
            1,
            DT_STRTAB,
            0x40_0000 + 476,
            0,
            0,
        ] {
            dynamic.extend(word.to_le_bytes());
        }
        for (name, image) in [
            ("libtsan.so.2", Image::Sanitized),
            ("libclang_rt.asan-x86_64.so", Image::Sanitized),
            ("libtasn1.so.6", Image::Dynamic),
        ] {
            let strings = [b"\0libc.so.6\0", name.as_bytes()].concat();
            let content = [(1024, GNU), (1200, &dynamic), (1500, &strings)];
            assert_eq!(of(&elf(&headers, &content)), image, "{name}");
        }
    }

    #[test]
    fn scripts_name_their_interpreters() {
        for (line, path) in [
            (&b"#!/bin/sh -e\ntrue\n"[..], &b"/bin/sh"[..]),
            (b"#! /usr/bin/env python3", b"/usr/bin/env"),
            (b"#!\n/bin/sh", b""),
            (b"#!", b""),
        ] {
            match of(line) {
                Image::Script(interpreter) => {
                    assert_eq!(interpreter.path(), path);
                    assert_eq!(interpreter.c_path().unwrap().to_bytes(), path);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
