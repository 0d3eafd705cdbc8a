// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small traces whose figures were worked out by hand, and properties of any trace.

use demeter_machine::{
    Access, Event, Machine, MachineConfig, MemoryLayout, Preset, Served, Sockets, Translation,
    Walker,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// A walk that loads nothing: those that do are in `walks.rs`.
const WALK_PS: u64 = 3_000;
const INVLPG_PS: u64 = 106_000;
const FULL_FLUSH_PS: u64 = 106_000;
const CR3_WRITE_PS: u64 = 30_000;

/// Maps every address to itself, in pages of one size.
struct Identity {
    large: bool,
}

impl Walker for Identity {
    fn walk(&mut self, va: u64) -> Option<Translation> {
        Some(Translation {
            pa: va & 0xffff_ffff,
            large: self.large,
            fallback: false,
            entries: [0; 4],
            levels: 0,
        })
    }
}

fn config(preset: Preset) -> MachineConfig {
    MachineConfig {
        nested: 0,
        ..MachineConfig::preset(preset)
    }
}

fn machine(preset: Preset) -> Machine {
    Machine::new(&config(preset), MemoryLayout::new(128 * MIB, 512 * MIB), 1)
}

fn touch(machine: &mut Machine, va: u64, large: bool) -> Option<Access> {
    if machine.filtered(0, va) {
        return None;
    }
    machine.access(0, va, true, &mut Identity { large })
}

#[test]
fn memory_of_another_socket_is_dearer() {
    for (vcpu, remote) in [(0, [false, true]), (1, [true, false])] {
        let config = config(Preset::Pmem);
        let layout = MemoryLayout::new(128 * MIB, 512 * MIB);
        let mut machine = Machine::new(&config, layout, 2);
        machine.sockets = Sockets::new(&[[96 * MIB, 256 * MIB], [32 * MIB, 256 * MIB]], 2);
        for (tier, latency_ps, at) in [
            (Served::Fmem, 68_700, [80, 112]),
            (Served::Smem, 176_600, [300, 600]),
        ] {
            for (at, remote) in at.into_iter().zip(remote) {
                let va = at * MIB;
                assert!(!machine.filtered(vcpu, va));
                let mut walker = Identity { large: false };
                let access = machine.access(vcpu, va, true, &mut walker).unwrap();
                let more = if remote { 75_600 } else { 0 };
                assert_eq!((access.served, access.remote), (tier, remote));
                assert_eq!(access.latency_ps, WALK_PS + latency_ps + more);
            }
        }
        assert_eq!(machine.counters.remote_loads, 2);
    }
}

#[test]
fn first_touch_of_each_tier() {
    for (preset, smem_ps) in [(Preset::Pmem, 176_600), (Preset::Cxl, 121_900)] {
        let mut machine = machine(preset);
        let fmem = touch(&mut machine, 16 * MIB, false).unwrap();
        assert_eq!(
            (fmem.latency_ps, fmem.served, fmem.walked),
            (WALK_PS + 68_700, Served::Fmem, true)
        );
        let smem = touch(&mut machine, 256 * MIB, false).unwrap();
        assert_eq!(
            (smem.latency_ps, smem.served),
            (WALK_PS + smem_ps, Served::Smem)
        );
        let large = touch(&mut machine, 320 * MIB, true).unwrap();
        assert_eq!(large.latency_ps, WALK_PS + smem_ps);
        let other = touch(&mut machine, 0xfe00_0000, false).unwrap();
        assert_eq!(
            (other.latency_ps, other.served),
            (WALK_PS + 68_700, Served::Other)
        );
        // Same page, another line: no walk.
        let near = touch(&mut machine, 16 * MIB + 512, false).unwrap();
        assert_eq!((near.latency_ps, near.walked), (68_700, false));
        // Same line: the filter.
        assert_eq!(touch(&mut machine, 16 * MIB + 520, false), None);
        let counters = machine.counters;
        assert_eq!(
            counters.charged_ps,
            (WALK_PS + 68_700) * 2 + WALK_PS + smem_ps + WALK_PS + smem_ps + 68_700
        );
        assert_eq!(
            (
                counters.fmem_loads,
                counters.smem_loads,
                counters.other_loads
            ),
            (2, 2, 1)
        );
        assert_eq!(
            (counters.walk_4k, counters.walk_2m, counters.stream_loads),
            (3, 1, 0)
        );
    }
}

#[test]
fn sequential_lines_cost_bandwidth_not_latency() {
    let mut machine = machine(Preset::Pmem);
    // One 4 KiB page of SMEM: 1 walk, 3 random misses, 61 lines of a stream at
    // max(64 B / 7.45 GB/s = 8590 ps, 176 600 / 16 = 11 037 ps).
    for line in 0..64 {
        touch(&mut machine, 256 * MIB + line * 64, false);
    }
    assert_eq!(
        machine.counters.charged_ps,
        WALK_PS + 3 * 176_600 + 61 * 11_037
    );
    assert_eq!(machine.counters.stream_loads, 61);
    assert_eq!(machine.counters.smem_loads, 64);
}

#[test]
fn narrow_tier_is_bound_by_bandwidth() {
    let mut config = config(Preset::Pmem);
    config.smem_bandwidth_bytes_per_s = 1_000_000_000; // 64 ns a line
    let mut machine = Machine::new(&config, MemoryLayout::new(128 * MIB, 512 * MIB), 1);
    for line in 0..64 {
        touch(&mut machine, 256 * MIB + line * 64, false);
    }
    assert_eq!(
        machine.counters.charged_ps,
        WALK_PS + 3 * 176_600 + 61 * 64_000
    );
}

#[test]
fn caches_serve_the_second_pass() {
    let mut machine = machine(Preset::Pmem);
    // 1 MiB at a stride that is no stream: beyond L2 (256 KiB), within the LLC (2 MiB).
    let pass = |machine: &mut Machine| {
        for i in 0..2048u64 {
            touch(machine, 256 * MIB + i * 512, true);
        }
    };
    pass(&mut machine);
    assert_eq!(machine.counters.smem_loads, 2048);
    let before = machine.counters;
    pass(&mut machine);
    assert_eq!(machine.counters.smem_loads, 2048);
    let hits =
        machine.counters.llc_hits - before.llc_hits + machine.counters.l2_hits - before.l2_hits;
    assert_eq!(hits, 2048);
}

#[test]
fn invalidations_are_counted_apart_and_force_a_walk() {
    let mut machine = machine(Preset::Pmem);
    let va = 16 * MIB;
    let walks = |machine: &mut Machine| {
        let access = touch(machine, va, false).unwrap();
        assert_eq!(
            (access.served, access.latency_ps),
            (Served::L2, WALK_PS + 4_200)
        );
    };
    touch(&mut machine, va, false);
    assert_eq!(machine.invalidate_page(0, va + 8), INVLPG_PS);
    walks(&mut machine);
    assert_eq!(machine.flush_user(0), CR3_WRITE_PS);
    walks(&mut machine);
    assert_eq!(machine.switch_address_space(0), CR3_WRITE_PS);
    walks(&mut machine);
    assert_eq!(machine.flush_all(0), FULL_FLUSH_PS);
    walks(&mut machine);
    let counters = machine.counters;
    assert_eq!(
        (counters.tlb_single, counters.tlb_full, counters.cr3_writes),
        (1, 2, 1)
    );
    let flushes_ps = INVLPG_PS + 2 * CR3_WRITE_PS + FULL_FLUSH_PS;
    assert_eq!(counters.event_ps, flushes_ps);
    assert_eq!(counters.kernel_charged_ps, flushes_ps);
    machine.reset_state();
    assert_eq!(touch(&mut machine, va, false).unwrap().served, Served::Fmem);
}

#[test]
fn kernel_time_is_split_off() {
    let mut machine = machine(Preset::Pmem);
    machine.access(0, 16 * MIB, false, &mut Identity { large: false });
    machine.charge_ps(0, 1_000);
    assert_eq!(machine.counters.kernel_charged_ps, WALK_PS + 68_700);
    assert_eq!(machine.counters.charged_ps, WALK_PS + 69_700);
    assert_eq!(
        (
            machine.counters.fmem_loads,
            machine.counters.fmem_loads_user
        ),
        (1, 0)
    );
}

#[test]
fn events_cost_what_is_configured() {
    let mut machine = machine(Preset::Pmem);
    assert_eq!(machine.event(0, Event::Exception), 317_000);
    assert_eq!(machine.event(0, Event::Interrupt), 317_000);
    assert_eq!(machine.event(0, Event::Interrupt), 317_000);
    assert_eq!(machine.event(0, Event::Pause { user: true }), 42_000);
    assert_eq!(machine.event(0, Event::Pause { user: false }), 42_000);
    assert_eq!(machine.event(1, Event::Exception), 0);
    let counters = machine.counters;
    assert_eq!(
        (counters.exceptions, counters.interrupts, counters.pauses),
        (1, 2, 2)
    );
    assert_eq!(counters.event_ps, 3 * 317_000 + 2 * 42_000);
    assert_eq!(counters.charged_ps, counters.event_ps);
    assert_eq!(counters.kernel_charged_ps, 3 * 317_000 + 42_000);
}

#[test]
fn a_vcpu_that_is_not_there_is_ignored() {
    let mut machine = machine(Preset::Pmem);
    assert!(machine.filtered(1, 0x1000));
    assert_eq!(
        machine.access(1, 0x1000, true, &mut Identity { large: false }),
        None
    );
    machine.flush_all(7);
    assert_eq!(machine.counters.tlb_full, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Touch(u64),
    Move(u64),
    Flush,
}

/// Pages that move between two frames; the walker follows.
struct Moving {
    second: std::collections::HashSet<u64>,
}

impl Moving {
    fn pa(&self, va: u64) -> u64 {
        va + if self.second.contains(&(va >> 12)) {
            256 * MIB
        } else {
            0
        }
    }
}

impl Walker for Moving {
    fn walk(&mut self, va: u64) -> Option<Translation> {
        Some(Translation {
            pa: self.pa(va),
            large: false,
            fallback: false,
            entries: [0; 4],
            levels: 0,
        })
    }
}

proptest! {
    /// Costs add up, and no access is seen at a place its page has left.
    #[test]
    fn charged_is_the_sum_and_never_stale(steps in prop::collection::vec(prop_oneof![
        20 => (0x1000u64..8 * MIB).prop_map(Step::Touch),
        2 => (1u64..2048).prop_map(Step::Move),
        1 => Just(Step::Flush),
    ], 1..3000)) {
        let mut machine = machine(Preset::Cxl);
        let mut table = Moving { second: Default::default() };
        let mut sum_ps = 0;
        for step in &steps {
            match *step {
                Step::Touch(va) => if !machine.filtered(0, va) {
                    let access = machine.access(0, va, true, &mut table).unwrap();
                    prop_assert_eq!(access.pa, table.pa(va));
                    sum_ps += access.latency_ps;
                },
                Step::Move(page) => {
                    if !table.second.remove(&page) { table.second.insert(page); }
                    sum_ps += machine.invalidate_page(0, page << 12);
                }
                Step::Flush => sum_ps += machine.flush_user(0),
            }
        }
        let counters = machine.counters;
        prop_assert_eq!(counters.charged_ps, sum_ps);
        prop_assert_eq!(counters.fmem_loads + counters.smem_loads,
            counters.fmem_loads_user + counters.smem_loads_user);
    }

    /// The same trace gives the same counters.
    #[test]
    fn deterministic(vas in prop::collection::vec(0x1000u64..600 * MIB, 1..2000)) {
        let run = || {
            let mut machine = machine(Preset::Pmem);
            for &va in &vas { touch(&mut machine, va, va & 64 == 0); }
            machine.counters
        };
        prop_assert_eq!(run(), run());
    }
}
