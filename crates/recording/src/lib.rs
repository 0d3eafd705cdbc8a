// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of recorded accesses: what a guest's line fills from memory were, by page
//! and by window of time.
//!
//! A file is a magic number and blocks. Each has a kind, its length as stored and
//! unpacked, and a CRC-32 of all that; the last one says how many windows there were.
//! So a file that is cut short, or changed, is told from a whole one ([`ReadError`]).
//! Numbers in blocks are LEB128 varints, pages are differences to the page before,
//! and blocks are packed with LZ4.
//!
//! [`Writer`] writes under another name and gives the file its own when it is
//! complete: nothing half-written stays under it.

#[cfg(any(test, fuzzing))]
mod framed;
mod read;
mod varint;
mod window;
mod write;

#[cfg(any(test, fuzzing))]
pub use framed::framed;
pub use read::{Block, ReadError, Reader};
pub use window::{First, MOST_PS, Resident, Row, Run, Window};
pub use write::Writer;

/// The first bytes of a file; the last one is the version of the format.
const MAGIC: [u8; 8] = *b"DMTRACC\x01";
/// Most bytes of a block once unpacked: a window of all of 64 GiB in 4 KiB pages, each
/// with all that can be said of it. Checked before memory is taken.
const MAX_BLOCK_BYTES: usize = 1 << 30;

const KIND_HEADER: u8 = b'H';
const KIND_RESIDENT: u8 = b'R';
const KIND_WINDOW: u8 = b'W';
const KIND_END: u8 = b'E';

/// Of unpacked bytes that one stored byte can stand for in LZ4.
const MOST_BY_A_BYTE: u64 = 255;

/// What precedes the bytes of a block: kind, unpacked and stored length, checksum.
const PREFIX_BYTES: usize = 13;

/// Over all of a block but itself.
fn checksum(kind: u8, unpacked: u32, stored: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[kind]);
    crc.update(&unpacked.to_le_bytes());
    crc.update(&(stored.len() as u32).to_le_bytes());
    crc.update(stored);
    crc.finalize()
}
