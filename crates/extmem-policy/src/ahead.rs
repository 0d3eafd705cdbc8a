// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that will be wanted in a moment.
//!
//! What is known of pages lies in tables that no cache holds, and faults come in no order: to
//! wait for one line after another is a tenth of what a fault costs that needs no device.

/// Has the processor fetch the line of a place while it goes on. Any address will do.
pub fn fetch_line<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint: nothing is read that a program could see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
