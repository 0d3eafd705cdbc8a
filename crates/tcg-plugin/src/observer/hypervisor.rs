// SPDX-License-Identifier: GPL-2.0-or-later
//! What the observer does for a hypervisor that places the guest's pages.

use super::Observer;

/// Address spaces told apart; later ones are met by their first modelled accesses.
const MAX_ROOTS: usize = 1 << 12;

/// Page tables that were in use before the model was on, in the order of their appearance.
#[derive(Debug, Default)]
pub struct Residents {
    roots: Vec<u64>,
    placed: bool,
}

impl Residents {
    /// A vCPU has loaded the table at `root`.
    pub fn seen(&mut self, root: u64) {
        if !self.placed && self.roots.len() < MAX_ROOTS && !self.roots.contains(&root) {
            self.roots.push(root);
        }
    }
}

impl Observer {
    /// The model is switched on. At first, what processes touched before is placed as a
    /// host would have done then: in the order in which they came, by address.
    pub(super) fn resume_hypervisor(&mut self, vcpu: usize, now_ns: u64) {
        let (Some(hypervisor), Some(residents)) =
            (&mut self.machine.hypervisor, &mut self.residents)
        else {
            return;
        };
        hypervisor.resume(now_ns);
        let Some(own) = self.vcpus.get(vcpu) else {
            return;
        };
        residents.seen(own.cr3);
        residents.placed = true;
        let mut first = true;
        for root in std::mem::take(&mut residents.roots) {
            if !self.ram.same_kernel(root, own.cr3) {
                continue;
            }
            let mut any = false;
            self.ram.resident_pages(root, |pa| {
                any = true;
                // Process 1 is the agent. Guests with a manager of their own have it in FMEM
                // beyond what COMMAND finds.
                if !first {
                    hypervisor.resident(pa);
                }
            });
            first &= !any;
        }
    }

    /// The host's threads catch up with the guest.
    pub(super) fn run_hypervisor(&mut self, vcpu: usize, now_ns: u64) {
        if self.machine.hypervisor.is_none() {
            return;
        }
        let ps = self.machine.run_hypervisor(vcpu, now_ns);
        if let (Some(started), Some(own)) = (&mut self.started, self.vcpus.get(vcpu)) {
            // Outside the guest: none of its counters of events moves.
            started.clock.charge(ps, own.handle);
        }
    }
}
