// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each guest had in the last hour or so, for whoever looks at curves. A ring of
//! points a guest: bounded, in memory, gone with the daemon. Times are of the daemon's
//! own clock, which no one sets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use demeter_balloon::Statistics;
use demeter_balloon::view::{Short, Stage, VmView, Why};
use serde::Serialize;

use crate::vm::Vm;

/// Points of a guest; older ones are forgotten.
const REMEMBERED: usize = 720;
/// Points of all guests together, some 200 bytes each: many guests have a shorter past.
const TOGETHER: usize = 144_000;
/// Of a guest among however many.
const LEAST: usize = 60;

/// One tier at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TierPoint {
    /// Left to the guest.
    size_bytes: u64,
    /// Wanted to be left to it.
    wanted_size_bytes: Option<u64>,
    /// Allocated on the host.
    backing_bytes: Option<u64>,
}

/// One guest at a time. Rates are since the point before, by the guest's clock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Grows from point to point, for all guests alike.
    number: u64,
    /// Since the daemon's start.
    at_ms: u64,
    /// Where it stands.
    stage: Stage,
    /// Fastest first.
    tiers: Vec<TierPoint>,
    /// Time in which a task waited for memory, of a thousand.
    stalled_permille: Option<u32>,
    /// Pages read again soon.
    refaults_per_s: Option<f64>,
    /// Accesses that went to SMEM, of a thousand.
    slow_permille: Option<u32>,
    /// Why its memory has this size.
    why: Option<Why>,
    /// Why it has less FMEM than it has a use for.
    fmem_short: Option<Short>,
}

/// Points of a guest, as the control interface shows them.
#[derive(Debug, Serialize)]
pub struct HistoryView {
    /// Of this run of the daemon: with another one numbers begin anew.
    instance: String,
    /// From point to point.
    interval_ms: u64,
    /// Since the daemon's start.
    now_ms: u64,
    /// Oldest first.
    points: Vec<Point>,
}

struct Track {
    vm: Weak<Vm>,
    points: VecDeque<Point>,
    /// The newest statistics that the last point knew.
    said: Option<Statistics>,
}

/// Of all guests.
pub struct History {
    instance: u64,
    /// Between points.
    pub interval: Duration,
    began: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    number: u64,
    tracks: BTreeMap<String, Track>,
}

impl History {
    /// Empty.
    pub fn new(instance: u64, interval: Duration) -> Self {
        Self {
            instance,
            interval,
            began: Instant::now(),
            inner: Mutex::default(),
        }
    }

    /// A point for each guest; those that are not there any more are forgotten.
    pub fn record(&self, seen: &[(Arc<Vm>, VmView)]) {
        let at_ms = self.now_ms();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.number += 1;
        let number = inner.number;
        // One that was added anew under the name of another is another.
        (inner.tracks).retain(|_, track| {
            (seen.iter()).any(|(vm, _)| std::ptr::eq(track.vm.as_ptr(), Arc::as_ptr(vm)))
        });
        let most = remembered(seen.len());
        for (vm, view) in seen {
            let track = (inner.tracks.entry(view.name.clone())).or_insert_with(|| Track {
                vm: Arc::downgrade(vm),
                points: VecDeque::new(),
                said: None,
            });
            let over = (track.points.len() + 1).saturating_sub(most);
            track.points.drain(..over);
            let point = point(number, at_ms, view, track.said.as_ref());
            track.points.push_back(point);
            track.said.clone_from(&view.statistics);
        }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Points of that guest behind number `after`.
    pub fn view(&self, name: &str, after: u64) -> HistoryView {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let points = (inner.tracks.get(name).into_iter())
            .flat_map(|track| &track.points)
            .filter(|point| point.number > after)
            .cloned()
            .collect();
        HistoryView {
            instance: format!("{:016x}", self.instance),
            interval_ms: self.interval.as_millis() as u64,
            now_ms: self.now_ms(),
            points,
        }
    }
}

/// Points of each of so many guests.
fn remembered(guests: usize) -> usize {
    (TOGETHER / guests.max(1)).clamp(LEAST, REMEMBERED)
}

fn point(number: u64, at_ms: u64, view: &VmView, before: Option<&Statistics>) -> Point {
    let said = Said::of(view.statistics.as_ref(), before);
    Point {
        number,
        at_ms,
        stage: view.stage,
        tiers: (view.tiers.iter())
            .map(|tier| TierPoint {
                size_bytes: tier.size_bytes,
                wanted_size_bytes: tier.wanted_size_bytes,
                backing_bytes: tier.backing_bytes,
            })
            .collect(),
        stalled_permille: said.stalled_permille,
        refaults_per_s: said.refaults_per_s,
        slow_permille: said.slow_permille,
        why: view.sizing.map(|sizing| sizing.why),
        fmem_short: view.sizing.and_then(|sizing| sizing.fmem_short),
    }
}

/// What a guest's counters say of the time between two points. Nothing where they went
/// back, as after a reboot, or where it said nothing in between.
#[derive(Debug, Default, PartialEq)]
struct Said {
    stalled_permille: Option<u32>,
    refaults_per_s: Option<f64>,
    slow_permille: Option<u32>,
}

impl Said {
    fn of(now: Option<&Statistics>, before: Option<&Statistics>) -> Self {
        let (Some(now), Some(before)) = (now, before) else {
            return Self::default();
        };
        let elapsed_ns = match now.guest_time_ns.checked_sub(before.guest_time_ns) {
            None | Some(0) => return Self::default(),
            Some(elapsed_ns) => elapsed_ns,
        };
        let stalled_us = (now.psi_some_us.checked_sub(before.psi_some_us)).filter(|_| now.has_psi);
        let refaults = now.refaults.checked_sub(before.refaults);
        let fast = now.fmem_samples.checked_sub(before.fmem_samples);
        let slow = now.smem_samples.checked_sub(before.smem_samples);
        let samples = fast.zip(slow).filter(|_| now.has_tmm);
        Self {
            stalled_permille: stalled_us.map(|us| {
                let permille = u128::from(us) * 1_000_000 / u128::from(elapsed_ns);
                permille.min(1000) as u32
            }),
            refaults_per_s: refaults.map(|count| count as f64 * 1e9 / elapsed_ns as f64),
            slow_permille: samples.and_then(|(fast, slow)| {
                let all = u128::from(fast) + u128::from(slow);
                (u128::from(slow) * 1000)
                    .checked_div(all)
                    .map(|of| of as u32)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::driven;

    fn history() -> History {
        History::new(7, Duration::from_secs(5))
    }

    #[test]
    fn the_ring_is_bounded_and_numbers_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let vm = driven(directory.path(), "a").vm;
        let history = history();
        for _ in 0..REMEMBERED + 3 {
            history.record(&[(vm.clone(), vm.view())]);
        }
        let all = history.view("a", 0);
        assert_eq!(all.points.len(), REMEMBERED);
        assert_eq!(all.points[0].number, 4);
        assert_eq!(all.points[0].tiers[0].wanted_size_bytes, Some(12 << 12));
        let newest = REMEMBERED as u64 + 3;
        assert_eq!(history.view("a", newest - 1).points.len(), 1);
        assert!(history.view("a", newest).points.is_empty());
        assert!(history.view("b", 0).points.is_empty());
    }

    #[test]
    fn many_guests_share_the_room() {
        assert_eq!(remembered(0), REMEMBERED);
        assert_eq!(remembered(200), REMEMBERED);
        assert_eq!(remembered(1000), 144);
        assert_eq!(remembered(usize::MAX), LEAST);
    }

    #[test]
    fn another_guest_of_that_name_has_no_past() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = [(); 2].map(|()| driven(directory.path(), "a").vm);
        let history = history();
        history.record(&[(first.clone(), first.view())]);
        history.record(&[(first.clone(), first.view())]);
        history.record(&[(second.clone(), second.view())]);
        let points = history.view("a", 0).points;
        assert_eq!(points.len(), 1);
        assert_eq!(points[0].number, 3);
        history.record(&[]);
        assert!(history.view("a", 0).points.is_empty());
    }

    fn statistics() -> Statistics {
        Statistics {
            sequence: 0,
            guest_time_ns: 1_000_000_000,
            event: demeter_balloon::statistics::Trigger::Periodic,
            has_tmm: true,
            has_psi: true,
            fmem_samples: 100,
            smem_samples: 50,
            hot_wanted_pages: 1,
            psi_some_us: 1000,
            psi_full_us: 0,
            oom_kills: 0,
            oom_deflated_pages: 0,
            refaults: 10,
            nodes: Vec::new(),
        }
    }

    #[test]
    fn counters_become_rates_unless_they_went_back() {
        let before = statistics();
        let now = Statistics {
            guest_time_ns: 3_000_000_000,
            psi_some_us: 501_000,
            fmem_samples: 400,
            smem_samples: 150,
            refaults: 30,
            ..statistics()
        };
        let said = Said {
            stalled_permille: Some(250),
            refaults_per_s: Some(10.0),
            slow_permille: Some(250),
        };
        assert_eq!(Said::of(Some(&now), Some(&before)), said);
        let none = Said::default();
        assert_eq!(Said::of(Some(&before), Some(&now)), none);
        assert_eq!(Said::of(Some(&now), Some(&now)), none);
        assert_eq!(Said::of(Some(&now), None), none);
        let lies = Statistics {
            guest_time_ns: before.guest_time_ns + 1,
            psi_some_us: u64::MAX,
            refaults: u64::MAX,
            fmem_samples: u64::MAX,
            smem_samples: u64::MAX,
            ..statistics()
        };
        let said = Said::of(Some(&lies), Some(&before));
        assert_eq!(said.stalled_permille, Some(1000));
        assert_eq!(said.slow_permille, Some(500));
    }
}
