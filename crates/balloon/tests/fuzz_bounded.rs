// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fuzz target's body on a bounded number of inputs of its own, with any
//! compiler. `DEMETER_FUZZ_INPUTS` asks for more, `DEMETER_FUZZ_SEED` for others.

#[path = "../../../fuzz/conversation.rs"]
mod conversation;

/// SplitMix64: the inputs of a seed are the same everywhere.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
fn any_bytes_are_a_harmless_conversation() {
    let inputs = variable("DEMETER_FUZZ_INPUTS", 20_000);
    let seed = variable("DEMETER_FUZZ_SEED", 1);
    let mut inflated_pages = 0;
    for input in 0..inputs {
        let mut numbers = Numbers(seed.wrapping_mul(1 << 32).wrapping_add(input));
        let length = 32 + numbers.next() % 2000;
        let bytes: Vec<u8> = (0..length).map(|_| numbers.next() as u8).collect();
        inflated_pages += conversation::run(&bytes);
    }
    // Nearly all is refused; if all were, the model would have had no work.
    assert!(inflated_pages > inputs, "{inflated_pages}");
}
