// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the model of a guest follows by page: costs, heat, accesses, and a placement that
//! it serves pages by; and where among a run's results that is.

use std::path::PathBuf;
use std::sync::Arc;

use demeter_machine::accesses::AccessesConfig;
use demeter_machine::heat::HeatConfig;
use demeter_machine::placement::NameBy;
use demeter_machine::watch::WatchConfig;
use serde::Serialize;

use super::workplace::{RamDir, ResultsDir};
use crate::error::Error;

/// The recording, among a run's results.
pub const RECORDING: &str = "pages.bin";
/// Heat, among a run's results.
pub const HEAT: &str = "heat.json";
/// Recorded accesses, among a run's results.
pub const ACCESSES: &str = "accesses.bin";

/// What a guest's model follows by page.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Watch {
    /// Costs by page are recorded.
    pub record: bool,
    /// How pages are named from run to run.
    pub names: NameBy,
    /// The placement in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ideal: Option<Ideal>,
    /// Heat is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heat: Option<HeatConfig>,
    /// Accesses are recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses: Option<AccessesConfig>,
}

/// A chosen placement.
#[derive(Debug, Clone, Serialize)]
pub struct Ideal {
    /// It, as the model reads it.
    #[serde(skip)]
    pub bytes: Arc<[u8]>,
    /// What is known of it.
    #[serde(flatten)]
    pub figures: Promise,
}

/// What a placement is made of and promises.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Promise {
    /// Size of what is placed as one.
    pub granule_bytes: u64,
    /// FMEM that there was to give away: what COMMAND may use.
    pub fmem_bytes: u64,
    /// The part of it that found a taker in the recording.
    pub given_bytes: u64,
    /// Pages of 4 KiB that the recording saw filled from memory.
    pub recorded_pages: u64,
    /// By how much the recorded run would have been shorter, by its own fills.
    pub predicted_saving_s: f64,
    /// SHA-256 of the placement.
    pub placement: String,
}

impl Watch {
    /// The plugin's part, its files beside the run's others.
    pub fn config(&self, ram: &RamDir, results: &ResultsDir) -> Result<WatchConfig, Error> {
        let absolute = |path: PathBuf| {
            std::path::absolute(&path).map_err(|cause| Error::file("name", &path, cause))
        };
        let place = match &self.ideal {
            None => None,
            Some(ideal) => {
                let path = ram.file("placement", 0)?;
                std::fs::write(&path, &ideal.bytes)
                    .map_err(|cause| Error::file("write", &path, cause))?;
                Some(path)
            }
        };
        let record = self.record.then(|| results.join(RECORDING));
        let heat = (self.heat.clone())
            .map(|heat| Ok::<_, Error>((absolute(results.join(HEAT))?, heat)))
            .transpose()?;
        let accesses = (self.accesses.clone())
            .map(|config| Ok::<_, Error>((absolute(results.join(ACCESSES))?, config)))
            .transpose()?;
        Ok(WatchConfig {
            names: self.names,
            record: record.map(absolute).transpose()?,
            place,
            heat,
            accesses,
        })
    }
}
