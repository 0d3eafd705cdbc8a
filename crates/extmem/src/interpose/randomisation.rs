// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the next image of a process will lie.
//!
//! The filter outlives an exec and knows the C library by where it lies, so that of the next
//! image has to lie elsewhere: its addresses are random, also where the program asked for none
//! that are. Where the whole system has none, nothing can be started.

use std::fmt::Write;
use std::sync::OnceLock;

use crate::{fatal, syscall};

const SETTING: &str = "/proc/sys/kernel/randomize_va_space";
/// Asks personality() for what is set.
const QUESTION: usize = 0xffff_ffff;
const FIXED: usize = libc::ADDR_NO_RANDOMIZE as usize;

/// What was so when this image began.
#[derive(Debug, Clone, Copy)]
struct Beginning {
    /// It was started with fixed addresses.
    is_fixed: bool,
    /// All images have fixed addresses.
    system_is_fixed: bool,
}

static BEGINNING: OnceLock<Beginning> = OnceLock::new();

/// Notes how this image was started.
pub fn note() {
    BEGINNING.get_or_init(|| Beginning {
        is_fixed: personality(QUESTION) & FIXED != 0,
        // What cannot be read is as it is everywhere else.
        system_is_fixed: std::fs::read_to_string(SETTING).is_ok_and(|text| text.trim() == "0"),
    });
}

/// Undoes what was done for an exec that failed.
#[derive(Debug)]
pub struct ForExec {
    before: Option<usize>,
}

impl ForExec {
    /// The next image of this thread shall have random addresses. `is_itself`: whether it is
    /// this one once more, with as many arguments; `name` is its path.
    ///
    /// # Errors
    /// It cannot have them, or would ask for fixed ones again and again; a line has said so.
    pub fn new(is_itself: impl FnOnce() -> bool, name: &[u8]) -> Result<Self, i32> {
        let Some(beginning) = BEGINNING.get() else {
            return Ok(Self { before: None });
        };
        if beginning.system_is_fixed {
            refuse(
                name,
                "addresses are fixed on this system, and what a managed program starts cannot run then; next: sysctl kernel.randomize_va_space=2",
            );
            return Err(libc::EPERM);
        }
        let before = personality(QUESTION);
        if before & FIXED == 0 {
            return Ok(Self { before: None });
        }
        // Who starts itself for fixed addresses would never see any.
        if !beginning.is_fixed && is_itself() {
            refuse(
                name,
                "it starts itself anew for addresses that are fixed, which what a managed program starts never has; next: start it outside of the run",
            );
            return Err(libc::EPERM);
        }
        personality(before & !FIXED);
        Ok(Self {
            before: Some(before),
        })
    }

    /// The exec failed.
    pub fn undo(self) {
        if let Some(before) = self.before {
            personality(before);
        }
    }
}

#[inline(never)]
fn refuse(name: &[u8], why: &str) {
    let mut line = fatal::Line::new();
    let _ = line.write_str("demeter extmem: ");
    for piece in name.utf8_chunks() {
        let _ = line.write_str(piece.valid());
    }
    let _ = write!(line, " is not started: {why}");
    line.emit();
}

fn personality(value: usize) -> usize {
    // SAFETY: no pointers.
    unsafe { syscall::call(libc::SYS_personality, [value, 0, 0, 0, 0, 0]) as usize }
}
