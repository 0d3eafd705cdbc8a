// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file of recorded accesses that somebody sent. Once as it is, which mostly ends at a
//! checksum, and once as blocks whose frame is right.
#![no_main]

use demeter_recording::{Block, Reader, Window};

/// Blocks of a file of a few KiB; a reader that does not move on would never end.
const MOST_BLOCKS: usize = 10_000;

fn read(bytes: &[u8]) {
    let Ok(mut reader) = Reader::new(bytes) else {
        return;
    };
    let mut window = Window::default();
    for _ in 0..MOST_BLOCKS {
        match reader.next_block(&mut window) {
            Ok(Block::End) | Err(_) => return,
            Ok(_) => {}
        }
    }
    panic!("{} bytes have more than {MOST_BLOCKS} blocks", bytes.len());
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    read(data);
    read(&demeter_recording::framed(data));
});
