// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model against figures known beforehand: what is put in, what follows from it, what
//! is published.
//!
//! `cargo test -p demeter-machine --test validation -- --nocapture` prints the table of
//! `docs/model.md`; the test fails if a line leaves its bound or the document has another.

use std::fmt::Write;

use demeter_machine::{
    Access, Event, Machine, MachineConfig, MemoryLayout, Place, Preset, Translation, Walker,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Where the memory starts in the address space.
const START: u64 = 0x7000_0000_0000;
/// Bytes of each of the two nodes.
const NODE: u64 = 16 * GIB;
/// Where FMEM holds the page table.
const TABLES: u64 = NODE - GIB;

/// Physical address of a byte of the 32 GiB, FMEM first: the PCI hole lies between.
fn physical(offset: u64) -> u64 {
    if offset < 2 * GIB {
        offset
    } else {
        offset + 2 * GIB
    }
}

/// A page table that maps all memory at `START` in pages of one size.
struct Table {
    large: bool,
}

impl Walker for Table {
    fn walk(&mut self, va: u64) -> Option<Translation> {
        let offset = va - START;
        let entry =
            |level: u64, shift: u32| physical(TABLES + level * 64 * MIB + (offset >> shift) * 8);
        Some(Translation {
            pa: physical(offset),
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
            table: Table { large },
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
        self.machine
            .access(0, START + pa, true, &mut self.table)
            .unwrap()
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
        const LOADS: u64 = 300_000;
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
        let ps: u64 = (0..bytes / 64)
            .map(|line| self.touch(start + line * 64))
            .sum();
        bytes as f64 / (ps as f64 / 1e12) / 1e9
    }

    /// Nanoseconds of a walk, over random loads from `bytes` of FMEM; caches warm.
    fn random_walk(&mut self, bytes: u64) -> f64 {
        self.chase(0, bytes);
        self.machine.counters = Default::default();
        self.chase(0, bytes);
        self.mean_walk()
    }

    /// Nanoseconds of a walk, over random pages of which one line each is loaded; caches warm.
    fn line_of_each_page(&mut self, pages: u64) -> f64 {
        const LOADS: u64 = 100_000;
        for load in 0..2 * LOADS {
            if load == LOADS {
                self.machine.counters = Default::default();
            }
            let page = self.random(pages);
            self.touch(page * 4096 + page % 64 * 64);
        }
        self.mean_walk()
    }

    /// Nanoseconds of a walk, over loads one page apart.
    fn page_stride(&mut self, bytes: u64) -> f64 {
        for page in 0..bytes / 4096 {
            self.touch(page * 4096);
        }
        self.mean_walk()
    }

    fn mean_walk(&self) -> f64 {
        let counters = self.machine.counters;
        counters.walk_ps as f64 / (counters.walk_4k + counters.walk_2m) as f64 / 1000.0
    }

    /// The most units of `stride` bytes of which a second pass leaves `misses` as it was.
    fn capacity(config: &MachineConfig, large: bool, stride: u64, misses: Misses) -> f64 {
        let fits = |count: u64| {
            let mut bench = Self::new(config, large);
            let pass = |bench: &mut Self| {
                for unit in 0..count {
                    // Past the line filter, unless it is what is looked at.
                    if stride > 64 || !bench.machine.filtered(0, START + unit * stride) {
                        bench.access(unit * stride);
                    }
                }
                misses(&bench.machine)
            };
            pass(&mut bench) == pass(&mut bench)
        };
        // Bisection: what fits is everything below some count.
        let (mut good, mut bad) = (0, 1 << 17);
        while bad - good > 1 {
            let middle = u64::midpoint(good, bad);
            *(if fits(middle) { &mut good } else { &mut bad }) = middle;
        }
        good as f64
    }
}

type Misses = fn(&Machine) -> u64;

/// What a figure is held against.
#[derive(Clone, Copy)]
enum Against {
    /// A constant that the model charges: the line shows that it is charged once, and
    /// nothing about hardware.
    PutIn,
    /// What the parameters come to; the simulation has to find it.
    Parameters,
    /// What somebody measured on hardware, and what is not a parameter.
    Measured,
    /// The most that an architecture allows.
    Limit,
}

impl Against {
    const fn name(self) -> &'static str {
        match self {
            Self::PutIn => "put in",
            Self::Parameters => "parameters",
            Self::Measured => "measured",
            Self::Limit => "limit",
        }
    }
}

/// Lines of the table.
#[derive(Default)]
struct Report {
    text: String,
    failed: Vec<String>,
}

impl Report {
    /// A figure known beforehand as `low` to `high`.
    fn line(
        &mut self,
        what: &str,
        against: Against,
        known: &str,
        (low, high): (f64, f64),
        found: f64,
        unit: &str,
    ) {
        let bound = if low == high {
            "exact".to_owned()
        } else {
            format!("{low:.1} – {high:.1}")
        };
        let against = against.name();
        let line = format!("| {what} | {against} | {known} | {bound} | {found:.2} {unit} |");
        if !(low..=high).contains(&found) {
            self.failed.push(line.clone());
        }
        let _ = writeln!(self.text, "{line}");
    }

    /// What parameters come to, to within a share.
    fn configured(&mut self, what: &str, value: f64, share: f64, found: f64, unit: &str) {
        let bound = (value * (1.0 - share), value * (1.0 + share));
        self.line(
            what,
            Against::Parameters,
            &format!("{value:.2} {unit}"),
            bound,
            found,
            unit,
        );
    }

    fn exact(&mut self, what: &str, value: f64, found: f64, unit: &str) {
        self.line(
            what,
            Against::Parameters,
            &format!("{value} {unit}"),
            (value, value),
            found,
            unit,
        );
    }
}

fn tiers(report: &mut Report) {
    for (name, preset, start) in [
        ("FMEM", Preset::Pmem, 0),
        ("SMEM, persistent memory", Preset::Pmem, NODE),
        ("SMEM, CXL", Preset::Cxl, NODE),
    ] {
        let config = MachineConfig::preset(preset);
        let (latency_ps, bandwidth) = if start == 0 {
            (config.fmem_latency_ps, config.fmem_bandwidth_bytes_per_s)
        } else {
            (config.smem_latency_ps, config.smem_bandwidth_bytes_per_s)
        };
        // 256 huge pages: each load is a hit in the second-level TLB and a miss in the LLC.
        let found = Bench::new(&config, true).chase(start, 512 * MIB);
        report.configured(
            &format!("pointer chase, {name}"),
            latency_ps as f64 / 1e3,
            0.04,
            found,
            "ns",
        );
        let latency_bound = 64.0 * config.stream_overlap as f64 / latency_ps as f64 * 1e3;
        let found = Bench::new(&config, true).stream(start);
        let known = latency_bound.min(bandwidth as f64 / 1e9);
        report.configured(
            &format!("stream, {name}, 16 fills in flight"),
            known,
            0.03,
            found,
            "GB/s",
        );
        let many = MachineConfig {
            stream_overlap: 1024,
            ..config
        };
        let found = Bench::new(&many, true).stream(start);
        report.configured(
            &format!("stream, {name}, fills without limit"),
            bandwidth as f64 / 1e9,
            0.03,
            found,
            "GB/s",
        );
    }
}

fn sizes(report: &mut Report) {
    let config = MachineConfig::preset(Preset::Pmem);
    let lines = |misses| Bench::capacity(&config, true, 64, misses) * 64.0 / 1024.0;
    let below_l1: Misses = |machine| {
        let c = machine.counters;
        c.l2_hits + c.llc_hits + c.fmem_loads
    };
    report.exact("L1 (line filter)", 32.0, lines(below_l1), "KiB");
    // Every line of these passes the filter, being more than 512.
    let below_l2: Misses = |machine| machine.counters.llc_hits + machine.counters.fmem_loads;
    report.exact(
        "private cache",
        (config.l2_bytes / KIB) as f64,
        lines(below_l2),
        "KiB",
    );
    report.exact(
        "last-level cache",
        (config.llc_bytes / KIB) as f64,
        lines(|m| m.counters.fmem_loads),
        "KiB",
    );
    let pages = |large, misses| {
        Bench::capacity(
            &config,
            large,
            if large { 2 * MIB } else { 4 * KIB },
            misses,
        )
    };
    let walks: Misses = |machine| machine.counters.walk_4k + machine.counters.walk_2m;
    let past_first: Misses = |machine| {
        let c = machine.counters;
        c.stlb_hits + c.walk_4k + c.walk_2m
    };
    report.exact(
        "first-level TLB, 4 KiB pages",
        64.0,
        pages(false, past_first),
        "entries",
    );
    report.exact(
        "first-level TLB, 2 MiB pages",
        32.0,
        pages(true, past_first),
        "entries",
    );
    report.exact(
        "second-level TLB, 4 KiB pages",
        1536.0,
        pages(false, walks),
        "entries",
    );
    report.exact(
        "second-level TLB, 2 MiB pages",
        1536.0,
        pages(true, walks),
        "entries",
    );
}

fn walks(report: &mut Report) {
    let with = |nested, ept_2m| MachineConfig {
        nested,
        ept_2m,
        ..MachineConfig::preset(Preset::Pmem)
    };
    let (bare, vm, small_vm) = (with(0, 0), with(1, 1), with(1, 0));
    let mut cold = Bench::new(&bare, false);
    cold.access(0);
    report.exact(
        "loads of a cold walk, no hypervisor",
        4.0,
        cold.machine.counters.walk_loads as f64,
        "",
    );
    // One page after the other: seven of eight entries are in the line just loaded.
    report.line(
        "walk, page after page of 256 MiB, no hypervisor",
        Against::Measured,
        "10 ns [1]",
        (5.0, 20.0),
        Bench::new(&bare, false).page_stride(256 * MIB),
        "ns",
    );
    // Tables and lines fit the private cache.
    report.line(
        "walk, a line in each of 2,048 pages at random, no hypervisor",
        Against::Measured,
        "about 20 cycles, 6.1 ns [2]",
        (3.0, 12.1),
        Bench::new(&bare, false).line_of_each_page(2048),
        "ns",
    );
    report.line(
        "pointer chase over 10 GiB in 4 KiB pages, no hypervisor",
        Against::Measured,
        "from 70–80 to over 100 ns [3]",
        (100.0, 200.0),
        Bench::new(&bare, false).chase(0, 10 * GIB),
        "ns",
    );
    let random = |config, large, bytes| Bench::new(config, large).random_walk(bytes);
    let native = random(&bare, false, 560 * MIB);
    let nested = random(&vm, false, 560 * MIB);
    let twice_small = random(&small_vm, false, 560 * MIB);
    for (what, known, bound, found) in [
        (
            "walk in a VM on 2 MiB pages against one without",
            "at most 15 + 4 : 4 loads [4]",
            (1.0, 4.75),
            nested / native,
        ),
        (
            "walk in a VM on 4 KiB pages against one without",
            "at most 24 : 4 loads [4]",
            (nested / native, 6.0),
            twice_small / native,
        ),
        (
            "walk for 2 MiB pages in a VM on 2 MiB pages against one without",
            "at most 15 : 3 loads [4]",
            (1.0, 5.0),
            random(&vm, true, 8 * GIB) / random(&bare, true, 8 * GIB),
        ),
    ] {
        report.line(what, Against::Limit, known, bound, found, "times");
    }
}

/// These are charged as they are configured: their sources are in the list of parameters.
fn events(report: &mut Report) {
    let config = MachineConfig::preset(Preset::Pmem);
    let mut machine = Machine::new(&config, MemoryLayout::new(NODE, NODE), 1);
    let mut line = |what, put_in_ns: u64, charged_ps: u64| {
        let (put_in, charged) = (put_in_ns as f64, charged_ps as f64 / 1e3);
        let known = format!("{put_in_ns} ns");
        report.line(
            what,
            Against::PutIn,
            &known,
            (put_in, put_in),
            charged,
            "ns",
        );
    };
    line(
        "exception and return",
        config.exception_ns,
        machine.event(0, Event::Exception),
    );
    line(
        "interrupt and return",
        config.interrupt_ns,
        machine.event(0, Event::Interrupt),
    );
    line(
        "`pause`",
        config.pause_ns,
        machine.event(0, Event::Pause { user: true }),
    );
    line(
        "INVLPG",
        config.invlpg_ns,
        machine.invalidate_page(0, START),
    );
    line(
        "write of CR3",
        config.cr3_write_ns,
        machine.switch_address_space(0),
    );
}

#[test]
fn every_line_is_within_its_bound_and_in_the_document() {
    // Both nodes are where the addresses say.
    let layout = MemoryLayout::new(NODE, NODE);
    for (offset, node) in [
        (0, 0),
        (TABLES, 0),
        (NODE - 1, 0),
        (NODE, 1),
        (2 * NODE - 1, 1),
    ] {
        assert!(
            matches!(layout.locate(physical(offset)), Place::Node { node: found, .. } if found == node)
        );
    }
    let mut report = Report::default();
    for part in [tiers, sizes, walks, events] {
        part(&mut report);
    }
    println!("{}", report.text);
    assert!(
        report.failed.is_empty(),
        "out of bounds: {:#?}",
        report.failed
    );
    let document = include_str!("../../../docs/model.md");
    assert!(
        document.contains(&report.text),
        "the table of docs/model.md is not the one printed above (-- --nocapture)"
    );
}
