// SPDX-License-Identifier: Apache-2.0 OR MIT
//! LZ4 block compression with state that is ours: the library's own entry points either
//! allocate 16 KiB or put it on the stack, and a signal stack may be small.

use std::ffi::{c_char, c_int, c_void};

use crate::region::PAGE_BYTES;

/// Bytes of the library's state.
const STATE_BYTES: usize = 16 << 10;
/// Room that the state's header may take beyond its table.
const SLACK_BYTES: usize = 1 << 10;

// The library itself is built and linked by lz4-sys, which does not name these.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_initStream(state: *mut c_void, size: usize) -> *mut c_void;
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        source: *const c_char,
        target: *mut c_char,
        source_size: c_int,
        target_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// A compressor's state.
#[repr(C, align(16))]
pub struct State([u8; STATE_BYTES + SLACK_BYTES]);

impl State {
    /// Prepares the state, which lies in zero-filled memory. False when this build of the
    /// library wants more room than there is.
    pub fn prepare(&mut self) -> bool {
        // SAFETY: asks for a number.
        let needed = unsafe { LZ4_sizeofState() };
        let state = self.0.as_mut_ptr().cast();
        usize::try_from(needed).is_ok_and(|needed| needed <= self.0.len())
            // SAFETY: aligned, and as large as said.
            && !unsafe { LZ4_initStream(state, self.0.len()) }.is_null()
    }

    /// Compresses a page into `target`; None when it does not fit.
    ///
    /// # Safety
    /// `page` must be readable for a page, and the state prepared.
    pub unsafe fn compress(&mut self, page: *const u8, target: &mut [u8]) -> Option<usize> {
        // SAFETY: as above; the library stays within the sizes given.
        let length = unsafe {
            LZ4_compress_fast_extState_fastReset(
                self.0.as_mut_ptr().cast(),
                page.cast(),
                target.as_mut_ptr().cast(),
                PAGE_BYTES as c_int,
                target.len() as c_int,
                1,
            )
        };
        usize::try_from(length).ok().filter(|&length| length > 0)
    }
}

/// Decompresses a whole page; false when the data is not one.
///
/// # Safety
/// `page` must be writable for a page.
pub unsafe fn decompress(source: &[u8], page: *mut u8) -> bool {
    // SAFETY: the safe decoder stays within the sizes given whatever the data.
    let length = unsafe {
        lz4_sys::LZ4_decompress_safe(
            source.as_ptr().cast(),
            page.cast(),
            source.len() as c_int,
            PAGE_BYTES as c_int,
        )
    };
    length == PAGE_BYTES as c_int
}
