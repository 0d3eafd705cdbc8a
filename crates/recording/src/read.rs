// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading a file.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use crate::varint::Numbers;
use crate::{
    KIND_END, KIND_HEADER, KIND_RESIDENT, KIND_WINDOW, MAGIC, MAX_BLOCK_BYTES, MOST_BY_A_BYTE,
    PREFIX_BYTES, Resident, Window, checksum,
};

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file system says so.
    #[error("{0}")]
    File(#[from] io::Error),
    /// Something else, or of another version.
    #[error("this is no recording of accesses, or one of another version")]
    Foreign,
    /// It ends before its end.
    #[error("the recording is cut short at byte {at}, after {windows} windows")]
    CutShort {
        /// Bytes that were there.
        at: u64,
        /// Whole windows before.
        windows: u64,
    },
    /// Bytes are not those that were written.
    #[error("the recording is damaged at byte {at}, after {windows} windows")]
    Damaged {
        /// Where the block begins.
        at: u64,
        /// Whole windows before.
        windows: u64,
    },
    /// A window says what cannot be.
    #[error(
        "window {windows} of the recording says that it took more than an hour, or its page walks"
    )]
    Long {
        /// Whole windows before.
        windows: u64,
    },
}

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Of what was resident; see [`Reader::resident`].
    Resident,
    /// A window; it is in the one that was given.
    Window,
    /// The end: all was there.
    End,
}

/// Reads a file from its beginning, a block at a time.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    header: Vec<u8>,
    resident: Resident,
    stored: Vec<u8>,
    unpacked: Vec<u8>,
    at: u64,
    windows: u64,
    rows: u64,
}

impl Reader<BufReader<File>> {
    /// Opens a file.
    ///
    /// # Errors
    /// It is not there, or no recording.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Self::new(BufReader::with_capacity(1 << 20, File::open(path)?))
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// It is no recording.
    pub fn new(source: R) -> Result<Self, ReadError> {
        let mut reader = Self {
            source,
            header: Vec::new(),
            resident: Resident::default(),
            stored: Vec::new(),
            unpacked: Vec::new(),
            at: 0,
            windows: 0,
            rows: 0,
        };
        let mut magic = [0; MAGIC.len()];
        match reader.fill(&mut magic) {
            Ok(()) if magic == MAGIC => {}
            Ok(()) | Err(ReadError::CutShort { .. }) => return Err(ReadError::Foreign),
            Err(error) => return Err(error),
        }
        if reader.block()? != KIND_HEADER {
            return Err(ReadError::Foreign);
        }
        reader.header = std::mem::take(&mut reader.unpacked);
        Ok(reader)
    }

    /// What the file was begun with.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The last [`Block::Resident`].
    #[must_use]
    pub fn resident(&self) -> &Resident {
        &self.resident
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ReadError> {
        let mut done = 0;
        while done < bytes.len() {
            match self.source.read(&mut bytes[done..]) {
                Ok(0) => {
                    return Err(ReadError::CutShort {
                        at: self.at + done as u64,
                        windows: self.windows,
                    });
                }
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.at += done as u64;
        Ok(())
    }

    /// Reads and unpacks a block; its kind.
    fn block(&mut self) -> Result<u8, ReadError> {
        let damaged = ReadError::Damaged {
            at: self.at,
            windows: self.windows,
        };
        let mut prefix = [0; PREFIX_BYTES];
        self.fill(&mut prefix)?;
        let number = |at: usize| {
            u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]])
        };
        let (length, stored_length, sum) = (number(1), number(5), number(9));
        // What LZ4 can make of a block is bounded as well, and what it can be made of: a few
        // bytes must not make us take a gibibyte.
        if length as usize > MAX_BLOCK_BYTES
            || u64::from(length) > MOST_BY_A_BYTE * u64::from(stored_length)
            || stored_length as usize > lz4_flex::block::get_maximum_output_size(length as usize)
        {
            return Err(damaged);
        }
        let mut stored = std::mem::take(&mut self.stored);
        stored.clear();
        // Grows with what is there, however much was promised.
        let read = (&mut self.source)
            .take(u64::from(stored_length))
            .read_to_end(&mut stored)?;
        self.at += read as u64;
        if read < stored_length as usize {
            return Err(ReadError::CutShort {
                at: self.at,
                windows: self.windows,
            });
        }
        if checksum(prefix[0], length, &stored) != sum {
            return Err(damaged);
        }
        self.unpacked.resize(length as usize, 0);
        match lz4_flex::block::decompress_into(&stored, &mut self.unpacked) {
            Ok(unpacked) if unpacked == length as usize => {}
            _ => return Err(damaged),
        }
        self.stored = stored;
        Ok(prefix[0])
    }

    /// Reads the next block; a window replaces `window`.
    ///
    /// # Errors
    /// The file is cut short or damaged.
    pub fn next_block(&mut self, window: &mut Window) -> Result<Block, ReadError> {
        let damaged = ReadError::Damaged {
            at: self.at,
            windows: self.windows,
        };
        let kind = self.block()?;
        match kind {
            KIND_RESIDENT => match Resident::unpack(&self.unpacked) {
                Some(resident) => {
                    self.resident = resident;
                    Ok(Block::Resident)
                }
                None => Err(damaged),
            },
            KIND_WINDOW => match window.unpack(&self.unpacked) {
                Some(()) if !window.is_of_this_world() => Err(ReadError::Long {
                    windows: self.windows,
                }),
                Some(()) => {
                    self.windows += 1;
                    self.rows += window.rows.len() as u64;
                    Ok(Block::Window)
                }
                None => Err(damaged),
            },
            KIND_END => {
                let mut numbers = Numbers::new(&self.unpacked);
                let told = (numbers.take(), numbers.take());
                if told != (Some(self.windows), Some(self.rows)) {
                    return Err(damaged);
                }
                Ok(Block::End)
            }
            _ => Err(damaged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framed;

    #[test]
    fn a_few_bytes_that_promise_a_gibibyte_take_no_memory() {
        // One block of four stored bytes, whose checksum is right.
        let mut form = vec![0x80, 8, 0];
        form.extend((MAX_BLOCK_BYTES as u32).to_le_bytes());
        form.extend([0x1f, 0, 1, 0]);
        let file = framed(&form);
        let mut reader = Reader::new(file.as_slice()).unwrap();
        let read = reader.next_block(&mut Window::default());
        assert!(matches!(read, Err(ReadError::Damaged { .. })));
        assert!(reader.unpacked.capacity() < 1 << 20);
    }
}
