// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the guest reported, read from its records.

use std::collections::BTreeMap;
use std::path::Path;

use demeter_agent::protocol::{Record, When};

/// The records of one run, sorted out.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The last record arrived.
    pub complete: bool,
    /// Why the guest gave up, and its advice.
    pub failure: Option<(String, String)>,
    /// COMMAND could not be started: cause and status.
    pub not_started: Option<(String, i32)>,
    /// COMMAND's exit status.
    pub status: Option<i32>,
    /// Signal that killed COMMAND.
    pub signal: Option<i32>,
    /// `/proc/vmstat` before and after.
    pub vmstat: BTreeMap<When, BTreeMap<String, u64>>,
    /// Memory that COMMAND found free, per node.
    pub free_bytes: BTreeMap<u32, u64>,
    /// Of it in blocks that a huge page fits into, before anybody took or gave memory.
    pub whole_bytes: BTreeMap<u32, u64>,
    /// Files of the manager.
    pub manager_files: BTreeMap<String, String>,
    /// Trouble in the kernel log.
    pub kernel_trouble: Vec<String>,
}

impl Outcome {
    /// Reads a records file; lines that are torn or unknown are passed over,
    /// completeness is told by the last record alone.
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_default();
        Self::parse(&String::from_utf8_lossy(&bytes))
    }

    fn parse(text: &str) -> Self {
        let mut outcome = Self::default();
        for record in text
            .lines()
            .filter_map(|line| serde_json::from_str::<Record>(line.trim()).ok())
        {
            outcome.add(record);
        }
        outcome
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Tier {
                node,
                free_bytes,
                whole_bytes,
                ..
            } => {
                self.free_bytes.insert(node, free_bytes);
                self.whole_bytes.insert(node, whole_bytes);
            }
            Record::Resized { free_bytes, .. } => {
                self.free_bytes.extend((0..).zip(free_bytes));
            }
            Record::Vmstat { when, counters } => {
                self.vmstat.insert(when, counters);
            }
            Record::Exit { status, signal, .. } => {
                self.status = status;
                self.signal = signal;
            }
            Record::NotStarted { cause, status } => self.not_started = Some((cause, status)),
            Record::Manager { files } => self.manager_files = files,
            Record::KernelTrouble { lines } => self.kernel_trouble = lines,
            Record::Failure { cause, next } => self.failure = Some((cause, next)),
            Record::End => self.complete = true,
            Record::Hello { .. }
            | Record::Clock { .. }
            | Record::Resizable
            | Record::WriteFailed { .. }
            | Record::Start
            | Record::Meminfo { .. } => {}
        }
    }

    /// COMMAND's status as a shell would tell it.
    pub fn shell_status(&self) -> i32 {
        match (&self.not_started, self.status, self.signal) {
            (Some((_, status)), _, _) => *status,
            (None, Some(status), _) => status,
            (None, None, Some(signal)) => 128 + signal,
            (None, None, None) => 1,
        }
    }

    /// By how much a counter of `/proc/vmstat` grew while COMMAND ran.
    pub fn vmstat_delta(&self, name: &str) -> u64 {
        let at = |when| {
            self.vmstat
                .get(&when)
                .and_then(|counters| counters.get(name))
                .copied()
                .unwrap_or(0)
        };
        at(When::After).saturating_sub(at(When::Before))
    }

    /// Pages that the kernel's own promotion and demotion moved, and refused where
    /// `refuses`: else what failed to migrate is not a manager's.
    pub fn moved_by_kernel(&self, refuses: bool) -> [u64; 3] {
        let demoted = [
            "pgdemote_kswapd",
            "pgdemote_direct",
            "pgdemote_khugepaged",
            "pgdemote_proactive",
        ]
        .iter()
        .map(|name| self.vmstat_delta(name))
        .sum();
        let refused = if refuses {
            self.vmstat_delta("pgmigrate_fail")
        } else {
            0
        };
        [self.vmstat_delta("pgpromote_success"), demoted, refused]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_records() {
        let outcome = Outcome::parse(
            "{\"kind\":\"vmstat\",\"when\":\"before\",\"counters\":{\"a\":1}}\n\
             {\"kind\":\"exit\",\"status\":null,\"signal\":9,\"guest_ns\":1}\n\
             {\"kind\":\"vmstat\",\"when\":\"after\",\"counters\":{\"a\":5}}\n\
             {\"kind\":\"future\"}\n{\"kind\":\"e",
        );
        assert!(!outcome.complete);
        assert_eq!(outcome.shell_status(), 137);
        assert_eq!(outcome.vmstat_delta("a"), 4);
        assert_eq!(outcome.vmstat_delta("b"), 0);
    }
}
