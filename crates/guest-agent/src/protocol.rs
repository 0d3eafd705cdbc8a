// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The run description (host to guest, `/demeter/run.json`) and the records
//! (guest to host, one JSON object a line on the third serial port).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of both formats.
pub const FORMAT: u32 = 1;
/// Where input data is mounted in the guest.
pub const DATA_DIR: &str = "/data";
/// Where the per-run files lie in the guest.
pub const GUEST_DIR: &str = "/demeter";
/// Values that a workload writes when its region of interest begins: lines of
/// `path<TAB>value`, made by the agent from [`Manager::at_roi`].
pub const AT_ROI_PATH: &str = "/run/demeter/at-roi";
/// Environment variable that tells a workload that knows its hot memory to
/// bind it to this node before first touch (the oracle).
pub const BIND_HOT_ENV: &str = "DEMETER_BIND_HOT";
/// The cgroup that COMMAND and all its children live in.
pub const COMMAND_CGROUP: &str = "/sys/fs/cgroup/command";
/// Its name below the root of the cgroup hierarchy.
pub const COMMAND_CGROUP_NAME: &str = "/command";

/// Everything that the agent does, decided by the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// [`FORMAT`].
    pub format: u32,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Added to COMMAND's environment.
    pub env: BTreeMap<String, String>,
    /// What marks the region of interest.
    pub roi: Roi,
    /// Free memory that COMMAND must find on each node.
    pub tiers: Vec<Tier>,
    /// The memory manager under test.
    pub manager: Manager,
    /// Charge for the self-test of the modelled clock; 0 leaves the test out.
    pub clock_test_ns: u64,
    /// Files to put in place before COMMAND starts: name below
    /// `/demeter/copy`, path in the guest.
    pub copies: Vec<CopyIn>,
    /// The second persistent memory device holds a file system for [`DATA_DIR`].
    pub data: bool,
    /// Memory that the host takes before COMMAND.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<Resize>,
}

/// How the host brings the machine to its sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Driver of the device that does it.
    pub module: Module,
    /// Memory that the driver brings with it, by node.
    pub plugged_bytes: Vec<u64>,
    /// What the host takes then, by node.
    pub taken_bytes: Vec<u64>,
    /// The device tells nodes apart. If not, only the sum is as asked for.
    pub by_node: bool,
}

/// What marks the region of interest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Roi {
    /// All of COMMAND.
    Command,
    /// COMMAND itself, with the magic NOP (`demeter-workloads roi on`).
    #[serde(rename = "self")]
    Own,
    /// Nothing: the machine is not modelled.
    Nothing,
}

/// Free memory of one node at the start of COMMAND.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// NUMA node.
    pub node: u32,
    /// Free memory that COMMAND finds, the per-CPU lists included.
    pub free_bytes: u64,
}

/// A file of the host placed in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyIn {
    /// Name below `/demeter/copy`.
    pub name: String,
    /// Absolute path in the guest.
    pub to: String,
}

/// How to set up the memory manager under test.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    /// Name, for messages.
    pub name: String,
    /// Kernel module to load.
    pub module: Option<Module>,
    /// Written in this order before COMMAND, after the module.
    pub before: Vec<Write>,
    /// Written when the region of interest begins.
    pub at_roi: Vec<Write>,
    /// Written after COMMAND, before anything is reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Write>,
    /// Directory whose readable files are reported at the end.
    pub report_dir: Option<String>,
}

/// A kernel module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Path in the guest.
    pub path: String,
    /// Module parameters, `name=value …`.
    pub params: String,
}

/// One value for one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// File in the guest.
    pub path: String,
    /// Text to write.
    pub value: String,
}

impl Write {
    /// A value for a file.
    pub fn new(path: impl Into<String>, value: impl ToString) -> Self {
        Self {
            path: path.into(),
            value: value.to_string(),
        }
    }
}

/// When something was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Just before COMMAND.
    Before,
    /// Just after COMMAND.
    After,
}

/// One line from the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// The agent runs.
    Hello {
        /// [`FORMAT`].
        format: u32,
        /// `uname -r`.
        release: String,
    },
    /// Outcome of the clock's self-test.
    Clock {
        /// Charged to the model.
        asked_ns: u64,
        /// By how much CLOCK_MONOTONIC moved.
        seen_ns: u64,
    },
    /// A node was brought to its size.
    Tier {
        /// NUMA node.
        node: u32,
        /// Asked for.
        wanted_bytes: u64,
        /// Free now, the per-CPU lists included.
        free_bytes: u64,
        /// Of it in blocks that a huge page fits into.
        whole_bytes: u64,
        /// Taken away as huge pages.
        huge_bytes: u64,
        /// Taken away as small pages.
        small_bytes: u64,
    },
    /// The host can take memory now.
    Resizable,
    /// It has.
    Resized {
        /// What the kernel manages, by node.
        node_bytes: Vec<u64>,
        /// Free memory, by node.
        free_bytes: Vec<u64>,
        /// How long it took, in guest time.
        guest_ns: u64,
    },
    /// A value could not be written.
    WriteFailed {
        /// File in the guest.
        path: String,
        /// Text that was refused.
        value: String,
        /// The system's words.
        cause: String,
    },
    /// COMMAND starts now.
    Start,
    /// `/proc/vmstat`.
    Vmstat {
        /// Before or after COMMAND.
        when: When,
        /// Name to value.
        counters: BTreeMap<String, u64>,
    },
    /// A node's `meminfo`, in bytes.
    Meminfo {
        /// Before or after COMMAND.
        when: When,
        /// NUMA node.
        node: u32,
        /// Name to bytes (or counts).
        bytes: BTreeMap<String, u64>,
    },
    /// COMMAND ended.
    Exit {
        /// Exit status, when it ended by itself.
        status: Option<i32>,
        /// Signal, when it was killed.
        signal: Option<i32>,
        /// Guest clock from start to end.
        guest_ns: u64,
    },
    /// COMMAND could not be started.
    NotStarted {
        /// The system's words.
        cause: String,
        /// 127 not found, 126 not executable.
        status: i32,
    },
    /// Readable files of the manager, path below its directory to content.
    Manager {
        /// Text as is; anything else as `hex:…`.
        files: BTreeMap<String, String>,
    },
    /// Lines of the kernel log since the agent started that tell of trouble.
    KernelTrouble {
        /// The lines.
        lines: Vec<String>,
    },
    /// The run cannot go on.
    Failure {
        /// What is wrong.
        cause: String,
        /// What to do.
        next: String,
    },
    /// Last record of a complete run.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_their_shape_on_the_wire() {
        let record = Record::Exit {
            status: Some(3),
            signal: None,
            guest_ns: 5,
        };
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(
            line,
            r#"{"kind":"exit","status":3,"signal":null,"guest_ns":5}"#
        );
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }

    #[test]
    fn roi_has_the_names_of_the_command_line() {
        assert_eq!(serde_json::to_string(&Roi::Own).unwrap(), r#""self""#);
        assert_eq!(
            serde_json::to_string(&Roi::Command).unwrap(),
            r#""command""#
        );
    }
}
