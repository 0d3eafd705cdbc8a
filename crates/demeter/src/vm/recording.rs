// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A run that is recorded by page, and the placement that its recording gives to runs that
//! follow it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use demeter_machine::placement::{self, Recording};

use super::settings::Settings;
use super::watch::{Ideal, Promise, RECORDING};
use crate::digest;
use crate::error::Error;

const POLL: Duration = Duration::from_millis(50);

/// What `recording` says of these settings' FMEM.
pub fn choose(recording: &Recording, order: u32, fmem_bytes: u64) -> Ideal {
    let choice = placement::choose(recording, order, fmem_bytes);
    let bytes = choice.placement.to_bytes();
    let granule_bytes = 4096 << order;
    Ideal {
        figures: Promise {
            granule_bytes,
            fmem_bytes,
            given_bytes: choice.placement.fast.len() as u64 * granule_bytes,
            recorded_pages: recording.pages.len() as u64,
            predicted_saving_s: choice.saving_ps as f64 * 1e-12,
            placement: digest::sha256(&bytes),
        },
        bytes: bytes.into(),
    }
}

/// Reads what a run left there.
pub fn read(directory: &Path) -> Result<Recording, Error> {
    let path = directory.join(RECORDING);
    let bytes = std::fs::read(&path).map_err(|cause| Error::file("read", &path, cause))?;
    Recording::from_bytes(&bytes).map_err(|error| Error::Malformed {
        path,
        cause: error.to_string(),
    })
}

/// A recording of the comparison; none once its run has failed.
pub type Slot = Arc<OnceLock<Option<Recording>>>;

/// A job's part in it.
#[derive(Clone)]
pub enum Part {
    /// It is the run that is recorded.
    Records(Slot),
    /// It runs by what was recorded, in granules of this order.
    Follows(Slot, u32),
}

impl Part {
    /// The settings of its run, once what it needs has been recorded; none if all runs are
    /// `stopped` meanwhile.
    pub fn settings(&self, of: &Settings, stopped: &AtomicBool) -> Result<Option<Settings>, Error> {
        let mut settings = of.clone();
        match self {
            Self::Records(_) => settings.watch.record = true,
            Self::Follows(slot, order) => {
                let recording = loop {
                    if stopped.load(Ordering::Relaxed) {
                        return Ok(None);
                    }
                    if let Some(recording) = slot.get() {
                        break recording.as_ref().ok_or(Error::NotRecorded)?;
                    }
                    std::thread::sleep(POLL);
                };
                let ideal = choose(recording, *order, settings.tier_bytes[0]);
                settings.watch.ideal = Some(ideal);
            }
        }
        Ok(Some(settings))
    }

    /// Its run has finished and left its results: a recording is there for those that wait.
    pub fn publish(&self, results: &Path) -> Result<(), Error> {
        if let Self::Records(slot) = self {
            let _ = slot.set(Some(read(results)?));
        }
        Ok(())
    }

    /// Its run has failed: nobody needs to wait for it.
    pub fn withdraw(&self) {
        if let Self::Records(slot) = self {
            let _ = slot.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_machine::placement::PageCost;

    #[test]
    fn capacity_is_the_memory_that_command_may_use() {
        let recording = Recording {
            pages: (0..10)
                .map(|key| {
                    (
                        key,
                        PageCost {
                            fmem_ps: 0,
                            smem_ps: 1_000_000,
                        },
                    )
                })
                .collect(),
            missed_ps: 0,
        };
        let promise = choose(&recording, 0, 3 * 4096).figures;
        assert_eq!(promise.given_bytes, 3 * 4096);
        assert_eq!(promise.predicted_saving_s, 3e-6);
        assert_eq!(choose(&recording, 9, 3 * 4096).figures.given_bytes, 0);
    }
}
