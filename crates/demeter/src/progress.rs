// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a person sees while guests run. Only on a terminal; never on
//! standard output.

use std::io::{IsTerminal, Write};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Lines of all guests.
pub struct Board {
    board: MultiProgress,
}

/// The line of one guest.
pub struct Line {
    bar: ProgressBar,
    board: MultiProgress,
}

impl Board {
    /// Draws on standard error where that is a terminal.
    pub fn new() -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(8)
        } else {
            ProgressDrawTarget::hidden()
        };
        Self {
            board: MultiProgress::with_draw_target(target),
        }
    }

    /// A new line with that name.
    pub fn line(&self, name: &str) -> Line {
        let bar = self.board.add(ProgressBar::new(100));
        if let Ok(style) =
            ProgressStyle::with_template("{prefix:>12} {spinner} [{bar:24}] {msg} ({elapsed})")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(name.to_owned());
        bar.set_message("booting");
        Line {
            bar,
            board: self.board.clone(),
        }
    }
}

impl Line {
    /// Where the guest is.
    pub fn at(&self, guest_ns: u64, work: Option<u64>, total: Option<u64>) {
        if let (Some(work), Some(total)) = (work, total)
            && total > 0
        {
            self.bar.set_position((work * 100 / total).min(100));
        }
        self.bar
            .set_message(format!("guest clock {:.1} s", guest_ns as f64 * 1e-9));
    }

    /// Still alive.
    pub fn tick(&self) {
        self.bar.tick();
    }

    /// Passes COMMAND's output on without tearing the lines.
    pub fn print_output(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.board.suspend(|| {
            let mut stdout = std::io::stdout().lock();
            // A reader that went away is no reason to stop the measurement.
            let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
        });
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
