// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which parts of an address space are managed.

use crate::sys::{self, Area};
use crate::{Error, MAX_AREAS};

/// Areas in the making, from mappings by address.
#[derive(Clone, Copy, Debug)]
pub struct Areas {
    raw: sys::Areas,
}

impl Areas {
    /// None so far: gaps below `min_gap_bytes` will not divide.
    pub fn new(granule_bytes: u64, min_gap_bytes: u64) -> Result<Self, Error> {
        let mut raw = sys::Areas {
            area: [Area::default(); MAX_AREAS],
            nr: 0,
            granule_bytes: 0,
            min_gap_bytes: 0,
        };
        // SAFETY: valid for the call.
        Error::from_c(unsafe { sys::demeter_areas_begin(&mut raw, granule_bytes, min_gap_bytes) })?;
        Ok(Self { raw })
    }

    /// Adds a mapping above all before.
    pub fn add(&mut self, start: u64, end: u64) -> Result<(), Error> {
        // SAFETY: valid for the call; every value is allowed.
        Error::from_c(unsafe { sys::demeter_areas_add(&mut self.raw, start, end) })
    }

    /// What they came to.
    pub fn as_slice(&self) -> &[Area] {
        &self.raw.area[..(self.raw.nr as usize).min(MAX_AREAS)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_gaps_divide() {
        let mut areas = Areas::new(1 << 21, 64 << 20).unwrap();
        areas.add(0x40_0000, 0x40_1000).unwrap();
        areas.add(0x80_0000, 0x81_0000).unwrap();
        areas.add(1 << 40, (1 << 40) + 4096).unwrap();
        let bounds: Vec<_> = (areas.as_slice().iter())
            .map(|area| (area.start, area.end))
            .collect();
        let high = 1 << 40;
        assert_eq!(bounds, [(0x40_0000, 0xa0_0000), (high, high + (2 << 20))]);
        assert_eq!(areas.add(0, 4096), Err(Error::Invalid));
        assert!(Areas::new(3, 1).is_err());
    }
}
