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
//! QEMU to make it larger. What QEMU keeps for this is found at offsets that are
//! checked first; with another layout nothing is touched.

use std::ffi::c_void;

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

/// The TLBs of one vCPU.
pub struct SoftTlb {
    cpu: *mut u8,
    window_ns: [u64; MODES],
    next_look_ns: u64,
}

impl SoftTlb {
    /// Those of `cpu`, a vCPU of QEMU's; `None` if they are laid out differently.
    ///
    /// # Safety
    /// `cpu` points to a vCPU that exists as long as the process.
    pub unsafe fn of(cpu: *mut c_void) -> Option<Self> {
        let tlb = Self {
            cpu: cpu.cast(),
            window_ns: [0; MODES],
            next_look_ns: 0,
        };
        // As QEMU reads it: of the wall clock.
        let now_ns = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .ok()?
            .as_nanos();
        let begun_lately = |begin_ns: i64| {
            const DAY_NS: u128 = 86_400_000_000_000;
            u128::try_from(begin_ns).is_ok_and(|ns| ns <= now_ns && now_ns - ns < DAY_NS)
        };
        (0..MODES)
            .all(|mode| {
                let entries = tlb.entries(mode);
                let whole = tlb.mask(mode) & ((1 << ENTRY_BITS) - 1) == 0;
                whole
                    && entries.is_power_of_two()
                    && ENTRIES.contains(&entries)
                    && tlb.used(mode) <= entries
                    && begun_lately(tlb.word(mode, 0).cast_signed())
            })
            .then_some(tlb)
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
            let begin_ns = if over { 0 } else { NEVER_OVER_NS };
            // SAFETY: the beginning of the window, which QEMU compares with the clock
            // when it flushes, on this thread.
            unsafe { self.place(mode, 0).write_volatile(begin_ns.cast_unsigned()) };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A vCPU as QEMU 11.1 lays it out, as far as it is looked at.
    struct Cpu(Vec<u64>);

    impl Cpu {
        fn new(entries: u64) -> Self {
            let mut cpu = Self(vec![0; 0x4100 / 8]);
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap();
            for mode in 0..MODES {
                cpu.set(mode, 0, now.as_nanos() as u64);
                cpu.0[(MASK_OFFSET - mode * FAST_BYTES) / 8] = (entries - 1) << ENTRY_BITS;
            }
            cpu
        }

        fn set(&mut self, mode: usize, field: usize, value: u64) {
            self.0[(BEGIN_OFFSET + mode * DESC_BYTES + field) / 8] = value;
        }

        fn tlb(&mut self) -> Option<SoftTlb> {
            // SAFETY: it outlives the tests' use.
            unsafe { SoftTlb::of(self.0.as_mut_ptr().cast()) }
        }

        fn begin(&self, mode: usize) -> u64 {
            self.0[(BEGIN_OFFSET + mode * DESC_BYTES) / 8]
        }
    }

    #[test]
    fn another_layout_is_left_alone() {
        assert!(Cpu::new(256).tlb().is_some());
        assert!(Cpu::new(3).tlb().is_none());
        let mut cpu = Cpu::new(256);
        cpu.set(21, 0, 0);
        assert!(cpu.tlb().is_none());
        let mut cpu = Cpu::new(256);
        cpu.set(7, USED_OFFSET, 257);
        assert!(cpu.tlb().is_none());
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
