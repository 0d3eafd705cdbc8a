// SPDX-License-Identifier: GPL-2.0-or-later
//! The observer's part in sampling: what each vCPU's PMU is told, and what the
//! guest asks of it.

use demeter_machine::pmu::{Kind, L1_CYCLES, Observed};
use demeter_machine::{Access, Served};

use super::{Block, Observer, Vcpu};
use crate::pmu::{Around, DEADLINE, Pmu};

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;

impl Observer {
    /// An access that the L1 serves, while a PMU looks at those too.
    #[inline(never)]
    pub fn memory_l1(&mut self, vcpu: usize, info: u32, va: u64, ip: u64) {
        let user = ip >> 63 == 0;
        if self.on
            && self
                .vcpus
                .get(vcpu)
                .is_some_and(|cpu| cpu.pmu.watches(user))
        {
            self.observed(vcpu, info, va, ip, None);
        }
    }

    /// Shows an access to the PMU; `None` is one that the L1 served.
    pub(super) fn observed(
        &mut self,
        vcpu: usize,
        info: u32,
        va: u64,
        ip: u64,
        access: Option<Access>,
    ) {
        let observed = Observed {
            va,
            pa: access.map_or(0, |access| access.pa),
            remote: access.is_some_and(|access| access.remote && !access.streamed),
            ip,
            // SAFETY: `info` is that of the memory callback we are in.
            store: unsafe { (self.api.qemu_plugin_mem_is_store)(info) },
            user: ip >> 63 == 0,
            latency_cycles: access.map_or(L1_CYCLES, |access| access.latency_ps / 1000),
            // What a prefetcher has brought, the core finds in its private cache.
            served: access.map(|access| {
                if access.streamed {
                    Served::L2
                } else {
                    access.served
                }
            }),
            walk_cycles: access.map_or(0, |access| access.walk_ps / 1000),
            walked: access.is_some_and(|access| access.walked),
        };
        if self.with_pmu(vcpu, |pmu, around| pmu.access(&observed, around)) == Some(true) {
            self.settle_pmu(vcpu);
        }
    }

    /// Has `act` do something with a vCPU's PMU and what is around it; `None` before
    /// the vCPU exists.
    #[inline]
    fn with_pmu<T>(&mut self, vcpu: usize, act: impl FnOnce(&mut Pmu, &Around) -> T) -> Option<T> {
        let (cpu, started) = (self.vcpus.get_mut(vcpu)?, self.started.as_ref()?);
        let around = Around {
            api: &self.api,
            ram: &self.ram,
            clock: &started.clock,
            handle: cpu.handle,
            cr3: cpu.cr3,
        };
        Some(act(&mut cpu.pmu, &around))
    }

    /// Tells the PMU what passed until now.
    pub(super) fn tell(&mut self, vcpu: usize, ip: u64) {
        // SAFETY: the scoreboard is ours, and the vCPU exists.
        let insn = [self.user_insn, self.kernel_insn]
            .map(|entry| unsafe { (self.api.qemu_plugin_u64_get)(entry, vcpu as u32) });
        let insn_ps = self.config.insn_ps;
        self.with_pmu(vcpu, |pmu, around| pmu.tell(insn, insn_ps, ip, around));
        self.settle_pmu(vcpu);
    }

    /// The PMU may have done something, or been set up otherwise: charges what it cost
    /// and sets when it is told next.
    pub(super) fn settle_pmu(&mut self, vcpu: usize) {
        let (Some(cpu), Some(started)) = (self.vcpus.get_mut(vcpu), &mut self.started) else {
            return;
        };
        let bill = cpu.pmu.bill(&self.config);
        let bill_ps = bill.records_ps + bill.kernel_ps;
        if self.on && bill_ps > 0 {
            // A record is written where the access is, mostly in user code.
            cpu.pmu.charge(true, bill.records_ps);
            cpu.pmu.charge(false, bill.kernel_ps);
            self.machine.charge_records_ps(vcpu, bill.records_ps);
            self.machine.charge_kernel_ps(vcpu, bill.kernel_ps);
            started.clock.charge(bill_ps, cpu.handle);
        }
        if let Some(deadline) = cpu.pmu.next_deadline(self.config.insn_ps) {
            // SAFETY: the scoreboard is ours, and the vCPU exists.
            unsafe { (self.api.qemu_plugin_u64_set)(self.deadline, vcpu as u32, deadline) };
            if self.on && !self.counts_down {
                self.counts_down = true;
                // Code translated so far does not count.
                // SAFETY: our vCPU; QEMU defers the flush to a safe point.
                unsafe { (self.api.queue_tb_flush)(cpu.handle) };
            }
        } else if self.counts_down {
            // SAFETY: as above.
            unsafe { (self.api.qemu_plugin_u64_set)(self.deadline, vcpu as u32, 0) };
        }
        self.look_at_l1(vcpu);
    }

    /// Whether the PMU looks at what the L1 serves changes with its registers and its tag.
    fn look_at_l1(&mut self, vcpu: usize) {
        let Some(cpu) = self.vcpus.get_mut(vcpu) else {
            return;
        };
        let watches_l1 = cpu.pmu.watches_l1();
        if watches_l1 != cpu.watches_l1 {
            cpu.watches_l1 = watches_l1;
            self.watches_l1 = self.vcpus.iter().any(|cpu| cpu.watches_l1);
        }
    }

    /// A deadline of the PMU is reached in a block of code that begins.
    pub fn deadline_reached(&mut self, vcpu: usize, block: &Block) {
        let Some(&ip) = block.ips.first() else {
            return;
        };
        let user = ip >> 63 == 0;
        // SAFETY: the scoreboard is ours, and the vCPU exists.
        let reached = unsafe { (self.api.qemu_plugin_u64_get)(self.deadline, vcpu as u32) };
        self.with_pmu(vcpu, |pmu, around| pmu.settle_tag(around));
        self.tell(vcpu, ip);
        if let Some(cpu) = self.vcpus.get_mut(vcpu) {
            cpu.pmu
                .tag_in(&block.ips, reached.wrapping_sub(DEADLINE), user);
        }
        self.settle_pmu(vcpu);
    }

    /// Which PMU the guest has.
    pub const fn pmu_kind(&self) -> Kind {
        self.pmu
    }

    /// The vCPU that runs, by what QEMU gives to its helpers.
    fn vcpu_of(&self, env: *mut u64) -> Option<usize> {
        self.vcpus.iter().position(|cpu| cpu.env == env)
    }

    /// RDMSR by the vCPU of `env`; `None` for a register that is not the PMU's.
    pub fn read_msr(&mut self, env: *mut u64, msr: u32) -> Option<u64> {
        let vcpu = self.vcpu_of(env)?;
        // Asked without effect first: most registers are not the PMU's.
        self.vcpus[vcpu].pmu.has_msr(msr).then_some(())?;
        self.tell(vcpu, 0);
        let value = self.vcpus[vcpu].pmu.read_msr(msr);
        self.settle_pmu(vcpu);
        value
    }

    /// WRMSR; false for a register that is not the PMU's.
    pub fn write_msr(&mut self, env: *mut u64, msr: u32, value: u64) -> bool {
        let Some(vcpu) = self.vcpu_of(env) else {
            return false;
        };
        if !self.vcpus[vcpu].pmu.has_msr(msr) {
            return false;
        }
        self.tell(vcpu, 0);
        let known = self.vcpus[vcpu].pmu.write_msr(msr, value);
        self.settle_pmu(vcpu);
        known
    }

    /// RDPMC by code that goes on at `next`. QEMU raises what is to be raised where this
    /// returns.
    pub fn read_counter(&mut self, vcpu: usize, next: u64) {
        const CR4_PCE: u64 = 1 << 8;
        let allowed = |cpu: &Vcpu| next >> 63 != 0 || cpu.cr4.is_some_and(|cr4| cr4 & CR4_PCE != 0);
        if !self.vcpus.get(vcpu).is_some_and(allowed) {
            return;
        }
        self.tell(vcpu, next);
        let index = self.gpr(vcpu, RCX) as u32;
        let value = self.vcpus[vcpu].pmu.read_counter(index);
        self.settle_pmu(vcpu);
        if let Some(value) = value {
            let registers = &self.vcpus[vcpu].registers;
            registers.set_gpr(&self.api, RAX, value & 0xffff_ffff);
            registers.set_gpr(&self.api, RDX, value >> 32);
            // SAFETY: in a callback that may write registers and where to go on. It does
            // not return; nothing here waits to be dropped.
            unsafe { (self.api.qemu_plugin_set_pc)(next) };
        }
    }

    /// An entry of the extended local vector table of the vCPU that runs.
    pub fn extended_lvt(&mut self, entry: usize) -> Option<&mut u32> {
        let running = &self.started.as_ref()?.running;
        let cpu = self.vcpus.iter_mut().find(|cpu| running.is(cpu.handle))?;
        cpu.pmu.extended(entry)
    }
}
