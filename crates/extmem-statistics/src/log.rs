// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decisions, one line each, when asked for.
//!
//! `TIME_NS PID EVENT PAGE DETAIL`: a line is one `write` to a file opened for
//! appending, so that lines of many processes do not mix. That costs a system
//! call a decision; it is for finding out why, not for every day.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::board::now_ns;

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A page was brought in: detail 0 first touch, 1 swap, 2 compressed, 3 victim cache, 4 zero.
    Fault,
    /// Pages were asked for ahead: detail is how many.
    Prefetch,
    /// A page left DRAM: detail 0 dropped, 1 written, 2 compressed.
    Evict,
    /// A page went to the victim cache.
    Victim,
    /// The compressed tier changed: detail 1 on, 0 off.
    Tier,
    /// The victim cache was resized: detail is its pages.
    Resize,
    /// A hint of the program: detail is which.
    Hint,
}

/// A log file.
#[derive(Debug)]
pub struct Log {
    file: File,
}

impl Log {
    /// Appends to `path`.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)
            .map(|file| Self { file })
    }

    /// Writes a line. Neither allocates nor locks.
    pub fn event(&self, event: Event, page: u64, detail: u64) {
        let name = match event {
            Event::Fault => "fault",
            Event::Prefetch => "prefetch",
            Event::Evict => "evict",
            Event::Victim => "victim",
            Event::Tier => "tier",
            Event::Resize => "resize",
            Event::Hint => "hint",
        };
        let mut line = crate::summary::FdWriter::new(self.file.as_raw_fd());
        // A log that cannot be written must not stop the program.
        let _ = writeln!(
            line,
            "{} {} {name} {page} {detail}",
            now_ns(),
            std::process::id()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let log = Log::open(&path).unwrap();
                scope.spawn(move || (0..100).for_each(|page| log.event(Event::Evict, page, 1)));
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 400);
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(
                (words.len(), words[2], words[4]),
                (5, "evict", "1"),
                "{line}"
            );
        }
    }
}
