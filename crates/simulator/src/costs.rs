// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What managing costs the guest.

use demeter_machine::MachineConfig;

/// Times of the module's work, which the simulator has no kernel to take them from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Exchanging two base pages.
    pub swap_ns: u64,
    /// Exchanging two base pages' worth of huge ones.
    pub swap_huge_ns: u64,
    /// Moving a base page into free FMEM.
    pub move_ns: u64,
    /// Making a huge page of base pages before, for each of them.
    pub collapse_ns: u64,
    /// A record of the sampling unit, from microcode to the worker.
    pub sample_ns: u64,
    /// An epoch of the worker, without moving.
    pub epoch_ns: u64,
}

impl Costs {
    /// As live guests of the testbed have them on the mean (`stage_ns` of `summary.json`
    /// by pages moved, runs of `lab`'s search of parameters with and without huge pages),
    /// with this machine's cost of a record. Of collapsing, a guess: no such run had any.
    #[must_use]
    pub const fn testbed(machine: &MachineConfig) -> Self {
        Self {
            swap_ns: 6_850,
            swap_huge_ns: 3_800,
            move_ns: 2_950,
            collapse_ns: 1_500,
            sample_ns: machine.pebs_record_ns + 60,
            epoch_ns: 40_000,
        }
    }
}
