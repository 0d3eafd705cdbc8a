// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A monitor's memory table.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    demeterd::fuzzed::tiers::run(data);
});
