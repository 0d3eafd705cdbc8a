// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU's own TLB, which translated code looks every address up in.
//!
//! It is not the modelled one: that it holds a page costs or saves the host's time
//! only. QEMU lets it grow where more than 70 % of it was in use when it is flushed, and
//! shrink where less than 30 % was for 100 ms of the *host's* clock. A guest that is
//! modelled gets little done in 100 ms and flushes seldom: its TLB shrinks below what its
//! program uses, and nearly every access fills it anew, several times the cost of the
//! model itself. When the filling sets accessed bits in the guest's page table, which
//! they are depends on the host's clock as well.
//!
//! So windows are counted in guest time here, and a TLB that is full is flushed for
//! QEMU to make it larger. A window ends only where the guest does what QEMU flushes
//! for; whatever QEMU writes down as the beginning of the next one, by the host's clock,
//! is overwritten when the TLB is filled again. What QEMU keeps for this is found at
//! offsets: they are checked when a vCPU appears, and that QEMU goes by what is written
//! there is checked while the guest runs. A QEMU that does otherwise is refused.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::qemu::QemuError;

/// Modes of address translation, each with a TLB (`NB_MMU_MODES`), QEMU 11.1.
const MODES: usize = 22;
/// Offset of `tlb.d[0].window_begin_ns` in a vCPU and the size of `CPUTLBDesc`.
const BEGIN_OFFSET: usize = 0x320;
const DESC_BYTES: usize = 0x2b8;
/// From there: `window_max_entries` and `n_used_entries`.
const MOST_OFFSET: usize = 8;
const USED_OFFSET: usize = 16;
/// Offset of the mask of mode 0 in a vCPU; those of the others lie below it.
const MASK_OFFSET: usize = 0x4030;
const FAST_BYTES: usize = 16;
/// A mask counts bytes of entries of this size.
const ENTRY_BITS: u32 = 5;
/// Sizes that QEMU gives it.
const ENTRIES: std::ops::RangeInclusive<u64> = 1 << 6..=1 << 22;

/// QEMU's window, in guest time.
const WINDOW_NS: u64 = 100_000_000;
/// Use above which QEMU doubles it.
const FULL_PERCENT: u64 = 70;
/// How often a full one is looked for, in guest time.
const LOOK_NS: u64 = 1_000_000;
/// None is made larger than this many entries: 1 GiB of small pages, 8 MiB of entries.
const MOST_ENTRIES: u64 = 1 << 18;
/// A beginning of a window that is never over.
const NEVER_OVER_NS: i64 = i64::MAX / 2;

/// Whether QEMU has ended a window that was made to be over.
static FOLLOWED: AtomicBool = AtomicBool::new(false);

/// The TLBs of one vCPU.
pub struct SoftTlb {
    cpu: *mut u8,
    window_ns: [u64; MODES],
    next_look_ns: u64,
}

impl SoftTlb {
    /// Those of `cpu`, a vCPU of QEMU's that has not run; its windows are never over from
    /// now on.
    ///
    /// # Safety
    /// `cpu` points to a vCPU that exists as long as the process.
    ///
    /// # Errors
    /// They are laid out differently.
    pub unsafe fn of(cpu: *mut c_void) -> Result<Self, QemuError> {
        let tlb = Self {
            cpu: cpu.cast(),
            window_ns: [0; MODES],
            next_look_ns: 0,
        };
        // QEMU makes all of them at once: with the same size, nothing in them, and windows
        // that begin in the same moment.
        let (mask, begin) = (tlb.mask(0), tlb.word(0, 0));
        let size_fits = mask & ((1 << ENTRY_BITS) - 1) == 0
            && tlb.entries(0).is_power_of_two()
            && ENTRIES.contains(&tlb.entries(0));
        let alike = |mode| tlb.mask(mode) == mask && tlb.word(mode, 0) == begin;
        let empty = |mode| tlb.used(mode) == 0 && tlb.word(mode, MOST_OFFSET) == 0;
        if !size_fits || begin.cast_signed() <= 0 {
            return Err(QemuError::Tlb("neither its size nor its window is found"));
        }
        if !(0..MODES).all(|mode| alike(mode) && empty(mode)) {
            return Err(QemuError::Tlb(
                "those of its modes differ from the beginning",
            ));
        }
        for mode in 0..MODES {
            tlb.set_begin(mode, NEVER_OVER_NS);
        }
        Ok(tlb)
    }

    fn mask(&self, mode: usize) -> u64 {
        // SAFETY: an aligned word of the vCPU; which one is what `of` checks.
        unsafe {
            self.cpu
                .add(MASK_OFFSET - mode * FAST_BYTES)
                .cast::<u64>()
                .read_volatile()
        }
    }

    fn entries(&self, mode: usize) -> u64 {
        (self.mask(mode) >> ENTRY_BITS) + 1
    }

    fn place(&self, mode: usize, field: usize) -> *mut u64 {
        // SAFETY: inside the vCPU, as above.
        unsafe { self.cpu.add(BEGIN_OFFSET + mode * DESC_BYTES + field) }.cast()
    }

    fn word(&self, mode: usize, field: usize) -> u64 {
        // SAFETY: as above.
        unsafe { self.place(mode, field).read_volatile() }
    }

    fn set_begin(&self, mode: usize, begin_ns: i64) {
        // SAFETY: the beginning of a window, which QEMU compares with the clock when it
        // flushes, on this thread.
        unsafe { self.place(mode, 0).write_volatile(begin_ns.cast_unsigned()) };
    }

    fn used(&self, mode: usize) -> u64 {
        self.word(mode, USED_OFFSET)
    }

    fn is_full(&self, mode: usize, used: u64) -> bool {
        used * 100 / self.entries(mode) > FULL_PERCENT
    }

    /// The guest is about to do what QEMU flushes for: has its windows end by guest time.
    pub fn before_flush(&mut self, now_ns: u64) {
        for mode in 0..MODES {
            let most = self.used(mode).max(self.word(mode, MOST_OFFSET));
            let over = now_ns >= self.window_ns[mode] + WINDOW_NS;
            if over || self.is_full(mode, most) {
                self.window_ns[mode] = now_ns;
            }
            self.set_begin(mode, if over { 0 } else { NEVER_OVER_NS });
        }
    }

    /// True when it is time for [`Self::wants_flush`].
    #[inline(always)]
    pub const fn due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_look_ns
    }

    /// Whether one is full and would be larger after a flush.
    pub fn wants_flush(&mut self, now_ns: u64) -> bool {
        self.next_look_ns = now_ns + LOOK_NS;
        (0..MODES)
            .any(|mode| self.is_full(mode, self.used(mode)) && self.entries(mode) < MOST_ENTRIES)
    }
}

/// The TLB of `mode` is about to be filled, so that the next flush will look at its
/// window: if QEMU has begun a new one, by the host's clock, that is not over either.
///
/// # Safety
/// `cpu` is one that [`SoftTlb::of`] has looked at, on the thread that runs it.
#[inline]
pub unsafe fn about_to_fill(cpu: *mut c_void, mode: c_int) {
    let Ok(mode @ 0..MODES) = usize::try_from(mode) else {
        return;
    };
    // SAFETY: inside the vCPU, as `of` has checked.
    unsafe {
        let begin = (cpu.cast::<u8>())
            .add(BEGIN_OFFSET + mode * DESC_BYTES)
            .cast::<i64>();
        let found = begin.read_volatile();
        if found != NEVER_OVER_NS {
            begin.write_volatile(NEVER_OVER_NS);
            if found != 0 {
                FOLLOWED.store(true, Relaxed);
            }
        }
    }
}

/// Whether QEMU goes by the windows; once the guest has flushed its TLB.
///
/// # Errors
/// It does not.
pub fn check() -> Result<(), QemuError> {
    if FOLLOWED.load(Relaxed) {
        Ok(())
    } else {
        Err(QemuError::Tlb("its windows do not end when they are over"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vCPU as QEMU 11.1 lays it out, as far as it is looked at.
    struct Cpu(Vec<u64>);

    impl Cpu {
        fn new(entries: u64) -> Self {
            let mut cpu = Self(vec![0; 0x4100 / 8]);
            for mode in 0..MODES {
                cpu.set(mode, 0, 1_767_225_600_000_000_000);
                cpu.0[(MASK_OFFSET - mode * FAST_BYTES) / 8] = (entries - 1) << ENTRY_BITS;
            }
            cpu
        }

        fn set(&mut self, mode: usize, field: usize, value: u64) {
            self.0[(BEGIN_OFFSET + mode * DESC_BYTES + field) / 8] = value;
        }

        fn pointer(&mut self) -> *mut c_void {
            self.0.as_mut_ptr().cast()
        }

        fn tlb(&mut self) -> Result<SoftTlb, QemuError> {
            // SAFETY: it outlives the tests' use.
            unsafe { SoftTlb::of(self.pointer()) }
        }

        fn begin(&self, mode: usize) -> u64 {
            self.0[(BEGIN_OFFSET + mode * DESC_BYTES) / 8]
        }
    }

    #[test]
    fn another_layout_is_refused() {
        assert!(Cpu::new(256).tlb().is_ok());
        assert!(Cpu::new(3).tlb().is_err());
        assert!(Cpu::new(1 << 23).tlb().is_err());
        let wrong: [(usize, usize, u64); 4] = [
            (0, 0, 0),
            (21, 0, 1_767_225_600_000_000_001),
            (7, USED_OFFSET, 1),
            (8, MOST_OFFSET, 1),
        ];
        for (mode, field, value) in wrong {
            let mut cpu = Cpu::new(256);
            cpu.set(mode, field, value);
            let error = cpu.tlb().map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("QEMU's own TLB"), "{error}");
            // What is not known is not written to.
            assert_eq!(cpu.begin(1), 1_767_225_600_000_000_000);
        }
        let mut cpu = Cpu::new(256);
        cpu.0[(MASK_OFFSET - 9 * FAST_BYTES) / 8] = 511 << ENTRY_BITS;
        assert!(cpu.tlb().is_err());
    }

    #[test]
    fn no_window_is_over_by_the_hosts_clock() {
        let mut cpu = Cpu::new(256);
        let mut tlb = cpu.tlb().unwrap();
        assert!((0..MODES).all(|mode| cpu.begin(mode) == NEVER_OVER_NS as u64));
        tlb.before_flush(WINDOW_NS);
        assert!(check().is_err());
        let fill = |cpu: &mut Cpu, mode| {
            // SAFETY: looked at above.
            unsafe { about_to_fill(cpu.pointer(), mode) };
        };
        // QEMU has not flushed this one.
        fill(&mut cpu, 4);
        assert_eq!(cpu.begin(4), NEVER_OVER_NS as u64);
        assert!(check().is_err());
        // These it has.
        cpu.set(2, 0, 1_767_225_600_000_000_000);
        cpu.set(21, 0, 1_767_225_600_000_000_000);
        fill(&mut cpu, 2);
        fill(&mut cpu, 21);
        assert_eq!((cpu.begin(2), cpu.begin(21)), (cpu.begin(4), cpu.begin(4)));
        assert!(check().is_ok());
        for mode in [-1, 22, c_int::MAX] {
            fill(&mut cpu, mode);
        }
    }

    #[test]
    fn windows_end_by_guest_time() {
        let mut cpu = Cpu::new(256);
        let mut tlb = cpu.tlb().unwrap();
        tlb.before_flush(WINDOW_NS);
        assert_eq!(cpu.begin(2), 0);
        tlb.before_flush(2 * WINDOW_NS - 1);
        assert_eq!(cpu.begin(2), NEVER_OVER_NS as u64);
        tlb.before_flush(2 * WINDOW_NS);
        assert_eq!(cpu.begin(2), 0);
        // One that grows begins a window.
        cpu.set(2, MOST_OFFSET, 200);
        tlb.before_flush(2 * WINDOW_NS + 10);
        tlb.before_flush(3 * WINDOW_NS + 9);
        assert_eq!((cpu.begin(1), cpu.begin(2)), (0, NEVER_OVER_NS as u64));
    }

    #[test]
    fn only_a_full_one_is_made_larger() {
        let mut cpu = Cpu::new(256);
        let mut tlb = cpu.tlb().unwrap();
        cpu.set(2, USED_OFFSET, 179);
        assert!(!tlb.wants_flush(5));
        assert!(!tlb.due(4 + LOOK_NS) && tlb.due(5 + LOOK_NS));
        cpu.set(2, USED_OFFSET, 182);
        assert!(tlb.wants_flush(5));
        let mut cpu = Cpu::new(MOST_ENTRIES);
        let mut tlb = cpu.tlb().unwrap();
        cpu.set(2, USED_OFFSET, MOST_ENTRIES);
        assert!(!tlb.wants_flush(5));
    }
}
