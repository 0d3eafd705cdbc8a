// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is shown live on a terminal, once as text, or as JSON: the loop and the options that
//! `demeter top` and `demeter balloon top` have in common.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{Frame, Terminal};

use crate::error::Error;
use crate::interrupt;

/// How to show it.
#[derive(clap::Args)]
pub struct Options {
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    interval: f64,
    /// Print what it shows after --looks looks as text, and end
    #[arg(long)]
    once: bool,
    /// Looks before --once prints; rates need two
    #[arg(long, default_value_t = 2, value_name = "N", requires = "once",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    looks: u32,
    /// Columns and lines of that text
    #[arg(long, default_value = "100x40", value_parser = size, value_name = "COLUMNSxLINES", requires = "once")]
    size: (u16, u16),
    /// Print it as JSON: with --once the last look, else a line for each
    #[arg(long)]
    json: bool,
}

/// What is looked at again and again, and drawn.
pub trait Live {
    /// Looks again.
    fn look(&mut self) -> Result<(), Error>;
    /// There was nothing to see, and why; what was seen last stays.
    fn fail(&mut self, cause: String);
    /// The latest, on one screen.
    fn draw(&self, frame: &mut Frame);
    /// The next of what one may choose from, or the one before.
    fn choose(&mut self, forward: bool);
    /// The latest, as JSON.
    fn json(&self) -> serde_json::Result<String>;
}

/// Why a word is no size of a text.
#[derive(Debug, thiserror::Error)]
#[error("not two numbers from 20 to 500 such as 100x40")]
struct NoSize;

fn size(word: &str) -> Result<(u16, u16), NoSize> {
    let number = |word: &str| {
        let number = word.parse::<u16>().ok();
        number.filter(|number| (20..=500).contains(number))
    };
    let (columns, lines) = word.split_once('x').ok_or(NoSize)?;
    number(columns).zip(number(lines)).ok_or(NoSize)
}

impl Options {
    /// Refuses what cannot be shown, before anything is asked.
    pub fn check(&self) -> Result<(), Error> {
        if !(0.05..=3600.0).contains(&self.interval) {
            return Err(Error::Usage {
                cause: format!("--interval {} is out of range", self.interval),
                next: "give 0.05 to 3600 seconds".into(),
            });
        }
        if !self.once && !self.json && !std::io::stdout().is_terminal() {
            return Err(Error::Usage {
                cause: "standard output is no terminal".into(),
                next: "give --once for a picture as text, or --json".into(),
            });
        }
        Ok(())
    }

    /// Shows what has been looked at once, until told to stop.
    pub fn show(&self, shown: &mut impl Live) -> Result<u8, Error> {
        let interval = Duration::from_secs_f64(self.interval);
        if self.once {
            for _ in 1..self.looks {
                pause(interval);
                if interrupt::raised() {
                    return Err(Error::Interrupted);
                }
                shown.look()?;
            }
            let printed = if self.json {
                line(shown)?
            } else {
                picture(|frame| shown.draw(frame), self.size)?
            };
            let _ = std::io::stdout().write_all(printed.as_bytes());
            return Ok(0);
        }
        if self.json {
            return lines(shown, interval);
        }
        let failed = |cause| Error::file("draw on", "the terminal", cause);
        let mut terminal = ratatui::try_init().map_err(failed)?;
        let outcome = watch(shown, interval, &mut terminal);
        ratatui::restore();
        outcome.map(|()| 0).map_err(failed)
    }
}

fn pause(interval: Duration) {
    let wake = Instant::now() + interval;
    while Instant::now() < wake && !interrupt::raised() {
        std::thread::sleep(Duration::from_millis(20).min(interval));
    }
}

fn line(shown: &impl Live) -> Result<String, Error> {
    let text = shown.json().map_err(|error| Error::Malformed {
        path: "state".into(),
        cause: error.to_string(),
    })?;
    Ok(text + "\n")
}

fn lines(shown: &mut impl Live, interval: Duration) -> Result<u8, Error> {
    loop {
        let mut stdout = std::io::stdout().lock();
        let written = stdout
            .write_all(line(shown)?.as_bytes())
            .and_then(|()| stdout.flush());
        drop(stdout);
        pause(interval);
        // A reader that went away is how one leaves a pipe.
        if written.is_err() || interrupt::raised() {
            return Ok(0);
        }
        shown.look()?;
    }
}

/// The frame on a terminal of nothing but characters.
pub fn picture(
    draw: impl FnOnce(&mut Frame),
    (columns, lines): (u16, u16),
) -> Result<String, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Malformed {
        path: "screen".into(),
        cause: error.to_string(),
    };
    let mut terminal =
        Terminal::new(TestBackend::new(columns, lines)).map_err(|error| failed(&error))?;
    terminal.draw(draw).map_err(|error| failed(&error))?;
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..lines {
        let line: String = (0..columns)
            .filter_map(|x| buffer.cell((x, y)).map(|cell| cell.symbol()))
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text)
}

fn watch(
    shown: &mut impl Live,
    interval: Duration,
    terminal: &mut ratatui::DefaultTerminal,
) -> std::io::Result<()> {
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| shown.draw(frame))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left.min(Duration::from_millis(100)))?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    return Ok(());
                }
                KeyCode::Down | KeyCode::Tab => shown.choose(true),
                KeyCode::Up | KeyCode::BackTab => shown.choose(false),
                _ => {}
            }
        }
        if interrupt::raised() {
            return Ok(());
        }
        if Instant::now() >= next {
            if let Err(error) = shown.look() {
                shown.fail(format!("{error}; next: {}", error.next()));
            }
            next = Instant::now() + interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_a_text() {
        assert_eq!(size("100x40").ok(), Some((100, 40)));
        for word in ["", "100", "19x40", "100x501", "axb", "100x40x1"] {
            assert!(size(word).is_err(), "{word}");
        }
    }
}
