// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TPP in the hypervisor: `crates/machine/src/hypervisor/tpp.rs` does it. Three rows: the cost of
//! looking who was accessed depends on the version of KVM, everything on the host's pages.

use demeter_machine::HypervisorConfig;

use super::{By, Knob, Policy, hypervisor_knobs};

/// TPP on the address space of the virtual machine monitor.
pub struct TppH {
    row: &'static str,
    about: &'static str,
    ageing_flush: u64,
    host_page_kib: u64,
}

/// With KVM before 6.13, as published.
pub static TPP_H: TppH = TppH {
    row: "tpp-h",
    about: "TPP in the hypervisor, below a guest of one node: a whole TLB flush for each young page",
    ageing_flush: 1,
    host_page_kib: 4,
};

/// With KVM since 6.13.
pub static TPP_H_NOFLUSH: TppH = TppH {
    row: "tpp-h-noflush",
    about: "The same where KVM does not flush for what it finds young (6.13 and newer)",
    ageing_flush: 0,
    host_page_kib: 4,
};

/// On a host of huge pages.
pub static TPP_H_2M: TppH = TppH {
    row: "tpp-h-2m",
    about: "The same as tpp-h on a host of huge pages, which move whole",
    ageing_flush: 1,
    host_page_kib: 2048,
};

impl Policy for TppH {
    fn row(&self) -> &'static str {
        self.row
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn by(&self) -> By {
        By::Hypervisor(Box::new(HypervisorConfig {
            ageing_flush: self.ageing_flush,
            host_page_kib: self.host_page_kib,
            ..HypervisorConfig::default()
        }))
    }

    fn knobs(&self) -> Vec<Knob> {
        hypervisor_knobs(&HypervisorConfig::default())
    }
}
