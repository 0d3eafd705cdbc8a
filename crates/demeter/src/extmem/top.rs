// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter extmem top`: what managed programs do right now.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use demeter_extmem_statistics::{Board, BoardError, Process, Summary};

use crate::error::{Error, refuse};
use crate::{interrupt, table};

/// Arguments of `extmem top`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The file that `extmem run --stats` was given
    #[arg(value_name = "FILE")]
    stats: PathBuf,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    interval: f64,
    /// Looks before it ends; 0 for no end
    #[arg(long, default_value_t = 0, value_name = "N")]
    count: u64,
    /// Print each look as a line of JSON
    #[arg(long)]
    json: bool,
}

/// Looks until interrupted, or until no program runs any more.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    if !(0.05..=3600.0).contains(&arguments.interval) {
        return Err(refuse(
            format!("--interval {} is out of range", arguments.interval),
            "give 0.05 to 3600 seconds",
        ));
    }
    let shown = arguments.stats.display();
    let board = Board::watch(&arguments.stats).map_err(|error| match error {
        BoardError::Io(error) => refuse(
            format!("cannot open the statistics file {shown}: {error}"),
            "start the program with `demeter extmem run --stats FILE`",
        ),
        BoardError::Foreign => refuse(
            format!("{shown} is no statistics file"),
            "name the file that `demeter extmem run --stats FILE` made",
        ),
    })?;
    let terminal = std::io::stdout().is_terminal() && !arguments.json;
    let interval = Duration::from_secs_f64(arguments.interval);
    let mut earlier: Option<(Summary, Instant)> = None;
    let mut looks = 0;
    loop {
        let now = (Summary::of(board), Instant::now());
        let text = if arguments.json {
            serde_json::to_string(&now.0).unwrap_or_default() + "\n"
        } else {
            let seconds = earlier
                .as_ref()
                .map(|(_, then)| now.1.duration_since(*then).as_secs_f64());
            render(
                &now.0,
                earlier.as_ref().map(|(summary, _)| summary),
                seconds,
            )
        };
        let mut stdout = std::io::stdout().lock();
        let clear = if terminal { "\x1b[H\x1b[J" } else { "" };
        if write!(stdout, "{clear}{text}")
            .and_then(|()| stdout.flush())
            .is_err()
        {
            // The reader went away: that is how one leaves a pipe.
            return Ok(0);
        }
        looks += 1;
        let over = now
            .0
            .processes
            .iter()
            .all(|process| !matches!(process.state, "runs" | "left"));
        if looks == arguments.count || interrupt::raised() || (over && earlier.is_some()) {
            return Ok(0);
        }
        earlier = Some(now);
        let wake = Instant::now() + interval;
        while Instant::now() < wake && !interrupt::raised() {
            std::thread::sleep(Duration::from_millis(20).min(interval));
        }
    }
}

/// Rates since the earlier look, or none at the first.
fn render(now: &Summary, earlier: Option<&Summary>, seconds: Option<f64>) -> String {
    let rows: Vec<Vec<String>> = now
        .processes
        .iter()
        .map(|process| {
            let before = earlier.and_then(|summary| {
                summary
                    .processes
                    .iter()
                    .find(|candidate| candidate.pid == process.pid)
            });
            let rate = |names: &[&str], divisor: f64| {
                let sum = |of: &Process| -> u64 { names.iter().map(|name| of.counter(name)).sum() };
                let value = before.zip(seconds).map(|(before, seconds)| {
                    sum(process).saturating_sub(sum(before)) as f64 / seconds / divisor
                });
                table::number(value, 0)
            };
            vec![
                format!("{} {}", process.pid, process.command),
                process.state.to_owned(),
                mib(process.gauge("managed_bytes")),
                mib(process.gauge("resident_bytes")),
                mib(process.gauge("compressed_bytes")),
                mib(process.dram_bytes),
                mib(process.gauge("swap_used_bytes")),
                rate(&["faults_swap"], 1.0),
                rate(
                    &["faults_compressed", "faults_victim_cache", "faults_zero"],
                    1.0,
                ),
                rate(&["read_bytes"], 1_048_576.0),
                rate(&["write_bytes"], 1_048_576.0),
                rate(&["fault_ns", "evict_cpu_ns", "prefetch_cpu_ns"], 1e7),
            ]
        })
        .collect();
    table::render(
        &[
            "process",
            "state",
            "managed",
            "resident",
            "packed",
            "limit",
            "swap",
            "swap-ins/s",
            "hits/s",
            "read",
            "written",
            "paging %",
        ],
        &rows,
    ) + &render_places(now)
        + "sizes in MiB, read and written in MiB/s\n"
}

fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / 1_048_576.0)
}

/// How full each place for swap is, where there are several.
fn render_places(now: &Summary) -> String {
    let places = now.swap_places();
    if places.len() < 2 {
        return String::new();
    }
    let rows: Vec<Vec<String>> = (places.into_iter())
        .map(|place| vec![place.path, mib(place.used_bytes), mib(place.size_bytes)])
        .collect();
    format!(
        "\n{}\n",
        table::render(&["swap place", "used", "size"], &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_extmem_statistics::{About, Place, Statistics};

    #[test]
    fn rates_are_differences() {
        let about = About {
            command: "sort",
            policy: "default",
            mode: "inline",
            engine: "plain",
            dram_bytes: 64 << 20,
            swap_bytes: 0,
            swap: Default::default(),
        };
        let statistics = Statistics::open(Place::Private, &about).unwrap();
        statistics.block().counters.faults_swap.add(100);
        let earlier = Summary::of(statistics.board());
        statistics.block().counters.faults_swap.add(500);
        let now = Summary::of(statistics.board());
        // A column of its own: the process' number may hold these digits.
        let has = |text: &str, word| text.split_whitespace().any(|one| one == word);
        let first = render(&now, None, None);
        assert!(has(&first, "sort") && !has(&first, "250"), "{first}");
        let text = render(&now, Some(&earlier), Some(2.0));
        assert!(has(&text, "250"), "{text}");
    }
}
