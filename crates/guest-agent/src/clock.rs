// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Does the guest clock follow the model? Charges time and looks at the clock.

use demeter_agent::magic;
use nix::time::{ClockId, clock_gettime};

use crate::error::Error;

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// Threads of a kernel that has just started may take the CPU in between.
const TRIES: u32 = 10;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Charges `asked_ns` and returns it with what the clock made of it, at best of
/// a few tries.
pub fn self_test(asked_ns: u64) -> Result<(u64, u64), Error> {
    let mut seen_ns = 0;
    for _ in 0..TRIES {
        let before = now_ns();
        magic::charge_ns(asked_ns);
        seen_ns = now_ns().saturating_sub(before);
        // Up to a tenth more: reading the clock and a timer interrupt take time too.
        if (asked_ns..=asked_ns + asked_ns / 10 + 200_000).contains(&seen_ns) {
            return Ok((asked_ns, seen_ns));
        }
        std::thread::sleep(PAUSE);
    }
    Err(Error::Clock { asked_ns, seen_ns })
}
