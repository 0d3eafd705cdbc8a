// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a simulation came to.

use serde::Serialize;

/// Shares of a shorter way than this part of `none`'s time say nothing (docs/ideal.md).
const LEAST_WAY: f64 = 0.05;

/// Pages of a range, by tier, in the end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Placed {
    /// Address space.
    pub space: u64,
    /// First byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Base pages in FMEM.
    pub fmem_pages: u64,
    /// Base pages in SMEM.
    pub smem_pages: u64,
    /// Decayed samples.
    pub rate: f64,
}

impl Placed {
    pub(crate) fn new(space: u64, start: u64, end: u64, pages: [u64; 2], rate: u64) -> Self {
        Self {
            space,
            start,
            end,
            fmem_pages: pages[0],
            smem_pages: pages[1],
            rate: rate as f64 / 256.0,
        }
    }
}

/// The figures of a simulation. Times are modelled.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// What the recorded part takes.
    pub time_s: f64,
    /// Under first touch, with the same machine and FMEM.
    pub none_s: Option<f64>,
    /// With the clairvoyant static placement.
    pub ideal_s: Option<f64>,
    /// The share of the way from `none_s` to `ideal_s`; absent where that is short.
    pub ideal_share: Option<f64>,
    /// Share of line fills that FMEM served.
    pub fmem_share: Option<f64>,
    /// The same of the last quarter of the work.
    pub fmem_share_last_quarter: Option<f64>,
    /// Samples that fell into a range.
    pub samples: u64,
    /// Epochs of the manager.
    pub epochs: u64,
    /// Ranges in the end.
    pub ranges: u64,
    /// Base pages moved to FMEM.
    pub promoted_pages: u64,
    /// Base pages moved to SMEM.
    pub demoted_pages: u64,
    /// Base pages that left FMEM as the host took it.
    pub evacuated_pages: u64,
    /// Base pages moved into free FMEM.
    pub filled_pages: u64,
    /// Times that moving was stopped, as it did not pay.
    pub stops: u64,
    /// What moving took.
    pub relocate_ms: f64,
    /// Where pages are in the end.
    pub placed: Vec<Placed>,
    /// Of all decisions, times and places.
    pub digest: String,
}

impl Report {
    /// Holds it against first touch and the clairvoyant placement.
    pub(crate) fn compare(&mut self, none_s: f64, ideal_s: Option<f64>) {
        self.none_s = Some(none_s);
        self.ideal_s = ideal_s;
        let way_s = ideal_s.map_or(0.0, |ideal_s| none_s - ideal_s);
        self.ideal_share = (way_s >= LEAST_WAY * none_s).then(|| (none_s - self.time_s) / way_s);
    }
}
