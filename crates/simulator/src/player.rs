// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record that is read as its guest goes on.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use demeter_recording::{Block, Reader, Resident, Window};

use crate::{Error, Header};

/// Many are open at a time.
const BUFFER_BYTES: usize = 1 << 16;

/// See the module.
pub struct Player {
    reader: Reader<BufReader<File>>,
    /// What the record says of its guest.
    pub header: Header,
}

/// What comes next.
pub(crate) enum Next<'a> {
    /// Memory that is there to begin with.
    Resident(&'a Resident),
    /// A window, in the one that was given, with so many eligible loads.
    Window(u64),
    /// Nothing: all was there.
    End,
}

impl Player {
    /// Opens a record.
    ///
    /// # Errors
    /// It is none.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(demeter_recording::ReadError::File)?;
        let reader = Reader::new(BufReader::with_capacity(BUFFER_BYTES, file))?;
        let header = Header::parse(reader.header())?;
        Ok(Self { reader, header })
    }

    /// Goes on.
    ///
    /// # Errors
    /// The record is cut short or damaged.
    pub(crate) fn next(&mut self, window: &mut Window) -> Result<Next<'_>, Error> {
        Ok(match self.reader.next_block(window)? {
            Block::End => Next::End,
            Block::Resident => Next::Resident(self.reader.resident()),
            Block::Window => {
                let rows = window.rows.iter();
                Next::Window(rows.map(|row| u64::from(row.eligible)).sum())
            }
        })
    }
}
