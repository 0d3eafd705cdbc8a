// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PEBS records and the area of memory that they go into.
//!
//! Layouts are those of Intel's Software Developer's Manual, volume 3: the debug
//! store area of 64-bit mode, the records of format 3 (Skylake) and the adaptive
//! records of format 4 (Ice Lake). Groups whose contents the model does not have
//! (general registers, XMM, LBR) have their size and read 0.

use super::{Observed, Port};
use crate::digest::Fnv;
use crate::{Preset, Served};

/// Offsets in the debug store area: where records begin, followed by the index,
/// the end and the interrupt threshold.
const DS_BUFFER: u64 = 0x20;
const DS_INDEX: u64 = 0x28;
/// Values that general and fixed counters are loaded with after a record.
pub const DS_RESET: u64 = 0x40;
/// The same of fixed counters.
pub const DS_RESET_FIXED: u64 = 0x80;

/// Words of the largest record: basic, memory, registers, XMM and 32 LBR entries.
const WORDS_MAX: usize = 4 + 4 + 18 + 32 + 96;
/// Words of a record of format 3.
const WORDS_3: usize = 25;

/// Groups of an adaptive record, by their bits in PEBS_DATA_CFG.
const GROUP_MEMORY: u64 = 1;
const GROUP_REGISTERS: u64 = 1 << 1;
const GROUP_XMM: u64 = 1 << 2;
const GROUP_LBR: u64 = 1 << 3;
const GROUPS: u64 = 0xf;

/// Format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Skylake: fixed records of 200 bytes.
    Three,
    /// Ice Lake: adaptive records.
    Four,
}

/// What a record says.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The counter's bit in the global registers.
    pub counter: u32,
    /// Time stamp counter.
    pub tsc: u64,
    /// The access, or none but an instruction's address.
    pub access: Observed,
    /// Data source encoding.
    pub source: u64,
    /// Latency in core cycles.
    pub latency: u64,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// There was no room, or no memory.
    Dropped,
    /// It is in the buffer.
    Yes {
        /// The buffer has reached its interrupt threshold.
        threshold_reached: bool,
    },
}

/// Data source encoding of load latency records: what served a load.
///
/// FMEM is DRAM of the vCPU's own socket, or of another one where there are several. So is the persistent memory of SMEM, which has
/// codes of its own on server cores since Skylake (Linux, `arch/x86/events/intel/ds.c`:
/// `0x8` local, `0x9` remote). None of these cores has CXL: memory behind it is what stands
/// in for it there, DRAM of another socket.
#[must_use]
pub const fn load_source(access: &Observed, smem: Preset) -> u64 {
    let source = match access.served {
        None => 0x1,
        Some(Served::L2) => 0x3,
        Some(Served::Llc) => 0x4,
        Some(Served::Fmem) if access.remote => 0xb,
        Some(Served::Fmem) => 0xa,
        Some(Served::Smem) => match smem {
            Preset::Pmem if access.remote => 0x9,
            Preset::Pmem => 0x8,
            Preset::Cxl => 0xb,
        },
        Some(Served::Other) => 0xe,
    };
    // Missed the second-level TLB.
    source | if access.walked { 0x10 } else { 0 }
}

impl Format {
    /// Composes a record; its length in words.
    fn compose(self, record: &Record, data_config: u64, words: &mut [u64; WORDS_MAX]) -> usize {
        let access = &record.access;
        match self {
            Self::Three => {
                words[1] = access.ip;
                words[18] = 1 << record.counter;
                words[19] = access.va;
                words[20] = record.source;
                words[21] = record.latency;
                words[22] = access.ip;
                words[24] = record.tsc;
                WORDS_3
            }
            Self::Four => {
                words[1] = access.ip;
                words[2] = 1 << record.counter;
                words[3] = record.tsc;
                let mut count = 4;
                if data_config & GROUP_MEMORY != 0 {
                    words[4] = access.va;
                    words[5] = record.source;
                    words[6] = record.latency;
                    count += 4;
                }
                if data_config & GROUP_REGISTERS != 0 {
                    count += 18;
                }
                if data_config & GROUP_XMM != 0 {
                    count += 32;
                }
                if data_config & GROUP_LBR != 0 {
                    count += 3 * (1 + (data_config >> 24 & 0x1f) as usize);
                }
                let groups = data_config & (GROUPS | 0x1f << 24);
                words[0] = groups | ((count * 8) as u64) << 48;
                count
            }
        }
    }

    /// Writes a record where the debug store area at `ds_area` says, and adds it to `digest`.
    pub fn write(
        self,
        record: &Record,
        data_config: u64,
        ds_area: u64,
        digest: &mut Fnv,
        port: &mut impl Port,
    ) -> Written {
        let mut area = [0; 4];
        if !port.read(ds_area.wrapping_add(DS_BUFFER), &mut area) {
            return Written::Dropped;
        }
        let [_, index, end, threshold] = area;
        let mut words = [0; WORDS_MAX];
        let count = self.compose(record, data_config, &mut words);
        let Some(next) = index.checked_add(count as u64 * 8) else {
            return Written::Dropped;
        };
        if next > end
            || !port.write(index, &words[..count])
            || !port.write(ds_area.wrapping_add(DS_INDEX), &[next])
        {
            return Written::Dropped;
        }
        digest.write_words(&words[..count]);
        Written::Yes {
            threshold_reached: next >= threshold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_groups() {
        let record = Record {
            counter: 34,
            tsc: 1,
            access: Observed::default(),
            source: 0,
            latency: 0,
        };
        let mut words = [0; WORDS_MAX];
        for (config, bytes) in [
            (0, 32),
            (1, 64),
            (3, 64 + 144),
            (4, 32 + 256),
            (8 | 31 << 24, 32 + 768),
            (u64::MAX, WORDS_MAX * 8),
        ] {
            let count = Format::Four.compose(&record, config, &mut words);
            assert_eq!(count * 8, bytes, "{config:#x}");
            assert_eq!(words[0] >> 48, bytes as u64, "{config:#x}");
            assert_eq!(words[0] & 0xf, config & 0xf, "{config:#x}");
            assert_eq!(words[2], 1 << 34);
        }
    }
}
