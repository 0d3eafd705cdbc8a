// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What demeter.ko does, here or in a guest: `status`, `why`, `metrics`, `top`.

mod endpoint;
mod frame;
pub mod metrics;
mod rates;
mod serve;
mod source;
pub mod status;
pub mod top;
pub mod why;

use crate::table;

/// MiB, without decimals where there are many.
fn mib(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    format!("{mib:.*}", usize::from(mib < 10.0 && bytes > 0))
}

/// Milliseconds.
fn ms(ns: f64) -> String {
    table::number(Some(ns * 1e-6), 1)
}

/// Prints data. A reader that went away is how one leaves a pipe.
fn print(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}
