// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The region of interest of a workload: marked for the machine model, timed
//! by the guest's monotonic clock, its progress put into the time series.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use demeter_agent::{magic, roi};

/// A region of interest that has begun. Threads may share it.
pub struct Interest {
    began: Instant,
    resident_bytes: u64,
    work: u64,
    step: u64,
    next: AtomicU64,
    three_quarters_ns: AtomicU64,
}

/// How long a region of interest took.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    work: u64,
    /// Memory of the process when the region began, zero where the system does not say
    pub resident_bytes: u64,
    /// All of it
    pub seconds: f64,
    last_quarter_work: u64,
    last_quarter_seconds: f64,
}

impl Interest {
    /// Begins the region: `work` units of work, `reports` progress marks over them.
    pub fn begin(work: u64, reports: u64) -> Self {
        let resident_bytes = resident_bytes();
        let step = (work / reports.max(1)).max(1);
        crate::begin();
        Self {
            began: Instant::now(),
            resident_bytes,
            work,
            step,
            next: AtomicU64::new(step),
            three_quarters_ns: AtomicU64::new(0),
        }
    }

    /// Says that `done` units are done in all. Costs a comparison where no mark is due.
    #[inline(always)]
    pub fn reach(&self, done: u64) {
        if done >= self.next.load(Ordering::Relaxed) {
            self.report(done);
        }
    }

    #[cold]
    fn report(&self, done: u64) {
        magic::progress(done);
        // Of threads that come here at once each reports; the mark after is the same for all.
        let next = (done / self.step + 1) * self.step;
        self.next.fetch_max(next, Ordering::Relaxed);
        if done >= self.work / 4 * 3 {
            let now_ns = self.began.elapsed().as_nanos() as u64;
            // The first that is past three quarters; the work there is `work / 4 * 3`
            // rounded up to a step, see `end`.
            let _ = self.three_quarters_ns.compare_exchange(
                0,
                now_ns.max(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Ends the region.
    pub fn end(self) -> Times {
        let seconds = self.began.elapsed().as_secs_f64();
        roi::end();
        let last_quarter_first = (self.work / 4 * 3).div_ceil(self.step) * self.step;
        let before = self.three_quarters_ns.into_inner() as f64 * 1e-9;
        Times {
            work: self.work,
            resident_bytes: self.resident_bytes,
            seconds,
            last_quarter_work: self.work.saturating_sub(last_quarter_first),
            last_quarter_seconds: seconds - before,
        }
    }
}

impl Times {
    /// Units of work a second.
    pub fn per_s(&self) -> f64 {
        self.work as f64 / self.seconds.max(1e-9)
    }

    /// Units of work a second in the last quarter of the work; the whole where
    /// there were too few marks to tell.
    pub fn per_s_last_quarter(&self) -> f64 {
        if self.last_quarter_work == 0 {
            return self.per_s();
        }
        self.last_quarter_work as f64 / self.last_quarter_seconds.max(1e-9)
    }
}

/// Memory of this process that is present, in bytes.
fn resident_bytes() -> u64 {
    // SAFETY: a plain query.
    let page_bytes = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
    std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok())
        .map_or(0, |pages| pages * page_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_as_many_as_asked_for() {
        let interest = Interest::begin(1000, 10);
        let mut marks = 0;
        for done in 1..=1000 {
            let before = interest.next.load(Ordering::Relaxed);
            interest.reach(done);
            marks += u64::from(interest.next.load(Ordering::Relaxed) != before);
        }
        assert_eq!(marks, 10);
        let times = interest.end();
        assert_eq!(times.last_quarter_work, 200);
        assert!(times.resident_bytes > 100_000 && times.seconds > 0.0);
        assert!(times.per_s() > 0.0 && times.per_s_last_quarter() > 0.0);
    }
}
