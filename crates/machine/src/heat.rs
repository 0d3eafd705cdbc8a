// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Heat of memory over time, by guest-virtual and by guest-physical address.
//!
//! Both maps count the same events, line fills from memory at user addresses,
//! so that they differ in nothing but the order of their rows.

use serde::{Deserialize, Serialize};

use crate::placement::PageMap;

/// Windows of time kept. When they are used up, neighbours become one.
pub const WINDOWS: usize = 128;
/// Granules followed in each map; fills of others are only counted.
const GRANULES: usize = 1 << 16;

/// What to record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeatConfig {
    /// Granule of both maps, a power of two of at least 4096.
    pub granule_bytes: u64,
    /// Guest time of a window at first.
    pub window_ns: u64,
}

/// One granule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeatRow {
    /// Ordinal of the address space; 0 in the physical map.
    pub space: u64,
    /// Its first address.
    pub address: u64,
    /// Line fills by window; windows after the last with any are left out.
    pub fills: Vec<u32>,
}

/// Both maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeatReport {
    /// Bytes of a row.
    pub granule_bytes: u64,
    /// Guest time of a window.
    pub window_ns: u64,
    /// Windows, the last of which may be short.
    pub windows: usize,
    /// Line fills that found no room in a map.
    pub dropped_fills: u64,
    /// By guest-virtual address, in order.
    pub virtual_rows: Vec<HeatRow>,
    /// By guest-physical address, in order.
    pub physical_rows: Vec<HeatRow>,
}

/// Counts line fills.
#[derive(Clone, Debug)]
pub struct Heat {
    shift: u32,
    window_ns: u64,
    began_ns: Option<u64>,
    window: usize,
    maps: [PageMap<Vec<u32>>; 2],
    dropped_fills: u64,
}

impl Heat {
    /// Empty maps.
    #[must_use]
    pub fn new(config: &HeatConfig) -> Self {
        Self {
            shift: config.granule_bytes.max(4096).ilog2(),
            window_ns: config.window_ns.max(1),
            began_ns: None,
            window: 0,
            maps: Default::default(),
            dropped_fills: 0,
        }
    }

    /// It is `now_ns` on the guest's clock.
    pub fn at(&mut self, now_ns: u64) {
        let began_ns = *self.began_ns.get_or_insert(now_ns);
        let since_ns = now_ns.saturating_sub(began_ns);
        while since_ns / self.window_ns >= WINDOWS as u64 {
            for fills in self.maps.iter_mut().flat_map(PageMap::values_mut) {
                *fills = (fills.chunks(2))
                    .map(|pair| pair.iter().fold(0, |a: u32, &b| a.saturating_add(b)))
                    .collect();
            }
            self.window_ns *= 2;
        }
        self.window = (since_ns / self.window_ns) as usize;
    }

    /// A line came from memory.
    pub fn fill(&mut self, space: u64, va: u64, pa: u64) {
        let rows = [
            space << (47 - self.shift) | va >> self.shift,
            pa >> self.shift,
        ];
        for (map, row) in self.maps.iter_mut().zip(rows) {
            if map.len() >= GRANULES && !map.contains_key(&row) {
                self.dropped_fills += 1;
                continue;
            }
            let fills = map.entry(row).or_default();
            if fills.len() <= self.window {
                fills.resize(self.window + 1, 0);
            }
            fills[self.window] = fills[self.window].saturating_add(1);
        }
    }

    /// What has been counted.
    #[must_use]
    pub fn report(&self) -> HeatReport {
        let rows = |map: &PageMap<Vec<u32>>, space_bit: u32| {
            let mut rows: Vec<HeatRow> = (map.iter())
                .map(|(&row, fills)| HeatRow {
                    space: row.checked_shr(space_bit).unwrap_or(0),
                    address: (row & !(u64::MAX.checked_shl(space_bit).unwrap_or(0))) << self.shift,
                    fills: fills.clone(),
                })
                .collect();
            rows.sort_by_key(|row| (row.space, row.address));
            rows
        };
        HeatReport {
            granule_bytes: 1 << self.shift,
            window_ns: self.window_ns,
            windows: self.window + 1,
            dropped_fills: self.dropped_fills,
            virtual_rows: rows(&self.maps[0], 47 - self.shift),
            physical_rows: rows(&self.maps[1], u64::BITS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heat() -> Heat {
        Heat::new(&HeatConfig {
            granule_bytes: 65536,
            window_ns: 10,
        })
    }

    #[test]
    fn same_fills_by_both_addresses() {
        let mut heat = heat();
        heat.at(1_000);
        heat.fill(3, 0x7fff_ffff_0000, 0x2_0000);
        heat.fill(3, 0x7fff_ffff_ffff, 0x1_ffff);
        heat.at(1_025);
        heat.fill(0, 0x40_0000, 0x2_8000);
        let report = heat.report();
        assert_eq!((report.windows, report.window_ns), (3, 10));
        let rows = |rows: &[HeatRow]| {
            (rows.iter())
                .map(|row| (row.space, row.address, row.fills.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            rows(&report.virtual_rows),
            [
                (0, 0x40_0000, vec![0, 0, 1]),
                (3, 0x7fff_ffff_0000, vec![2])
            ]
        );
        assert_eq!(
            rows(&report.physical_rows),
            [(0, 0x1_0000, vec![1]), (0, 0x2_0000, vec![1, 0, 1])]
        );
    }

    #[test]
    fn windows_double_when_used_up() {
        let mut heat = heat();
        for ns in 0..WINDOWS as u64 * 40 {
            heat.at(ns);
            heat.fill(0, 0, 0);
        }
        let report = heat.report();
        assert_eq!((report.windows, report.window_ns), (WINDOWS, 40));
        assert_eq!(report.virtual_rows[0].fills, vec![40; WINDOWS]);
    }
}
