// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes become a conversation with the device, and a plain
//! model says what must come of it. Used by the libFuzzer target of this name
//! and, with its own inputs, by `crates/balloon/tests/fuzz_bounded.rs`.

use std::collections::BTreeSet;
use std::io;

use demeter_balloon::device::Parameters;
use demeter_balloon::regions::{Piece, Region, Regions};
use demeter_balloon::wire::{OP_DEFLATE, OP_DONE, OP_HELLO, OP_INFLATED, Range, Report, Status};
use demeter_balloon::{Backing, Device};

/// Pages of each tier, in two regions with a hole between them.
const NODE_PAGES: u64 = 512;

fn regions() -> Regions {
    let region = |first_page, node: u16, offset_pages: u64| Region {
        first_page,
        nr_pages: NODE_PAGES / 2,
        node,
        backing: usize::from(node),
        offset_bytes: offset_pages << 12,
    };
    let half = NODE_PAGES / 2;
    Regions::new(vec![
        region(0, 0, 0),
        region(half + 16, 0, half),
        region(4 * half, 1, 0),
        region(5 * half, 1, half),
    ])
    .expect("a right table")
}

/// Page of the guest that lies there in the backing.
fn guest_page(backing: usize, page: u64) -> u64 {
    let half = NODE_PAGES / 2;
    match (backing, page < half) {
        (0, true) => page,
        (0, false) => page + 16,
        _ => page + 4 * half,
    }
}

struct Holes {
    pages: BTreeSet<u64>,
    fail: bool,
}

impl Backing for Holes {
    fn punch(&mut self, piece: Piece) -> io::Result<()> {
        if self.fail {
            return Err(io::ErrorKind::StorageFull.into());
        }
        assert_eq!((piece.offset_bytes | piece.length_bytes) & 0xfff, 0);
        assert!((piece.offset_bytes + piece.length_bytes) >> 12 <= NODE_PAGES);
        for page in piece.offset_bytes >> 12..(piece.offset_bytes + piece.length_bytes) >> 12 {
            // [DEV-14]: nothing twice, and below: nothing but what was reported.
            assert!(self.pages.insert(guest_page(piece.backing, page)));
        }
        Ok(())
    }
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    fn number(&mut self) -> u64 {
        // Mostly small, sometimes near the ends of the number line.
        let value = u64::from(self.byte()) | u64::from(self.byte()) << 8;
        match value >> 13 {
            0..=5 => value & 0x7ff,
            6 => u64::MAX - (value & 0xff),
            _ => 1 << (value & 63),
        }
    }

    /// A number below `limit`, more often than not.
    fn below(&mut self, limit: u64) -> u64 {
        if self.byte().is_multiple_of(16) {
            return self.number();
        }
        (u64::from(self.byte()) | u64::from(self.byte()) << 8) % limit
    }
}

/// One conversation. Says how many pages went into a balloon in it: a run in
/// which none did has shown nothing.
pub fn run(data: &[u8]) -> u64 {
    let mut input = Bytes(data);
    let mut device = Device::new(Parameters {
        max_ranges: 8,
        violation_limit: 1 + u64::from(input.byte()),
        ..Parameters::default()
    });
    device.set_regions(regions());
    let mut model = [BTreeSet::new(), BTreeSet::new()];
    while !input.0.is_empty() {
        let before = device.violations().total();
        match input.byte() % 16 {
            0 => {
                let length = usize::from(input.byte() % 80);
                let bytes: Vec<u8> = (0..length).map(|_| input.byte()).collect();
                let queue = u16::from(input.byte() % 3);
                let mut holes = Holes {
                    pages: BTreeSet::new(),
                    fail: false,
                };
                let status = device.report(queue, &bytes, &mut holes).status;
                follow(&mut model, queue, &bytes, status, &holes);
            }
            1 => {
                let _ = device.set_target(u16::from(input.byte() % 3), input.below(NODE_PAGES));
            }
            2 => drop(device.next_request()),
            3 => {
                let length = device.statistics_bytes() + usize::from(input.byte() % 3) - 1;
                let mut bytes = vec![input.byte(); length];
                bytes[16..20].copy_from_slice(&[input.byte(), 0, input.byte() % 4, 0]);
                device.statistics(&bytes);
            }
            kind => {
                let op = match kind {
                    4 | 5 => OP_HELLO,
                    6 => OP_DONE,
                    7..=9 => OP_DEFLATE,
                    15 => u16::from(input.byte()),
                    _ => OP_INFLATED,
                };
                let queue = u16::from(input.byte() & 1);
                let shape = input.byte();
                let report = Report {
                    id: u64::from(shape >> 5),
                    op,
                    node: if shape & 15 == 0 { queue ^ 1 } else { queue },
                    flags: u32::from(shape & 16 != 0),
                    current_pages: if op == OP_HELLO && shape & 16 != 0 {
                        input.number()
                    } else {
                        0
                    },
                    ..Report::default()
                };
                let count = if matches!(op, OP_HELLO | OP_DONE) && shape & 14 != 0 {
                    0
                } else {
                    // Few, or many that cannot all be right.
                    let count = input.byte();
                    if count < 240 { count % 4 } else { count % 16 }
                };
                let base = u64::from(queue) * 2 * NODE_PAGES;
                let ranges: Vec<Range> = (0..count)
                    .map(|_| Range {
                        gpa: base
                            .wrapping_add(input.below(NODE_PAGES + 40))
                            .wrapping_mul(0x1000)
                            | u64::from(input.byte() == 255),
                        nr_pages: input.below(24),
                    })
                    .collect();
                let bytes = report.message(&ranges);
                let mut holes = Holes {
                    pages: BTreeSet::new(),
                    fail: shape == 0x41,
                };
                let status = device.report(queue, &bytes, &mut holes).status;
                follow(&mut model, queue, &bytes, status, &holes);
            }
        }
        let after = device.violations().total();
        assert!(after >= before && after - before <= 1);
        for node in 0..2 {
            let held = device.node(node).map_or(0, |view| view.held_pages);
            assert_eq!(held, model[usize::from(node)].len() as u64);
        }
        assert!(device.take_events().len() <= 4);
    }
    (0..2)
        .filter_map(|node| device.node(node))
        .map(|view| view.traffic.inflated_pages)
        .sum()
}

/// What a report means, said as plainly as possible.
fn follow(model: &mut [BTreeSet<u64>; 2], queue: u16, bytes: &[u8], status: Status, holes: &Holes) {
    if status != Status::Ok {
        // [DEV-11]
        assert!(holes.pages.is_empty());
        return;
    }
    let report = Report::from_bytes(bytes).expect("taken, so long enough");
    assert_eq!(report.node, queue);
    let pages: Vec<u64> = bytes[32..]
        .chunks_exact(16)
        .filter_map(Range::from_bytes)
        .flat_map(|range| (range.gpa >> 12)..(range.gpa >> 12) + range.nr_pages)
        .collect();
    let set = &mut model[usize::from(queue)];
    match report.op {
        OP_HELLO => set.clear(),
        OP_INFLATED => {
            for page in &pages {
                assert!(set.insert(*page));
            }
            assert_eq!(holes.pages, pages.iter().copied().collect());
        }
        OP_DEFLATE => {
            for page in &pages {
                assert!(set.remove(page));
            }
            assert!(holes.pages.is_empty());
        }
        _ => assert!(pages.is_empty() && holes.pages.is_empty()),
    }
}
