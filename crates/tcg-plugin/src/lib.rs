// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU TCG plugin: a guest's memory accesses drive the modelled machine.
//!
//! `-plugin libdemeter_tcg_plugin.so,config=FILE`, FILE being a
//! [`demeter_machine::PluginConfig`]. While the guest has the model switched
//! off, translated code carries no instrumentation; switching flushes it.
//!
//! Callbacks are `extern "C"`: a panic in one aborts QEMU, it never unwinds
//! into C. Errors are one line on stderr and exit status 1.

mod accessed;
mod bar;
mod clock;
mod decode;
mod events;
mod helpers;
mod idle;
mod meeting;
mod observer;
mod output;
mod pmu;
mod pmu_hooks;
mod qemu;
mod ram;
mod round_robin;
mod soft_tlb;
mod step;
mod tasks;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::Display;
use std::io::Write;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use demeter_machine::PluginConfig;
use demeter_machine::bar::Op;
use demeter_machine::pmu::Kind;

use decode::{Insn, Operand};
use observer::{Block, Observer};
use qemu::{
    Api, DISCON_EXCEPTION, DISCON_INTERRUPT, GREATER_OR_EQUAL, INLINE_ADD, Info, MEM_RW, MEM_W,
    NO_REGS, PluginId, READ_REGS, Tb, WRITE_REGS_AND_PC,
};

pub(crate) const NEXT_QEMU: &str = "use the QEMU that `testbed/setup.sh` installs";
pub(crate) const NEXT_FILES: &str = "check that the directory exists and has room";
pub(crate) const NEXT_DISK: &str = "make room on that disk and run again";
const NEXT_CONFIG: &str = "pass `config=FILE` with a valid configuration";

/// An error and what to do about it.
pub(crate) struct Failure {
    what: String,
    next: &'static str,
}

impl Failure {
    pub(crate) const fn new(what: String, next: &'static str) -> Self {
        Self { what, next }
    }
}

/// One line on stderr, if there is room for it: it may be a file on a full disk.
fn say(what: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "demeter-plugin: {what}");
}

/// One line on stderr, then the end: without QEMU's exit handlers, which may
/// wait for the very thread this runs on.
pub(crate) fn fatal(what: &impl Display, next: &str) -> ! {
    say(&format_args!("error: {what}; next: {next}"));
    // SAFETY: ends the process.
    unsafe { libc::_exit(1) }
}

static OBSERVER: AtomicPtr<Observer> = AtomicPtr::new(ptr::null_mut());

/// The observer. Set before the first callback and never freed.
///
/// Exclusive: with one TCG thread, which runs all vCPUs in turn, every callback runs on
/// it, none inside another (the PMU reads and writes the APIC's LVTPC from within one,
/// which is QEMU's), but for two. The region of our own behind 0xfee00500 is reached by
/// QEMU's main thread too, for a device that the guest has told so: it asks who it is
/// first ([`idle::runs_vcpus`]). `on_exit` is mostly called there: it asks whether the
/// vCPUs have stopped.
#[inline(always)]
fn observer() -> &'static mut Observer {
    // SAFETY: see above; `qemu_plugin_install` stores it before it registers callbacks.
    unsafe { &mut *OBSERVER.load(Relaxed) }
}

extern "C" fn on_memory(vcpu: c_uint, info: u32, va: u64, ip: *mut c_void) {
    let observer = observer();
    let vcpu = vcpu as usize;
    if !observer.machine.filtered(vcpu, va) {
        observer.memory(vcpu, info, va, ip as u64);
    } else if observer.watches_l1 {
        observer.memory_l1(vcpu, info, va, ip as u64);
    }
}

/// Beside [`on_memory`], and after it.
extern "C" fn on_store(vcpu: c_uint, info: u32, va: u64, ip: *mut c_void) {
    observer().store(vcpu as usize, info, va, ip as u64);
}

extern "C" fn on_deadline(vcpu: c_uint, block: *mut c_void) {
    // SAFETY: one of `Observer::blocks`, which are freed only when QEMU forgets the code
    // that names them.
    let block = unsafe { &*block.cast::<Block>() };
    observer().deadline_reached(vcpu as usize, block);
}

/// QEMU has forgotten all code.
extern "C" fn on_flush(_: *mut c_void) {
    for block in std::mem::take(&mut observer().blocks) {
        // SAFETY: made by `Box::into_raw`, and no code names it any more.
        drop(unsafe { Box::from_raw(block) });
    }
}

/// RDPMC, which the instruction at the address given follows.
extern "C" fn on_read_counter(vcpu: c_uint, next: *mut c_void) {
    observer().read_counter(vcpu as usize, next as u64);
}

extern "C" fn on_control(vcpu: c_uint, op: *mut c_void) {
    if let Some(op) = Op::from_immediate(op as usize as u32) {
        observer().control(vcpu as usize, op);
    }
}

extern "C" fn on_write_cr3(vcpu: c_uint, gpr: *mut c_void) {
    observer().write_cr3(vcpu as usize, gpr as usize as u8);
}

extern "C" fn on_write_cr4(vcpu: c_uint, gpr: *mut c_void) {
    observer().write_cr4(vcpu as usize, gpr as usize as u8);
}

extern "C" fn on_invlpg(vcpu: c_uint, operand: *mut c_void) {
    observer().invlpg(vcpu as usize, Operand::unpack(operand as u64));
}

extern "C" fn on_invpcid(vcpu: c_uint, _: *mut c_void) {
    observer().invpcid(vcpu as usize);
}

extern "C" fn on_pause(vcpu: c_uint, user: *mut c_void) {
    observer().pause(vcpu as usize, !user.is_null());
}

extern "C" fn on_halt(vcpu: c_uint, _: *mut c_void) {
    observer().machine.halt(vcpu as usize);
}

extern "C" fn on_discontinuity(vcpu: c_uint, kind: c_int, _: u64, _: u64, _: *mut c_void) {
    observer().discontinuity(vcpu as usize, kind);
}

extern "C" fn on_task_switch(vcpu: c_uint, _: *mut c_void) {
    observer().task_switch(vcpu as usize);
}

extern "C" fn on_vcpu_init(vcpu: c_uint, _: *mut c_void) {
    if let Err(error) = observer().vcpu_init(vcpu) {
        fatal(&error, NEXT_QEMU);
    }
}

extern "C" fn on_exit(_: *mut c_void) {
    if idle::runs_vcpus() || qemu::vcpus_have_stopped() {
        observer().exit();
    } else {
        say(
            &"warning: QEMU ended while its vCPUs ran, so the summary is that of when the model was \
              switched off last; next: see QEMU's own message",
        );
    }
}

extern "C" fn on_translate(tb: *mut Tb, _: *mut c_void) {
    let observer = observer();
    let api = &observer.api;
    // SAFETY: `tb` and its instructions are valid during this callback.
    unsafe {
        let count = (api.qemu_plugin_tb_n_insns)(tb);
        let kernel = (api.qemu_plugin_tb_vaddr)(tb) >> 63 != 0;
        if observer.on {
            let counter = if kernel {
                observer.kernel_insn
            } else {
                observer.user_insn
            };
            (api.qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu)(
                tb,
                INLINE_ADD,
                counter,
                count as u64,
            );
        }
        if observer.on && observer.counts_down {
            let ip = |index| (api.qemu_plugin_insn_vaddr)((api.qemu_plugin_tb_get_insn)(tb, index));
            let block = Box::into_raw(Box::new(Block {
                ips: (0..count).map(ip).collect(),
            }));
            observer.blocks.push(block);
            (api.qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu)(
                tb,
                INLINE_ADD,
                observer.deadline,
                count as u64,
            );
            (api.qemu_plugin_register_vcpu_tb_exec_cond_cb)(
                tb,
                on_deadline,
                NO_REGS,
                GREATER_OR_EQUAL,
                observer.deadline,
                pmu::DEADLINE,
                block.cast(),
            );
        }
        let switch = observer.tasks.switch_in((api.qemu_plugin_tb_vaddr)(tb));
        for index in 0..count {
            let insn = (api.qemu_plugin_tb_get_insn)(tb, index);
            let mut bytes = [0u8; 16];
            let length = (api.qemu_plugin_insn_data)(insn, bytes.as_mut_ptr().cast(), bytes.len());
            let register = |callback, argument: u64| {
                (api.qemu_plugin_register_vcpu_insn_exec_cb)(
                    insn,
                    callback,
                    READ_REGS,
                    argument as *mut c_void,
                );
            };
            match decode::decode(&bytes[..length.min(bytes.len())]) {
                None => {}
                Some(Insn::WriteCr3(gpr)) => register(on_write_cr3, u64::from(gpr)),
                Some(Insn::WriteCr4(gpr)) => register(on_write_cr4, u64::from(gpr)),
                Some(Insn::Invlpg(operand)) => register(on_invlpg, operand.pack()),
                Some(Insn::Invpcid(_)) => register(on_invpcid, 0),
                Some(Insn::Pause) if observer.sees_pauses() => {
                    register(on_pause, u64::from(!kernel));
                }
                Some(Insn::Pause) => {}
                // Whether the model is on or not: it may be switched on meanwhile.
                Some(Insn::Halt) if kernel && observer.machine.hypervisor.is_some() => {
                    register(on_halt, 0);
                }
                Some(Insn::Halt) => {}
                Some(Insn::Control(op)) => register(on_control, u64::from(op.immediate())),
                Some(Insn::ReadCounter) if observer.pmu_kind() != Kind::None => {
                    (api.qemu_plugin_register_vcpu_insn_exec_cb)(
                        insn,
                        on_read_counter,
                        WRITE_REGS_AND_PC,
                        ((api.qemu_plugin_insn_vaddr)(insn) + length as u64) as *mut c_void,
                    );
                }
                Some(Insn::ReadCounter) => {}
            }
            if switch.is_some() && switch == Some((api.qemu_plugin_insn_vaddr)(insn)) {
                register(on_task_switch, 0);
            }
            if observer.on {
                let ip = (api.qemu_plugin_insn_vaddr)(insn) as *mut c_void;
                (api.qemu_plugin_register_vcpu_mem_cb)(insn, on_memory, NO_REGS, MEM_RW, ip);
                if observer.follows_stores() {
                    (api.qemu_plugin_register_vcpu_mem_cb)(insn, on_store, NO_REGS, MEM_W, ip);
                }
            }
        }
    }
}

fn install(id: PluginId, info: &Info, arguments: &[&CStr]) -> Result<(), Failure> {
    let qemu = |error: qemu::QemuError| Failure::new(error.to_string(), NEXT_QEMU);
    let vcpus = Api::check_machine(info).map_err(qemu)?;
    let api = Api::load().map_err(qemu)?;
    let [argument] = arguments else {
        return Err(Failure::new(
            "expected exactly one argument".into(),
            NEXT_CONFIG,
        ));
    };
    let path = argument
        .to_str()
        .ok()
        .and_then(|argument| argument.strip_prefix("config="))
        .ok_or_else(|| Failure::new(format!("unknown argument {argument:?}"), NEXT_CONFIG))?;
    let invalid = |error: &dyn Display| Failure::new(format!("`{path}`: {error}"), NEXT_CONFIG);
    let text = std::fs::read(path).map_err(|error| invalid(&error))?;
    let config: PluginConfig = serde_json::from_slice(&text).map_err(|error| invalid(&error))?;
    config.validate().map_err(|error| invalid(&error))?;

    let observer = Box::new(Observer::new(api, config, vcpus)?);
    OBSERVER.store(Box::into_raw(observer), Relaxed);
    // SAFETY: our own id; the callbacks have the types of API version 7.
    unsafe {
        (api.qemu_plugin_register_vcpu_tb_trans_cb)(id, on_translate, ptr::null_mut());
        (api.qemu_plugin_register_vcpu_init_cb)(id, on_vcpu_init, ptr::null_mut());
        (api.qemu_plugin_register_flush_cb)(id, on_flush, ptr::null_mut());
        (api.qemu_plugin_register_atexit_cb)(id, on_exit, ptr::null_mut());
        let kinds = DISCON_INTERRUPT | DISCON_EXCEPTION;
        (api.qemu_plugin_register_vcpu_discon_cb)(id, kinds, on_discontinuity, ptr::null_mut());
    }
    Ok(())
}

/// The API version QEMU checks before it calls [`qemu_plugin_install`].
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = qemu::API_VERSION;

/// QEMU's entry point.
///
/// # Safety
/// Called by QEMU once, with its own `info` and `argc` strings in `argv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let (info, arguments) = unsafe {
        let arguments: Vec<&CStr> = (0..usize::try_from(argc).unwrap_or(0))
            .map(|index| CStr::from_ptr(*argv.add(index)))
            .collect();
        (&*info.cast::<Info>(), arguments)
    };
    match install(id, info, &arguments) {
        Ok(()) => 0,
        // Not by a return value: QEMU would add a second, less clear line.
        Err(failure) => fatal(&failure.what, failure.next),
    }
}
