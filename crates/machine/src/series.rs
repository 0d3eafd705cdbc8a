// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the plugin writes: rows of the time series and the summary.
//!
//! Every number is a function of the guest's execution and the parameters:
//! nothing of the host (clock, load, addresses) enters, so that two runs of
//! the same input give the same bytes. Counters are cumulative since the
//! first `MODEL_ON` and stand still while the model is off.

use serde::{Deserialize, Serialize};

use crate::hypervisor::HypervisorCounters;

/// Version of the row and summary formats.
pub const SERIES_FORMAT: u32 = 1;

/// Why a row was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowKind {
    /// The interval of guest time passed.
    Tick,
    /// The guest marked a point of interest; `value` says which.
    Mark,
    /// The guest reported the work done so far in `value`.
    Progress,
    /// The model was switched on.
    On,
    /// The model was switched off.
    Off,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Modelled counters of the whole machine.
///
/// A "load" is a line fill that no cache could serve; a store that misses
/// loads its line as well. Loads of a sequential stream are counted like any
/// other, they only cost less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Instructions, user and kernel; every iteration of a `rep` is one.
    pub insn: u64,
    /// Instructions of the kernel.
    pub kernel_insn: u64,
    /// Time charged for memory accesses, walks, events and samples, on top of the instructions.
    pub charged_ps: u64,
    /// The part of it charged to kernel code.
    pub kernel_charged_ps: u64,
    /// Line fills from FMEM.
    pub fmem_loads: u64,
    /// Line fills from SMEM.
    pub smem_loads: u64,
    /// Line fills from FMEM by user code.
    pub fmem_loads_user: u64,
    /// Line fills from SMEM by user code.
    pub smem_loads_user: u64,
    /// Line fills from outside both nodes (BARs, the DAX root image), charged as FMEM.
    pub other_loads: u64,
    /// Line fills, of all those above, that a sequential stream covered.
    pub stream_loads: u64,
    /// Line fills from another socket.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub remote_loads: u64,
    /// Hits in the private cache.
    pub l2_hits: u64,
    /// Hits in the last-level cache.
    pub llc_hits: u64,
    /// Translations served by the second-level TLB.
    pub stlb_hits: u64,
    /// Page walks that ended in a 4 KiB page.
    pub walk_4k: u64,
    /// Page walks that ended in a 2 MiB or larger page.
    pub walk_2m: u64,
    /// Accesses whose page walk by the model failed and that QEMU translated.
    pub walk_fallback: u64,
    /// Time in page walks, of what was charged.
    #[serde(default)]
    pub walk_ps: u64,
    /// Loads of page-table entries by walks, the host's tables included.
    #[serde(default)]
    pub walk_loads: u64,
    /// The part of them that FMEM served; not among the line fills above.
    #[serde(default)]
    pub walk_fmem_loads: u64,
    /// The same for SMEM.
    #[serde(default)]
    pub walk_smem_loads: u64,
    /// Exceptions raised: faults, traps, `int`.
    #[serde(default)]
    pub exceptions: u64,
    /// Interrupts delivered: devices, timer, IPIs, NMIs.
    #[serde(default)]
    pub interrupts: u64,
    /// `pause` instructions.
    #[serde(default)]
    pub pauses: u64,
    /// Time of exceptions, interrupts, `pause`, invalidations and writes of CR3, of what was charged.
    #[serde(default)]
    pub event_ps: u64,
    /// Invalidations of a single page.
    pub tlb_single: u64,
    /// Full flushes: CR3 reloaded with its own value, CR4, INVPCID.
    pub tlb_full: u64,
    /// Address-space switches: CR3 written with another value.
    pub cr3_writes: u64,
    /// Time of kernel threads, instructions and charges; 0 where tasks are not told apart.
    #[serde(default)]
    pub kthread_ps: u64,
    /// Accesses that the PMU counted as an event, or instructions that it tagged.
    pub pmu_events: u64,
    /// Records that the PMU wrote.
    pub samples: u64,
    /// Records that it had no room for.
    pub samples_lost: u64,
    /// Interrupts that it raised.
    pub pmu_interrupts: u64,
    /// Time charged for its records: part of `charged_ps`, but not of the kernel's.
    #[serde(default)]
    pub pmu_record_ps: u64,
    /// What a hypervisor did that places the guest's pages; absent without one.
    #[serde(default, skip_serializing_if = "HypervisorCounters::is_empty")]
    pub hypervisor: HypervisorCounters,
}

/// The part of [`Counters`] that is known for each vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the same names and meanings
pub struct VcpuCounters {
    pub insn: u64,
    pub kernel_insn: u64,
    pub charged_ps: u64,
    pub tlb_single: u64,
    pub tlb_full: u64,
    pub cr3_writes: u64,
    pub pmu_events: u64,
    pub samples: u64,
    pub samples_lost: u64,
    pub pmu_interrupts: u64,
}

/// Defines [`StageNs`] from the one list of stages.
macro_rules! stages {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// CPU time of the guest's manager by stage, in nanoseconds. The order
        /// is that of `enum demeter_stage`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct StageNs {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl StageNs {
            /// From what the guest wrote; entries beyond the known stages are passed over.
            #[must_use]
            pub fn from_guest(stage_ns: &[u64]) -> Self {
                let mut rest = stage_ns.iter().copied();
                Self { $($name: rest.next().unwrap_or(0),)* }
            }

            /// Name and time of each stage, in their order.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

stages! {
    /// Emptying sample buffers.
    drain;
    /// Attributing samples to ranges, splitting, merging.
    classify;
    /// Ranking the ranges.
    rank;
    /// Choosing promotions and demotions.
    plan;
    /// Finding and isolating the pages.
    scan;
    /// Exchanging pages.
    relocate;
    /// Migrating into free FMEM.
    migrate;
}

impl StageNs {
    /// All stages together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.named().map(|(_, ns)| ns).sum()
    }
}

/// What the guest's manager reports through the BAR (`struct demeter_model_guest`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are those of the header, documented there
pub struct GuestReport {
    pub epochs: u64,
    pub stage_ns: StageNs,
    pub promoted_pages: u64,
    pub demoted_pages: u64,
    pub refused_pages: u64,
    pub samples: u64,
    pub lost_samples: u64,
    pub ranges: u64,
    pub splits: u64,
    pub merges: u64,
}

/// One line of the time series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesRow {
    /// Guest clock (`CLOCK_MONOTONIC` plus the time before the kernel started it).
    pub t_ns: u64,
    /// Why the row was written.
    pub kind: RowKind,
    /// Argument of a mark or progress, else 0.
    pub value: u64,
    /// The machine's counters.
    #[serde(flatten)]
    pub counters: Counters,
    /// The guest manager's counters, all zero while none runs.
    pub guest: GuestReport,
}

/// Written at every `MODEL_OFF` and when QEMU exits; the last one stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// [`SERIES_FORMAT`].
    pub format: u32,
    /// Whether the model was switched on at least once.
    pub modelled: bool,
    /// Guest clock at the first `MODEL_ON`.
    pub on_ns: u64,
    /// Guest clock at the last `MODEL_OFF`, or at the end if it was never off again.
    pub end_ns: u64,
    /// Guest time spent with the model on, idle time included.
    pub model_ns: u64,
    /// Time charged by the clock self-test (`CHARGE_NS`).
    pub selftest_charged_ns: u64,
    /// Rows written to the time series.
    pub rows: u64,
    /// FNV-1a digest over all that is in every record of the PMUs, as 16 hex digits.
    pub samples_digest: String,
    /// FNV-1a digest over the bytes of the time series, as 16 hex digits.
    pub series_digest: String,
    /// Final counters.
    pub counters: Counters,
    /// CPU time by task, most first; empty where the guest did not say how to tell.
    #[serde(default)]
    pub tasks: Vec<crate::tasks::TaskTime>,
    /// Their parts by vCPU.
    pub vcpus: Vec<VcpuCounters>,
    /// Final report of the guest's manager.
    pub guest: GuestReport,
    /// The parameters the run was made with.
    pub machine: crate::config::MachineConfig,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_is_one_flat_line() {
        let row = SeriesRow {
            t_ns: 7,
            kind: RowKind::Progress,
            value: 42,
            counters: Counters {
                insn: 3,
                ..Counters::default()
            },
            guest: GuestReport::default(),
        };
        let text = serde_json::to_string(&row).unwrap();
        assert!(!text.contains('\n'));
        assert!(
            text.starts_with(r#"{"t_ns":7,"kind":"progress","value":42,"insn":3,"kernel_insn":0,"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<SeriesRow>(&text).unwrap(), row);
    }
}
