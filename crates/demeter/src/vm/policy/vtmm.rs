// SPDX-License-Identifier: Apache-2.0 OR MIT
//! After vTMM: `crates/machine/src/hypervisor/vtmm.rs` does it.

use demeter_machine::HypervisorConfig;
use demeter_machine::hypervisor::Manager;

use super::{By, Knob, Policy, hypervisor_knobs};

/// A hypervisor that is told which page tables of the guest's are in use.
pub struct Vtmm;

/// Sha et al., EuroSys 2023; "after", as its intervals and weights are not known to us.
pub static VTMM: Vtmm = Vtmm;

fn config() -> HypervisorConfig {
    HypervisorConfig {
        manager: Manager::Vtmm,
        ..HypervisorConfig::default()
    }
}

impl Policy for Vtmm {
    fn row(&self) -> &'static str {
        "vtmm"
    }

    fn about(&self) -> &'static str {
        "After vTMM: the hypervisor logs which page tables are in use, sorts pages by temperature"
    }

    fn by(&self) -> By {
        By::Hypervisor(Box::new(config()))
    }

    fn knobs(&self) -> Vec<Knob> {
        hypervisor_knobs(&config())
    }
}
