// SPDX-License-Identifier: GPL-2.0-or-later
//! The device's side of the vPMU BAR.
//!
//! Guest and device share one thread of execution (TCG runs the vCPU and the
//! callbacks on the same thread), so volatile accesses suffice. The guest may
//! write anything anywhere: nothing read here is trusted beyond its meaning.

use demeter_machine::MachineConfig;
use demeter_machine::pebs::Port;
use demeter_machine::vpmu::{
    self, GUEST_OFFSET, Guest, Header, RING_ENTRIES, RING_OFFSET, Record, VCPU_OFFSET, VCPU_STRIDE,
    VcpuControl,
};

use crate::ram::Mapping;

/// The paper's sampling period and threshold, there until the guest sets its own.
const DEFAULT_PERIOD: u64 = 4093;
const DEFAULT_THRESHOLD_NS: u64 = 64;

/// Writes the header and resets every vCPU's part; `None` if the mapping is too small.
pub fn initialise(bar: &Mapping, machine: &MachineConfig, vcpus: usize) -> Option<()> {
    let whole = bar.at::<[u8; vpmu::BAR_BYTES]>(0)?;
    // SAFETY: inside the mapping; QEMU has not started the guest yet.
    unsafe { whole.cast::<u8>().write_bytes(0, vpmu::BAR_BYTES) };
    for vcpu in 0..vcpus {
        let control = bar.at::<VcpuControl>(VCPU_OFFSET + vcpu * VCPU_STRIDE)?;
        // SAFETY: inside the mapping and aligned.
        unsafe {
            control.write_volatile(VcpuControl {
                period: DEFAULT_PERIOD,
                threshold_ns: DEFAULT_THRESHOLD_NS,
                ..VcpuControl::default()
            });
        }
    }
    let header = Header {
        magic: vpmu::MAGIC,
        version: vpmu::VERSION,
        nr_vcpus: u32::try_from(vcpus).ok()?,
        vcpu_stride_bytes: VCPU_STRIDE as u32,
        ring_entries: RING_ENTRIES as u32,
        fmem_latency_ps: machine.fmem_latency_ps,
        smem_latency_ps: machine.smem_latency_ps,
        sample_cost_ns: machine.pebs_record_ns,
    };
    // SAFETY: inside the mapping and aligned.
    unsafe { bar.at::<Header>(0)?.write_volatile(header) };
    Some(())
}

/// The guest manager's report.
pub fn guest(bar: &Mapping) -> Guest {
    // SAFETY: inside the mapping and aligned; any bits are a valid `Guest`.
    bar.at::<Guest>(GUEST_OFFSET)
        .map_or_else(Guest::default, |report| unsafe { report.read_volatile() })
}

/// One vCPU's part.
#[derive(Debug)]
pub struct VcpuPort {
    control: *mut VcpuControl,
    ring: *mut Record,
}

impl VcpuPort {
    /// The part of `vcpu`, if it lies inside.
    pub fn new(bar: &Mapping, vcpu: usize) -> Option<Self> {
        let start = VCPU_OFFSET + vcpu * VCPU_STRIDE;
        let ring = bar
            .at::<[Record; RING_ENTRIES as usize]>(start + RING_OFFSET)?
            .cast();
        Some(Self {
            control: bar.at(start)?,
            ring,
        })
    }
}

/// Volatile access to one field of the control block.
macro_rules! field {
    ($self:ident.$field:ident) => {
        // SAFETY: `VcpuPort::new` checked that the block lies inside the mapping.
        unsafe { (&raw const (*$self.control).$field).read_volatile() }
    };
    ($self:ident.$field:ident = $value:expr) => {
        // SAFETY: as above.
        unsafe { (&raw mut (*$self.control).$field).write_volatile($value) }
    };
}

impl Port for VcpuPort {
    #[inline]
    fn enabled(&self) -> bool {
        field!(self.enable) == 1
    }

    #[inline]
    fn period(&self) -> u64 {
        field!(self.period)
    }

    #[inline]
    fn threshold_ns(&self) -> u64 {
        field!(self.threshold_ns)
    }

    fn push(&mut self, record: &Record) -> bool {
        let head = field!(self.head);
        if head.wrapping_sub(field!(self.tail)) >= RING_ENTRIES {
            return false;
        }
        // SAFETY: the index is below RING_ENTRIES, all of which lie inside the mapping.
        unsafe {
            self.ring
                .add((head % RING_ENTRIES) as usize)
                .write_volatile(*record)
        };
        field!(self.head = head.wrapping_add(1));
        true
    }

    fn publish(&mut self, events: u64, lost: u64) {
        field!(self.events = events);
        field!(self.lost = lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar() -> Mapping {
        let path = std::env::temp_dir().join(format!(
            "demeter-bar-test-{:?}",
            std::thread::current().id()
        ));
        let bar = Mapping::shared(&path, vpmu::BAR_BYTES).unwrap();
        std::fs::remove_file(path).unwrap();
        initialise(&bar, &MachineConfig::default(), 2).unwrap();
        bar
    }

    #[test]
    fn guest_finds_the_device() {
        let bar = bar();
        // SAFETY: inside the mapping.
        let header = unsafe { bar.at::<Header>(0).unwrap().read() };
        assert_eq!(
            (header.magic, header.nr_vcpus, header.ring_entries),
            (vpmu::MAGIC, 2, 4096)
        );
        assert_eq!(
            (header.fmem_latency_ps, header.smem_latency_ps),
            (68_700, 176_600)
        );
        let port = VcpuPort::new(&bar, 1).unwrap();
        assert_eq!(
            (port.enabled(), port.period(), port.threshold_ns()),
            (false, 4093, 64)
        );
        assert!(VcpuPort::new(&bar, vpmu::MAX_VCPUS).is_none());
    }

    #[test]
    fn ring_fills_and_wraps() {
        let bar = bar();
        let mut port = VcpuPort::new(&bar, 0).unwrap();
        for gva in 0..4096 {
            assert!(port.push(&Record {
                gva,
                ..Record::default()
            }));
        }
        assert!(!port.push(&Record::default()));
        field!(port.tail = 1);
        assert!(port.push(&Record {
            gva: 77,
            ..Record::default()
        }));
        // SAFETY: entry 0 of the ring.
        assert_eq!(unsafe { port.ring.read() }.gva, 77);
        // A guest that claims to be ahead of the device gets nothing and breaks nothing.
        field!(port.tail = u64::MAX);
        port.push(&Record::default());
        field!(port.tail = 1 << 40);
        assert!(!port.push(&Record::default()));
    }
}
