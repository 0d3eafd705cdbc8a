// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the compressed tier: `cargo run --release --example compressed_tier`.
//!
//! Pages of which a share is random, and pages of integers that differ little. What it
//! costs to try an incompressible page is what the adaptive switch saves.

use std::time::Instant;

use demeter_extmem::compressed::{CompressedOptions, CompressedTier, Handle, is_zero_page};
use demeter_extmem::region::{PAGE_BYTES, Region};

const PAGES: usize = 4096;
const ROUNDS: usize = 7;

fn fill(memory: &mut [u8], kind: &str) {
    let mut state = 88_172_645_463_325_252u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for page in memory.chunks_exact_mut(PAGE_BYTES) {
        page.fill(0);
        if let Ok(percent) = kind.parse::<usize>() {
            for word in page[..PAGE_BYTES * percent / 100].chunks_exact_mut(8) {
                word.copy_from_slice(&random().to_le_bytes());
            }
        } else {
            for (index, word) in page.chunks_exact_mut(4).enumerate() {
                let value = index as u32 * 3 + (random() % 4) as u32;
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

fn main() {
    let mut source = Region::map_anonymous(PAGES * PAGE_BYTES).expect("memory");
    // SAFETY: zero is a u8.
    let memory = unsafe { source.carve::<u8>(PAGES * PAGE_BYTES) }.expect("memory");
    let mut target = vec![0u64; PAGE_BYTES / 8];
    println!("pages        zero?  store us  load us  stored  bytes/page   (medians of {ROUNDS})");
    for kind in ["0", "10", "30", "50", "70", "100", "integers"] {
        fill(memory, kind);
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        let (mut stored, mut bytes) = (0, 0);
        for _ in 0..ROUNDS {
            let options = CompressedOptions {
                pool_bytes: 64 << 20,
                always_on: true,
            };
            let region = Region::map_anonymous(CompressedTier::footprint_bytes(&options));
            let tier = CompressedTier::new(&options, region.expect("memory")).expect("tier");
            let pages = || memory.chunks_exact(PAGE_BYTES);
            let start = Instant::now();
            // SAFETY: living, aligned pages.
            let zeros = pages()
                .filter(|page| unsafe { is_zero_page(page.as_ptr()) })
                .count();
            times[0].push(start.elapsed());
            std::hint::black_box(zeros);
            let start = Instant::now();
            let handles: Vec<Option<Handle>> = pages()
                .enumerate()
                // SAFETY: living pages.
                .map(|(owner, page)| unsafe { tier.store(owner as u32, page.as_ptr()) })
                .collect();
            times[1].push(start.elapsed());
            stored = handles.iter().flatten().count();
            bytes = tier.live_bytes();
            let start = Instant::now();
            for handle in handles.iter().flatten() {
                // SAFETY: a living page.
                unsafe { tier.load(*handle, target.as_mut_ptr().cast()) }.expect("load");
            }
            times[2].push(start.elapsed());
        }
        let [zero, store, load] = times.map(|mut times| {
            times.sort();
            times[ROUNDS / 2].as_secs_f64() * 1e6
        });
        println!(
            "{kind:>8} {:>9.3} {:>9.2} {:>8.2} {stored:>7} {:>11.0}",
            zero / PAGES as f64,
            store / PAGES as f64,
            load / stored.max(1) as f64,
            bytes as f64 / stored.max(1) as f64,
        );
    }
}
