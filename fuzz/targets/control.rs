// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes that arrive at the control interface.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    demeterd::fuzzed::control::run(data);
});
