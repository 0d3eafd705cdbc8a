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
    /// A record of the sampling unit by itself.
    pub record_ns: u64,
    /// What perf does for such a record in the program's context, of managers that take records from
    /// perf: its interrupt, the page's address, the record in the ring.
    pub perf_ns: u64,
    /// A thread of a published manager that wakes, looks, and sleeps again.
    pub wake_ns: u64,
    /// A record that it takes out of perf's ring, finds the page of, and counts.
    pub count_ns: u64,
    /// The same where that walks a page table down to a base page.
    pub count_base_ns: u64,
    /// A look at 2 MiB through the page table.
    pub look_ns: u64,
    /// And for each base page in it.
    pub look_base_ns: u64,
    /// Migrating a base page either way, as published managers do.
    pub migrate_ns: u64,
    /// Migrating a base page's worth of a huge one.
    pub migrate_huge_ns: u64,
    /// A look at whether a huge page of a list was accessed.
    pub age_huge_ns: u64,
    /// And whether a base page was.
    pub age_ns: u64,
    /// Pages taken off their list that find no room.
    pub refused_ns: u64,
}

impl Costs {
    /// As live guests of the testbed have them on the mean (`stage_ns` of `summary.json`
    /// by pages moved, runs of `lab`'s search of parameters with and without huge pages),
    /// with this machine's cost of a record. Of collapsing, a guess: no such run had any.
    /// What follows `epoch_ns` is of
    /// runs of GUPS under `hemem`, `memtis` and `nimble`, by their threads' time; `perf_ns` by the
    /// kernel's time that is not theirs, less what it is without a manager, by record: 530 to 594 ns in
    /// four guests under `memtis`.
    #[must_use]
    pub const fn testbed(machine: &MachineConfig) -> Self {
        Self {
            swap_ns: 6_850,
            swap_huge_ns: 3_800,
            move_ns: 2_950,
            collapse_ns: 1_500,
            sample_ns: machine.pebs_record_ns + 60,
            epoch_ns: 40_000,
            record_ns: machine.pebs_record_ns,
            perf_ns: 570,
            wake_ns: 12_000,
            count_ns: 440,
            count_base_ns: 1_000,
            look_ns: 880,
            look_base_ns: 46,
            migrate_ns: 5_400,
            migrate_huge_ns: 3_200,
            age_huge_ns: 5_300,
            age_ns: 670,
            refused_ns: 4_350,
        }
    }
}
