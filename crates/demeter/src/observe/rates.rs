// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What went on between two looks.

use demeter_observe::State;
use serde::Serialize;

const SECONDS_PER_NS: f64 = 1e-9;
const PAGE_BYTES: f64 = 4096.0;

/// Per second of the guest's clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Between the looks.
    pub seconds: f64,
    /// Samples that reached a range.
    pub samples_per_s: f64,
    /// Samples lost.
    pub lost_samples_per_s: f64,
    /// Moved to the fast tier.
    pub promoted_bytes_per_s: f64,
    /// Moved to the slow tier.
    pub demoted_bytes_per_s: f64,
    /// Not moved.
    pub refused_bytes_per_s: f64,
    /// Share of samples of a known tier that hit the fast one.
    pub fmem_share: Option<f64>,
    /// Part of a CPU that the module took.
    pub cpu_share: f64,
    /// Latency of memory saved in each second, by the samples.
    pub realised_gain_share: f64,
}

impl Rates {
    /// None when the module was loaded anew in between, or no time has passed.
    pub fn between(then: &State, now: &State) -> Option<Self> {
        let seconds = now.time_ns.checked_sub(then.time_ns)? as f64 * SECONDS_PER_NS;
        if seconds <= 0.0 || now.stat("epochs") < then.stat("epochs") {
            return None;
        }
        let delta = |path: &str| (now.stat(path) - then.stat(path)) as f64;
        let cost = |state: &State| state.stats_in("time_ns").map(|(_, ns)| ns).sum::<i64>();
        let (fmem, smem) = (delta("fmem_samples"), delta("smem_samples"));
        Some(Self {
            seconds,
            samples_per_s: delta("samples") / seconds,
            lost_samples_per_s: delta("lost_samples") / seconds,
            promoted_bytes_per_s: delta("promoted_pages") * PAGE_BYTES / seconds,
            demoted_bytes_per_s: delta("demoted_pages") * PAGE_BYTES / seconds,
            refused_bytes_per_s: delta("refused_pages") * PAGE_BYTES / seconds,
            fmem_share: (fmem + smem > 0.0).then(|| fmem / (fmem + smem)),
            cpu_share: (cost(now) - cost(then)) as f64 * SECONDS_PER_NS / seconds,
            realised_gain_share: delta("gain/realised_ns") * SECONDS_PER_NS / seconds,
        })
    }
}
