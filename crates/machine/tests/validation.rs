// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model against figures known beforehand: what is configured, what is published.
//!
//! `cargo test -p demeter-machine --test validation -- --nocapture` prints the table of
//! `docs/model.md`; the test fails if a line leaves its bound or the document has another.

use demeter_machine::{
    Access, Event, Machine, MachineConfig, MemoryLayout, Preset, Translation, Walker,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Where the streams' memory starts in the address space.
const START: u64 = 0x7000_0000_0000;
/// FMEM is the first half of 32 GiB of memory, SMEM the second.
const NODE: u64 = 16 * GIB;

/// A page table that maps `START` to physical address 0 and has its own tables at `tables`.
struct Table {
    large: bool,
    tables: u64,
}

impl Walker for Table {
    fn walk(&mut self, va: u64) -> Option<Translation> {
        let pa = va - START;
        let entry = |level: u64, shift: u32| self.tables + level * 64 * MIB + (va >> shift) % (1 << 23) * 8;
        Some(Translation {
            pa,
            large: self.large,
            fallback: false,
            entries: [entry(0, 39), entry(1, 30), entry(2, 21), entry(3, 12)],
            levels: if self.large { 3 } else { 4 },
        })
    }
}

struct Bench {
    machine: Machine,
    table: Table,
    seed: u64,
}

impl Bench {
    fn new(config: &MachineConfig, large: bool) -> Self {
        assert_eq!(config.validate(), Ok(()));
        Self {
            machine: Machine::new(config, MemoryLayout::new(NODE, NODE), 1),
            table: Table {
                large,
                tables: NODE - GIB,
            },
            seed: 88_172_645_463_325_252,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) % below
    }

    /// Past the line filter.
    fn access(&mut self, pa: u64) -> Access {
        self.machine.access(0, START + pa, true, &mut self.table).unwrap()
    }

    /// As a program's: the line filter comes first. Picoseconds.
    fn touch(&mut self, pa: u64) -> u64 {
        if self.machine.filtered(0, START + pa) {
            return 0;
        }
        self.access(pa).latency_ps
    }

    /// Nanoseconds of a load on a random line of `bytes` from `start` on, caches warm.
    fn chase(&mut self, start: u64, bytes: u64) -> f64 {
        const LOADS: u64 = 1_000_000;
        let mut sum_ps = 0;
        for load in 0..2 * LOADS {
            let line = start + self.random(bytes / 64) * 64;
            let ps = self.touch(line);
            sum_ps += if load < LOADS { 0 } else { ps };
        }
        sum_ps as f64 / LOADS as f64 / 1000.0
    }

    /// GB/s of reading 256 MiB from `start` on.
    fn stream(&mut self, start: u64) -> f64 {
        let bytes = 256 * MIB;
        let ps: u64 = (0..bytes / 64).map(|line| self.touch(start + line * 64)).sum();
        bytes as f64 / (ps as f64 / 1e12) / 1e9
    }

    /// Nanoseconds of a walk, over random loads from `bytes` of FMEM and SMEM.
    fn walk(&mut self, start: u64, bytes: u64) -> f64 {
        const LOADS: u64 = 1_000_000;
        for load in 0..2 * LOADS {
            if load == LOADS {
                self.machine.counters = Default::default();
            }
            let line = start + self.random(bytes / 64) * 64;
            self.touch(line);
        }
        let counters = self.machine.counters;
        counters.walk_ps as f64 / (counters.walk_4k + counters.walk_2m) as f64 / 1000.0
    }
}

fn with(change: impl FnOnce(&mut MachineConfig)) -> MachineConfig {
    let mut config = MachineConfig::preset(Preset::Pmem);
    change(&mut config);
    config
}

#[test]
fn explore() {
    for (name, config) in [
        ("bare", with(|c| c.nested = 0)),
        ("nested 2m", with(|_| ())),
        ("nested 4k", with(|c| c.ept_2m = 0)),
    ] {
        for (large, bytes) in [(false, 64 * MIB), (false, 560 * MIB), (false, 8 * GIB), (true, 560*MIB), (true, 8 * GIB), (true, 14*GIB)] {
            let mut b = Bench::new(&config, large);
            let w = b.walk(NODE - 80 * MIB - GIB.min(bytes), bytes.min(GIB * 15));
            let c = b.machine.counters;
            println!("{name} large {large} {} MiB: {w:.1} ns; loads/walk {:.2}, walks {}", bytes / MIB, c.walk_loads as f64 / (c.walk_4k + c.walk_2m) as f64, c.walk_4k + c.walk_2m);
        }
    }
    for start in [0, NODE] { let mut b = Bench::new(&with(|_|()), true); println!("chase {}", b.chase(start, 512*MIB)); let mut b = Bench::new(&with(|_|()), false); println!("stream {}", b.stream(start)); }
    let _ = (KIB, Event::Exception);
}
