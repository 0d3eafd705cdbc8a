// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The region of interest: what is measured. Its beginning is also the moment
//! at which a memory manager may be given values that would change the first
//! placement if they were set earlier.

use std::fs;
use std::io::Write;

use crate::magic;
use crate::protocol::AT_ROI_PATH;

/// Writes the waiting values, then starts modelling. Values that the kernel
/// refuses are returned (path and cause).
pub fn begin() -> Vec<(String, std::io::Error)> {
    let refused = write_waiting_values();
    magic::model_on();
    refused
}

/// Stops modelling.
pub fn end() {
    magic::model_off();
}

fn write_waiting_values() -> Vec<(String, std::io::Error)> {
    let Ok(lines) = fs::read_to_string(AT_ROI_PATH) else {
        return Vec::new();
    };
    lines
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(path, value)| {
            fs::OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|mut file| file.write_all(value.as_bytes()))
                .err()
                .map(|cause| (path.to_owned(), cause))
        })
        .collect()
}
