// SPDX-License-Identifier: GPL-2.0-or-later
//! What the observer does for a hypervisor that places the guest's pages.

use demeter_machine::hypervisor::{GuestMemory, GuestTable};

use super::{GuestWalker, Meeting, Observer};
use crate::ram::Ram;

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

/// The guest's page tables, to a host that reads them.
struct Tables<'a> {
    ram: &'a Ram,
    /// A table in use.
    cr3: u64,
}

impl GuestMemory for Tables<'_> {
    fn take_accessed(&self, at: &GuestTable, each: &mut dyn FnMut(u64, u64)) -> bool {
        self.ram.same_kernel(at.root, self.cr3)
            && self.ram.take_accessed(at.root, at.va, at.table, each)
    }
}

impl Observer {
    /// Whether the hypervisor is to be told of stores.
    pub fn follows_stores(&self) -> bool {
        let hypervisor = self.machine.hypervisor.as_ref();
        hypervisor.is_some_and(|hypervisor| hypervisor.follows_stores())
    }

    /// A store by the instruction at `ip`, which has been looked up as an access.
    pub fn store(&mut self, vcpu: usize, info: u32, va: u64, ip: u64) {
        if !self.on {
            return;
        }
        let (Some(cpu), Some(started)) = (self.vcpus.get_mut(vcpu), &mut self.started) else {
            return;
        };
        let mut walker = GuestWalker {
            ram: &self.ram,
            api: &self.api,
            cr3: cpu.cr3,
            info,
        };
        let ps = self.machine.store(vcpu, va, ip >> 63 == 0, &mut walker);
        started.clock.charge(ps, cpu.handle);
    }

    /// A vCPU goes on, if it had halted.
    pub(super) fn wake(&mut self, vcpu: usize) {
        if self.machine.hypervisor.is_none() {
            return;
        }
        let ps = self.machine.wake(vcpu);
        if let (Some(started), Some(own)) = (&mut self.started, self.vcpus.get(vcpu)) {
            started.clock.charge(ps, own.handle);
        }
    }

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

    /// Holds the meetings of guests that share FMEM that are due. Also while a guest slept the host's
    /// threads went on, and what they freed is there for the others.
    pub(super) fn meet(&mut self, vcpu: usize, now_ns: u64) {
        while let Some(due_ns) = (self.meeting.as_ref()).and_then(|seat| seat.due_ns(now_ns)) {
            // Who ran was asked before the next was due.
            let slept = due_ns + self.meeting_ns() <= now_ns;
            self.run_hypervisor(vcpu, due_ns, slept);
            if let (Some(seat), Some(hypervisor)) =
                (&mut self.meeting, &mut self.machine.hypervisor)
                && let Err(error) = seat.hold(hypervisor)
            {
                crate::fatal(&error, error.next());
            }
        }
    }

    fn meeting_ns(&self) -> u64 {
        self.meeting.as_ref().map_or(0, Meeting::distance_ns)
    }

    /// The host's threads catch up with the guest, which `slept` or ran until then.
    pub(super) fn run_hypervisor(&mut self, vcpu: usize, now_ns: u64, slept: bool) {
        if self.machine.hypervisor.is_none() {
            return;
        }
        let Some(own) = self.vcpus.get(vcpu) else {
            return;
        };
        let tables = Tables {
            ram: &self.ram,
            cr3: own.cr3,
        };
        let ps = self.machine.run_hypervisor(vcpu, now_ns, slept, &tables);
        if let Some(started) = &mut self.started {
            // Outside the guest: none of its counters of events moves.
            started.clock.charge(ps, own.handle);
        }
    }
}
