// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hypervisors that read bits of their table: `crates/machine/src/hypervisor/abit.rs` does it.

use demeter_machine::HypervisorConfig;
use demeter_machine::hypervisor::Manager;

use super::{By, Knob, Policy, hypervisor_knobs};

/// A hypervisor that reads a bit of each page at intervals.
pub struct Abit {
    row: &'static str,
    about: &'static str,
    dirty_bit: u64,
    by_frequency: u64,
    exchange: u64,
    trap_table_writes: u64,
}

/// Hirofuchi and Takano, SoCC 2016.
pub static RAMINATE: Abit = Abit {
    row: "raminate",
    about: "RAMinate: the hypervisor has what is written most often and what is least change places",
    dirty_bit: 1,
    by_frequency: 1,
    exchange: 1,
    trap_table_writes: 0,
};

/// HeteroVisor and HeteroOS (Kannan et al., ISCA 2017), as far as the Demeter paper tells.
pub static HETEROOS: Abit = Abit {
    row: "heteroos",
    about: "After HeteroVisor and HeteroOS: accessed bits and recency; each write to a page table exits",
    dirty_bit: 0,
    by_frequency: 0,
    exchange: 0,
    trap_table_writes: 1,
};

impl Abit {
    fn config(&self) -> HypervisorConfig {
        HypervisorConfig {
            manager: Manager::Abit,
            dirty_bit: self.dirty_bit,
            by_frequency: self.by_frequency,
            exchange: self.exchange,
            trap_table_writes: self.trap_table_writes,
            ..HypervisorConfig::default()
        }
    }
}

impl Policy for Abit {
    fn row(&self) -> &'static str {
        self.row
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn by(&self) -> By {
        By::Hypervisor(Box::new(self.config()))
    }

    fn knobs(&self) -> Vec<Knob> {
        hypervisor_knobs(&self.config())
    }
}
