// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the swap store on a given directory, file or device:
//! `cargo run --release --example swap_store -- PATH [MIB]`.
//!
//! Each line is one way to move 4 KiB pages; ways alternate in short slices, so
//! that a change of the disk's mood hits all of them.

use std::path::PathBuf;
use std::time::Instant;

use demeter_extmem::region::Region;
use demeter_extmem::swap::{
    Direction, EngineChoice, Injection, SLOT_BYTES, Slot, SwapOptions, SwapPlace, SwapStore,
    Transfer,
};

const SLICES: usize = 5;
const SLICE_PAGES: usize = 2048;

struct Bench {
    plain: SwapStore,
    ring: SwapStore,
    memory: &'static mut [u8],
    state: u64,
}

impl Bench {
    fn random(&mut self, below: u64) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % below) as u32
    }

    fn piece(&mut self, page: usize, pages: usize) -> libc::iovec {
        libc::iovec {
            iov_base: self.memory[page * SLOT_BYTES..][..pages * SLOT_BYTES]
                .as_mut_ptr()
                .cast(),
            iov_len: pages * SLOT_BYTES,
        }
    }

    /// Seconds for a slice of `run`-page transfers, `depth` at once.
    fn slice(
        &mut self,
        uring: bool,
        direction: Direction,
        run: usize,
        depth: usize,
        random: bool,
    ) -> f64 {
        let capacity = self.plain.capacity_slots();
        let first = self.random(capacity - SLICE_PAGES as u64);
        let rounds = SLICE_PAGES / (run * depth);
        let mut plans = Vec::new();
        for round in 0..rounds {
            let pieces: Vec<_> = (0..depth)
                .map(|index| self.piece(index * run, run))
                .collect();
            let slots: Vec<_> = (0..depth)
                .map(|index| {
                    Slot(if random {
                        self.random(capacity - run as u64)
                    } else {
                        first + ((round * depth + index) * run) as u32
                    })
                })
                .collect();
            plans.push((pieces, slots));
        }
        let store = if uring { &self.ring } else { &self.plain };
        let start = Instant::now();
        for (pieces, slots) in &plans {
            let mut batch: Vec<_> = pieces
                .iter()
                .zip(slots)
                .map(|(piece, &slot)| Transfer::new(direction, slot, piece, 1))
                .collect();
            // SAFETY: pieces of a buffer that lives as long as the process.
            unsafe { store.transfer(&mut batch) }.expect("transfer");
        }
        start.elapsed().as_secs_f64()
    }
}

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let Some(path) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: swap_store PATH [MIB]");
        std::process::exit(2);
    };
    let mib: u64 = arguments
        .next()
        .and_then(|text| text.to_str()?.parse().ok())
        .unwrap_or(1024);
    let open = |engine| {
        SwapStore::open(&SwapOptions {
            places: &[SwapPlace {
                handed: None,
                path: &path,
                capacity_bytes: Some(mib << 20),
            }],
            dram_bytes: 0,
            engine,
            rings: 1,
            inject: Injection::default(),
        })
        .unwrap_or_else(|error| {
            eprintln!("swap_store: error: {error}");
            std::process::exit(2);
        })
    };
    let mut region = Region::map_anonymous(256 * SLOT_BYTES).expect("memory");
    // SAFETY: zero is a u8.
    let memory = unsafe { region.carve::<u8>(256 * SLOT_BYTES) }.expect("memory");
    memory.fill(0x5a);
    let mut bench = Bench {
        plain: open(EngineChoice::Plain),
        ring: open(EngineChoice::Auto),
        memory,
        state: 88_172_645_463_325_252,
    };
    // First writes convert the blocks that fallocate reserved: their own line.
    for (name, uring) in [("plain", false), ("uring", true)] {
        let start = Instant::now();
        let store = if uring { &bench.ring } else { &bench.plain };
        let piece = libc::iovec {
            iov_base: bench.memory.as_mut_ptr().cast(),
            iov_len: 64 * SLOT_BYTES,
        };
        let slots = store.capacity_slots() as u32;
        for first in (0..slots - 255).step_by(256) {
            let mut batch = [0, 64, 128, 192]
                .map(|at| Transfer::new(Direction::Write, Slot(first + at), &raw const piece, 1));
            // SAFETY: the buffer lives as long as the process.
            unsafe { store.transfer(&mut batch) }.expect("transfer");
        }
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{name}  first write, 64-page transfers, 4 at once: {:6.2} us/page",
            seconds * 1e6 / f64::from(slots)
        );
    }
    println!("engine order   run depth  us/page: median [least, most]");
    for direction in [Direction::Read, Direction::Write] {
        for (run, depth, random) in [
            (1, 1, true),
            (1, 4, true),
            (1, 32, true),
            (64, 1, false),
            (64, 4, false),
            (256, 1, false),
        ] {
            let mut results = [Vec::new(), Vec::new()];
            for _ in 0..SLICES {
                for uring in [false, true] {
                    let seconds = bench.slice(uring, direction, run, depth, random);
                    results[usize::from(uring)].push(seconds * 1e6 / SLICE_PAGES as f64);
                }
            }
            for (name, mut times) in ["plain", "uring"].into_iter().zip(results) {
                times.sort_by(f64::total_cmp);
                println!(
                    "{name}  {direction:5} {} {run:4} {depth:4}  {:8.2} [{:.2}, {:.2}]",
                    if random { "random" } else { "linear" },
                    times[SLICES / 2],
                    times[0],
                    times[SLICES - 1]
                );
            }
        }
    }
}
