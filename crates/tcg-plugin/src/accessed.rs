// SPDX-License-Identifier: GPL-2.0-or-later
//! Accessed bits come from modelled walks, not from QEMU's.
//!
//! QEMU sets the accessed bits of a page table whenever its own TLB misses. That TLB
//! is larger than the modelled one and grows by the host's clock, so that bits the
//! guest has cleared would stay clear where hardware sets them, and the other way
//! round. Modelled walks set them ([`crate::ram::Ram::walk`]); here QEMU's function
//! that fills its TLB is replaced by one that takes back what it sets for loads and
//! stores while the model is on. Three things set them as before:
//!
//! - instruction fetches: the model has no TLB for them;
//! - a store that makes a page dirty: hardware walks the table again for it;
//! - walks that end in a fault, at the levels above: QEMU leaves by a jump.
//!
//! The function is reached through a table of the vCPU's class. The table may be
//! read-only, so a copy with the other function takes its place. All vCPUs have one
//! class, which is checked as each appears; a walk is judged by the page table of the
//! vCPU it is for, and by nothing of the others.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use crate::qemu::{Api, QemuError, symbol};
use crate::soft_tlb;

/// `tlb_fill` of `TCGCPUOps`, QEMU 6.2 to 11: vCPU, address, size, kind of access,
/// MMU index, whether a fault is only reported, return address in translated code.
type TlbFill = unsafe extern "C" fn(*mut c_void, u64, c_int, c_int, c_int, bool, usize) -> bool;

/// `MMU_INST_FETCH`.
const FETCH: c_int = 2;
/// Words of the class searched for the table; a class is larger.
const CLASS_WORDS: usize = 128;
/// Words of the table copied; in every known version it has fewer, and none of its
/// functions twice.
const TABLE_WORDS: usize = 64;

static ORIGINAL: OnceLock<TlbFill> = OnceLock::new();
/// The table with the other function, once it is in use.
static TABLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static ASKED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn fill(
    cpu: *mut c_void,
    va: u64,
    size: c_int,
    access: c_int,
    mmu: c_int,
    probe: bool,
    from: usize,
) -> bool {
    let Some(original) = ORIGINAL.get() else {
        return false;
    };
    // SAFETY: a vCPU of QEMU's that has run, so it has been looked at.
    unsafe { soft_tlb::about_to_fill(cpu, mmu) };
    let observer = crate::observer();
    let before = if observer.on {
        // Nothing of the observer is borrowed below: QEMU may call back, or jump away.
        (access != FETCH)
            .then(|| observer.unaccessed(cpu, va))
            .flatten()
    } else {
        ASKED.store(true, Relaxed);
        None
    };
    // SAFETY: QEMU's own call, passed on.
    let filled = unsafe { original(cpu, va, size, access, mmu, probe, from) };
    if let Some(before) = before {
        before.restore();
    }
    filled
}

/// Replaces the function in the class of `cpu`; once, before the guest runs.
pub fn hook(api: &Api, cpu: *mut c_void) -> Result<(), QemuError> {
    let table = symbol(c"x86_tcg_ops")?;
    let original = symbol(c"x86_cpu_tlb_fill")?;
    // SAFETY: QEMU's table, in a segment that goes on for longer than this.
    let mut words = unsafe { table.cast::<[*mut c_void; TABLE_WORDS]>().read() };
    let mut places = words.iter_mut().filter(|word| **word == original);
    let (Some(place), None) = (places.next(), places.next()) else {
        return Err(QemuError::PageWalk("its table is not as expected"));
    };
    *place = fill as *mut c_void;
    // SAFETY: the function's own type.
    let original = unsafe { std::mem::transmute::<*mut c_void, TlbFill>(original) };
    ORIGINAL
        .set(original)
        .map_err(|_| QemuError::PageWalk("it is replaced already"))?;
    // SAFETY: a vCPU of QEMU's. Its class is larger than what is searched; the slot is
    // writable, as QEMU fills it in at start, and the copy lives until the process ends.
    unsafe {
        let class = (api.object_get_class)(cpu);
        let slot = (0..CLASS_WORDS)
            .map(|word| class.wrapping_add(word))
            .find(|slot| **slot == table)
            .ok_or(QemuError::PageWalk("its table is not in the vCPU's class"))?;
        let ours = Box::leak(Box::new(words)).as_mut_ptr().cast();
        TABLE.store(ours, Relaxed);
        *slot = ours;
    }
    Ok(())
}

/// Whether the table is that of `cpu` too: vCPUs of one class share it.
///
/// # Errors
/// It has another, so that QEMU's walks for it would set accessed bits.
pub fn covers(api: &Api, cpu: *mut c_void) -> Result<(), QemuError> {
    let ours = TABLE.load(Relaxed);
    // SAFETY: a vCPU of QEMU's, whose class is larger than what is searched.
    let found = unsafe {
        let class = (api.object_get_class)(cpu);
        (0..CLASS_WORDS).any(|word| *class.wrapping_add(word) == ours)
    };
    if !ours.is_null() && found {
        Ok(())
    } else {
        Err(QemuError::PageWalk("vCPUs are of different classes"))
    }
}

/// Whether QEMU has asked the hook; once the guest runs.
pub fn check() -> Result<(), QemuError> {
    if ASKED.load(Relaxed) {
        Ok(())
    } else {
        Err(QemuError::PageWalk("QEMU does not use the hook"))
    }
}
