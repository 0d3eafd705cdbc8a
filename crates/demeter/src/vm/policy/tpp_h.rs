// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TPP in the hypervisor: `crates/machine/src/hypervisor/` does it. Two rows, as the cost of
//! looking who was accessed depends on the version of KVM.

use demeter_machine::HypervisorConfig;

use super::{By, Knob, Place, Policy};

/// TPP on the address space of the virtual machine monitor.
pub struct TppH {
    row: &'static str,
    about: &'static str,
    ageing_flush: u64,
}

/// With KVM before 6.13, as published.
pub static TPP_H: TppH = TppH {
    row: "tpp-h",
    about: "TPP in the hypervisor, below a guest of one node: a whole TLB flush for each young page",
    ageing_flush: 1,
};

/// With KVM since 6.13.
pub static TPP_H_NOFLUSH: TppH = TppH {
    row: "tpp-h-noflush",
    about: "The same where KVM does not flush for what it finds young (6.13 and newer)",
    ageing_flush: 0,
};

impl Policy for TppH {
    fn row(&self) -> &'static str {
        self.row
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn by(&self) -> By {
        By::Hypervisor(HypervisorConfig {
            ageing_flush: self.ageing_flush,
            ..HypervisorConfig::default()
        })
    }

    fn knobs(&self) -> Vec<Knob> {
        let names = HypervisorConfig::NAMES.iter();
        names
            .map(|name| Knob::unset(name, Place::Hypervisor))
            .collect()
    }
}
