// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the machine and the process have done so far: counters of which two
//! readings are subtracted.

use std::fs;

/// One reading. Counters that the machine does not offer stay zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// TLB shootdowns of the whole machine
    pub tlb_shootdowns: u64,
    /// Bytes read from all disks of the machine
    pub read_bytes: u64,
    /// Bytes written to all disks of the machine
    pub written_bytes: u64,
    /// Faults of this process that needed I/O, as the kernel counts them
    pub major_faults: u64,
    /// Faults of this process that did not
    pub minor_faults: u64,
    /// CPU time of this process in seconds, user and system
    pub cpu_seconds: f64,
}

impl Counters {
    /// Reads all counters.
    pub fn now() -> Self {
        // SAFETY: all-zero is a value of this plain C structure.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is written by the call and outlives it.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
        let disks = fs::read_to_string("/proc/diskstats").unwrap_or_default();
        let (read_bytes, written_bytes) = disk_bytes(&disks, |name| {
            // A partition is counted by its disk; a loop device by its file's disk.
            std::path::Path::new("/sys/block")
                .join(name)
                .join("device")
                .exists()
        });
        Self {
            tlb_shootdowns: tlb_shootdowns(
                &fs::read_to_string("/proc/interrupts").unwrap_or_default(),
            ),
            read_bytes,
            written_bytes,
            major_faults: u64::try_from(usage.ru_majflt).unwrap_or(0),
            minor_faults: u64::try_from(usage.ru_minflt).unwrap_or(0),
            cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        }
    }

    /// What happened since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            tlb_shootdowns: self.tlb_shootdowns.saturating_sub(earlier.tlb_shootdowns),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            cpu_seconds: self.cpu_seconds - earlier.cpu_seconds,
        }
    }
}

/// Sum of the line `TLB:` of `/proc/interrupts`.
fn tlb_shootdowns(interrupts: &str) -> u64 {
    interrupts
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("TLB:"))
        .map_or(0, |line| {
            line.split_whitespace()
                .map_while(|word| word.parse::<u64>().ok())
                .sum()
        })
}

/// Bytes read and written, from `/proc/diskstats`, of the disks that count.
fn disk_bytes(diskstats: &str, counts: impl Fn(&str) -> bool) -> (u64, u64) {
    const SECTOR_BYTES: u64 = 512;
    let mut sum = (0, 0);
    for line in diskstats.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(name), Some(read), Some(written)) = (fields.get(2), fields.get(5), fields.get(9))
        else {
            continue;
        };
        if counts(name) {
            sum.0 += read.parse::<u64>().unwrap_or(0) * SECTOR_BYTES;
            sum.1 += written.parse::<u64>().unwrap_or(0) * SECTOR_BYTES;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_interrupts() {
        let text = "           CPU0       CPU1\n TLB:      10   32   TLB shootdowns\n TRM: 1 1 x\n";
        assert_eq!(tlb_shootdowns(text), 42);
        assert_eq!(tlb_shootdowns(""), 0);
    }

    #[test]
    fn parses_diskstats() {
        let text = " 254 0 vda 1 0 8 0 1 0 16 0 0 0 0\n 254 1 vda1 1 0 8 0 1 0 16 0 0 0 0\nshort\n";
        assert_eq!(disk_bytes(text, |name| name == "vda"), (4096, 8192));
    }

    #[test]
    fn reads_this_machine() {
        let counters = Counters::now();
        assert!(counters.minor_faults > 0);
        assert!(counters.since(&counters).cpu_seconds == 0.0);
    }
}
