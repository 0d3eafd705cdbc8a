// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that writes what it likes into its rings.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    demeterd::fuzzed::rings::run(data);
});
