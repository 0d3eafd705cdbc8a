// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layout of the model's BAR, as `uapi/demeter_model.h` defines it.

use crate::series::{Counters, GuestReport, StageNs};

/// First eight bytes of the BAR.
pub const MAGIC: u64 = 0x4c44_4d52_4554_4d44;
/// Version of the layout.
pub const VERSION: u32 = 2;
/// Size of the BAR.
pub const BAR_BYTES: usize = 1 << 20;
/// Start of the guest manager's report.
pub const GUEST_OFFSET: usize = 0x1000;
/// Start of the model's counters.
pub const COUNTERS_OFFSET: usize = 0x2000;
/// Fixed bits of the control NOP's immediate; the low byte is the operation.
pub const MAGIC_NOP: u32 = 0x5eb5_0000;

/// `struct demeter_model_header`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // names and meanings are the header's
pub struct Header {
    pub magic: u64,
    pub version: u32,
    pub nr_vcpus: u32,
    pub fmem_latency_ps: u64,
    pub smem_latency_ps: u64,
}

/// `struct demeter_model_guest`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // names and meanings are the header's
pub struct Guest {
    pub epochs: u64,
    pub stage_ns: [u64; 8],
    pub promoted_pages: u64,
    pub demoted_pages: u64,
    pub refused_pages: u64,
    pub samples: u64,
    pub lost_samples: u64,
    pub ranges: u64,
    pub splits: u64,
    pub merges: u64,
}

/// `struct demeter_model_counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // names and meanings are the header's
pub struct ModelCounters {
    pub clock_ns: u64,
    pub insn: u64,
    pub kernel_insn: u64,
    pub charged_ps: u64,
    pub fmem_loads: u64,
    pub smem_loads: u64,
    pub llc_hits: u64,
    pub stlb_hits: u64,
    pub walk_4k: u64,
    pub walk_2m: u64,
    pub tlb_single: u64,
    pub tlb_full: u64,
    pub pmu_records: u64,
    pub pmu_dropped: u64,
    pub pmu_interrupts: u64,
}

impl ModelCounters {
    /// What the guest is shown of the counters at `clock_ns` of its clock.
    #[must_use]
    pub const fn new(clock_ns: u64, counters: &Counters) -> Self {
        Self {
            clock_ns,
            insn: counters.insn,
            kernel_insn: counters.kernel_insn,
            charged_ps: counters.charged_ps,
            fmem_loads: counters.fmem_loads,
            smem_loads: counters.smem_loads,
            llc_hits: counters.llc_hits,
            stlb_hits: counters.stlb_hits,
            walk_4k: counters.walk_4k,
            walk_2m: counters.walk_2m,
            tlb_single: counters.tlb_single,
            tlb_full: counters.tlb_full,
            pmu_records: counters.samples,
            pmu_dropped: counters.samples_lost,
            pmu_interrupts: counters.pmu_interrupts,
        }
    }
}

/// Operations of the control NOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Start charging and counting.
    ModelOn,
    /// Stop.
    ModelOff,
    /// Label RDI into the time series.
    Mark,
    /// Work done so far, RDI, into the time series.
    Progress,
    /// Charge RDI nanoseconds.
    ChargeNs,
    /// RDI: the address at which the kernel switches tasks.
    TaskSwitch,
    /// RDI: where fields lie in the kernel's `task_struct`.
    TaskLayout,
}

impl Op {
    /// The operation of a NOP's immediate, if it is one of ours.
    #[must_use]
    pub const fn from_immediate(immediate: u32) -> Option<Self> {
        if immediate & !0xff != MAGIC_NOP {
            return None;
        }
        match immediate & 0xff {
            1 => Some(Self::ModelOn),
            2 => Some(Self::ModelOff),
            3 => Some(Self::Mark),
            4 => Some(Self::Progress),
            5 => Some(Self::ChargeNs),
            6 => Some(Self::TaskSwitch),
            7 => Some(Self::TaskLayout),
            _ => None,
        }
    }

    /// The immediate that stands for the operation.
    #[must_use]
    pub const fn immediate(self) -> u32 {
        MAGIC_NOP
            | match self {
                Self::ModelOn => 1,
                Self::ModelOff => 2,
                Self::Mark => 3,
                Self::Progress => 4,
                Self::ChargeNs => 5,
                Self::TaskSwitch => 6,
                Self::TaskLayout => 7,
            }
    }
}

impl From<Guest> for GuestReport {
    fn from(guest: Guest) -> Self {
        Self {
            epochs: guest.epochs,
            stage_ns: StageNs::from_guest(&guest.stage_ns),
            promoted_pages: guest.promoted_pages,
            demoted_pages: guest.demoted_pages,
            refused_pages: guest.refused_pages,
            samples: guest.samples,
            lost_samples: guest.lost_samples,
            ranges: guest.ranges,
            splits: guest.splits,
            merges: guest.merges,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    const UAPI: &str = include_str!("../../../uapi/demeter_model.h");

    fn define(name: &str) -> u64 {
        let line = UAPI
            .lines()
            .find(|line| line.split_whitespace().nth(1) == Some(name))
            .unwrap_or_else(|| panic!("{name} is not in the header"));
        let value = line
            .split_whitespace()
            .nth(2)
            .unwrap()
            .trim_end_matches(['U', 'L', 'u']);
        match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
            None => value.parse().unwrap(),
        }
    }

    /// The fields of a struct in the header, with their sizes, in order.
    fn fields(name: &str) -> Vec<(String, usize)> {
        let body = UAPI
            .split(&format!("struct {name} {{"))
            .nth(1)
            .unwrap()
            .split("};")
            .next()
            .unwrap();
        body.lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let size = match words.next()? {
                    "__u64" => 8,
                    "__u32" => 4,
                    "__u16" => 2,
                    _ => return None,
                };
                let field = words.next()?.split(';').next()?.to_owned();
                let (field, count) = match field.split_once('[') {
                    Some((field, "DEMETER_STAGES]")) => (field.to_owned(), 8),
                    Some((field, count)) => (
                        field.to_owned(),
                        count.trim_end_matches(']').parse().unwrap(),
                    ),
                    None => (field, 1),
                };
                Some((field, size * count))
            })
            .collect()
    }

    #[test]
    fn constants_are_those_of_the_header() {
        assert_eq!(define("DEMETER_MODEL_MAGIC"), MAGIC);
        assert_eq!(define("DEMETER_MODEL_VERSION"), u64::from(VERSION));
        assert_eq!(define("DEMETER_MODEL_GUEST_OFFSET"), GUEST_OFFSET as u64);
        assert_eq!(
            define("DEMETER_MODEL_COUNTERS_OFFSET"),
            COUNTERS_OFFSET as u64
        );
        assert_eq!(define("DEMETER_MAGIC_NOP"), u64::from(MAGIC_NOP));
        let words: Vec<&str> = UAPI.split_whitespace().collect();
        assert!(
            words
                .join(" ")
                .contains("DEMETER_MODEL_BAR_BYTES 0x100000u")
        );
    }

    #[test]
    fn operations_are_those_of_the_header() {
        for (name, op) in [
            ("MODEL_ON = 1", Op::ModelOn),
            ("MODEL_OFF = 2", Op::ModelOff),
            ("MARK = 3", Op::Mark),
            ("PROGRESS = 4", Op::Progress),
            ("CHARGE_NS = 5", Op::ChargeNs),
            ("TASK_SWITCH = 6", Op::TaskSwitch),
            ("TASK_LAYOUT = 7", Op::TaskLayout),
        ] {
            assert!(UAPI.contains(&format!("DEMETER_OP_{name},")), "{name}");
            let number: u32 = name.rsplit(' ').next().unwrap().parse().unwrap();
            assert_eq!(Op::from_immediate(MAGIC_NOP | number), Some(op));
            assert_eq!(op.immediate(), MAGIC_NOP | number);
        }
        assert_eq!(Op::from_immediate(MAGIC_NOP | 8), None);
        assert_eq!(Op::from_immediate(1), None);
    }

    #[test]
    fn stages_are_those_of_the_header() {
        let body = UAPI.split("enum demeter_stage {").nth(1).unwrap();
        let listed: Vec<String> = body
            .lines()
            .map_while(|line| match line.trim().strip_prefix("DEMETER_STAGE_") {
                Some(name) => Some(name.trim_end_matches(',').to_lowercase()),
                None if line.trim().is_empty() => Some(String::new()),
                None => None,
            })
            .filter(|name| !name.is_empty())
            .collect();
        let guest = Guest {
            stage_ns: [1, 2, 3, 4, 5, 6, 7, 8],
            ..Guest::default()
        };
        let stages = GuestReport::from(guest).stage_ns;
        let named: Vec<(String, u64)> = stages
            .named()
            .map(|(name, ns)| (name.to_owned(), ns))
            .collect();
        let expected: Vec<(String, u64)> = listed.into_iter().zip(1..).collect();
        assert_eq!(named, expected);
        assert_eq!(stages.total(), 28);
    }

    macro_rules! same_layout {
        ($name:literal, $type:ty, $($field:ident)*) => {
            let mut at = 0;
            let fields = fields($name);
            let ours = [$((stringify!($field), offset_of!($type, $field))),*];
            assert_eq!(fields.len(), ours.len(), $name);
            for ((name, size), (our_name, our_offset)) in fields.iter().zip(ours) {
                assert_eq!((name.as_str(), at), (our_name, our_offset), $name);
                at += size;
            }
            assert_eq!(at, size_of::<$type>(), $name);
        };
    }

    #[test]
    fn layouts_are_those_of_the_header() {
        same_layout!("demeter_model_header", Header, magic version nr_vcpus fmem_latency_ps smem_latency_ps);
        same_layout!("demeter_model_guest", Guest, epochs stage_ns promoted_pages demoted_pages refused_pages
            samples lost_samples ranges splits merges);
        same_layout!("demeter_model_counters", ModelCounters, clock_ns insn kernel_insn charged_ps fmem_loads
            smem_loads llc_hits stlb_hits walk_4k walk_2m tlb_single tlb_full pmu_records pmu_dropped
            pmu_interrupts);
    }
}
