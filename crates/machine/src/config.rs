// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Configuration of the model and of the plugin that feeds it.
//!
//! [`PluginConfig`] is the JSON file handed to the QEMU plugin; it is written
//! by the command line tool. Its `machine` part names a preset and overrides
//! single parameters: `{"preset": "cxl", "llc_bytes": 4194304}`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::hypervisor::HypervisorConfig;
use crate::pmu::Kind;
use crate::watch::WatchConfig;

/// Latency below which the paper takes a load for a cache hit, in picoseconds.
///
/// The hit latencies of the model must stay at or below it: the sampling
/// threshold of 64 ns is meant to lie between this bound and FMEM.
pub const CACHE_HIT_BOUND_PS: u64 = 53_600;

/// A named set of machine parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// SMEM is persistent memory: 68.7 ns against 176.6 ns.
    #[default]
    Pmem,
    /// SMEM is CXL-attached DRAM: 68.7 ns against 121.9 ns.
    Cxl,
}

/// What is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value is outside the range the model can represent.
    #[error("`{field}` is {value}: {reason}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// The value found.
        value: u64,
        /// Why it is refused.
        reason: &'static str,
    },
    /// The machine has exactly two nodes, FMEM and SMEM.
    #[error("`nodes` has {0} entries: the machine has two, FMEM and SMEM")]
    Nodes(usize),
}

/// Defines [`MachineConfig`] and its all-optional JSON form from one list.
macro_rules! machine_config {
    ($($(#[$doc:meta])* $name:ident $(alias $alias:literal)? ;)*) => {
        /// Parameters of the modelled machine. Times in picoseconds unless named otherwise.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "RawMachineConfig")]
        pub struct MachineConfig {
            /// The preset the parameters started from.
            pub preset: Preset,
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct RawMachineConfig {
            #[serde(default)]
            preset: Preset,
            $(#[serde(default $(, alias = $alias)?)] $name: Option<u64>,)*
        }

        impl From<RawMachineConfig> for MachineConfig {
            fn from(raw: RawMachineConfig) -> Self {
                let mut config = Self::preset(raw.preset);
                $(if let Some(value) = raw.$name { config.$name = value; })*
                config
            }
        }
    };
}

machine_config! {
    /// A load that misses every cache and is served by FMEM. Paper: 68.7 ns.
    fmem_latency_ps;
    /// The same from SMEM. Paper: 176.6 ns (persistent memory), 121.9 ns (CXL).
    smem_latency_ps;
    /// What a line from another socket's memory takes longer, of either tier. Chosen:
    /// 75.6 ns, so that FMEM there takes 2.1 times as long, which is what the usual
    /// distance of 21 (against 10) says. Of no account with one socket.
    remote_latency_ps;
    /// Bandwidth of FMEM. Chosen: one DDR4-3200 channel, 25.6 GB/s.
    fmem_bandwidth_bytes_per_s alias "fmem_bandwidth";
    /// Bandwidth of SMEM. Chosen: 7.45 GB/s (sequential read of one Optane
    /// PMem 200 module) and 17 GB/s (a CXL 1.1 x8 expander).
    smem_bandwidth_bytes_per_s alias "smem_bandwidth";
    /// Size of the last-level cache, 16 ways. Chosen: 2 MiB, scaled down with
    /// the guest's memory so that working sets exceed it as they do at scale.
    llc_bytes;
    /// A hit in the last-level cache. Chosen: 20 ns, a server part's LLC;
    /// at most [`CACHE_HIT_BOUND_PS`].
    llc_hit_ps;
    /// Size of the private cache of a vCPU, 8 ways. Chosen: 256 KiB, scaled.
    l2_bytes;
    /// A hit in the private cache. Chosen: 4.2 ns, 14 cycles at 3.3 GHz.
    l2_hit_ps;
    /// Every instruction, with all its L1 hits. Chosen: 300 ps, one per cycle at 3.3 GHz.
    insn_ps;
    /// A translation found in the second-level TLB. Chosen: 2.1 ns, 7 cycles.
    stlb_hit_ps;
    /// What a page walk costs besides its loads. Chosen: 3 ns, ten cycles to start
    /// the walker and to run the access again.
    walk_start_ps;
    /// Entries of the three paging-structure caches (Intel SDM vol. 3, 4.10.3), 4-way,
    /// each a power of two from 4 on. Chosen: 4, 4 and 32, what has been found in
    /// Skylake (van Schaik et al., "RevAnC", EuroSec 2017; cited from memory).
    pml4e_cache_entries;
    /// See `pml4e_cache_entries`; an entry covers 1 GiB.
    pdpte_cache_entries;
    /// See `pml4e_cache_entries`; an entry covers 2 MiB.
    pde_cache_entries;
    /// Whether walks have two dimensions (0 or 1). Chosen: 1, the guest is a VM on
    /// hardware with extended page tables (EPT); 0 is a machine without a hypervisor.
    nested;
    /// Whether the host maps the guest's memory in 2 MiB pages (1) or in 4 KiB
    /// pages (0), which also makes 4 KiB TLB entries of the guest's larger pages.
    /// Chosen: 1, as KVM does over transparent huge pages.
    ept_2m;
    /// Translations of guest-physical pages held for walks, 4-way, a power of two.
    /// Chosen: 16, the nested TLB of Bhargava et al., ASPLOS 2008.
    nested_tlb_entries;
    /// Outstanding line fills of a sequential stream: its misses cost
    /// max(64 B / bandwidth, latency / this). Chosen: 16, the fill buffers of an L1D.
    stream_overlap;
    /// Charged to the guest for every PEBS record. Chosen: 250 ns, a microcode assist.
    pebs_record_ns alias "sample_cost_ns";
    /// Every read or write of a register of the PMU, RDPMC included: a VM exit and its
    /// handling. Chosen: 700 ns, between 400 ns (W. Wang, KVM list, November 2018) and an
    /// exit of 3,000 to 4,000 cycles (Linux commit b0b6a8d3be16); 30 on bare metal, or
    /// where the host passes the PMU through. `docs/spec/pmu.md` has more on it.
    pmu_msr_ns;
    /// Every read or write of a register of AMD's IBS. Chosen: 30 ns, about 100 cycles:
    /// Zen 4 hosts can leave these registers to a guest.
    ibs_msr_ns;
    /// A performance-monitoring interrupt, on top of `interrupt_ns` and of the registers
    /// that its handler reads and writes. Chosen: 400 ns, what a hypervisor needs to put it
    /// into a guest.
    pmi_ns;
    /// An exception, from the fault to the first instruction of its handler, and the
    /// IRET back. 715 + 330 cycles on Haswell (Torvalds, 30 April 2014), at 3.3 GHz.
    exception_ns;
    /// The same for an interrupt, NMI or IPI. Chosen: as an exception; the guest is
    /// taken to have posted interrupts, so that none exits to the hypervisor.
    interrupt_ns;
    /// INVLPG. 350 cycles a page on Skylake (D. Hansen, linux-mm, November 2017), at
    /// 3.3 GHz; 140 ns assumed for Sandy Bridge (A. Shi, LKML, May 2012).
    invlpg_ns;
    /// Whatever flushes global translations too: INVPCID, a write of CR4. Chosen: as INVLPG.
    full_flush_ns;
    /// A write of CR3, the flush it causes not included: that costs walks later on.
    /// "On the order of a hundred cycles" (Linux, Documentation/arch/x86/pti.rst).
    cr3_write_ns;
    /// `pause`. 140 cycles since Skylake (Intel optimization manual) at 3.3 GHz.
    pause_ns;
    /// Charged time after which timers are looked at again. Chosen: 20 µs;
    /// a timer fires late by at most this much.
    timer_slack_ns;
}

impl MachineConfig {
    /// The parameters of a preset.
    #[must_use]
    pub const fn preset(preset: Preset) -> Self {
        let (smem_latency_ps, smem_bandwidth_bytes_per_s) = match preset {
            Preset::Pmem => (176_600, 7_450_000_000),
            Preset::Cxl => (121_900, 17_000_000_000),
        };
        Self {
            preset,
            fmem_latency_ps: 68_700,
            smem_latency_ps,
            remote_latency_ps: 75_600,
            fmem_bandwidth_bytes_per_s: 25_600_000_000,
            smem_bandwidth_bytes_per_s,
            llc_bytes: 2 << 20,
            llc_hit_ps: 20_000,
            l2_bytes: 256 << 10,
            l2_hit_ps: 4_200,
            insn_ps: 300,
            stlb_hit_ps: 2_100,
            walk_start_ps: 3_000,
            pml4e_cache_entries: 4,
            pdpte_cache_entries: 4,
            pde_cache_entries: 32,
            nested: 1,
            ept_2m: 1,
            nested_tlb_entries: 16,
            stream_overlap: 16,
            pebs_record_ns: 250,
            pmu_msr_ns: 700,
            ibs_msr_ns: 30,
            pmi_ns: 400,
            exception_ns: 317,
            interrupt_ns: 317,
            invlpg_ns: 106,
            full_flush_ns: 106,
            cr3_write_ns: 30,
            pause_ns: 42,
            timer_slack_ns: 20_000,
        }
    }

    /// Checks every parameter; the model's constructors rely on it.
    ///
    /// # Errors
    /// The first parameter out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let check = |ok: bool, field, value, reason| {
            if ok {
                Ok(())
            } else {
                Err(ConfigError::Value {
                    field,
                    value,
                    reason,
                })
            }
        };
        // One second: no latency of a memory comes near it, and sums stay far from overflow.
        const MAX_PS: u64 = 1_000_000_000_000;
        for (field, value) in [
            ("fmem_latency_ps", self.fmem_latency_ps),
            ("smem_latency_ps", self.smem_latency_ps),
            ("remote_latency_ps", self.remote_latency_ps),
            ("stlb_hit_ps", self.stlb_hit_ps),
            ("walk_start_ps", self.walk_start_ps),
        ] {
            check(value <= MAX_PS, field, value, "larger than a second")?;
        }
        for (field, value) in [
            ("pebs_record_ns", self.pebs_record_ns),
            ("pmu_msr_ns", self.pmu_msr_ns),
            ("ibs_msr_ns", self.ibs_msr_ns),
            ("pmi_ns", self.pmi_ns),
            ("exception_ns", self.exception_ns),
            ("interrupt_ns", self.interrupt_ns),
            ("invlpg_ns", self.invlpg_ns),
            ("full_flush_ns", self.full_flush_ns),
            ("cr3_write_ns", self.cr3_write_ns),
            ("pause_ns", self.pause_ns),
        ] {
            check(value <= MAX_PS / 1000, field, value, "larger than a second")?;
        }
        for (field, value) in [
            ("pml4e_cache_entries", self.pml4e_cache_entries),
            ("pdpte_cache_entries", self.pdpte_cache_entries),
            ("pde_cache_entries", self.pde_cache_entries),
            ("nested_tlb_entries", self.nested_tlb_entries),
        ] {
            check(
                value.is_power_of_two() && (4..=4096).contains(&value),
                field,
                value,
                "not a power of two between 4 and 4096",
            )?;
        }
        for (field, value) in [("nested", self.nested), ("ept_2m", self.ept_2m)] {
            check(value <= 1, field, value, "neither 0 nor 1")?;
        }
        for (field, value) in [
            ("llc_hit_ps", self.llc_hit_ps),
            ("l2_hit_ps", self.l2_hit_ps),
        ] {
            check(
                value <= CACHE_HIT_BOUND_PS,
                field,
                value,
                "a cache hit costs at most 53600 ps (the paper's bound)",
            )?;
        }
        for (field, value) in [
            (
                "fmem_bandwidth_bytes_per_s",
                self.fmem_bandwidth_bytes_per_s,
            ),
            (
                "smem_bandwidth_bytes_per_s",
                self.smem_bandwidth_bytes_per_s,
            ),
        ] {
            check(value >= 1_000_000, field, value, "less than 1 MB/s")?;
        }
        for (field, value, ways) in [
            ("llc_bytes", self.llc_bytes, 16),
            ("l2_bytes", self.l2_bytes, 8),
        ] {
            check(
                value.is_power_of_two() && value >= 64 * ways && value <= 1 << 30,
                field,
                value,
                "not a power of two between one set and 1 GiB",
            )?;
        }
        // Above 1000 an instruction would take longer than the nanosecond QEMU
        // budgets for it, and timers would fire late.
        check(
            (1..=1000).contains(&self.insn_ps),
            "insn_ps",
            self.insn_ps,
            "not between 1 and 1000",
        )?;
        check(
            (1..=1024).contains(&self.stream_overlap),
            "stream_overlap",
            self.stream_overlap,
            "not between 1 and 1024",
        )?;
        check(
            (1..=1_000_000_000).contains(&self.timer_slack_ns),
            "timer_slack_ns",
            self.timer_slack_ns,
            "not between 1 ns and 1 s",
        )
    }
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self::preset(Preset::default())
    }
}

/// One memory node of the guest, backed by a shared file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The file QEMU maps with `share=on`.
    pub path: PathBuf,
    /// Its size, a multiple of 2 MiB.
    pub size_bytes: u64,
}

/// What a guest's clock says in the file of [`StepConfig`] when it has ended.
pub const STEP_ENDED: u64 = u64::MAX;
/// Set in the word of a guest that has left its pool by itself; the rest says after how many
/// meetings.
pub const POOL_LEFT: u64 = 1 << 63;

/// Guests whose clocks are kept in step, or that meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepConfig {
    /// File of 64-bit words, one a guest and what the plugin needs behind them, zero at first.
    pub path: PathBuf,
    /// Which of them this guest is.
    pub index: usize,
    /// How many there are.
    pub guests: usize,
    /// Modelled time that one may be ahead of another, or between two meetings.
    pub window_ns: u64,
}

/// The plugin's configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginConfig {
    /// File behind the model's BAR (1 MiB, `share=on`).
    pub bar: PathBuf,
    /// FMEM (node 0) and SMEM (node 1), in this order.
    pub nodes: Vec<NodeConfig>,
    /// FMEM and SMEM of each socket, in bytes that add up to those of `nodes`, where
    /// there are several sockets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<[u64; 2]>,
    /// Time series written by the plugin, one [`crate::series::SeriesRow`] a line.
    pub series: PathBuf,
    /// Summary written by the plugin, a [`crate::series::Summary`].
    pub summary: PathBuf,
    /// Guest time between two `tick` rows.
    #[serde(default = "default_series_interval_ns")]
    pub series_interval_ns: u64,
    /// The machine to model.
    #[serde(default)]
    pub machine: MachineConfig,
    /// The PMU of every vCPU.
    #[serde(default)]
    pub pmu: Kind,
    /// Other guests to keep in step with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepConfig>,
    /// A hypervisor that places the guest's pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<HypervisorConfig>,
    /// Other guests that share its FMEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<StepConfig>,
    /// Line fills to follow by page.
    #[serde(default, skip_serializing_if = "WatchConfig::is_empty")]
    pub watch: WatchConfig,
}

const fn default_series_interval_ns() -> u64 {
    100_000_000
}

impl PluginConfig {
    /// Checks the whole configuration.
    ///
    /// # Errors
    /// The first thing wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.nodes.len() != 2 {
            return Err(ConfigError::Nodes(self.nodes.len()));
        }
        for node in &self.nodes {
            if node.size_bytes == 0 || node.size_bytes % (2 << 20) != 0 || node.size_bytes > 1 << 40
            {
                return Err(ConfigError::Value {
                    field: "size_bytes",
                    value: node.size_bytes,
                    reason: "not a multiple of 2 MiB up to 1 TiB",
                });
            }
        }
        for (tier, node) in self.nodes.iter().enumerate() {
            let sum = (self.sockets.iter()).try_fold(0_u64, |sum, of| sum.checked_add(of[tier]));
            if !self.sockets.is_empty() && sum != Some(node.size_bytes) {
                return Err(ConfigError::Value {
                    field: "sockets",
                    value: sum.unwrap_or(u64::MAX),
                    reason: "not the size of the tier",
                });
            }
        }
        if self.series_interval_ns < 1_000 {
            return Err(ConfigError::Value {
                field: "series_interval_ns",
                value: self.series_interval_ns,
                reason: "less than a microsecond",
            });
        }
        for step in self.step.iter().chain(&self.pool) {
            if step.guests == 0 || step.guests > 64 || step.index >= step.guests {
                return Err(ConfigError::Value {
                    field: "index",
                    value: step.index as u64,
                    reason: "not below the number of guests, of which there are 1 to 64",
                });
            }
            if step.window_ns == 0 {
                return Err(ConfigError::Value {
                    field: "window_ns",
                    value: 0,
                    reason: "guests cannot always be at one time",
                });
            }
        }
        if self.pool.is_some() && self.hypervisor.is_none() {
            return Err(ConfigError::Value {
                field: "pool",
                value: 1,
                reason: "without a hypervisor that places pages there is none",
            });
        }
        if let Some(hypervisor) = &self.hypervisor {
            hypervisor.validate()?;
            hypervisor.fits(&self.machine)?;
        }
        if let Some((_, heat)) = &self.watch.heat
            && (!heat.granule_bytes.is_power_of_two()
                || !(4096..=1 << 30).contains(&heat.granule_bytes))
        {
            return Err(ConfigError::Value {
                field: "granule_bytes",
                value: heat.granule_bytes,
                reason: "not a power of two from 4096 to 1 GiB",
            });
        }
        self.machine.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preset_and_override() {
        let config: MachineConfig = serde_json::from_str(
            r#"{"preset":"cxl","llc_bytes":4194304,"fmem_bandwidth":1000000000}"#,
        )
        .unwrap();
        assert_eq!(config.smem_latency_ps, 121_900);
        assert_eq!(config.llc_bytes, 4 << 20);
        assert_eq!(config.fmem_bandwidth_bytes_per_s, 1_000_000_000);
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn round_trip_keeps_every_parameter() {
        let mut config = MachineConfig::preset(Preset::Cxl);
        config.walk_start_ps = 1;
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(
            serde_json::from_str::<MachineConfig>(&text).unwrap(),
            config
        );
    }

    #[test]
    fn unknown_parameter_is_refused() {
        assert!(serde_json::from_str::<MachineConfig>(r#"{"llc_byte":1}"#).is_err());
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (text, field) in [
            (r#"{"llc_bytes":3000000}"#, "llc_bytes"),
            (r#"{"llc_hit_ps":60000}"#, "llc_hit_ps"),
            (r#"{"insn_ps":0}"#, "insn_ps"),
            (r#"{"stream_overlap":0}"#, "stream_overlap"),
            (r#"{"fmem_bandwidth":0}"#, "fmem_bandwidth_bytes_per_s"),
            (r#"{"pde_cache_entries":24}"#, "pde_cache_entries"),
            (r#"{"nested":2}"#, "nested"),
            (r#"{"sample_cost_ns":2000000000}"#, "pebs_record_ns"),
        ] {
            let config: MachineConfig = serde_json::from_str(text).unwrap();
            match config.validate() {
                Err(ConfigError::Value { field: found, .. }) => assert_eq!(found, field),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn plugin_config_as_in_the_contract() {
        let text = r#"{"bar":"/b","nodes":[{"path":"/f","size_bytes":134217728},{"path":"/s","size_bytes":536870912}],
            "series":"/s.jsonl","summary":"/s.json","machine":{"preset":"pmem"}}"#;
        let config: PluginConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config.series_interval_ns, 100_000_000);
        assert_eq!(config.validate(), Ok(()));
        let of = |sockets| PluginConfig {
            sockets,
            ..config.clone()
        };
        assert_eq!(of(vec![[64 << 20, 256 << 20]; 2]).validate(), Ok(()));
        assert!(of(vec![[64 << 20, 256 << 20]]).validate().is_err());
        assert!(of(vec![[u64::MAX, 0]; 2]).validate().is_err());
    }
}
