// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writing a file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::varint::put;
use crate::{
    KIND_END, KIND_HEADER, KIND_RESIDENT, KIND_WINDOW, MAGIC, MAX_BLOCK_BYTES, Resident, Window,
    checksum,
};

/// Writes one file, block by block. Dropped before [`Writer::finish`], it leaves none.
#[derive(Debug)]
pub struct Writer {
    file: Option<BufWriter<File>>,
    partial: PathBuf,
    path: PathBuf,
    unpacked: Vec<u8>,
    windows: u64,
    rows: u64,
}

impl Writer {
    /// Begins a file that will be at `path`; `header` is whatever its readers understand.
    pub fn create(path: &Path, header: &[u8]) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut writer = Self {
            file: Some(BufWriter::new(File::create(&partial)?)),
            partial,
            path: path.to_owned(),
            unpacked: Vec::new(),
            windows: 0,
            rows: 0,
        };
        writer.raw(&MAGIC)?;
        writer.unpacked.extend(header);
        writer.block(KIND_HEADER)?;
        Ok(writer)
    }

    fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => Err(io::Error::other("the recording is finished")),
        }
    }

    /// Writes what is in `unpacked` as a block.
    fn block(&mut self, kind: u8) -> io::Result<()> {
        let length = self.unpacked.len();
        if length > MAX_BLOCK_BYTES {
            return Err(io::Error::other("a window is above 1 GiB"));
        }
        let length = length as u32;
        let stored = lz4_flex::block::compress(&self.unpacked);
        self.unpacked.clear();
        let sum = checksum(kind, length, &stored);
        self.raw(&[kind])?;
        for number in [length, stored.len() as u32, sum] {
            self.raw(&number.to_le_bytes())?;
        }
        self.raw(&stored)
    }

    /// Writes what is resident.
    pub fn resident(&mut self, resident: &Resident) -> io::Result<()> {
        resident.pack(&mut self.unpacked);
        self.block(KIND_RESIDENT)
    }

    /// Writes the next window.
    pub fn window(&mut self, window: &Window) -> io::Result<()> {
        self.windows += 1;
        self.rows += window.rows.len() as u64;
        window.pack(&mut self.unpacked);
        self.block(KIND_WINDOW)
    }

    /// Writes the end, and gives the file its name.
    pub fn finish(mut self) -> io::Result<()> {
        let (windows, rows) = (self.windows, self.rows);
        put(&mut self.unpacked, windows);
        put(&mut self.unpacked, rows);
        self.block(KIND_END)?;
        if let Some(file) = self.file.take() {
            file.into_inner().map_err(io::IntoInnerError::into_error)?;
        }
        fs::rename(&self.partial, &self.path)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Gone already when it has been finished.
        let _ = fs::remove_file(&self.partial);
    }
}
