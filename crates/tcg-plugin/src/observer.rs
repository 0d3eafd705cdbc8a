// SPDX-License-Identifier: GPL-2.0-or-later
//! What connects the guest's execution to the model: one object, driven by
//! QEMU's callbacks on the one thread that runs all vCPUs.

use std::ffi::{c_int, c_void};

use demeter_machine::bar::Op;
use demeter_machine::pmu::Kind;
use demeter_machine::series::RowKind;
use demeter_machine::watch::WatchConfig;
use demeter_machine::{
    Event, Hypervisor, Machine, MachineConfig, MemoryLayout, PluginConfig, Sockets, Translation,
    Walker,
};

use crate::accessed;
use crate::bar;
use crate::clock::Clock;
use crate::decode::{Operand, UNKNOWN_OPERAND};
use crate::events;
use crate::idle;
use crate::meeting::Meeting;
use crate::output::{self, Output, Recorder};
use crate::pmu::Pmu;
use crate::pmu_hooks;
use crate::qemu::{Api, DISCON_EXCEPTION, DISCON_INTERRUPT, PerVcpu, QemuError, Registers};
use crate::ram::{Mapping, Ram, Unaccessed};
use crate::round_robin::{self, Running};
use crate::soft_tlb::{self, SoftTlb};
use crate::step::Step;
use crate::tasks::Tasks;
use crate::{Failure, NEXT_FILES, NEXT_QEMU};

mod hypervisor;
mod report;
mod requests;
mod sampling;

use hypervisor::Residents;
use requests::{Excess, Requests};

/// Charged time after which the clock is compared with the next tick.
const TICK_CHECK_PS: u64 = 1_000_000;
/// Bits of CR4 whose change flushes the TLB: PSE, PAE, PGE, PCIDE, SMEP.
const CR4_FLUSHING: u64 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 17 | 1 << 20;
/// "Do not flush" in a value written to CR3 with PCID on; not part of CR3.
const CR3_NO_FLUSH: u64 = 1 << 63;

/// What each vCPU has of its own, outside the machine.
struct Vcpu {
    handle: *mut c_void,
    registers: Registers,
    /// As of the last write; every write is seen, modelled or not.
    cr3: u64,
    cr4: Option<u64>,
    pmu: Pmu,
    /// Its PMU looks at accesses that the L1 serves.
    watches_l1: bool,
    /// Where QEMU keeps the general registers; null without a PMU.
    env: *mut u64,
    /// An exception was raised and is not delivered yet.
    raised: bool,
    soft_tlb: SoftTlb,
}

/// A block of code that counts towards a deadline.
pub struct Block {
    /// Addresses of its instructions.
    pub ips: Vec<u64>,
}

/// What exists once the first vCPU does.
struct Started {
    clock: Clock,
    running: Running,
}

/// The plugin's state.
pub struct Observer {
    pub api: Api,
    /// Whether accesses are modelled now.
    pub on: bool,
    pub machine: Machine,
    /// Whether some PMU looks at accesses that the L1 serves.
    pub watches_l1: bool,
    /// Whether blocks of code count towards a deadline of the PMU.
    pub counts_down: bool,
    /// Instructions of the blocks of code that do, kept while they are.
    pub blocks: Vec<*mut Block>,
    pmu: Kind,
    ram: Ram,
    bar: Mapping,
    /// By QEMU's number; complete before the guest runs.
    vcpus: Vec<Vcpu>,
    expected_vcpus: usize,
    started: Option<Started>,
    pub user_insn: PerVcpu,
    pub kernel_insn: PerVcpu,
    pub deadline: PerVcpu,
    output: Output,
    recorder: Recorder,
    step: Option<Step>,
    /// With guests that share FMEM under one hypervisor.
    meeting: Option<Meeting>,
    pub tasks: Tasks,
    /// For a hypervisor: who had memory before the model was on.
    residents: Option<Residents>,
    watch: WatchConfig,
    config: MachineConfig,
    interval_ns: u64,
    next_tick_ns: u64,
    next_check_ps: u64,
    last_ns: u64,
    first_on_ns: Option<u64>,
    on_since_ns: u64,
    last_off_ns: u64,
    model_ns: u64,
    requests: Requests,
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
                    entries: [0; 4],
                    levels: 0,
                })
            }
        })
    }

    fn store(&self) -> bool {
        // SAFETY: `info` is that of the memory callback we are in.
        unsafe { (self.api.qemu_plugin_mem_is_store)(self.info) }
    }

    fn root(&self) -> u64 {
        self.cr3
    }
}

impl Observer {
    /// Maps the files and builds the machine.
    pub fn new(api: Api, config: PluginConfig, vcpus: usize) -> Result<Self, Failure> {
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
        let bar = Mapping::shared(&config.bar, demeter_machine::bar::BAR_BYTES)
            .map_err(file("map the model's BAR", &config.bar))?;
        bar::initialise(&bar, &config.machine, vcpus)
            .ok_or_else(|| Failure::new("the model's BAR is too small".into(), NEXT_FILES))?;
        let output = Output::create(&config.series, config.summary)
            .map_err(file("create", &config.series))?;
        let accesses = (config.watch.accesses.as_ref()).map_or(&config.series, |(path, _)| path);
        let recorder = Recorder::create(&config.watch).map_err(file("create", accesses))?;
        // SAFETY: plain constructor; three words per vCPU.
        let scoreboard = unsafe { (api.qemu_plugin_scoreboard_new)(24) };
        if config.pmu != Kind::None {
            pmu_hooks::install().map_err(|error| Failure::new(error.to_string(), NEXT_QEMU))?;
        }
        let mut machine = Machine::new(&config.machine, layout, vcpus);
        machine.watch = output::read_watch(&config.watch, vcpus)?;
        machine.sockets = Sockets::new(&config.sockets, vcpus);
        let residents = config.hypervisor.as_ref().map(|hypervisor| {
            let mut made = Hypervisor::new(hypervisor, &config.machine, layout, vcpus);
            made.share_among(config.pool.as_ref().map_or(1, |pool| pool.guests as u64));
            machine.hypervisor = Some(Box::new(made));
            Residents::default()
        });
        Ok(Self {
            api,
            on: false,
            machine,
            watches_l1: false,
            counts_down: false,
            blocks: Vec::new(),
            pmu: config.pmu,
            ram,
            bar,
            vcpus: Vec::with_capacity(vcpus),
            expected_vcpus: vcpus,
            started: None,
            user_insn: PerVcpu {
                scoreboard,
                offset: 0,
            },
            kernel_insn: PerVcpu {
                scoreboard,
                offset: 8,
            },
            deadline: PerVcpu {
                scoreboard,
                offset: 16,
            },
            output,
            recorder,
            step: config.step.map(Step::new).transpose()?,
            meeting: config.pool.map(Meeting::new).transpose()?,
            tasks: Tasks::new(vcpus),
            residents,
            watch: config.watch,
            config: config.machine,
            interval_ns: config.series_interval_ns,
            next_tick_ns: 0,
            next_check_ps: 0,
            last_ns: 0,
            first_on_ns: None,
            on_since_ns: 0,
            last_off_ns: 0,
            model_ns: 0,
            requests: Requests::default(),
        })
    }

    /// A vCPU exists. With the first one the clock is hooked.
    pub fn vcpu_init(&mut self, number: u32) -> Result<(), QemuError> {
        let index = number as usize;
        let Ok(qemu_index) = c_int::try_from(number) else {
            return Err(QemuError::Vcpus(c_int::MAX));
        };
        if index != self.vcpus.len() {
            return Err(QemuError::RoundRobin("the order in which they appear"));
        }
        // SAFETY: it exists, this is its init callback.
        let handle = unsafe { (self.api.qemu_get_cpu)(qemu_index) };
        idle::vcpu_exists(handle);
        if self.expected_vcpus > 1 {
            round_robin::name_the_vcpu(handle)?;
        }
        let registers = Registers::find(&self.api)?;
        let env = if self.pmu == Kind::None {
            std::ptr::null_mut()
        } else {
            registers.find_env(&self.api, handle)?
        };
        self.vcpus.push(Vcpu {
            handle,
            registers,
            cr3: 0,
            cr4: None,
            pmu: Pmu::new(self.pmu, self.config.preset),
            watches_l1: false,
            env,
            raised: false,
            // SAFETY: QEMU's vCPU, which is never unplugged.
            soft_tlb: unsafe { SoftTlb::of(handle) }?,
        });
        if self.started.is_none() {
            accessed::hook(&self.api, handle)?;
            if self.expected_vcpus == 1 {
                events::hook_pause()?;
            }
            round_robin::keep_turns()?;
            pmu_hooks::map_extended_lvt(self.pmu)?;
            let MachineConfig {
                insn_ps,
                timer_slack_ns,
                ..
            } = self.config;
            self.started = Some(Started {
                clock: Clock::hook(self.api, insn_ps, timer_slack_ns)?,
                running: Running::find()?,
            });
        }
        accessed::covers(&self.api, handle)
    }

    /// Ends QEMU if a callback named another vCPU than the one that runs.
    fn check_number(&self, vcpu: usize) {
        let named = self.vcpus.get(vcpu).map(|vcpu| vcpu.handle);
        let right = match (&self.started, named) {
            (Some(started), Some(handle)) => started.running.is(handle),
            _ => false,
        };
        if !right {
            let error = QemuError::RoundRobin("a callback named the wrong one");
            crate::fatal(&error, NEXT_QEMU);
        }
    }

    fn gpr(&self, vcpu: usize, gpr: u8) -> u64 {
        self.vcpus
            .get(vcpu)
            .map_or(0, |vcpu| vcpu.registers.gpr(&self.api, gpr))
    }

    /// The guest clock while `vcpu` runs; never goes back, though QEMU's count
    /// may when a translation block ends early.
    fn now_ns(&mut self, vcpu: usize) -> u64 {
        if let (Some(started), Some(vcpu)) = (&self.started, self.vcpus.get(vcpu)) {
            self.last_ns = self.last_ns.max(started.clock.now_ns(vcpu.handle));
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
        let (Some(cpu), Some(started)) = (self.vcpus.get_mut(vcpu), &mut self.started) else {
            return;
        };
        let clock = &mut started.clock;
        let mut walker = GuestWalker {
            ram: &self.ram,
            api: &self.api,
            cr3: cpu.cr3,
            info,
        };
        let Some(access) = self.machine.access(vcpu, va, user, &mut walker) else {
            return;
        };
        clock.charge(access.latency_ps, cpu.handle);
        if self.recorder.is_on() {
            // SAFETY: `info` is that of the memory callback we are in.
            let store = unsafe { (self.api.qemu_plugin_mem_is_store)(info) };
            self.machine.record(vcpu, va, user && !store, &access);
        }
        let due = cpu.pmu.charge(user, access.latency_ps);
        if cpu.pmu.watches(user) {
            self.observed(vcpu, info, va, ip, Some(access));
        }
        if due {
            self.tell(vcpu, ip);
        }
        let Some(started) = &self.started else {
            return;
        };
        let clock = &started.clock;
        if clock.penalty_ps() >= self.next_check_ps {
            self.next_check_ps = clock.penalty_ps() + TICK_CHECK_PS;
            self.tick(vcpu);
        }
    }

    fn tick(&mut self, vcpu: usize) {
        let now = self.now_ns(vcpu);
        if let Some(step) = self.step.as_mut().filter(|step| step.due(now)) {
            step.keep(now);
        }
        if let Some(watch) = &mut self.machine.watch {
            watch.at(now);
        }
        self.write_windows();
        self.meet(vcpu, now);
        self.run_hypervisor(vcpu, now, false);
        self.grow_soft_tlb(vcpu, now);
        if now >= self.next_tick_ns {
            let missed = (now - self.next_tick_ns) / self.interval_ns;
            self.next_tick_ns += (missed + 1) * self.interval_ns;
            self.row(vcpu, RowKind::Tick, 0);
        }
    }

    /// Has QEMU make its TLB larger where it is too small for the program.
    fn grow_soft_tlb(&mut self, vcpu: usize, now: u64) {
        let Some(vcpu) = self.vcpus.get_mut(vcpu) else {
            return;
        };
        let tlb = &mut vcpu.soft_tlb;
        if tlb.due(now) && tlb.wants_flush(now) {
            tlb.before_flush(now);
            // SAFETY: our vCPU, on its thread, at the end of a memory callback: the access
            // is done, and translated code looks the next address up anew.
            unsafe { (self.api.tlb_flush)(vcpu.handle) };
        }
    }

    /// QEMU is about to flush its TLB, or may.
    fn before_soft_flush(&mut self, vcpu: usize) {
        let now = self.now_ns(vcpu);
        if let Some(vcpu) = self.vcpus.get_mut(vcpu) {
            vcpu.soft_tlb.before_flush(now);
        }
    }

    /// The control NOP.
    pub fn control(&mut self, vcpu: usize, op: Op) {
        self.check_number(vcpu);
        if let Err(excess) = self.request(vcpu, op) {
            crate::fatal(&excess, requests::NEXT);
        }
    }

    fn request(&mut self, vcpu: usize, op: Op) -> Result<(), Excess> {
        match op {
            Op::ModelOn | Op::ModelOff => {
                let on = op == Op::ModelOn;
                if on != self.on {
                    self.requests.switch()?;
                    self.switch(vcpu, on);
                }
            }
            Op::Mark | Op::Progress => {
                self.requests.row()?;
                let kind = if op == Op::Mark {
                    RowKind::Mark
                } else {
                    RowKind::Progress
                };
                self.row(vcpu, kind, self.gpr(vcpu, RDI));
            }
            Op::TaskSwitch => {
                self.requests.announcement()?;
                self.tasks.switch_at(self.gpr(vcpu, RDI));
                self.flush_translations(vcpu);
            }
            Op::TaskLayout => self.tasks.lay_out(self.gpr(vcpu, RDI)),
            Op::ChargeNs => {
                let ns = self.requests.charge_ns(self.gpr(vcpu, RDI))?;
                if let (Some(started), Some(vcpu)) = (&mut self.started, self.vcpus.get(vcpu)) {
                    started.clock.charge(ns * 1000, vcpu.handle);
                }
            }
        }
        Ok(())
    }

    fn switch(&mut self, vcpu: usize, on: bool) {
        if self.vcpus.len() != self.expected_vcpus {
            let error = QemuError::RoundRobin("some never appeared");
            crate::fatal(&error, NEXT_QEMU);
        }
        // Whatever the guest did unobserved, or is about to, is not in these.
        self.machine.reset_state();
        let now = self.now_ns(vcpu);
        if on {
            if let Err(error) = self.check_hooks() {
                crate::fatal(&error, NEXT_QEMU);
            }
            // Only the vCPU that runs can be asked; the others' is what they wrote last.
            if let Some(vcpu) = self.vcpus.get_mut(vcpu) {
                vcpu.cr3 = vcpu.registers.cr3(&self.api);
            }
            if let Some(watch) = &mut self.machine.watch {
                for (index, vcpu) in self.vcpus.iter().enumerate() {
                    watch.address_space(index, vcpu.cr3);
                }
                watch.at(now);
            }
            self.record_resident(vcpu);
            self.resume_hypervisor(vcpu, now);
            if let (Some(meeting), Some(hypervisor)) =
                (&mut self.meeting, &mut self.machine.hypervisor)
                && let Err(error) = meeting.begin(now, hypervisor)
            {
                crate::fatal(&error, error.next());
            }
            self.first_on_ns.get_or_insert(now);
            self.on_since_ns = now;
            self.next_tick_ns = now + self.interval_ns;
            self.on = true;
            // What was set up before counts from here on.
            for vcpu in 0..self.vcpus.len() {
                self.settle_pmu(vcpu);
            }
            if let Some(step) = &mut self.step {
                step.begin(now);
            }
            self.row(vcpu, RowKind::On, 0);
        } else {
            self.model_ns += now - self.on_since_ns;
            self.on = false;
            if let Some(step) = &mut self.step {
                step.end();
            }
            if let Some(meeting) = &mut self.meeting {
                meeting.leave();
            }
            self.last_off_ns = now;
            self.pause_recording(now);
            if let Some(hypervisor) = &mut self.machine.hypervisor {
                hypervisor.pause(now);
            }
            self.row(vcpu, RowKind::Off, 0);
            self.summary(now);
        }
        self.flush_translations(vcpu);
    }

    /// Whether QEMU has used all that was put into it: a guest that has booted has halted,
    /// walked its page tables and looked at its CPU.
    fn check_hooks(&self) -> Result<(), QemuError> {
        accessed::check()?;
        soft_tlb::check()?;
        idle::check()?;
        if self.pmu == Kind::None {
            Ok(())
        } else {
            pmu_hooks::check()
        }
    }

    /// Translations made so far have other instrumentation. The vCPU that runs
    /// leaves its code for it; the others are not in theirs.
    fn flush_translations(&self, vcpu: usize) {
        if let Some(vcpu) = self.vcpus.get(vcpu) {
            // SAFETY: our vCPU; QEMU defers the flush to a safe point.
            unsafe { (self.api.queue_tb_flush)(vcpu.handle) };
        }
    }

    /// `mov %gpr, %cr3` is about to run.
    pub fn write_cr3(&mut self, vcpu: usize, gpr: u8) {
        self.check_number(vcpu);
        self.before_soft_flush(vcpu);
        let value = self.gpr(vcpu, gpr) & !CR3_NO_FLUSH;
        let Some(own) = self.vcpus.get_mut(vcpu) else {
            return;
        };
        let same = value == own.cr3;
        own.cr3 = value;
        if let Some(residents) = &mut self.residents {
            residents.seen(value);
        }
        if let Some(watch) = &mut self.machine.watch {
            watch.address_space(vcpu, value);
        }
        let ps = match (self.on, same) {
            (false, _) => return,
            (true, true) => self.machine.flush_user(vcpu),
            (true, false) => self.machine.switch_address_space(vcpu),
        };
        self.charge(vcpu, ps);
    }

    /// Instructions and charges of `vcpu`.
    fn busy_ps(&self, vcpu: usize) -> u64 {
        // SAFETY: the scoreboard is ours, and the vCPU exists.
        let read = |entry| unsafe { (self.api.qemu_plugin_u64_get)(entry, vcpu as u32) };
        let insn = read(self.user_insn) + read(self.kernel_insn);
        insn * self.config.insn_ps + self.machine.vcpu_counters(vcpu).charged_ps
    }

    /// The kernel is about to switch `vcpu` from the task in RDI to the one in RSI.
    pub fn task_switch(&mut self, vcpu: usize) {
        self.check_number(vcpu);
        let (from, to) = (self.gpr(vcpu, RDI), self.gpr(vcpu, RSI));
        let busy_ps = self.busy_ps(vcpu);
        if let Some(own) = self.vcpus.get(vcpu) {
            let memory = (&self.ram, own.cr3);
            self.tasks.switch(vcpu, memory, from, to, busy_ps);
        }
    }

    /// Tells what vCPUs did since their last switch to the tasks that run on them.
    fn settle_tasks(&mut self) {
        for vcpu in 0..self.vcpus.len() {
            let busy_ps = self.busy_ps(vcpu);
            if let Some(own) = self.vcpus.get(vcpu) {
                self.tasks.settle(vcpu, (&self.ram, own.cr3), busy_ps);
            }
        }
    }

    /// `mov %gpr, %cr4` is about to run.
    pub fn write_cr4(&mut self, vcpu: usize, gpr: u8) {
        self.before_soft_flush(vcpu);
        let value = self.gpr(vcpu, gpr);
        let Some(own) = self.vcpus.get_mut(vcpu) else {
            return;
        };
        let before = own.cr4.replace(value);
        if self.on && before.is_none_or(|before| (before ^ value) & CR4_FLUSHING != 0) {
            let ps = self.machine.flush_all(vcpu);
            self.charge(vcpu, ps);
        }
    }

    /// `invlpg` is about to run.
    pub fn invlpg(&mut self, vcpu: usize, operand: Operand) {
        self.before_soft_flush(vcpu);
        if !self.on {
            return;
        }
        let ps = if operand == UNKNOWN_OPERAND {
            self.machine.flush_all(vcpu)
        } else {
            let va = operand.address(|gpr| self.gpr(vcpu, gpr));
            self.machine.invalidate_page(vcpu, va)
        };
        self.charge(vcpu, ps);
    }

    /// `invpcid` is about to run. Linux uses the kinds that flush everything.
    pub fn invpcid(&mut self, vcpu: usize) {
        self.before_soft_flush(vcpu);
        if self.on {
            let ps = self.machine.flush_all(vcpu);
            self.charge(vcpu, ps);
        }
    }

    /// Puts time that the machine has charged to `vcpu`'s kernel on the guest's clock.
    fn charge(&mut self, vcpu: usize, ps: u64) {
        if let (Some(started), Some(own)) = (&mut self.started, self.vcpus.get_mut(vcpu)) {
            started.clock.charge(ps, own.handle);
            if own.pmu.charge(false, ps) {
                self.tell(vcpu, 0);
            }
        }
    }

    fn event(&mut self, vcpu: usize, event: Event) {
        if self.on {
            let ps = self.machine.event(vcpu, event);
            self.charge(vcpu, ps);
        }
    }

    /// `pause` is about to run. With several vCPUs it ends a turn, and takes its time even while
    /// nothing is modelled: a kernel that waits for a tenth of a second to calibrate its timer would
    /// else do so in turns of 3 ns, each a way out of translated code and back.
    pub fn pause(&mut self, vcpu: usize, user: bool) {
        if self.on {
            self.event(vcpu, Event::Pause { user });
        } else if let (true, Some(started), Some(own)) =
            (self.sees_pauses(), &mut self.started, self.vcpus.get(vcpu))
        {
            let ps = self.config.pause_ns * 1000;
            started.clock.charge(ps, own.handle);
        }
    }

    /// Whether there is anything to do at a `pause`; code is translated anew where this changes.
    pub const fn sees_pauses(&self) -> bool {
        self.on || self.expected_vcpus > 1
    }

    /// Execution goes on elsewhere. QEMU tells of an exception twice: when it is
    /// raised, and, like an interrupt, when it is delivered.
    pub fn discontinuity(&mut self, vcpu: usize, kind: c_int) {
        self.wake(vcpu);
        let Some(own) = self.vcpus.get_mut(vcpu) else {
            return;
        };
        match kind {
            DISCON_EXCEPTION => {
                own.raised = true;
                self.event(vcpu, Event::Exception);
            }
            DISCON_INTERRUPT if !std::mem::take(&mut own.raised) => {
                self.event(vcpu, Event::Interrupt);
            }
            _ => {}
        }
    }

    /// The only vCPU, while it is modelled.
    pub fn only_vcpu(&self) -> Option<*mut c_void> {
        match self.vcpus[..] {
            [ref only] if self.on => Some(only.handle),
            _ => None,
        }
    }

    /// What is not marked accessed on the way to `va`, in the address space of `cpu`.
    pub fn unaccessed(&self, cpu: *mut c_void, va: u64) -> Option<Unaccessed> {
        let own = self.vcpus.iter().find(|vcpu| vcpu.handle == cpu)?;
        self.ram.unaccessed(own.cr3, va)
    }
}

const RSI: u8 = 6;
const RDI: u8 = 7;
