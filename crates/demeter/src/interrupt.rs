// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One flag for "stop now", raised by SIGINT, SIGTERM and SIGHUP, or by the
//! failure of another guest of the same comparison.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static RAISED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Takes over the signals. Called once, at start.
pub fn install() {
    let flag = RAISED.get_or_init(|| Arc::new(AtomicBool::new(false)));
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        // A second signal ends the process at once.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(flag));
        let _ = signal_hook::flag::register(signal, Arc::clone(flag));
    }
}

/// True after a signal.
pub fn raised() -> bool {
    RAISED
        .get()
        .is_some_and(|flag| flag.load(Ordering::Relaxed))
}
