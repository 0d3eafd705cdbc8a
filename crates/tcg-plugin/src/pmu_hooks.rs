// SPDX-License-Identifier: GPL-2.0-or-later
//! Where the guest meets the modelled PMU: RDMSR, WRMSR, CPUID, RDPMC and the
//! APIC's extended local vector table.
//!
//! The first three are helpers of QEMU's, replaced before any code is translated
//! ([`crate::helpers`]). QEMU's own runs afterwards for what is not the PMU's; it
//! must be *jumped* to, as it finds the guest's instruction by its return address.
//!
//! RDPMC is different: QEMU's helper never returns and no code follows its call.
//! The API's callback before the instruction writes the registers and goes on
//! behind it.

use std::arch::naked_asm;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use demeter_machine::pmu::Kind;

use crate::helpers::{Helper, helper};
use crate::idle;
use crate::qemu::{QemuError, symbol};

/// Registers as `CPUX86State` begins with them.
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;

type Function = unsafe extern "C" fn(*mut u64);

static ORIGINAL_RDMSR: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static ORIGINAL_WRMSR: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static ORIGINAL_CPUID: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// Whether RDMSR, WRMSR and CPUID came here.
static ASKED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
const RDMSR: usize = 0;
const WRMSR: usize = 1;
const CPUID: usize = 2;

/// Whether the hooks took; once the guest has booted, for which it needs all three.
///
/// # Errors
/// One of them did not.
pub fn check() -> Result<(), QemuError> {
    missing([RDMSR, WRMSR, CPUID].map(|at| ASKED[at].load(Relaxed)))
}

fn missing(asked: [bool; 3]) -> Result<(), QemuError> {
    const WHAT: [&str; 3] = [
        "RDMSR does not reach the modelled PMU",
        "WRMSR does not reach the modelled PMU",
        "CPUID does not reach the modelled PMU",
    ];
    let first = asked.into_iter().position(|asked| !asked);
    first.map_or(Ok(()), |at| Err(QemuError::Hook(WHAT[at])))
}

/// Puts the hooks in; before any code is translated.
///
/// # Errors
/// This QEMU's helpers are not where they were in QEMU 11.1.
pub fn install() -> Result<(), QemuError> {
    let hooks: [(Helper, &AtomicPtr<c_void>, Function); 3] = [
        (helper!("rdmsr"), &ORIGINAL_RDMSR, rdmsr_hook),
        (helper!("wrmsr"), &ORIGINAL_WRMSR, wrmsr_hook),
        (helper!("cpuid"), &ORIGINAL_CPUID, cpuid_hook),
    ];
    for (helper, original, hook) in hooks {
        // SAFETY: QEMU's helpers of this type; nothing runs yet.
        let replaced = unsafe { helper.replace(hook as *mut c_void) }?;
        original.store(replaced, Relaxed);
    }
    Ok(())
}

/// Asks `handle` first and jumps to QEMU's helper unless that returned true.
macro_rules! hook {
    ($name:ident, $handle:ident, $original:ident) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name(env: *mut u64) {
            naked_asm!(
                "push rdi",
                "call {handle}",
                "pop rdi",
                "test al, al",
                "jnz 2f",
                "mov rax, [rip + {original}]",
                "jmp rax",
                "2: ret",
                handle = sym $handle,
                original = sym $original,
            )
        }
    };
}

hook!(rdmsr_hook, handle_rdmsr, ORIGINAL_RDMSR);
hook!(wrmsr_hook, handle_wrmsr, ORIGINAL_WRMSR);

/// The low half of a register.
///
/// # Safety
/// `env` as QEMU passes it to helpers.
unsafe fn low(env: *mut u64, register: usize) -> u32 {
    // SAFETY: `env` begins with the 16 general registers.
    unsafe { *env.add(register) as u32 }
}

extern "C" fn handle_rdmsr(env: *mut u64) -> bool {
    ASKED[RDMSR].store(true, Relaxed);
    // SAFETY: QEMU calls helpers with the running vCPU's `env`.
    let msr = unsafe { low(env, RCX) };
    let Some(value) = crate::observer().read_msr(env, msr) else {
        return false;
    };
    // SAFETY: as above.
    unsafe {
        *env.add(RAX) = value & 0xffff_ffff;
        *env.add(RDX) = value >> 32;
    }
    true
}

extern "C" fn handle_wrmsr(env: *mut u64) -> bool {
    ASKED[WRMSR].store(true, Relaxed);
    // SAFETY: as above.
    let (msr, value) = unsafe {
        let value = u64::from(low(env, RAX)) | u64::from(low(env, RDX)) << 32;
        (low(env, RCX), value)
    };
    crate::observer().write_msr(env, msr, value)
}

unsafe extern "C" fn cpuid_hook(env: *mut u64) {
    ASKED[CPUID].store(true, Relaxed);
    // SAFETY: `env` as above; the original is QEMU's helper of this type. CPUID raises
    // nothing where the guest runs no guests of its own, so it need not find its way back.
    unsafe {
        let leaf = low(env, RAX);
        let original: Function = std::mem::transmute(ORIGINAL_CPUID.load(Relaxed));
        original(env);
        let mut answer = [RAX, RBX, RCX, RDX].map(|register| low(env, register));
        crate::observer().pmu_kind().cpuid(leaf, &mut answer);
        for (register, value) in [RAX, RBX, RCX, RDX].into_iter().zip(answer) {
            *env.add(register) = u64::from(value);
        }
    }
}

/// Physical address of the extended local vector table, and its length.
const EXTENDED_LVT: u64 = 0xfee0_0500;
const EXTENDED_BYTES: u64 = 0x40;
/// Over the APIC's own region, which has 0x1000.
const OVER_THE_APIC: i32 = 0x2000;

/// QEMU's main thread gets here too, with an address that the guest has given to a device:
/// it finds nothing, and changes nothing.
extern "C" fn extended_read(_: *mut c_void, address: u64, _: u32) -> u64 {
    if !idle::runs_vcpus() {
        return 0;
    }
    crate::observer()
        .extended_lvt((address >> 4) as usize)
        .map_or(0, |entry| u64::from(*entry))
}

extern "C" fn extended_write(_: *mut c_void, address: u64, value: u64, _: u32) {
    if !idle::runs_vcpus() {
        return;
    }
    if let Some(entry) = crate::observer().extended_lvt((address >> 4) as usize) {
        *entry = value as u32;
    }
}

/// `MemoryRegionOps`: two functions first, all else left at its defaults.
#[repr(C)]
struct RegionOps {
    read: extern "C" fn(*mut c_void, u64, u32) -> u64,
    write: extern "C" fn(*mut c_void, u64, u64, u32),
    rest: [u64; 30],
}

static EXTENDED_OPS: RegionOps = RegionOps {
    read: extended_read,
    write: extended_write,
    rest: [0; 30],
};

/// More than a `MemoryRegion` has.
const REGION_WORDS: usize = 512;

/// Lays the extended table over the APIC, if `kind` needs it; once, when the machine exists.
///
/// # Errors
/// A function of QEMU's is missing.
pub fn map_extended_lvt(kind: Kind) -> Result<(), QemuError> {
    if kind != Kind::Zen4 {
        return Ok(());
    }
    type Init = unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        *const RegionOps,
        *mut c_void,
        *const c_char,
        u64,
    );
    let system = symbol(c"get_system_memory")?;
    let init = symbol(c"memory_region_init_io")?;
    let add = symbol(c"memory_region_add_subregion_overlap")?;
    let region = Box::leak(Box::new([0u64; REGION_WORDS]))
        .as_mut_ptr()
        .cast();
    // SAFETY: QEMU's functions of these types; the region lives as long as the process.
    unsafe {
        let system: unsafe extern "C" fn() -> *mut c_void = std::mem::transmute(system);
        let init: Init = std::mem::transmute(init);
        let add: unsafe extern "C" fn(*mut c_void, u64, *mut c_void, i32) =
            std::mem::transmute(add);
        let no_one = ptr::null_mut();
        init(
            region,
            no_one,
            &raw const EXTENDED_OPS,
            no_one,
            c"extended-lvt".as_ptr(),
            EXTENDED_BYTES,
        );
        add(system(), EXTENDED_LVT, region, OVER_THE_APIC);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_that_did_not_take_is_named() {
        assert!(missing([true; 3]).is_ok());
        for (at, name) in ["RDMSR", "WRMSR", "CPUID"].into_iter().enumerate() {
            let mut asked = [true; 3];
            asked[at] = false;
            let error = missing(asked).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn other_threads_find_no_extended_table() {
        // There is no observer in a test: a look at it would be a fault.
        let elsewhere = || {
            extended_write(ptr::null_mut(), 0, 7, 4);
            extended_read(ptr::null_mut(), 0, 4)
        };
        assert_eq!(std::thread::spawn(elsewhere).join().unwrap(), 0);
    }
}
