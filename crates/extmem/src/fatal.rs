// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one way out when a page cannot be had: one line, then the process ends.
//!
//! Never stale data: whoever cannot bring a page back says which page and stops.
//! Nothing here allocates, locks or touches managed memory.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use demeter_extmem_tree::escaped;

use crate::syscall;

/// One thread has begun to say why. A failed device fails every thread at once.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Exit status of a process the pager had to end in mid-run.
pub const EXIT_STATUS: i32 = 70;
/// Exit status when the pager cannot start.
pub const EXIT_STATUS_START: i32 = 2;

/// A line of text of bounded length; what does not fit is cut, and what would end it escaped.
#[derive(Debug)]
pub struct Line {
    bytes: [u8; 480],
    length: usize,
}

impl Line {
    /// An empty line.
    pub const fn new() -> Self {
        Self {
            bytes: [0; 480],
            length: 0,
        }
    }

    /// Writes the line and a newline to standard error in one call.
    pub fn emit(&mut self) {
        let end = self.length.min(self.bytes.len() - 1);
        self.bytes[end] = b'\n';
        // SAFETY: writes bytes of this line.
        unsafe {
            syscall::call(
                libc::SYS_write,
                [2, self.bytes.as_ptr() as usize, end + 1, 0, 0, 0],
            );
        }
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escaped(text, |piece| {
            let room = self.bytes.len() - 1 - self.length;
            let taken = piece.len().min(room);
            self.bytes[self.length..self.length + taken]
                .copy_from_slice(&piece.as_bytes()[..taken]);
            self.length += taken;
            Ok(())
        })
    }
}

/// Ends the process after one line. Threads that come second leave the line to
/// the first; they wait for it a second only, as a process that was forked off
/// meanwhile has no first thread.
pub fn exit(status: i32, message: fmt::Arguments<'_>) -> ! {
    if ENDING.swap(true, Ordering::AcqRel) {
        crate::futex::pause(999_999_999);
    } else {
        let mut line = Line::new();
        let _ = line.write_str("demeter extmem: error: ");
        let _ = line.write_fmt(message);
        line.emit();
    }
    loop {
        // SAFETY: ends the process.
        unsafe { syscall::call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Ends the process in mid-run: `fatal!("cause; next: what to do")`.
#[macro_export]
macro_rules! fatal {
    ($($argument:tt)*) => {
        $crate::fatal::exit($crate::fatal::EXIT_STATUS, format_args!($($argument)*))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_and_never_overflows() {
        let mut line = Line::new();
        for _ in 0..100 {
            write!(line, "0123456789").unwrap();
        }
        assert_eq!(line.length, line.bytes.len() - 1);
        let mut line = Line::new();
        write!(line, "{}", "\n\x1b".repeat(100)).unwrap();
        assert_eq!(line.length, line.bytes.len() - 1);
        assert!(line.bytes.starts_with(b"\\n\\u{1b}\\n"));
    }
}
