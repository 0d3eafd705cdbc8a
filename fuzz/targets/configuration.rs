// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files and words of an operator.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    demeterd::fuzzed::configuration::run(data);
});
