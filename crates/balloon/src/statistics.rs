// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest says about itself. Nobody checks it, so nothing that is granted
//! may rest on it alone; sizes are clamped to what the host knows.

use serde::{Deserialize, Serialize};

use crate::reason::Reason;
use crate::wire::{MAX_NODES, NODE_STATISTICS_BYTES, STATISTICS_BYTES, Words};
use crate::wire::{VALID_PSI, VALID_TMM};

/// Why statistics were pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The interval of the configuration space.
    Periodic,
    /// A request.
    Requested,
    /// A balloon reached its size.
    Resized,
    /// Memory pressure.
    Pressure,
    /// The guest was about to run out of memory.
    Oom,
    /// A later driver's event that this device does not know.
    Unknown,
}

/// Of one tier. Counts are of 4 KiB pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeStatistics {
    /// Managed by the guest kernel, balloon included.
    pub total_pages: u64,
    /// Free.
    pub free_pages: u64,
    /// In the balloon.
    pub balloon_pages: u64,
    /// Anonymous memory.
    pub anon_pages: u64,
    /// Page cache.
    pub file_pages: u64,
    /// Resident pages that the memory manager ranks for FMEM.
    pub hot_pages: u64,
    /// Moved in since boot, upwards.
    pub promoted_pages: u64,
    /// Moved in since boot, downwards.
    pub demoted_pages: u64,
}

/// Of one guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Number of the message.
    pub sequence: u64,
    /// The guest's clock.
    pub guest_time_ns: u64,
    /// Why now.
    pub event: Trigger,
    /// A memory manager feeds the hot counts and samples.
    pub has_tmm: bool,
    /// The stall times are known.
    pub has_psi: bool,
    /// Sampled accesses to FMEM since boot.
    pub fmem_samples: u64,
    /// Sampled accesses to SMEM since boot.
    pub smem_samples: u64,
    /// What the memory manager would place in FMEM if there were room.
    pub hot_wanted_pages: u64,
    /// Time since boot in which some task waited for memory.
    pub psi_some_us: u64,
    /// Time since boot in which all tasks waited for memory.
    pub psi_full_us: u64,
    /// Seconds in which the guest was out of memory and its driver had nothing to give back, since
    /// that was loaded: as a rule a task is killed then.
    pub oom_kills: u64,
    /// Pages taken back from the balloons to avoid that.
    pub oom_deflated_pages: u64,
    /// Pages read again soon after they were dropped.
    pub refaults: u64,
    /// By node.
    pub nodes: Vec<NodeStatistics>,
}

impl Statistics {
    /// Reads a message. `node_pages` is what the host knows of each node's size.
    ///
    /// # Errors
    /// [`Reason::Statistics`] if length or number of nodes are wrong.
    pub fn from_bytes(bytes: &[u8], node_pages: &[u64]) -> Result<Self, Reason> {
        let nr_nodes = node_pages.len().min(MAX_NODES);
        if bytes.len() != STATISTICS_BYTES + nr_nodes * NODE_STATISTICS_BYTES {
            return Err(Reason::Statistics);
        }
        let said = Self::parse(bytes, node_pages).ok_or(Reason::Statistics)?;
        said.clamped(node_pages)
    }

    /// The same where somebody else has read the message and is not trusted either.
    ///
    /// # Errors
    /// [`Reason::Statistics`] if the number of nodes is wrong.
    pub fn clamped(mut self, node_pages: &[u64]) -> Result<Self, Reason> {
        if self.nodes.len() != node_pages.len() {
            return Err(Reason::Statistics);
        }
        let total = node_pages
            .iter()
            .fold(0, |sum: u64, n| sum.saturating_add(*n));
        self.hot_wanted_pages = self.hot_wanted_pages.min(total);
        for (node, &pages) in self.nodes.iter_mut().zip(node_pages) {
            for count in [
                &mut node.total_pages,
                &mut node.free_pages,
                &mut node.balloon_pages,
                &mut node.anon_pages,
                &mut node.file_pages,
                &mut node.hot_pages,
            ] {
                *count = (*count).min(pages);
            }
        }
        Ok(self)
    }

    fn parse(bytes: &[u8], node_pages: &[u64]) -> Option<Self> {
        let mut words = Words::new(bytes);
        let sequence = words.u64()?;
        let guest_time_ns = words.u64()?;
        let event = match words.u16()? {
            0 => Trigger::Periodic,
            1 => Trigger::Requested,
            2 => Trigger::Resized,
            3 => Trigger::Pressure,
            4 => Trigger::Oom,
            _ => Trigger::Unknown,
        };
        if usize::from(words.u16()?) != node_pages.len() {
            return None;
        }
        let valid = words.u32()?;
        let mut statistics = Self {
            sequence,
            guest_time_ns,
            event,
            has_tmm: valid & VALID_TMM != 0,
            has_psi: valid & VALID_PSI != 0,
            fmem_samples: words.u64()?,
            smem_samples: words.u64()?,
            hot_wanted_pages: words.u64()?,
            psi_some_us: words.u64()?,
            psi_full_us: words.u64()?,
            oom_kills: words.u64()?,
            oom_deflated_pages: words.u64()?,
            refaults: words.u64()?,
            nodes: Vec::with_capacity(node_pages.len()),
        };
        let mut records = bytes.get(STATISTICS_BYTES..)?;
        for _ in node_pages {
            let (record, rest) = records.split_at_checked(NODE_STATISTICS_BYTES)?;
            records = rest;
            let mut words = Words::new(record);
            statistics.nodes.push(NodeStatistics {
                total_pages: words.u64()?,
                free_pages: words.u64()?,
                balloon_pages: words.u64()?,
                anon_pages: words.u64()?,
                file_pages: words.u64()?,
                hot_pages: words.u64()?,
                promoted_pages: words.u64()?,
                demoted_pages: words.u64()?,
            });
        }
        Some(statistics)
    }
}
