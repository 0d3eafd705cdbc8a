// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of rows whose pages a hypervisor places: what it did beside the guest, whose
//! own flushes and times are in the table.

use demeter_machine::HypervisorCounters;
use serde::Serialize;

/// What the hypervisor did during a part of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct HostPhase {
    /// Whole TLB flushes asked for by scans, by ageing, by moving pages.
    pub flushes_asked: [u64; 3],
    /// Whole flushes that vCPUs carried out.
    pub flushes_done: u64,
    /// Accesses to pages that its table did not map.
    pub violations: u64,
    /// The part of them that told which pages of SMEM are used.
    pub hint_faults: u64,
    /// Exits for full logs, and for writes to the guest's page tables.
    pub tracking_exits: [u64; 2],
    /// Lines of FMEM and SMEM that stores made dirty in the L1, where they are followed.
    pub store_lines: [u64; 2],
    /// Time of the host's own threads.
    pub host_s: f64,
    /// The part of it that the guest paid.
    pub stolen_s: f64,
    /// What the guest waited for: violations, promotions, flushes.
    pub waited_s: f64,
}

impl HostPhase {
    /// Between two readings.
    pub fn new(before: &HypervisorCounters, after: &HypervisorCounters) -> Self {
        let delta =
            |field: fn(&HypervisorCounters) -> u64| field(after).saturating_sub(field(before));
        let seconds = |field| delta(field) as f64 * 1e-12;
        Self {
            flushes_asked: [
                delta(|of| of.flush_scan),
                delta(|of| of.flush_ageing),
                delta(|of| of.flush_move),
            ],
            flushes_done: delta(|of| of.invept),
            violations: delta(|of| of.violations),
            hint_faults: delta(|of| of.hint_faults),
            tracking_exits: [delta(|of| of.log_exits), delta(|of| of.table_write_exits)],
            store_lines: [
                delta(|of| of.fmem_store_lines),
                delta(|of| of.smem_store_lines),
            ],
            host_s: seconds(|of| {
                of.host_scan_ps + of.host_ageing_ps + of.host_demotion_ps + of.host_promotion_ps
            }),
            stolen_s: seconds(|of| of.stolen_ps),
            waited_s: seconds(|of| of.violation_ps + of.invept_ps),
        }
    }
}

/// A line for each row that has a hypervisor, with what that did.
pub fn render<'a>(rows: impl IntoIterator<Item = (&'a str, HostPhase)>) -> String {
    let line = |(row, of): (&str, HostPhase)| {
        let [scans, ageing, moves] = of.flushes_asked;
        let exits = match of.tracking_exits {
            [0, 0] => String::new(),
            [logs, writes] => {
                format!("{logs} exits for full logs, {writes} for writes to page tables; ")
            }
        };
        let stores = match of.store_lines {
            [0, 0] => String::new(),
            [fmem, smem] => format!("; stores dirtied {fmem} lines of FMEM, {smem} of SMEM"),
        };
        format!(
            "hypervisor of {}: {} whole TLB flushes asked for ({scans} by scans, {ageing} by ageing, \
             {moves} by moving pages), {} carried out; {} violations, {} hint faults; {exits}\
             the guest waited {:.3} s and paid {:.3} of {:.3} s of the host's threads{stores}\n",
            row,
            of.flushes_asked.iter().sum::<u64>(),
            of.flushes_done,
            of.violations,
            of.hint_faults,
            of.waited_s,
            of.stolen_s,
            of.host_s,
        )
    };
    rows.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_what_came_between() {
        let before = HypervisorCounters {
            flush_scan: 1,
            invept: 5,
            ..HypervisorCounters::default()
        };
        let after = HypervisorCounters {
            flush_scan: 3,
            flush_ageing: 4,
            invept: 9,
            host_ageing_ps: 2_000_000_000_000,
            stolen_ps: 1_000_000_000_000,
            invept_ps: 500_000_000_000,
            ..before
        };
        let phase = HostPhase::new(&before, &after);
        assert_eq!(phase.flushes_asked, [2, 4, 0]);
        assert_eq!(phase.flushes_done, 4);
        assert_eq!(
            (phase.host_s, phase.stolen_s, phase.waited_s),
            (2.0, 1.0, 0.5)
        );
        let text = render([("tpp-h", phase)]);
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains("6 whole TLB flushes asked for"), "{text}");
        assert!(
            !text.contains("exits") && !text.contains("stores"),
            "{text}"
        );
        let after = HypervisorCounters {
            log_exits: 7,
            smem_store_lines: 8,
            host_promotion_ps: 3_000_000_000_000,
            ..HypervisorCounters::default()
        };
        let phase = HostPhase::new(&HypervisorCounters::default(), &after);
        assert_eq!((phase.host_s, phase.store_lines), (3.0, [0, 8]));
        let text = render([("vtmm", phase)]);
        assert!(text.contains("7 exits for full logs"), "{text}");
        assert!(text.contains("8 of SMEM"), "{text}");
    }
}
