// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter top`: a guest's tiers, processes, rates, gains and heat, live.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use demeter_observe::State;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde::Serialize;

use super::frame::View;
use super::rates::Rates;
use super::source;
use crate::error::Error;
use crate::interrupt;

/// Arguments of `top`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    source: source::Arguments,
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

#[derive(Serialize)]
struct Told<'a> {
    /// Since the look before; none at the first.
    rates: Option<&'a Rates>,
    #[serde(flatten)]
    state: &'a State,
}

/// Looks until told to stop.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    if !(0.05..=3600.0).contains(&arguments.interval) {
        return Err(Error::Usage {
            cause: format!("--interval {} is out of range", arguments.interval),
            next: "give 0.05 to 3600 seconds".into(),
        });
    }
    let interval = Duration::from_secs_f64(arguments.interval);
    if !arguments.once && !arguments.json && !std::io::stdout().is_terminal() {
        return Err(Error::Usage {
            cause: "standard output is no terminal".into(),
            next: "give --once for a picture as text, or --json".into(),
        });
    }
    let mut view = View::new(arguments.source.name(), arguments.source.read()?);
    if arguments.once {
        for _ in 1..arguments.looks {
            pause(interval);
            if interrupt::raised() {
                return Err(Error::Interrupted);
            }
            view.look(arguments.source.read()?);
        }
        super::print(&if arguments.json {
            line(&view)?
        } else {
            text(&view, arguments.size)?
        });
        return Ok(0);
    }
    if arguments.json {
        return lines(arguments, &mut view, interval);
    }
    live(arguments, &mut view, interval)
}

fn pause(interval: Duration) {
    let wake = Instant::now() + interval;
    while Instant::now() < wake && !interrupt::raised() {
        std::thread::sleep(Duration::from_millis(20).min(interval));
    }
}

fn line(view: &View) -> Result<String, Error> {
    let told = Told {
        rates: view.rates(),
        state: view.state(),
    };
    let text = serde_json::to_string(&told).map_err(|error| Error::Malformed {
        path: "state".into(),
        cause: error.to_string(),
    })?;
    Ok(text + "\n")
}

fn lines(arguments: &Arguments, view: &mut View, interval: Duration) -> Result<u8, Error> {
    use std::io::Write;
    loop {
        let mut stdout = std::io::stdout().lock();
        let written = stdout
            .write_all(line(view)?.as_bytes())
            .and_then(|()| stdout.flush());
        drop(stdout);
        pause(interval);
        // A reader that went away is how one leaves a pipe.
        if written.is_err() || interrupt::raised() {
            return Ok(0);
        }
        view.look(arguments.source.read()?);
    }
}

/// The frame on a terminal of nothing but characters.
fn text(view: &View, (columns, lines): (u16, u16)) -> Result<String, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Malformed {
        path: "screen".into(),
        cause: error.to_string(),
    };
    let mut terminal =
        Terminal::new(TestBackend::new(columns, lines)).map_err(|error| failed(&error))?;
    terminal
        .draw(|frame| view.draw(frame))
        .map_err(|error| failed(&error))?;
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

fn live(arguments: &Arguments, view: &mut View, interval: Duration) -> Result<u8, Error> {
    let failed = |cause| Error::file("draw on", "the terminal", cause);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let outcome = watch(arguments, view, interval, &mut terminal);
    ratatui::restore();
    outcome.map(|()| 0).map_err(failed)
}

fn watch(
    arguments: &Arguments,
    view: &mut View,
    interval: Duration,
    terminal: &mut ratatui::DefaultTerminal,
) -> std::io::Result<()> {
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| view.draw(frame))?;
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
                KeyCode::Down | KeyCode::Tab => view.choose(true),
                KeyCode::Up | KeyCode::BackTab => view.choose(false),
                _ => {}
            }
        }
        if interrupt::raised() {
            return Ok(());
        }
        if Instant::now() >= next {
            match arguments.source.read() {
                Ok(state) => view.look(state),
                // It may come back; what was seen last stays.
                Err(error) => view.fail(format!("{error}; next: {}", error.next())),
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
