// SPDX-License-Identifier: GPL-2.0-or-later
//! The device's side of the model's BAR.
//!
//! Guest and device share one thread of execution (TCG runs the vCPU and the
//! callbacks on the same thread), so volatile accesses suffice. The guest may
//! write anything anywhere: nothing read here is trusted beyond its meaning.

use demeter_machine::MachineConfig;
use demeter_machine::bar::{self, COUNTERS_OFFSET, GUEST_OFFSET, Guest, Header, ModelCounters};

use crate::ram::Mapping;

/// Writes the header and empties the rest; `None` if the mapping is too small.
pub fn initialise(mapping: &Mapping, machine: &MachineConfig, vcpus: usize) -> Option<()> {
    let whole = mapping.at::<[u8; bar::BAR_BYTES]>(0)?;
    // SAFETY: inside the mapping; QEMU has not started the guest yet.
    unsafe { whole.cast::<u8>().write_bytes(0, bar::BAR_BYTES) };
    let header = Header {
        magic: bar::MAGIC,
        version: bar::VERSION,
        nr_vcpus: u32::try_from(vcpus).ok()?,
        fmem_latency_ps: machine.fmem_latency_ps,
        smem_latency_ps: machine.smem_latency_ps,
    };
    // SAFETY: inside the mapping and aligned.
    unsafe { mapping.at::<Header>(0)?.write_volatile(header) };
    Some(())
}

/// The guest manager's report.
pub fn guest(mapping: &Mapping) -> Guest {
    // SAFETY: inside the mapping and aligned; any bits are a valid `Guest`.
    mapping
        .at::<Guest>(GUEST_OFFSET)
        .map_or_else(Guest::default, |report| unsafe { report.read_volatile() })
}

/// Shows the guest what the model counted.
pub fn show(mapping: &Mapping, counters: &ModelCounters) {
    if let Some(place) = mapping.at::<ModelCounters>(COUNTERS_OFFSET) {
        // SAFETY: inside the mapping and aligned.
        unsafe { place.write_volatile(*counters) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_machine::series::Counters;

    #[test]
    fn guest_finds_the_device() {
        let path = std::env::temp_dir().join(format!("demeter-bar-test-{}", std::process::id()));
        let mapping = Mapping::shared(&path, bar::BAR_BYTES).unwrap();
        std::fs::remove_file(path).unwrap();
        initialise(&mapping, &MachineConfig::default(), 2).unwrap();
        // SAFETY: inside the mapping.
        let header = unsafe { mapping.at::<Header>(0).unwrap().read() };
        assert_eq!(
            (header.magic, header.version, header.nr_vcpus),
            (bar::MAGIC, 2, 2)
        );
        assert_eq!(
            (header.fmem_latency_ps, header.smem_latency_ps),
            (68_700, 176_600)
        );
        let counters = Counters {
            samples: 7,
            ..Counters::default()
        };
        show(&mapping, &ModelCounters::new(5, &counters));
        // SAFETY: inside the mapping.
        let shown = unsafe { mapping.at::<ModelCounters>(COUNTERS_OFFSET).unwrap().read() };
        assert_eq!((shown.clock_ns, shown.pmu_records), (5, 7));
    }
}
