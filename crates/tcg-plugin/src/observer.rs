// SPDX-License-Identifier: GPL-2.0-or-later
//! What connects the guest's execution to the model: one object, driven by
//! QEMU's callbacks on the vCPU thread.

use std::ffi::c_void;

use demeter_machine::digest::Fnv;
use demeter_machine::pebs::{PebsUnit, Port, Sampled};
use demeter_machine::series::{Counters, RowKind, SERIES_FORMAT, SeriesRow, Summary};
use demeter_machine::vpmu::{FLAG_WALKED, Op, Record};
use demeter_machine::{
    Machine, MachineConfig, MemoryLayout, PluginConfig, Served, Translation, Walker,
};

use crate::bar::{self, VcpuPort};
use crate::clock::Clock;
use crate::decode::{Operand, UNKNOWN_OPERAND};
use crate::output::Output;
use crate::qemu::{Api, PerVcpu, QemuError, Registers};
use crate::ram::{Mapping, Ram};
use crate::{Failure, NEXT_DISK, NEXT_FILES};

/// Charged time after which the clock is compared with the next tick.
const TICK_CHECK_PS: u64 = 1_000_000;
/// Most a guest may charge itself at once.
const MAX_CHARGE_NS: u64 = 10_000_000_000;
/// Bits of CR4 whose change flushes the TLB: PSE, PAE, PGE, PCIDE, SMEP.
const CR4_FLUSHING: u64 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 17 | 1 << 20;
/// "Do not flush" in a value written to CR3 with PCID on; not part of CR3.
const CR3_NO_FLUSH: u64 = 1 << 63;

/// What exists once the vCPU does.
struct Cpu {
    clock: Clock,
    registers: Registers,
    handle: *mut c_void,
}

/// The plugin's state.
pub struct Observer {
    pub api: Api,
    /// Whether accesses are modelled now.
    pub on: bool,
    pub machine: Machine,
    ram: Ram,
    bar: Mapping,
    port: VcpuPort,
    pebs: PebsUnit,
    samples: Fnv,
    cr3: u64,
    cr4: Option<u64>,
    cpu: Option<Cpu>,
    pub user_insn: PerVcpu,
    pub kernel_insn: PerVcpu,
    output: Output,
    config: MachineConfig,
    interval_ns: u64,
    next_tick_ns: u64,
    next_check_ps: u64,
    last_ns: u64,
    first_on_ns: Option<u64>,
    on_since_ns: u64,
    last_off_ns: u64,
    model_ns: u64,
    selftest_ns: u64,
}

/// Page walks through the mapped memory, by QEMU where that fails.
struct GuestWalker<'a> {
    ram: &'a Ram,
    api: &'a Api,
    cr3: u64,
    info: u32,
}

impl Walker for GuestWalker<'_> {
    #[inline]
    fn walk(&mut self, va: u64) -> Option<Translation> {
        self.ram.walk(self.cr3, va).or_else(|| {
            // SAFETY: `info` and `va` are those of the memory callback we are in.
            unsafe {
                let address = (self.api.qemu_plugin_get_hwaddr)(self.info, va);
                if address.is_null() || (self.api.qemu_plugin_hwaddr_is_io)(address) {
                    return None;
                }
                let pa = (self.api.qemu_plugin_hwaddr_phys_addr)(address);
                Some(Translation {
                    pa,
                    large: false,
                    fallback: true,
                })
            }
        })
    }
}

impl Observer {
    /// Maps the files and builds the machine.
    pub fn new(api: Api, config: PluginConfig) -> Result<Self, Failure> {
        let file = |what: &'static str, path: &std::path::Path| {
            let path = path.display().to_string();
            move |error| Failure::new(format!("cannot {what} `{path}`: {error}"), NEXT_FILES)
        };
        let node = |index: usize| {
            let node = &config.nodes[index];
            Mapping::shared(&node.path, node.size_bytes as usize)
                .map_err(file("map guest memory", &node.path))
        };
        let layout = MemoryLayout::new(config.nodes[0].size_bytes, config.nodes[1].size_bytes);
        let ram = Ram::new([node(0)?, node(1)?], layout);
        let bar = Mapping::shared(&config.bar, demeter_machine::vpmu::BAR_BYTES)
            .map_err(file("map the vPMU BAR", &config.bar))?;
        let port = bar::initialise(&bar, &config.machine, 1)
            .and_then(|()| VcpuPort::new(&bar, 0))
            .ok_or_else(|| Failure::new("the vPMU BAR is too small".into(), NEXT_FILES))?;
        let output = Output::create(&config.series, config.summary)
            .map_err(file("create", &config.series))?;
        // SAFETY: plain constructor; two words per vCPU.
        let scoreboard = unsafe { (api.qemu_plugin_scoreboard_new)(16) };
        Ok(Self {
            api,
            on: false,
            machine: Machine::new(&config.machine, layout, 1),
            ram,
            bar,
            port,
            pebs: PebsUnit::default(),
            samples: Fnv::default(),
            cr3: 0,
            cr4: None,
            cpu: None,
            user_insn: PerVcpu {
                scoreboard,
                offset: 0,
            },
            kernel_insn: PerVcpu {
                scoreboard,
                offset: 8,
            },
            output,
            config: config.machine,
            interval_ns: config.series_interval_ns,
            next_tick_ns: 0,
            next_check_ps: 0,
            last_ns: 0,
            first_on_ns: None,
            on_since_ns: 0,
            last_off_ns: 0,
            model_ns: 0,
            selftest_ns: 0,
        })
    }

    /// The vCPU exists: hooks the clock.
    pub fn vcpu_init(&mut self) -> Result<(), QemuError> {
        // SAFETY: index 0 exists, this is its init callback.
        let handle = unsafe { (self.api.qemu_get_cpu)(0) };
        let registers = Registers::find(&self.api)?;
        let clock = Clock::hook(
            self.api,
            handle,
            self.config.insn_ps,
            self.config.timer_slack_ns,
        )?;
        self.cpu = Some(Cpu {
            clock,
            registers,
            handle,
        });
        Ok(())
    }

    fn gpr(&self, gpr: u8) -> u64 {
        self.cpu
            .as_ref()
            .map_or(0, |cpu| cpu.registers.gpr(&self.api, gpr))
    }

    /// The guest clock; never goes back, though QEMU's count may when a
    /// translation block ends early.
    fn now_ns(&mut self) -> u64 {
        if let Some(cpu) = &self.cpu {
            self.last_ns = self.last_ns.max(cpu.clock.now_ns());
        }
        self.last_ns
    }

    /// An access that the line filter did not serve, by the instruction at `ip`.
    #[inline(never)]
    pub fn memory(&mut self, vcpu: usize, info: u32, va: u64, ip: u64) {
        if !self.on {
            return;
        }
        // By the instruction, not the address: the kernel copies from and to user pages.
        let user = ip >> 63 == 0;
        let mut walker = GuestWalker {
            ram: &self.ram,
            api: &self.api,
            cr3: self.cr3,
            info,
        };
        let Some(access) = self.machine.access(vcpu, va, user, &mut walker) else {
            return;
        };
        let Some(cpu) = &mut self.cpu else { return };
        cpu.clock.charge(access.latency_ps);
        // SAFETY: `info` is that of the memory callback we are in.
        if user && self.port.enabled() && !unsafe { (self.api.qemu_plugin_mem_is_store)(info) } {
            let record = || Record {
                gva: va,
                gpa: access.pa,
                ip,
                cr3: self.cr3,
                time_ns: cpu.clock.now_ns(),
                latency_ns: u32::try_from(access.latency_ps / 1000).unwrap_or(u32::MAX),
                tier: u16::from(access.served == Served::Smem),
                flags: if access.walked { FLAG_WALKED } else { 0 },
                reserved: [0; 2],
            };
            if self.pebs.load(&mut self.port, access.latency_ps, record) == Sampled::Record {
                self.samples.write(&va.to_le_bytes());
                self.samples.write(&access.pa.to_le_bytes());
                let cost_ps = self.config.sample_cost_ns * 1000;
                self.machine.charge_ps(cost_ps, true);
                cpu.clock.charge(cost_ps);
            }
        }
        if cpu.clock.penalty_ps() >= self.next_check_ps {
            self.next_check_ps = cpu.clock.penalty_ps() + TICK_CHECK_PS;
            self.tick();
        }
    }

    fn tick(&mut self) {
        let now = self.now_ns();
        if now >= self.next_tick_ns {
            let missed = (now - self.next_tick_ns) / self.interval_ns;
            self.next_tick_ns += (missed + 1) * self.interval_ns;
            self.row(RowKind::Tick, 0);
        }
    }

    fn counters(&self) -> Counters {
        let read = |entry| {
            if self.cpu.is_none() {
                return 0;
            }
            // SAFETY: the scoreboard is ours, and vCPU 0 exists.
            unsafe { (self.api.qemu_plugin_u64_get)(entry, 0) }
        };
        let kernel_insn = read(self.kernel_insn);
        Counters {
            insn: read(self.user_insn) + kernel_insn,
            kernel_insn,
            pebs_events: self.pebs.events,
            samples: self.pebs.records,
            samples_lost: self.pebs.lost,
            ..self.machine.counters
        }
    }

    fn row(&mut self, kind: RowKind, value: u64) {
        let row = SeriesRow {
            t_ns: self.now_ns(),
            kind,
            value,
            counters: self.counters(),
            guest: bar::guest(&self.bar).into(),
        };
        if let Err(error) = self.output.row(&row) {
            crate::fatal(&format!("cannot write the time series: {error}"), NEXT_DISK);
        }
    }

    /// Writes the summary as of `now_ns`.
    fn summary(&mut self, end_ns: u64) {
        let running_ns = if self.on {
            end_ns.saturating_sub(self.on_since_ns)
        } else {
            0
        };
        let summary = Summary {
            format: SERIES_FORMAT,
            modelled: self.first_on_ns.is_some(),
            on_ns: self.first_on_ns.unwrap_or(0),
            end_ns,
            model_ns: self.model_ns + running_ns,
            selftest_charged_ns: self.selftest_ns,
            rows: 0,
            samples_digest: self.samples.hex(),
            series_digest: String::new(),
            counters: self.counters(),
            guest: bar::guest(&self.bar).into(),
            machine: self.config.clone(),
        };
        if let Err(error) = self.output.summary(summary) {
            crate::fatal(&format!("cannot write the summary: {error}"), NEXT_DISK);
        }
    }

    /// QEMU is about to exit; not on the vCPU thread, which has stopped.
    pub fn exit(&mut self) {
        // How long a guest takes to power off depends on the host; what was
        // modelled does not.
        let end_ns = match &self.cpu {
            Some(cpu) if self.on => self.last_ns.max(cpu.clock.settled_ns()),
            _ => self.last_off_ns,
        };
        self.summary(end_ns);
    }

    /// The control NOP.
    pub fn control(&mut self, op: Op) {
        match op {
            Op::ModelOn if !self.on => self.switch(true),
            Op::ModelOff if self.on => self.switch(false),
            Op::ModelOn | Op::ModelOff => {}
            Op::Mark => self.row(RowKind::Mark, self.gpr(RDI)),
            Op::Progress => self.row(RowKind::Progress, self.gpr(RDI)),
            Op::ChargeNs => {
                let ns = self.gpr(RDI).min(MAX_CHARGE_NS);
                self.selftest_ns = self.selftest_ns.saturating_add(ns);
                if let Some(cpu) = &mut self.cpu {
                    cpu.clock.charge(ns * 1000);
                }
            }
        }
    }

    fn switch(&mut self, on: bool) {
        // Whatever the guest did unobserved, or is about to, is not in these.
        self.machine.reset_state();
        let now = self.now_ns();
        if on {
            if let Some(cpu) = &self.cpu {
                self.cr3 = cpu.registers.cr3(&self.api);
            }
            self.first_on_ns.get_or_insert(now);
            self.on_since_ns = now;
            self.next_tick_ns = now + self.interval_ns;
            self.on = true;
            self.row(RowKind::On, 0);
        } else {
            self.model_ns += now - self.on_since_ns;
            self.on = false;
            self.last_off_ns = now;
            self.row(RowKind::Off, 0);
            self.summary(now);
        }
        if let Some(cpu) = &self.cpu {
            // Translations made so far have the other instrumentation.
            // SAFETY: our vCPU; QEMU defers the flush to a safe point.
            unsafe { (self.api.queue_tb_flush)(cpu.handle) };
        }
    }

    /// `mov %gpr, %cr3` is about to run.
    pub fn write_cr3(&mut self, gpr: u8) {
        let value = self.gpr(gpr) & !CR3_NO_FLUSH;
        let same = value == self.cr3;
        self.cr3 = value;
        match (self.on, same) {
            (false, _) => {}
            (true, true) => self.machine.flush_user(0),
            (true, false) => self.machine.switch_address_space(0),
        }
    }

    /// `mov %gpr, %cr4` is about to run.
    pub fn write_cr4(&mut self, gpr: u8) {
        let value = self.gpr(gpr);
        let before = self.cr4.replace(value);
        if self.on && before.is_none_or(|before| (before ^ value) & CR4_FLUSHING != 0) {
            self.machine.flush_all(0);
        }
    }

    /// `invlpg` is about to run.
    pub fn invlpg(&mut self, operand: Operand) {
        if !self.on {
            return;
        }
        if operand == UNKNOWN_OPERAND {
            self.machine.flush_all(0);
        } else {
            let va = operand.address(|gpr| self.gpr(gpr));
            self.machine.invalidate_page(0, va);
        }
    }

    /// `invpcid` is about to run. Linux uses the kinds that flush everything.
    pub fn invpcid(&mut self) {
        if self.on {
            self.machine.flush_all(0);
        }
    }
}

const RDI: u8 = 7;
