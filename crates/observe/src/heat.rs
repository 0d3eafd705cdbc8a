// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The heat map: `/sys/kernel/mm/demeter/ranges`, layout in `uapi/demeter_dump.h`.

use serde::{Deserialize, Serialize};

use crate::record::{Fields, Malformed, at_least, check_head, need};

/// `DEMETER_DUMP_MAGIC`.
pub const MAGIC: u64 = 0x5441_4548_5445_4d44;
/// `DEMETER_DUMP_VERSION`.
pub const VERSION: u32 = 1;
const HEADER_BYTES: u32 = 56;
/// With all nodes of a tier; modules before that had one.
const HEADER_WITH_NODES_BYTES: usize = 72;
const RECORD_BYTES: u32 = 56;

/// The whole map.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// Epochs ended since load.
    pub epochs: u64,
    /// CLOCK_MONOTONIC of the snapshot.
    pub time_ns: u64,
    /// First NUMA node of the fast tier; `u32::MAX` before it is chosen.
    pub fmem_node: u32,
    /// First NUMA node of the slow tier.
    pub smem_node: u32,
    /// All of the fast tier's, in order; none before they are chosen.
    #[serde(default)]
    pub fmem_nodes: Vec<u32>,
    /// All of the slow tier's.
    #[serde(default)]
    pub smem_nodes: Vec<u32>,
    /// By address space and address.
    pub ranges: Vec<Range>,
}

/// One range of guest-virtual addresses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// Number of the address space.
    pub space: u32,
    /// Its thread group when it was added.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Decayed samples: a steady rate shows twice the samples of an epoch.
    pub samples: f64,
    /// Resident 4 KiB pages in the fast tier, when counted last.
    pub fmem_pages: u64,
    /// Resident 4 KiB pages in the slow tier, when counted last.
    pub smem_pages: u64,
    /// Epochs with these bounds.
    pub age_epochs: u32,
    /// 0 heap, 1 mmap area.
    pub area: u32,
}

impl Range {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

impl Heat {
    /// Understands the file.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        check_head(bytes, MAGIC, VERSION)?;
        need(bytes, u64::from(HEADER_BYTES))?;
        let mut fields = Fields::new(&bytes[12..]);
        let header_bytes = at_least("header", fields.u32(), HEADER_BYTES)?;
        let record_bytes = at_least("records", fields.u32(), RECORD_BYTES)?;
        let nr_records = fields.u32();
        let (epochs, time_ns) = (fields.u64(), fields.u64());
        let rate_shift = fields.u32().min(63);
        let (fmem_node, smem_node) = (fields.u32(), fields.u32());
        let (fmem_nodes, smem_nodes) = if header_bytes >= HEADER_WITH_NODES_BYTES {
            let _reserved = fields.u32();
            (nodes_of(fields.u64()), nodes_of(fields.u64()))
        } else {
            (vec![fmem_node], vec![smem_node])
        };
        let needed = header_bytes as u64 + u64::from(nr_records) * record_bytes as u64;
        need(bytes, needed)?;
        let unit = (1_u64 << rate_shift) as f64;
        let ranges = bytes[header_bytes..]
            .chunks_exact(record_bytes)
            .take(nr_records as usize)
            .map(|record| {
                let mut fields = Fields::new(record);
                Range {
                    space: fields.u32(),
                    pid: fields.u32(),
                    start: fields.u64(),
                    end: fields.u64(),
                    samples: fields.u64() as f64 / unit,
                    fmem_pages: fields.u64(),
                    smem_pages: fields.u64(),
                    age_epochs: fields.u32(),
                    area: fields.u32(),
                }
            })
            .collect();
        Ok(Self {
            epochs,
            time_ns,
            fmem_node,
            smem_node,
            fmem_nodes,
            smem_nodes,
            ranges,
        })
    }
}

/// The nodes of a mask.
fn nodes_of(mask: u64) -> Vec<u32> {
    (0..64).filter(|node| mask >> node & 1 == 1).collect()
}
