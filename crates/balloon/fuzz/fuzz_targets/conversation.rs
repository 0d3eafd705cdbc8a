// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo fuzz run conversation` with a nightly compiler is guided by coverage.
//! A stable compiler builds and runs it without that guidance: `cargo run`.
#![no_main]

#[path = "../body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    body::run(data);
});
