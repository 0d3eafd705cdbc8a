// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a record says of the guest it is of.

use demeter_machine::MachineConfig;
use serde::{Deserialize, Serialize};

/// The header of a record, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Usable memory of both tiers.
    pub tier_bytes: [u64; 2],
    /// Sizes of the two nodes.
    pub node_bytes: [u64; 2],
    /// Whether the kernel makes huge pages of everything.
    pub huge_pages: bool,
    /// Progress of a window.
    pub window_ns: u64,
    /// Loads from this latency on could be sampled.
    pub threshold_ns: u64,
    /// The modelled machine.
    pub machine: MachineConfig,
}

impl Header {
    /// Reads it.
    ///
    /// # Errors
    /// It is none, or of a machine that cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Self, crate::Error> {
        use serde::de::Error as _;
        let header: Self = serde_json::from_slice(bytes).map_err(crate::Error::Header)?;
        let invalid = |error| crate::Error::Header(serde_json::Error::custom(error));
        header.machine.validate().map_err(invalid)?;
        Ok(header)
    }
}
