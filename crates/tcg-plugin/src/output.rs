// SPDX-License-Identifier: GPL-2.0-or-later
//! The time series and the summary.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use demeter_machine::digest::Fnv;
use demeter_machine::placement::Placement;
use demeter_machine::series::{SeriesRow, Summary};
use demeter_machine::watch::{Watch, WatchConfig};
use demeter_recording::{Resident, Writer};

use crate::{Failure, NEXT_FILES};

/// Writes rows as they come, so that a run that is killed leaves what it had.
pub struct Output {
    series: File,
    summary: PathBuf,
    digest: Fnv,
    rows: u64,
}

impl Output {
    /// Creates the series, empty. The summary appears with the first [`Output::summary`].
    pub fn create(series: &PathBuf, summary: PathBuf) -> io::Result<Self> {
        match fs::remove_file(&summary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self {
            series: File::create(series)?,
            summary,
            digest: Fnv::default(),
            rows: 0,
        })
    }

    /// Appends a row.
    pub fn row(&mut self, row: &SeriesRow) -> io::Result<()> {
        let mut line = serde_json::to_vec(row)?;
        line.push(b'\n');
        self.digest.write(&line);
        self.rows += 1;
        self.series.write_all(&line)
    }

    /// Replaces the summary; never half-written.
    pub fn summary(&mut self, mut summary: Summary) -> io::Result<()> {
        summary.rows = self.rows;
        summary.series_digest = self.digest.hex();
        let mut text = serde_json::to_vec_pretty(&summary)?;
        text.push(b'\n');
        let partial = self.summary.with_extension("partial");
        fs::write(&partial, text)?;
        fs::rename(&partial, &self.summary)
    }
}

/// What is to be followed by page, with the placement that the host chose.
pub fn read_watch(config: &WatchConfig, vcpus: usize) -> Result<Option<Watch>, Failure> {
    if config.is_empty() {
        return Ok(None);
    }
    let placement = (config.place.as_ref())
        .map(|path| {
            let failure = |cause: String| {
                let what = format!("cannot read the placement `{}`: {cause}", path.display());
                Failure::new(what, NEXT_FILES)
            };
            let bytes = fs::read(path).map_err(|error| failure(error.to_string()))?;
            Placement::from_bytes(&bytes).map_err(|error| failure(error.to_string()))
        })
        .transpose()?;
    Ok(Some(Watch::new(config, placement, vcpus)))
}

/// Writes what was followed by page.
pub fn write_watch(config: &WatchConfig, watch: Option<&Watch>) -> io::Result<()> {
    let Some(watch) = watch else {
        return Ok(());
    };
    if let (Some(path), Some(recording)) = (&config.record, watch.recording()) {
        fs::write(path, recording.to_bytes())?;
    }
    if let (Some((path, _)), Some(heat)) = (&config.heat, watch.heat()) {
        fs::write(path, serde_json::to_vec(&heat)?)?;
    }
    Ok(())
}

/// The file of recorded accesses.
pub struct Recorder {
    writer: Option<Writer>,
}

impl Recorder {
    /// Begins it, if it is asked for.
    pub fn create(config: &WatchConfig) -> io::Result<Self> {
        let writer = (config.accesses.as_ref())
            .map(|(path, accesses)| Writer::create(path, accesses.header.as_bytes()))
            .transpose()?;
        Ok(Self { writer })
    }

    /// Whether there is one.
    pub const fn is_on(&self) -> bool {
        self.writer.is_some()
    }

    /// Writes what is resident when recording begins.
    pub fn resident(&mut self, resident: &Resident) -> io::Result<()> {
        match &mut self.writer {
            Some(writer) => writer.resident(resident),
            None => Ok(()),
        }
    }

    /// Writes the windows that are complete.
    pub fn windows(&mut self, watch: Option<&mut Watch>) -> io::Result<()> {
        let accesses = watch.and_then(|watch| watch.accesses.as_mut());
        if let (Some(writer), Some(accesses)) = (&mut self.writer, accesses) {
            while let Some(window) = accesses.next_window() {
                writer.window(&window)?;
            }
        }
        Ok(())
    }

    /// Ends the file.
    pub fn finish(&mut self) -> io::Result<()> {
        self.writer.take().map_or(Ok(()), Writer::finish)
    }
}
