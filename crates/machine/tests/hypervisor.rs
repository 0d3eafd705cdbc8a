// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine whose pages a hypervisor places: who serves a line, what a flush empties, who pays.

use demeter_machine::hypervisor::{Manager, NoMemory};
use demeter_machine::{
    Access, Hypervisor, HypervisorConfig, Machine, MachineConfig, MemoryLayout, Served,
    Translation, Walker,
};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const PAGE: u64 = 4096;
const KERNEL: u64 = 0xffff_8880_0000_0000;

/// Maps every address to itself by a table of which no walk loads anything.
struct Identity {
    large: bool,
}

impl Walker for Identity {
    fn walk(&mut self, va: u64) -> Option<Translation> {
        Some(Translation {
            pa: va & 0xffff_ffff,
            large: self.large,
            ..Translation::default()
        })
    }
}

/// So many pages of FMEM for a guest of two vCPUs whose first node is the larger one.
fn machine(fmem_pages: u64, set: &[(&str, u64)]) -> Machine {
    let mut config = HypervisorConfig {
        fmem_bytes: fmem_pages * PAGE,
        ..HypervisorConfig::default()
    };
    for (name, value) in set {
        assert!(config.set(name, *value), "{name}");
    }
    config.validate().unwrap();
    let machine = MachineConfig {
        ept_2m: 0,
        ..MachineConfig::default()
    };
    config.fits(&machine).unwrap();
    let layout = MemoryLayout::new(512 * MIB, 128 * MIB);
    let mut hypervisor = Hypervisor::new(&config, &machine, layout, 2);
    hypervisor.resume(0);
    let mut made = Machine::new(&machine, layout, 2);
    made.hypervisor = Some(Box::new(hypervisor));
    made
}

fn touch(machine: &mut Machine, vcpu: usize, va: u64) -> Option<Access> {
    if machine.filtered(vcpu, va) {
        return None;
    }
    machine.access(vcpu, va, true, &mut Identity { large: false })
}

/// The table says which tier serves a line, not the guest's own nodes.
#[test]
fn the_table_serves() {
    let mut machine = machine(100, &[]);
    let served = |machine: &mut Machine, page: u64| touch(machine, 0, page * PAGE).unwrap().served;
    // Two thirds of a percent stay free.
    let fast = (1..150).filter(|&page| served(&mut machine, page) == Served::Fmem);
    assert_eq!(fast.count(), 100);
    // Of both nodes; the kernel's own is fast wherever it lies.
    for page in [200, 600 * MIB / PAGE] {
        assert_eq!(served(&mut machine, page), Served::Smem);
    }
    let kernel = machine.access(0, KERNEL + 620 * MIB, false, &mut Identity { large: true });
    assert_eq!(kernel.unwrap().served, Served::Fmem);
}

/// Large pages of the guest take an entry for each page of the host's.
#[test]
fn an_entry_is_the_smaller_page() {
    let mut machine = machine(100, &[]);
    for page in 0..2 {
        let access = machine.access(0, page * PAGE, true, &mut Identity { large: true });
        assert!(access.unwrap().walked);
    }
    let again = machine.access(0, 8, true, &mut Identity { large: true });
    assert!(!again.unwrap().walked);
}

/// A flush empties the TLB of every vCPU, and each of them pays for it.
#[test]
fn a_flush_is_everybodys() {
    let mut machine = machine(100, &[("scan_delay_ms", 1), ("steal_permille", 0)]);
    for vcpu in 0..2 {
        touch(&mut machine, vcpu, 0x1000);
        assert!(!touch(&mut machine, vcpu, 0x1040).unwrap().walked);
    }
    let before = machine.counters.charged_ps;
    assert_eq!(machine.run_hypervisor(0, MS / 2, false, &NoMemory), 0);
    let ps = machine.run_hypervisor(0, MS, false, &NoMemory);
    assert_eq!(ps, 2 * (1_000_000 + 106_000));
    assert_eq!(machine.counters.charged_ps - before, ps);
    let own = [0, 1].map(|vcpu| machine.vcpu_counters(vcpu).charged_ps);
    assert_eq!(own[0] + own[1], machine.counters.charged_ps);
    for vcpu in 0..2 {
        assert!(touch(&mut machine, vcpu, 0x1080).unwrap().walked, "{vcpu}");
    }
    let counters = machine.hypervisor.as_ref().unwrap().counters();
    assert_eq!((counters.flushes(), counters.invept), (1, 2));
    // The first to come finds the page unmapped, the second does not.
    assert_eq!(counters.violations, 1);
    assert_eq!(counters.violation_ps, 2_000_000);
    // None of it is a flush of the guest's.
    assert_eq!(machine.counters.tlb_full, 0);
}

/// The young bit of a page that the TLB has stays clear: what is used all the time looks
/// cold, unless looking flushes.
#[test]
fn what_the_tlb_has_looks_cold_without_a_flush() {
    for (flush, served) in [(1, Served::Fmem), (0, Served::Smem)] {
        let mut machine = machine(
            100,
            &[
                ("demote_basis_points", 1000),
                ("ageing_flush", flush),
                ("scan_delay_ms", 1_000_000),
                ("steal_permille", 0),
                ("wake_ms", 1),
            ],
        );
        // Full; from here on the first page is used all the time, and no other.
        for page in 1..=100 {
            touch(&mut machine, 0, page * PAGE);
        }
        let mut line = 0;
        for at_us in 0..3000 {
            line = (line + 64) % 2048;
            touch(&mut machine, 0, PAGE + line);
            machine.run_hypervisor(0, 10 * MS + at_us * 1000, false, &NoMemory);
        }
        let counters = machine.hypervisor.as_ref().unwrap().counters();
        // Of ten that are to be free three were left.
        assert_eq!(counters.demoted_pages, 7, "{counters:?}");
        assert_eq!(counters.flush_ageing > 0, flush == 1);
        // Who asks waits: none is carried out for two, and both vCPUs carry out each.
        assert_eq!(counters.invept, 2 * counters.flushes());
        let access = touch(&mut machine, 0, PAGE + 3072).unwrap();
        assert_eq!(access.served, served, "flush {flush}");
    }
}

/// A vCPU that has halted is not interrupted and pays nothing; it flushes once when it goes on.
#[test]
fn who_has_halted_pays_when_it_goes_on() {
    let set = [
        ("scan_delay_ms", 1),
        ("scan_period_max_ms", 1000),
        ("steal_permille", 0),
    ];
    let mut machine = machine(100, &set);
    for vcpu in 0..2 {
        touch(&mut machine, vcpu, 0x1000);
    }
    machine.halt(1);
    let before = [0, 1].map(|vcpu| machine.vcpu_counters(vcpu).charged_ps);
    let mut ps = machine.run_hypervisor(0, MS, false, &NoMemory);
    touch(&mut machine, 0, 0x1040);
    ps += machine.run_hypervisor(0, 3000 * MS, false, &NoMemory);
    assert_eq!(ps, 2 * (1_000_000 + 106_000));
    assert_eq!(machine.vcpu_counters(1).charged_ps, before[1]);
    let invept = |machine: &Machine| machine.hypervisor.as_ref().unwrap().counters().invept;
    assert_eq!(invept(&machine), 2);
    assert_eq!(machine.wake(1), 106_000);
    assert_eq!(machine.vcpu_counters(1).charged_ps, before[1] + 106_000);
    assert_eq!((machine.wake(1), invept(&machine)), (0, 3));
    assert!(touch(&mut machine, 1, 0x1080).unwrap().walked);
    let own = [0, 1].map(|vcpu| machine.vcpu_counters(vcpu).charged_ps);
    assert_eq!(own[0] + own[1], machine.counters.charged_ps);
}

/// The first store to a page whose entry the TLB has walks again, to mark it dirty; what is
/// dirty stays so until a flush.
#[test]
fn a_store_marks_its_page_once() {
    let mut config = HypervisorConfig {
        manager: Manager::Abit,
        dirty_bit: 1,
        fmem_bytes: 100 * PAGE,
        interval_ms: 1,
        interval_moves: 0,
        steal_permille: 0,
        ..HypervisorConfig::default()
    };
    config.fmem_permille = 1000;
    config.validate().unwrap();
    let machine_config = MachineConfig {
        ept_2m: 0,
        ..MachineConfig::default()
    };
    let layout = MemoryLayout::new(512 * MIB, 128 * MIB);
    let mut machine = Machine::new(&machine_config, layout, 1);
    let mut hypervisor = Hypervisor::new(&config, &machine_config, layout, 1);
    hypervisor.resume(0);
    machine.hypervisor = Some(Box::new(hypervisor));
    let store = |machine: &mut Machine, va| {
        touch(machine, 0, va);
        machine.store(0, va, true, &mut Identity { large: false })
    };
    assert!(store(&mut machine, 0x1000) > 0, "read first");
    assert_eq!(store(&mut machine, 0x1000), 0, "the line");
    assert_eq!(store(&mut machine, 0x1040), 0, "another line of the page");
    assert!(store(&mut machine, 0x2000) > 0, "another page");
    let counters = |machine: &Machine| machine.hypervisor.as_ref().unwrap().counters();
    assert_eq!(counters(&machine).fmem_store_lines, 3);
    machine.run_hypervisor(0, MS, false, &NoMemory);
    assert_eq!(counters(&machine).young_pages, 2);
    machine.run_hypervisor(0, 2 * MS, false, &NoMemory);
    assert_eq!(counters(&machine).young_pages, 2, "nobody stored");
    assert!(store(&mut machine, 0x1040) > 0, "flushed");
    machine.run_hypervisor(0, 3 * MS, false, &NoMemory);
    assert_eq!(counters(&machine).young_pages, 3);
}
