// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device clauses of docs/spec/virtio-demeter-balloon.md, by number.

use std::io;

use demeter_balloon::device::{Event, Parameters};
use demeter_balloon::regions::{Piece, Region, Regions};
use demeter_balloon::wire::{
    HELLO_RESYNC, INFLATED_RESYNC, OP_DEFLATE, OP_DONE, OP_HELLO, OP_INFLATED, Outcome, Range,
    Report, Status,
};
use demeter_balloon::{Backing, Device, Reason};

/// Remembers what was punched; fails from a given call on.
#[derive(Default)]
struct Holes {
    pieces: Vec<Piece>,
    fail_from: Option<usize>,
}

impl Backing for Holes {
    fn punch(&mut self, piece: Piece) -> io::Result<()> {
        if self.fail_from.is_some_and(|from| self.pieces.len() >= from) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.pieces.push(piece);
        Ok(())
    }
}

const FMEM: u16 = 0;
const SMEM: u16 = 1;
const SMEM_PAGE: u64 = 0x1000;

struct Bench {
    device: Device,
    holes: Holes,
}

impl Bench {
    /// 4096 pages of each tier; no HELLO yet.
    fn new(parameters: Parameters) -> Self {
        let mut device = Device::new(parameters);
        let region = |first_page, node: u16| Region {
            first_page,
            nr_pages: 0x1000,
            node,
            backing: usize::from(node),
            offset_bytes: 0,
        };
        device.set_regions(Regions::new(vec![region(0, FMEM), region(SMEM_PAGE, SMEM)]).unwrap());
        Self {
            device,
            holes: Holes::default(),
        }
    }

    /// With a driver, and FMEM asked to hold `target` pages.
    fn driven(target: u64) -> Self {
        let mut bench = Self::new(Parameters::default());
        assert_eq!(bench.hello(FMEM, 0), Status::Ok);
        assert_eq!(bench.hello(SMEM, 0), Status::Ok);
        bench.ask(FMEM, target);
        bench
    }

    fn ask(&mut self, node: u16, target: u64) -> u64 {
        self.device.set_target(node, target).unwrap();
        self.device.next_request().unwrap().id
    }

    fn send(&mut self, queue: u16, report: Report, ranges: &[Range]) -> Status {
        self.raw(queue, &report.message(ranges))
    }

    fn raw(&mut self, queue: u16, bytes: &[u8]) -> Status {
        self.device.report(queue, bytes, &mut self.holes).status
    }

    fn hello(&mut self, node: u16, kept: u64) -> Status {
        let report = Report {
            op: OP_HELLO,
            node,
            flags: if kept > 0 { HELLO_RESYNC } else { 0 },
            current_pages: kept,
            ..Report::default()
        };
        self.send(node, report, &[])
    }

    fn pages(&mut self, op: u16, flags: u32, ranges: &[(u64, u64)]) -> Status {
        let ranges: Vec<Range> = ranges.iter().map(|&(page, nr)| range(page, nr)).collect();
        let report = Report {
            id: 1,
            op,
            flags,
            ..Report::default()
        };
        self.send(FMEM, report, &ranges)
    }

    fn inflate(&mut self, ranges: &[(u64, u64)]) -> Status {
        self.pages(OP_INFLATED, 0, ranges)
    }

    fn deflate(&mut self, ranges: &[(u64, u64)]) -> Status {
        self.pages(OP_DEFLATE, 0, ranges)
    }

    fn done(&mut self, id: u64, result: u32) -> Status {
        let report = Report {
            id,
            op: OP_DONE,
            result,
            ..Report::default()
        };
        self.send(FMEM, report, &[])
    }

    fn held(&self, node: u16) -> u64 {
        self.device.node(node).unwrap().held_pages
    }
}

fn range(page: u64, nr_pages: u64) -> Range {
    Range {
        gpa: page << 12,
        nr_pages,
    }
}

#[test]
fn dev_2_configuration_is_within_bounds_whatever_was_asked() {
    let device = Device::new(Parameters {
        nr_nodes: 9,
        max_ranges: 0,
        ..Parameters::default()
    });
    assert_eq!(device.config().nr_nodes, 4);
    assert_eq!(device.config().max_ranges, 1);
    assert!(
        device.config().to_bytes()[24..]
            .iter()
            .all(|&byte| byte == 0)
    );
}

#[test]
fn dev_4_nothing_before_hello() {
    let mut bench = Bench::new(Parameters::default());
    assert_eq!(bench.inflate(&[(1, 1)]), Status::Hello);
    assert_eq!(bench.deflate(&[(1, 1)]), Status::Hello);
    assert_eq!(bench.done(1, 0), Status::Hello);
    assert_eq!(bench.device.violations().get(Reason::NoHello), 3);
}

#[test]
fn dev_5_hello_forgets_pages_and_requests_and_touches_no_memory() {
    let mut bench = Bench::driven(100);
    assert_eq!(bench.inflate(&[(0, 50)]), Status::Ok);
    let punched = bench.holes.pieces.len();
    assert_eq!(bench.hello(FMEM, 0), Status::Ok);
    assert_eq!(bench.held(FMEM), 0);
    assert_eq!(bench.holes.pieces.len(), punched);
    // [DEV-7]: the old request is gone, and the next one comes, as the size is still wanted.
    let again = bench.device.next_request().unwrap();
    assert_eq!((again.node, again.target_pages), (FMEM, 100));
    assert_eq!(bench.inflate(&[(0, 50)]), Status::Ok);
}

#[test]
fn dev_13_a_request_that_crossed_a_hello_is_no_violation_until_the_driver_has_answered() {
    let mut bench = Bench::driven(100);
    assert_eq!(bench.hello(FMEM, 0), Status::Ok);
    // It got the request of 100 before it greeted; less is wanted by now.
    bench.device.set_target(FMEM, 10).unwrap();
    let again = bench.device.next_request().unwrap();
    assert_eq!(again.target_pages, 10);
    assert_eq!(bench.inflate(&[(0, 100)]), Status::Ok);
    assert_eq!(bench.inflate(&[(100, 1)]), Status::Budget);
    assert_eq!(bench.deflate(&[(10, 90)]), Status::Ok);
    assert_eq!(bench.done(again.id, 0), Status::Ok);
    assert_eq!(bench.inflate(&[(10, 1)]), Status::Budget);
}

#[test]
fn dev_6_resync_takes_what_hello_named() {
    let mut bench = Bench::new(Parameters::default());
    assert_eq!(bench.hello(FMEM, 10), Status::Ok);
    assert_eq!(
        bench.pages(OP_INFLATED, INFLATED_RESYNC, &[(0, 6)]),
        Status::Ok
    );
    assert_eq!(
        bench.pages(OP_INFLATED, INFLATED_RESYNC, &[(6, 5)]),
        Status::Budget
    );
    assert_eq!(
        bench.pages(OP_INFLATED, INFLATED_RESYNC, &[(6, 4)]),
        Status::Ok
    );
    assert_eq!(
        bench.pages(OP_INFLATED, INFLATED_RESYNC, &[(20, 1)]),
        Status::Budget
    );
    assert_eq!(bench.held(FMEM), 10);
    assert_eq!(bench.deflate(&[(0, 1)]), Status::Ok);
    // Something else came in between.
    assert_eq!(
        bench.pages(OP_INFLATED, INFLATED_RESYNC, &[(0, 1)]),
        Status::State
    );
}

#[test]
fn dev_6_resync_of_fewer_than_hello_named() {
    let mut bench = Bench::new(Parameters::default());
    assert_eq!(bench.hello(FMEM, 10), Status::Ok);
    assert_eq!(
        bench.pages(OP_INFLATED, INFLATED_RESYNC, &[(0, 6)]),
        Status::Ok
    );
    let id = bench.ask(FMEM, 7);
    assert_eq!(bench.held(FMEM), 6);
    assert_eq!(bench.inflate(&[(6, 2)]), Status::Budget);
    assert_eq!(bench.inflate(&[(6, 1)]), Status::Ok);
    assert_eq!(bench.deflate(&[(0, 7)]), Status::Ok);
    assert_eq!(bench.done(id, 0), Status::Ok);
    assert_eq!(bench.held(FMEM), 0);
    assert_eq!(bench.device.violations().total(), 1);
}

#[test]
fn dev_6_resync_without_its_hello_is_refused() {
    let mut bench = Bench::driven(100);
    assert_eq!(
        bench.pages(OP_INFLATED, INFLATED_RESYNC, &[(0, 1)]),
        Status::State
    );
    let hello = |flags, current_pages| Report {
        op: OP_HELLO,
        flags,
        current_pages,
        ..Report::default()
    };
    // The number does not agree with the flag, or with the node.
    for (flags, kept) in [(HELLO_RESYNC, 0), (0, 1), (HELLO_RESYNC, 0x1001)] {
        assert_eq!(bench.send(FMEM, hello(flags, kept), &[]), Status::Malformed);
    }
}

#[test]
fn dev_7_no_request_before_hello() {
    let mut bench = Bench::new(Parameters::default());
    bench.device.set_target(FMEM, 10).unwrap();
    bench.device.set_target(SMEM, 20).unwrap();
    assert!(bench.device.next_request().is_none());
    bench.hello(SMEM, 0);
    let request = bench.device.next_request().unwrap();
    assert_eq!((request.node, request.target_pages), (SMEM, 20));
    assert!(bench.device.next_request().is_none());
}

#[test]
fn dev_7_no_request_between_a_reset_and_hello_and_pages_stay_counted() {
    let mut bench = Bench::driven(100);
    assert_eq!(bench.inflate(&[(0, 50)]), Status::Ok);
    bench.device.reset();
    bench.device.set_target(FMEM, 10).unwrap();
    assert!(!bench.device.has_request() && bench.device.next_request().is_none());
    assert_eq!(bench.held(FMEM), 50);
    // [DEV-4]: whatever comes first.
    assert_eq!(bench.inflate(&[(50, 1)]), Status::Hello);
    assert_eq!(bench.hello(FMEM, 0), Status::Ok);
    assert_eq!(bench.held(FMEM), 0);
    assert_eq!(bench.device.next_request().unwrap().target_pages, 10);
}

#[test]
fn dev_8_ids_grow_by_one_and_the_newest_wish_wins() {
    let mut bench = Bench::driven(1);
    bench.device.set_target(FMEM, 10).unwrap();
    bench.device.set_target(SMEM, 5).unwrap();
    bench.device.set_target(FMEM, 20).unwrap();
    let (second, third) = (
        bench.device.next_request().unwrap(),
        bench.device.next_request().unwrap(),
    );
    // In the order of the wishes that are left.
    assert_eq!((second.id, second.node, second.target_pages), (2, SMEM, 5));
    assert_eq!((third.id, third.node, third.target_pages), (3, FMEM, 20));
    bench.device.ask_statistics();
    assert_eq!(bench.device.next_request().unwrap().id, 4);
    assert!(!bench.device.has_request());
}

#[test]
fn requests_that_nobody_answers_do_not_pile_up() {
    let mut bench = Bench::driven(1);
    let delivered = (2..100)
        .filter(|&target| {
            bench.device.set_target(FMEM, target).unwrap();
            bench.device.next_request().is_some()
        })
        .count();
    assert!(delivered < 10, "{delivered}");
    // The newest one waits, and goes out with the first answer.
    assert_eq!(bench.done(1, 2), Status::Ok);
    assert_eq!(bench.device.next_request().unwrap().target_pages, 99);
}

#[test]
fn dev_10_checks_come_in_order() {
    let mut bench = Bench::new(Parameters::default());
    let inflated = Report {
        op: OP_INFLATED,
        node: SMEM,
        flags: 2,
        ..Report::default()
    };
    let one = [range(0, 1)];
    assert_eq!(bench.send(FMEM, inflated, &one), Status::Malformed);
    let plain = Report {
        flags: 0,
        ..inflated
    };
    assert_eq!(bench.send(FMEM, plain, &one), Status::Node);
    let mine = Report {
        node: FMEM,
        ..plain
    };
    assert_eq!(bench.send(FMEM, mine, &one), Status::Hello);
    bench.hello(FMEM, 0);
    assert_eq!(bench.inflate(&[(0, 0)]), Status::Range);
    assert_eq!(bench.inflate(&[(SMEM_PAGE, 1)]), Status::Tier);
    // State before budget, though nothing was asked for.
    assert_eq!(bench.inflate(&[(0, 1), (0, 1)]), Status::State);
    assert_eq!(bench.inflate(&[(0, 1)]), Status::Budget);
}

#[test]
fn dev_10_malformed_by_every_field() {
    let mut bench = Bench::driven(10);
    let good = Report {
        op: OP_INFLATED,
        ..Report::default()
    };
    let one = [range(0, 1)];
    let mut expect = |bytes: &[u8]| assert_eq!(bench.raw(FMEM, bytes), Status::Malformed);
    let message = good.message(&one);
    expect(&[]);
    expect(&message[..31]);
    expect(&message[..47]);
    expect(&[message.as_slice(), &[0]].concat());
    expect(&good.message(&[]));
    expect(&Report { op: 0, ..good }.message(&one));
    expect(&Report { op: 5, ..good }.message(&one));
    expect(&Report { flags: 2, ..good }.message(&one));
    expect(&Report { result: 1, ..good }.message(&one));
    expect(
        &Report {
            op: OP_DEFLATE,
            flags: 1,
            ..good
        }
        .message(&one),
    );
    expect(
        &Report {
            op: OP_HELLO,
            ..good
        }
        .message(&one),
    );
    expect(
        &Report {
            op: OP_DONE,
            ..good
        }
        .message(&one),
    );
    expect(
        &Report {
            op: OP_DONE,
            result: 5,
            ..good
        }
        .message(&[]),
    );
    let mut absurd = message;
    absurd[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    expect(&absurd);
    assert_eq!(bench.device.violations().get(Reason::Count), 1);
}

#[test]
fn dev_11_whole_or_not_at_all() {
    let mut bench = Bench::driven(100);
    assert_eq!(bench.inflate(&[(10, 10)]), Status::Ok);
    let punched = bench.holes.pieces.len();
    assert_eq!(bench.inflate(&[(30, 5), (15, 1)]), Status::State);
    assert_eq!(bench.inflate(&[(30, 5), (0x2000, 1)]), Status::Range);
    assert_eq!(bench.inflate(&[(30, 5), (40, 86)]), Status::Budget);
    assert_eq!(bench.deflate(&[(10, 5), (30, 1)]), Status::State);
    assert_eq!(bench.held(FMEM), 10);
    assert_eq!(bench.holes.pieces.len(), punched);
    // Everything is as before, so all of it still works.
    assert_eq!(bench.inflate(&[(30, 5), (40, 85)]), Status::Ok);
    assert_eq!(bench.deflate(&[(10, 10)]), Status::Ok);
}

#[test]
fn dev_11_bad_range_is_the_index() {
    let mut bench = Bench::driven(100);
    let ranges = [range(0, 1), range(1, 1), range(1, 1)];
    let report = Report {
        op: OP_INFLATED,
        ..Report::default()
    };
    let ack = bench
        .device
        .report(FMEM, &report.message(&ranges), &mut bench.holes);
    assert_eq!((ack.status, ack.bad_range), (Status::State, 2));
}

#[test]
fn dev_11_what_the_host_cannot_do_stays_the_guests() {
    let mut bench = Bench::driven(100);
    bench.holes.fail_from = Some(1);
    assert_eq!(bench.inflate(&[(0, 1), (10, 1)]), Status::Host);
    assert_eq!(bench.held(FMEM), 0);
    assert_eq!(bench.device.violations().total(), 0);
    let told = bench.device.take_events();
    assert!(
        told.iter()
            .any(|event| matches!(event, Event::HostFailed { node: FMEM, .. }))
    );
    bench.holes.fail_from = None;
    assert_eq!(bench.inflate(&[(0, 1), (10, 1)]), Status::Ok);
}

#[test]
fn dev_13_the_limit_is_the_largest_target_in_flight() {
    let mut bench = Bench::driven(100);
    let lower = bench.ask(FMEM, 10);
    // The driver may not have seen that yet.
    assert_eq!(bench.inflate(&[(0, 60)]), Status::Ok);
    assert_eq!(bench.done(1, Outcome::Superseded as u32), Status::Ok);
    assert_eq!(bench.inflate(&[(60, 40)]), Status::Ok);
    assert_eq!(bench.done(lower, Outcome::Reached as u32), Status::Ok);
    assert_eq!(bench.deflate(&[(0, 100)]), Status::Ok);
    assert_eq!(bench.inflate(&[(0, 11)]), Status::Budget);
    assert_eq!(bench.inflate(&[(0, 10)]), Status::Ok);
    let view = bench.device.node(FMEM).unwrap();
    assert_eq!(view.last.unwrap().outcome, Outcome::Reached);
    assert!(!view.is_busy);
}

#[test]
fn dev_14_only_the_reported_ranges_are_punched() {
    let mut bench = Bench::driven(4096);
    assert_eq!(
        bench.inflate(&[(8, 2), (1, 1), (10, 1), (20, 512)]),
        Status::Ok
    );
    let holes: Vec<_> = (bench.holes.pieces.iter())
        .map(|piece| {
            (
                piece.backing,
                piece.offset_bytes >> 12,
                piece.length_bytes >> 12,
            )
        })
        .collect();
    // Neighbours are one hole.
    assert_eq!(holes, [(0, 1, 1), (0, 8, 3), (0, 20, 512)]);
}

#[test]
fn deflate_may_cut_what_was_reported_as_one() {
    let mut bench = Bench::driven(1000);
    assert_eq!(bench.inflate(&[(0, 512), (512, 88)]), Status::Ok);
    assert_eq!(bench.deflate(&[(100, 450), (0, 1)]), Status::Ok);
    assert_eq!(bench.held(FMEM), 149);
    assert_eq!(bench.deflate(&[(0, 2)]), Status::State);
}

#[test]
fn dev_17_18_19_too_many_violations_end_it_for_good() {
    let mut bench = Bench::new(Parameters {
        violation_limit: 3,
        ..Parameters::default()
    });
    bench.hello(FMEM, 0);
    bench.ask(FMEM, 10);
    assert_eq!(bench.inflate(&[(0, 5)]), Status::Ok);
    bench.device.violate(Reason::Chain);
    bench.device.violate(Reason::Ring);
    assert_eq!(bench.inflate(&[(0, 1)]), Status::State);
    assert!(bench.device.is_disabled());
    assert!(bench.device.take_events().contains(&Event::Disabled));
    // Neither right reports nor HELLO help, and nothing is asked any more.
    assert_eq!(bench.inflate(&[(7, 1)]), Status::Disabled);
    assert_eq!(bench.hello(FMEM, 0), Status::Disabled);
    assert_eq!(bench.held(FMEM), 5);
    assert!(bench.device.set_target(FMEM, 3).is_err());
    assert!(bench.device.next_request().is_none());
    assert_eq!(bench.device.violations().total(), 3);
}

#[test]
fn dev_20_statistics_are_checked_and_clamped() {
    let mut bench = Bench::driven(10);
    let mut bytes = vec![0xff; bench.device.statistics_bytes()];
    bytes[16..20].copy_from_slice(&[0, 0, 2, 0]);
    bench.device.statistics(&bytes);
    let statistics = bench.device.latest_statistics().unwrap();
    assert_eq!(statistics.nodes[0].free_pages, 0x1000);
    assert_eq!(statistics.hot_wanted_pages, 0x2000);
    for wrong in [&bytes[1..], &[&bytes[..], &[0]].concat(), &[]] {
        bench.device.statistics(wrong);
    }
    bytes[18] = 3;
    bench.device.statistics(&bytes);
    assert_eq!(bench.device.violations().get(Reason::Statistics), 4);
}

#[test]
fn targets_beyond_the_node_are_refused() {
    let mut bench = Bench::driven(10);
    assert!(bench.device.set_target(FMEM, 0x1001).is_err());
    assert!(bench.device.set_target(2, 1).is_err());
    assert!(bench.device.set_target(FMEM, 0x1000).is_ok());
}

#[test]
fn a_wish_older_than_the_memory_table_is_cut_to_it() {
    let mut device = Device::new(Parameters::default());
    device.set_target(FMEM, 1 << 40).unwrap();
    let region = Region {
        first_page: 0,
        nr_pages: 64,
        node: FMEM,
        backing: 0,
        offset_bytes: 0,
    };
    device.set_regions(Regions::new(vec![region]).unwrap());
    let hello = Report {
        op: OP_HELLO,
        ..Report::default()
    };
    let ack = device.report(FMEM, &hello.message(&[]), &mut Holes::default());
    assert_eq!(ack.status, Status::Ok);
    assert_eq!(device.next_request().unwrap().target_pages, 64);
}

#[test]
fn done_ends_the_wish_that_it_belongs_to() {
    let mut bench = Bench::driven(10);
    let first = bench.device.node(FMEM).unwrap().ticket;
    let second = bench.device.set_target(FMEM, 20).unwrap();
    assert!(second > first);
    assert_eq!(bench.done(1, Outcome::Floor as u32), Status::Ok);
    let view = bench.device.node(FMEM).unwrap();
    assert_eq!(view.last.unwrap().ticket, first);
    assert!(view.is_busy);
    // Not asked for: taken, without effect.
    assert_eq!(bench.done(77, 0), Status::Ok);
    assert_eq!(bench.device.node(FMEM).unwrap().traffic.stray_done, 1);
}

#[test]
fn memory_that_goes_away_takes_its_pages_along() {
    let mut bench = Bench::driven(100);
    assert_eq!(bench.inflate(&[(0, 10), (0x800, 10)]), Status::Ok);
    let half = Region {
        first_page: 0,
        nr_pages: 0x800,
        node: FMEM,
        backing: 0,
        offset_bytes: 0,
    };
    bench.device.set_regions(Regions::new(vec![half]).unwrap());
    assert_eq!(bench.held(FMEM), 10);
}

#[test]
fn memory_that_is_taken_out_and_put_in_again_brings_its_pages_along() {
    let region = |first_page, nr_pages| Region {
        first_page,
        nr_pages,
        node: FMEM,
        backing: 0,
        offset_bytes: first_page << 12,
    };
    let table = |regions: &[Region]| Regions::new(regions.to_vec()).unwrap();
    let whole = [region(0, 0x1000)];
    let cut = [region(0, 0x7f8), region(0x808, 0x7f8)];
    for is_one_table in [true, false] {
        let mut bench = Bench::driven(100);
        assert_eq!(bench.inflate(&[(0, 10), (0x800, 10)]), Status::Ok);
        bench.device.set_regions(Regions::default());
        assert_eq!(bench.held(FMEM), 0);
        bench.device.go_on_with_regions(table(&cut[..1]));
        assert_eq!(bench.held(FMEM), 10);
        bench.device.go_on_with_regions(table(&cut));
        assert_eq!(bench.held(FMEM), 12);
        // Nothing goes into the balloon, or out of it, where there is no memory.
        assert_eq!(bench.deflate(&[(0x800, 1)]), Status::Range);
        assert_eq!(bench.deflate(&[(0x808, 1)]), Status::Ok);
        let again = table(&whole);
        if is_one_table {
            bench.device.go_on_with_regions(again);
            assert_eq!(bench.held(FMEM), 19);
            assert_eq!(bench.deflate(&[(0, 10), (0x800, 8)]), Status::Ok);
            assert_eq!(bench.held(FMEM), 1);
        } else {
            // A later one is of other memory.
            bench.device.set_regions(again);
            assert_eq!(bench.held(FMEM), 11);
            assert_eq!(bench.inflate(&[(0x800, 8)]), Status::Ok);
        }
    }
    // Nor has a driver that comes in between anything of it.
    let mut bench = Bench::driven(100);
    assert_eq!(bench.inflate(&[(0, 10)]), Status::Ok);
    bench.device.set_regions(Regions::default());
    assert_eq!(bench.hello(FMEM, 0), Status::Ok);
    bench.device.go_on_with_regions(table(&whole));
    assert_eq!(bench.held(FMEM), 0);
}
