// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a record says of the guest it is of.

use demeter_machine::MachineConfig;
use serde::{Deserialize, Serialize};

/// Largest node: memory is taken by it.
const MOST_NODE_BYTES: u64 = 1 << 40;

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
        for (node_bytes, tier_bytes) in header.node_bytes.into_iter().zip(header.tier_bytes) {
            let what = if !(1..=MOST_NODE_BYTES).contains(&node_bytes) {
                "a node has 1 byte to 1 TiB"
            } else if tier_bytes > node_bytes {
                "a tier is part of its node"
            } else {
                continue;
            };
            let wrong = format!("{what}: node_bytes {node_bytes}, tier_bytes {tier_bytes}");
            return Err(crate::Error::Header(serde_json::Error::custom(wrong)));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_machine::Preset;

    #[test]
    fn nodes_that_cannot_be_are_told() {
        let parse = |node_bytes, tier_bytes| {
            let header = Header {
                command: Vec::new(),
                tier_bytes,
                node_bytes,
                huge_pages: true,
                window_ns: 1,
                threshold_ns: 1,
                machine: MachineConfig::preset(Preset::Pmem),
            };
            Header::parse(&serde_json::to_vec(&header).unwrap())
        };
        let most = MOST_NODE_BYTES;
        parse([most; 2], [most, 0]).unwrap();
        parse([most, 0], [0; 2]).unwrap_err();
        parse([1 << 63; 2], [0; 2]).unwrap_err();
        let error = parse([4096; 2], [1 << 63, 0]).unwrap_err().to_string();
        assert!(error.contains("a tier is part of its node"), "{error}");
    }
}
