// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page walks whose cost was worked out by hand.

use demeter_machine::{Machine, MachineConfig, MemoryLayout, Preset, Translation, Walker};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const START: u64 = 3_000;
const L2: u64 = 4_200;
const FMEM: u64 = 68_700;
const SMEM: u64 = 176_600;
/// In the second node, which starts at 128 MiB.
const IN_SMEM: u64 = 256 * MIB;

/// Maps every address to itself; each level's tables lie 4 MiB after those of the level above.
struct Table {
    tables: u64,
    levels: u8,
}

impl Walker for Table {
    fn walk(&mut self, va: u64) -> Option<Translation> {
        let entry = |level: u64, shift: u32| self.tables + level * 4 * MIB + (va >> shift) * 8;
        Some(Translation {
            pa: va,
            large: self.levels < 4,
            fallback: false,
            entries: [entry(0, 39), entry(1, 30), entry(2, 21), entry(3, 12)],
            levels: self.levels,
        })
    }
}

const SMALL: Table = Table {
    tables: 64 * MIB,
    levels: 4,
};
const LARGE: Table = Table {
    tables: 64 * MIB,
    levels: 3,
};

fn machine(change: impl FnOnce(&mut MachineConfig)) -> Machine {
    let mut config = MachineConfig::preset(Preset::Pmem);
    change(&mut config);
    Machine::new(&config, MemoryLayout::new(128 * MIB, 512 * MIB), 1)
}

/// The cost of the walk for `va`.
fn walk(machine: &mut Machine, va: u64, mut table: Table) -> u64 {
    let access = machine.access(0, va, true, &mut table).unwrap();
    assert!(access.walked, "{va:#x} was in the TLB");
    assert!(access.latency_ps > access.walk_ps);
    access.walk_ps
}

#[test]
fn paging_structure_caches_shorten_a_walk() {
    let mut machine = machine(|config| config.nested = 0);
    assert_eq!(walk(&mut machine, 0, SMALL), START + 4 * FMEM);
    // The next page: its PDE is cached, its PTE in the line just loaded.
    assert_eq!(walk(&mut machine, 0x1000, SMALL), START + L2);
    // The next 2 MiB: its PDE is in a line just loaded, its PTE is not.
    assert_eq!(walk(&mut machine, 2 * MIB, SMALL), START + L2 + FMEM);
    // 2 MiB pages have one level less.
    assert_eq!(walk(&mut machine, 4 * MIB, LARGE), START + L2);
    assert_eq!(machine.counters.walk_loads, 4 + 1 + 2 + 1);
    assert_eq!(machine.counters.walk_fmem_loads, 5);
    assert_eq!(machine.counters.walk_ps, 4 * START + 5 * FMEM + 3 * L2);
}

#[test]
fn any_invalidation_empties_the_paging_structure_caches() {
    let mut machine = machine(|config| config.nested = 0);
    walk(&mut machine, 0, SMALL);
    machine.invalidate_page(0, 300 * MIB);
    assert_eq!(walk(&mut machine, 0x1000, SMALL), START + 4 * L2);
    machine.flush_user(0);
    assert_eq!(walk(&mut machine, 0, SMALL), START + 4 * L2);
    machine.flush_all(0);
    assert_eq!(walk(&mut machine, 0, SMALL), START + 4 * L2);
}

#[test]
fn tables_cost_what_the_tier_they_lie_in_costs() {
    let mut machine = machine(|config| config.nested = 0);
    let table = Table {
        tables: IN_SMEM,
        levels: 4,
    };
    assert_eq!(walk(&mut machine, 0, table), START + 4 * SMEM);
    assert_eq!(machine.counters.walk_smem_loads, 4);
    assert_eq!(machine.counters.smem_loads, 0);
}

#[test]
fn the_host_translates_each_table_and_the_page() {
    // Tables at 64, 68, 72 and 76 MiB and the page at 0 are five pages of the host, of
    // 2 MiB each, whose entries lie in two lines of the host's table.
    let mut machine = machine(|_| ());
    assert_eq!(
        walk(&mut machine, 0, SMALL),
        START + 4 * FMEM + 2 * FMEM + 3 * L2
    );
    // All in the nested TLB now.
    assert_eq!(walk(&mut machine, 0x1000, SMALL), START + L2);
    // The guest's invalidations do not concern the host's translations.
    machine.flush_all(0);
    assert_eq!(walk(&mut machine, 0, SMALL), START + 4 * L2);
}

#[test]
fn small_pages_of_the_host_cost_more_and_split_those_of_the_guest() {
    let mut machine = machine(|config| config.ept_2m = 0);
    // Each of the five addresses takes a PDE and a PTE of the host. The PTEs lie in
    // five lines, the PDEs in two.
    assert_eq!(
        walk(&mut machine, 0, SMALL),
        START + 4 * FMEM + (5 + 2) * FMEM + 3 * L2
    );
    // The TLB has a small part of the huge page: another part is another walk.
    walk(&mut machine, 8 * MIB, LARGE);
    walk(&mut machine, 8 * MIB + 0x1000, LARGE);
    machine.invalidate_page(0, 8 * MIB + 0x5000);
    walk(&mut machine, 8 * MIB + 0x1000, LARGE);
}

#[test]
fn a_stream_walks_once_a_page_and_mostly_cheaply() {
    let mut machine = machine(|_| ());
    for line in 0..16 * MIB / 64 {
        machine.access(0, line * 64, true, &mut { SMALL });
    }
    let counters = machine.counters;
    assert_eq!(counters.walk_4k, 4096);
    // Seven of eight PTEs are in a line just loaded.
    let mean_ps = counters.walk_ps / counters.walk_4k;
    assert!((START + L2..30_000).contains(&mean_ps), "{mean_ps}");
}

proptest! {
    /// A walk costs at most all its loads from the slower tier, and is part of the access.
    #[test]
    fn bounds(vas in prop::collection::vec(0x1000u64..512 * MIB, 1..500), nested in 0..2u64, ept_2m in 0..2u64) {
        let mut machine = machine(|config| { config.nested = nested; config.ept_2m = ept_2m; });
        let mut walks_ps = 0;
        for va in vas {
            let before = machine.counters.walk_loads;
            let access = machine.access(0, va, true, &mut { SMALL }).unwrap();
            let loads = machine.counters.walk_loads - before;
            prop_assert!(loads <= 4 + nested * 5 * (2 - ept_2m));
            prop_assert!(access.walk_ps <= START + loads * SMEM);
            prop_assert!(access.walk_ps < access.latency_ps);
            prop_assert_eq!(access.walked, access.walk_ps > 0);
            walks_ps += access.walk_ps;
        }
        prop_assert_eq!(machine.counters.walk_ps, walks_ps);
    }
}
