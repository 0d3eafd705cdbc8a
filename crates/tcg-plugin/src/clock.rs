// SPDX-License-Identifier: GPL-2.0-or-later
//! The guest clock: instructions, charged time, and idle time skipped.
//!
//! QEMU's instruction counter is the source of guest time; its API for time
//! control does nothing under TCG. So the function QEMU asks for the time is
//! replaced by one that answers
//!
//! ```text
//! idle skips + instructions × insn_ps + charged penalty
//! ```
//!
//! All three only grow with the guest's execution, never with the host's
//! clock. There is one clock: with several vCPUs it grows with each in its
//! turn, so that guest time is the sum of what all of them did. QEMU asks from
//! its main thread too, hence the atomics.
//!
//! Idle time is skipped by QEMU's main thread; [`crate::idle`] says when.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::idle;
use crate::qemu::{Api, QemuError};

/// What the hook needs; set once before the guest runs.
static SOURCE: OnceLock<(Api, u64)> = OnceLock::new();
/// Written by the vCPU thread only.
static PENALTY_PS: AtomicU64 = AtomicU64::new(0);
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Clock reads on the vCPU thread that verify the layout of QEMU's timer state.
/// By then the guest has booted far enough for every term to be non-zero.
const VERIFIED_READS: u64 = 1 << 16;

thread_local! {
    static VERIFICATIONS_LEFT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the raw pointers inside are addresses of QEMU's functions and statics.
unsafe impl Send for Api {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Api {}

/// QEMU's functions, once the clock is hooked.
pub fn api() -> Option<&'static Api> {
    SOURCE.get().map(|(api, _)| api)
}

fn sum_ps(bias_ns: i64, raw: i64, insn_ps: u64, penalty_ps: u64) -> u64 {
    let sum =
        i128::from(bias_ns) * 1000 + i128::from(raw) * i128::from(insn_ps) + i128::from(penalty_ps);
    // The clock stops at the end of what it can tell; it never goes back.
    u64::try_from(sum.max(0)).unwrap_or(u64::MAX)
}

extern "C" fn guest_clock() -> i64 {
    ASKED.fetch_add(1, Relaxed);
    idle::clock_looked_at();
    let Some((api, insn_ps)) = SOURCE.get() else {
        return 0;
    };
    VERIFICATIONS_LEFT.with(|left| {
        if left.get() > 0 {
            left.set(left.get() - 1);
            if !api.layout_agrees() {
                crate::fatal(&QemuError::Layout, crate::NEXT_QEMU);
            }
        }
    });
    // SAFETY: QEMU calls this wherever it would have called its own
    // `icount_get`, which calls `icount_get_raw`.
    let raw = unsafe { (api.icount_get_raw)() };
    (sum_ps(api.bias_ns(), raw, *insn_ps, PENALTY_PS.load(Relaxed)) / 1000) as i64
}

/// Access to the guest clock from callbacks on the vCPU thread.
pub struct Clock {
    api: Api,
    insn_ps: u64,
    slack_ps: u64,
    kicked_ps: u64,
    penalty_ps: u64,
}

impl Clock {
    /// Puts the hook in; in the first vCPU's init callback.
    pub fn hook(api: Api, insn_ps: u64, slack_ns: u64) -> Result<Self, QemuError> {
        SOURCE
            .set((api, insn_ps))
            .map_err(|_| QemuError::Hook("hooked twice"))?;
        api.hook_clock(guest_clock, || ASKED.load(Relaxed))?;
        api.hook_idle(idle::is_idle)?;
        VERIFICATIONS_LEFT.set(VERIFIED_READS);
        Ok(Self {
            api,
            insn_ps,
            slack_ps: slack_ns * 1000,
            kicked_ps: 0,
            penalty_ps: 0,
        })
    }

    /// Charges time to `cpu`, which runs. QEMU looks at its timers again, and
    /// lets the next vCPU run, once `slack` has gathered.
    #[inline]
    pub fn charge(&mut self, ps: u64, cpu: *mut c_void) {
        self.penalty_ps += ps;
        PENALTY_PS.store(self.penalty_ps, Relaxed);
        if self.penalty_ps - self.kicked_ps >= self.slack_ps {
            self.kicked_ps = self.penalty_ps;
            // SAFETY: a vCPU of QEMU's, on the thread that runs it.
            unsafe { (self.api.cpu_exit)(cpu) };
        }
    }

    /// Time charged so far.
    #[inline]
    pub const fn penalty_ps(&self) -> u64 {
        self.penalty_ps
    }

    /// The guest clock now; on the vCPU thread, while `cpu` runs.
    pub fn now_ns(&self, cpu: *mut c_void) -> u64 {
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { self.api.settle(cpu) } {
            crate::fatal(&error, crate::NEXT_QEMU);
        }
        self.settled_ns()
    }

    /// The guest clock as of the last time QEMU or [`Clock::now_ns`] looked.
    pub fn settled_ns(&self) -> u64 {
        sum_ps(
            self.api.bias_ns(),
            self.api.raw_icount(),
            self.insn_ps,
            self.penalty_ps,
        ) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::sum_ps;

    #[test]
    fn a_second_of_each_term() {
        let second_ps = 1_000_000_000_000;
        assert_eq!(sum_ps(1_000_000_000, 0, 300, 0), second_ps);
        assert_eq!(sum_ps(0, 1_000_000_000, 300, 0), 300_000_000_000);
        assert_eq!(sum_ps(0, 0, 300, second_ps), second_ps);
        assert_eq!(sum_ps(1, 10, 300, 5), 1000 + 3000 + 5);
        assert_eq!(sum_ps(-1, 10, 300, 5), 2005);
    }

    #[test]
    fn the_end_of_time_is_no_beginning() {
        assert_eq!(sum_ps(1, 1, 300, u64::MAX), u64::MAX);
        assert_eq!(sum_ps(i64::MAX, i64::MAX, 300, 0), u64::MAX);
        assert_eq!(sum_ps(-1, 0, 300, 0), 0);
    }
}
