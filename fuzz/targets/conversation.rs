// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of a guest, against a plain model of the balloon.
#![no_main]

#[path = "../conversation.rs"]
mod conversation;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    conversation::run(data);
});
