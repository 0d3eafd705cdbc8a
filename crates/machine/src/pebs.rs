// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The virtual PEBS unit: one record for every `period` loads above a latency.

use crate::vpmu::Record;

/// The guest's side of the unit: control registers and the ring.
pub trait Port {
    /// Whether the guest wants samples.
    fn enabled(&self) -> bool;
    /// One record for this many events; 0 counts as 1.
    fn period(&self) -> u64;
    /// Latency at which a load becomes an event.
    fn threshold_ns(&self) -> u64;
    /// Appends a record; false if the ring is full.
    fn push(&mut self, record: &Record) -> bool;
    /// Makes the running totals visible.
    fn publish(&mut self, events: u64, lost: u64);
}

/// What became of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// Not an event, or not the last of its period.
    No,
    /// A record was written.
    Record,
    /// A record was due and the ring was full.
    Lost,
}

/// State of the unit that the guest does not see.
#[derive(Clone, Debug, Default)]
pub struct PebsUnit {
    /// Events still to pass before the next record.
    remaining: u64,
    /// The period `remaining` was loaded from.
    period: u64,
    /// Events so far.
    pub events: u64,
    /// Records so far.
    pub records: u64,
    /// Records dropped so far.
    pub lost: u64,
}

impl PebsUnit {
    /// Takes one load. `record` is called only when a record is due.
    #[inline]
    pub fn load(
        &mut self,
        port: &mut impl Port,
        latency_ps: u64,
        record: impl FnOnce() -> Record,
    ) -> Sampled {
        if !port.enabled() || latency_ps < port.threshold_ns().saturating_mul(1000) {
            return Sampled::No;
        }
        let period = port.period().max(1);
        if period != self.period {
            self.period = period;
            self.remaining = period;
        }
        self.events += 1;
        self.remaining -= 1;
        if self.remaining > 0 {
            return Sampled::No;
        }
        self.remaining = period;
        let pushed = port.push(&record());
        *(if pushed {
            &mut self.records
        } else {
            &mut self.lost
        }) += 1;
        port.publish(self.events, self.lost);
        if pushed {
            Sampled::Record
        } else {
            Sampled::Lost
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Ring {
        period: u64,
        capacity: usize,
        records: Vec<Record>,
        totals: (u64, u64),
    }

    impl Port for Ring {
        fn enabled(&self) -> bool {
            true
        }
        fn period(&self) -> u64 {
            self.period
        }
        fn threshold_ns(&self) -> u64 {
            64
        }
        fn push(&mut self, record: &Record) -> bool {
            let room = self.records.len() < self.capacity;
            if room {
                self.records.push(*record);
            }
            room
        }
        fn publish(&mut self, events: u64, lost: u64) {
            self.totals = (events, lost);
        }
    }

    fn ring(period: u64, capacity: usize) -> Ring {
        Ring {
            period,
            capacity,
            records: Vec::new(),
            totals: (0, 0),
        }
    }

    #[test]
    fn every_period_th_event_above_the_threshold() {
        let (mut unit, mut ring) = (PebsUnit::default(), ring(3, 100));
        for i in 0..20u64 {
            // Even loads hit a cache and are no events: events are 1, 3, 5, …
            let latency = if i % 2 == 0 { 53_600 } else { 64_000 };
            unit.load(&mut ring, latency, || Record {
                gva: i,
                ..Record::default()
            });
        }
        assert_eq!(
            ring.records
                .iter()
                .map(|record| record.gva)
                .collect::<Vec<_>>(),
            [5, 11, 17]
        );
        assert_eq!((unit.events, unit.records, unit.lost), (10, 3, 0));
    }

    #[test]
    fn a_full_ring_loses_and_counts() {
        let (mut unit, mut ring) = (PebsUnit::default(), ring(1, 2));
        let outcomes: Vec<_> = (0..4)
            .map(|_| unit.load(&mut ring, 70_000, Record::default))
            .collect();
        assert_eq!(
            outcomes,
            [
                Sampled::Record,
                Sampled::Record,
                Sampled::Lost,
                Sampled::Lost
            ]
        );
        assert_eq!(ring.totals, (4, 2));
    }

    #[test]
    fn a_new_period_starts_over_and_zero_means_one() {
        let (mut unit, mut ring) = (PebsUnit::default(), ring(1_000_000, 10));
        for _ in 0..10 {
            unit.load(&mut ring, 70_000, Record::default);
        }
        ring.period = 0;
        assert_eq!(
            unit.load(&mut ring, 70_000, Record::default),
            Sampled::Record
        );
    }

    proptest! {
        #[test]
        fn records_and_losses_are_events_over_period(period in 1u64..50, events in 0u64..2000, capacity in 0usize..20) {
            let (mut unit, mut ring) = (PebsUnit::default(), ring(period, capacity));
            for _ in 0..events { unit.load(&mut ring, 64_000, Record::default); }
            prop_assert_eq!(unit.records + unit.lost, events / period);
            prop_assert_eq!(unit.records, ring.records.len() as u64);
        }
    }
}
