// SPDX-License-Identifier: GPL-2.0-or-later
//! The modelled PMU of a vCPU inside QEMU: what the unit of
//! [`demeter_machine::pmu`] needs of the machine around it, and when it must be
//! told what passed.
//!
//! Accesses are told one by one while the unit watches them. Instructions and
//! time are told when somebody looks at the unit, and at the latest when a
//! counter is about to overflow or an op to be tagged: blocks of code count
//! their instructions towards that deadline ([`DEADLINE`]) and call when it is
//! reached. Only while the model is on: otherwise the unit stands still.
//!
//! An interrupt is an NMI, raised between two blocks of code as QEMU's own
//! devices would; the unit's side of the APIC is the local vector table's
//! performance entry and, for IBS, the extended table, which QEMU does not have
//! (see [`crate::pmu_hooks`]).

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use demeter_machine::pmu::{Counts, Deadline, Kind, Observed, Passed, Port, Unit};
use demeter_machine::{MachineConfig, Preset};

use crate::clock::Clock;
use crate::qemu::Api;
use crate::ram::Ram;

/// The word that blocks of code count in has this value when a deadline is reached.
pub const DEADLINE: u64 = 1 << 62;
/// Time that is less than this away is not halved any more: the next block tells.
const SOON_PS: u64 = 32_000;

/// `CPU_INTERRUPT_NMI`.
const INTERRUPT_NMI: i32 = 0x200;
/// Physical address of the APIC's performance entry in its local vector table.
const APIC_LVTPC: u64 = 0xfee0_0340;
const LVT_MASKED: u32 = 1 << 16;
const LVT_MODE_SHIFT: u32 = 8;
const LVT_MODE_NMI: u32 = 4;

/// An interrupt that is on its way; lives as long as the process.
#[derive(Debug, Default)]
struct Line {
    pending: AtomicBool,
}

/// Between two blocks of code, with QEMU's big lock held.
extern "C" fn raise(cpu: *mut c_void, line: *mut c_void) {
    // SAFETY: `line` is the leaked one passed to `async_run_on_cpu`.
    let line = unsafe { &*line.cast::<Line>() };
    line.pending.store(false, Relaxed);
    if let Some(api) = crate::clock::api() {
        // SAFETY: QEMU passes the vCPU that the work was queued for.
        unsafe { (api.cpu_interrupt)(cpu, INTERRUPT_NMI) };
    }
}

/// What is around a unit while its vCPU runs.
pub struct Around<'a> {
    /// QEMU's functions.
    pub api: &'a Api,
    /// Guest memory.
    pub ram: &'a Ram,
    /// The guest clock.
    pub clock: &'a Clock,
    /// The vCPU.
    pub handle: *mut c_void,
    /// Its page table.
    pub cr3: u64,
}

/// The PMU of one vCPU.
pub struct Pmu {
    unit: Unit,
    line: &'static Line,
    /// The extended local vector table.
    extended: [u32; 4],
    /// Charged to the vCPU so far, for user and kernel code.
    charged_ps: [u64; 2],
    /// What the unit has been told: instructions and charges.
    told_insn: [u64; 2],
    told_ps: [u64; 2],
    /// Charges at which the unit is told at the latest.
    due_ps: u64,
    /// What has been paid for.
    paid: Counts,
    /// Accesses to registers that have not been paid for.
    register_accesses: u64,
}

struct QemuPort<'a> {
    around: &'a Around<'a>,
    line: &'static Line,
    extended: &'a [u32; 4],
}

impl QemuPort<'_> {
    fn nmi(&self) {
        if !self.line.pending.swap(true, Relaxed) {
            let line = std::ptr::from_ref(self.line).cast_mut().cast();
            // SAFETY: a vCPU of QEMU's, which runs the work before its next block of code.
            unsafe { (self.around.api.async_run_on_cpu)(self.around.handle, raise, line) };
        }
    }
}

impl Port for QemuPort<'_> {
    fn read(&mut self, va: u64, words: &mut [u64]) -> bool {
        self.around.ram.read_virtual(self.around.cr3, va, words)
    }

    fn write(&mut self, va: u64, words: &[u64]) -> bool {
        self.around.ram.write_virtual(self.around.cr3, va, words)
    }

    fn tsc(&mut self) -> u64 {
        self.around.clock.now_ns(self.around.handle)
    }

    fn counter_interrupt(&mut self) -> bool {
        let Some(entry) = self.around.api.read_device_word(APIC_LVTPC) else {
            return false;
        };
        if entry & LVT_MASKED != 0 || entry >> LVT_MODE_SHIFT & 7 != LVT_MODE_NMI {
            return false;
        }
        // The APIC masks the entry; the handler unmasks it.
        self.around
            .api
            .write_device_word(APIC_LVTPC, entry | LVT_MASKED);
        self.nmi();
        true
    }

    fn extended_interrupt(&mut self, entry: u8) -> bool {
        let open = self
            .extended
            .get(usize::from(entry))
            .is_some_and(|entry| entry & LVT_MASKED == 0);
        if open {
            self.nmi();
        }
        open
    }
}

impl Pmu {
    /// The unit after reset, in a machine whose slow memory is `smem`.
    pub fn new(kind: Kind, smem: Preset) -> Self {
        Self {
            unit: Unit::new(kind, smem),
            line: Box::leak(Box::default()),
            // Linux takes only an entry that is masked.
            extended: [LVT_MASKED; 4],
            charged_ps: [0; 2],
            told_insn: [0; 2],
            told_ps: [0; 2],
            due_ps: u64::MAX,
            paid: Counts::default(),
            register_accesses: 0,
        }
    }

    /// The unit and its port, which need different parts of us.
    fn split<'a>(&'a mut self, around: &'a Around<'a>) -> (&'a mut Unit, QemuPort<'a>) {
        let port = QemuPort {
            around,
            line: self.line,
            extended: &self.extended,
        };
        (&mut self.unit, port)
    }

    /// Whether an access of user (or kernel) code must be told.
    #[inline(always)]
    pub fn watches(&self, user: bool) -> bool {
        self.unit.watches(user)
    }

    /// Whether accesses that the L1 serves must be told too.
    pub fn watches_l1(&self) -> bool {
        self.unit.watches_l1()
    }

    /// Notes what was charged; true if the unit must be told what passed.
    #[inline(always)]
    pub fn charge(&mut self, user: bool, ps: u64) -> bool {
        self.charged_ps[usize::from(!user)] += ps;
        self.charged_ps[0] + self.charged_ps[1] >= self.due_ps
    }

    /// Tells one access; true if it made a record.
    pub fn access(&mut self, access: &Observed, around: &Around) -> bool {
        let (unit, mut port) = self.split(around);
        unit.access(access, &mut port)
    }

    /// Tells what passed until now, `insn` being the instructions so far.
    pub fn tell(&mut self, insn: [u64; 2], insn_ps: u64, ip: u64, around: &Around) {
        let executed = |side: usize| insn[side].wrapping_sub(self.told_insn[side]);
        let took_ps =
            |side: usize| executed(side) * insn_ps + self.charged_ps[side] - self.told_ps[side];
        let passed = Passed {
            insn: [0, 1].map(executed),
            ps: [0, 1].map(took_ps),
        };
        self.told_insn = insn;
        self.told_ps = self.charged_ps;
        let (unit, mut port) = self.split(around);
        unit.advance(&passed, ip, &mut port);
    }

    /// When the unit must be told next: the value for the word that blocks of code count
    /// in, or `None` for never.
    pub fn next_deadline(&mut self, insn_ps: u64) -> Option<u64> {
        let Deadline { insn, ps } = self.unit.deadline();
        // Time is instructions and charges together: neither alone may use up more than half.
        let half_ps = if ps < SOON_PS { 0 } else { ps / 2 };
        self.due_ps = if ps == u64::MAX {
            u64::MAX
        } else {
            self.charged_ps[0] + self.charged_ps[1] + half_ps
        };
        let insn = if self.unit.tag_due() || self.unit.tag_followed() {
            0
        } else if ps == u64::MAX {
            insn
        } else {
            insn.min(half_ps / insn_ps.max(1))
        };
        (insn != u64::MAX).then(|| DEADLINE - insn.min(DEADLINE))
    }

    /// A block of code begins whose instructions are at `ips`; `over` of them, from the
    /// end, are past the deadline. If an op is to be tagged, it is one of these.
    pub fn tag_in(&mut self, ips: &[u64], over: u64, user: bool) {
        if let Some(last) = ips.len().checked_sub(1).filter(|_| self.unit.tag_due()) {
            let index = last - usize::try_from(over).map_or(last, |over| over.min(last));
            self.unit.tag(ips[index], user);
        }
    }

    /// The tagged op of the block before has ended.
    pub fn settle_tag(&mut self, around: &Around) {
        let (unit, mut port) = self.split(around);
        unit.settle_tag(&mut port);
    }

    /// Whether a register is the unit's.
    pub fn has_msr(&self, msr: u32) -> bool {
        self.unit.read_msr(msr).is_some()
    }

    /// Reads a register of the unit.
    pub fn read_msr(&mut self, msr: u32) -> Option<u64> {
        let value = self.unit.read_msr(msr);
        self.register_accesses += u64::from(value.is_some());
        value
    }

    /// Writes one.
    pub fn write_msr(&mut self, msr: u32, value: u64) -> bool {
        let known = self.unit.write_msr(msr, value);
        self.register_accesses += u64::from(known);
        known
    }

    /// RDPMC.
    pub fn read_counter(&mut self, index: u32) -> Option<u64> {
        let value = self.unit.read_counter(index);
        self.register_accesses += u64::from(value.is_some());
        value
    }

    /// An entry of the extended local vector table.
    pub fn extended(&mut self, entry: usize) -> Option<&mut u32> {
        self.extended.get_mut(entry)
    }

    /// What the unit did so far.
    pub fn counts(&self) -> Counts {
        self.unit.counts()
    }

    /// What it did since the last call costs.
    pub fn bill(&mut self, config: &MachineConfig) -> Bill {
        let counts = self.unit.counts();
        let (record_ns, register_ns) = match &self.unit {
            Unit::None => (0, 0),
            Unit::Intel(_) => (config.pebs_record_ns, config.pmu_msr_ns),
            // An op leaves nothing but its registers, which a guest may have to itself.
            Unit::Ibs(_) => (0, config.ibs_msr_ns),
        };
        let interrupts = counts.interrupts - self.paid.interrupts;
        let bill = Bill {
            records_ps: (counts.records - self.paid.records) * record_ns * 1000,
            kernel_ps: (self.register_accesses * register_ns + interrupts * config.pmi_ns) * 1000,
        };
        self.paid = counts;
        self.register_accesses = 0;
        bill
    }
}

/// What a unit's work costs its vCPU, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Bill {
    /// Records, written by microcode while the program runs.
    pub records_ps: u64,
    /// Registers and interrupts, in the kernel.
    pub kernel_ps: u64,
}
