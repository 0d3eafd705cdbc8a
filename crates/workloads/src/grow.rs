// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that needs more memory for a while: GUPS on an array that grows and shrinks,
//! beside a file that was read once and is not needed any more. It notes what the guest
//! has meanwhile, and the longest time in which it got nothing done.
//!
//! Time is fixed, not work: a phase is judged by what it got done in the time that it
//! was at work.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use demeter_agent::{magic, roi, size};
use serde::Serialize;

use crate::Error;
use crate::gups::{Layout, Place, seed_of, update};
use crate::memory::{HUGE_BYTES, Region};

/// Updates between two looks at the clock.
const BATCH: u64 = 1000;
/// The array grows in parts of this size.
const STEP_BYTES: u64 = HUGE_BYTES;
/// Part of the array that most updates go to.
const HOT: u64 = 4;
/// Where it does less than it could, it works and rests in turns of this length together.
const TURN: Duration = Duration::from_millis(10);

/// Arguments of `grow`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// Sizes of the array, one after the other; a quarter of it is hot
    #[arg(long, value_delimiter = ',', default_value = "48M,160M,48M", value_parser = size::parse)]
    sizes: Vec<u64>,
    /// How long it has each size, growing included
    #[arg(long, default_value_t = 12_000, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    phase_ms: u64,
    /// By how much it grows in a second, 0: at once
    #[arg(long, default_value = "32M", value_parser = size::parse)]
    pace: u64,
    /// Read this file before, once: what is in the page cache is cold then
    #[arg(long, value_name = "FILE")]
    cold: Option<PathBuf>,
    /// Part of the time that it works, in permille
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1000))]
    busy_permille: u32,
    /// Share of updates that go to the hot part, in permille
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u32).range(0..=1000))]
    hot_permille: u32,
    /// How often the guest's memory is noted
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    sample_ms: u64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a phase came to.
#[derive(Serialize, Default)]
struct Phase {
    bytes: u64,
    updates: u64,
    /// At work, and in all.
    busy_seconds: f64,
    seconds: f64,
    /// Growing, of that.
    grow_seconds: f64,
    /// The longest that a part of the array or a batch of updates took.
    longest_seconds: f64,
}

/// The guest's memory at a moment, as its kernel tells.
#[derive(Serialize, Clone, Copy, Default)]
struct Sample {
    seconds: f64,
    /// What the kernel manages of nodes 0 and 1: less than at boot by what a balloon has.
    node_bytes: [u64; 2],
    free_bytes: [u64; 2],
    file_bytes: [u64; 2],
    array_bytes: u64,
    refaulted_pages: u64,
    killed: u64,
}

/// What `grow` prints, one JSON object.
#[derive(Serialize)]
struct Outcome {
    workload: &'static str,
    updates: u64,
    seconds: f64,
    cold_bytes: u64,
    phases: Vec<Phase>,
    samples: Vec<Sample>,
}

/// The array, as far as it is there.
struct Array<'a> {
    region: &'a Region,
    bytes: u64,
}

impl Array<'_> {
    /// Grows or shrinks towards that size, by one part at most if it grows.
    fn approach(&mut self, bytes: u64) {
        if bytes <= self.bytes {
            self.region.forget(bytes / 8, (self.bytes - bytes) / 8);
            self.bytes = bytes;
            return;
        }
        let more = (bytes - self.bytes).min(STEP_BYTES);
        self.region.touch(self.bytes / 8, more / 8);
        self.bytes += more;
    }
}

/// Runs all phases and prints what came of them.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    // Every layout must be possible before any work is done.
    for &bytes in &arguments.sizes {
        Layout::new(bytes, bytes / HOT, Place::End)?;
    }
    let most = arguments.sizes.iter().copied().max().unwrap_or(0);
    let region = Region::map(most)?;
    region.advise_huge(true);
    let mut array = Array {
        region: &region,
        bytes: 0,
    };
    let first = arguments.sizes.first().copied().unwrap_or(0);
    while array.bytes < first {
        array.approach(first);
    }
    let mut outcome = Outcome {
        workload: "grow",
        updates: 0,
        seconds: 0.0,
        cold_bytes: (arguments.cold.as_ref()).map_or(Ok(0), read_once)?,
        phases: Vec::new(),
        samples: Vec::new(),
    };
    let mut state = seed_of(arguments.seed, 0);

    crate::begin();
    let started = Instant::now();
    let mut end = Duration::ZERO;
    for &bytes in &arguments.sizes {
        end += Duration::from_millis(arguments.phase_ms);
        let phase = phase(
            arguments,
            &mut array,
            bytes,
            (started, end),
            &mut state,
            &mut outcome,
        )?;
        outcome.updates += phase.updates;
        outcome.phases.push(phase);
    }
    outcome.seconds = started.elapsed().as_secs_f64();
    magic::progress(outcome.updates);
    roi::end();

    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, &outcome).map_err(std::io::Error::from)?;
    writeln!(stdout)?;
    Ok(())
}

/// Brings the array to its size and updates it, until the end.
fn phase(
    arguments: &Arguments,
    array: &mut Array<'_>,
    bytes: u64,
    (started, end): (Instant, Duration),
    state: &mut u64,
    outcome: &mut Outcome,
) -> Result<Phase, Error> {
    let began = started.elapsed();
    let begun_bytes = array.bytes;
    let mut phase = Phase {
        bytes,
        ..Phase::default()
    };
    let mut layout = None;
    let mut worked = Duration::ZERO;
    let mut busy = Duration::ZERO;
    loop {
        let now = started.elapsed();
        if now >= end {
            break;
        }
        let noted = outcome.samples.last().map_or(-1.0, |last| last.seconds);
        if now.as_secs_f64() >= noted + arguments.sample_ms as f64 / 1000.0 {
            outcome.samples.push(sample(now, array.bytes));
            magic::progress(outcome.updates + phase.updates);
        }
        let begin = started.elapsed();
        let due =
            bytes <= array.bytes || is_due(arguments.pace, begun_bytes, array.bytes, begin - began);
        if due && array.bytes != bytes {
            layout = None;
            array.approach(bytes);
            phase.grow_seconds = (started.elapsed() - began).as_secs_f64();
        }
        let layout = match layout {
            Some(layout) => layout,
            None => *layout.insert(Layout::new(array.bytes, array.bytes / HOT, Place::End)?),
        };
        *state = update(&layout, array.region, arguments.hot_permille, *state, BATCH);
        phase.updates += BATCH;
        let took = started.elapsed() - begin;
        phase.longest_seconds = phase.longest_seconds.max(took.as_secs_f64());
        busy += took;
        worked += took;
        let share = TURN * arguments.busy_permille / 1000;
        if worked >= share && arguments.busy_permille < 1000 {
            worked = Duration::ZERO;
            std::thread::sleep((TURN - share).min(end.saturating_sub(started.elapsed())));
        }
    }
    phase.busy_seconds = busy.as_secs_f64();
    phase.seconds = (started.elapsed() - began).as_secs_f64();
    Ok(phase)
}

/// Should the array be larger than it is, after so much of a phase?
fn is_due(pace: u64, begun_bytes: u64, bytes: u64, gone: Duration) -> bool {
    pace == 0 || (bytes - begun_bytes) as f64 <= pace as f64 * gone.as_secs_f64()
}

/// Reads a file and keeps nothing of it; how long it is.
fn read_once(path: &PathBuf) -> Result<u64, Error> {
    let failed = |cause| Error::File {
        path: path.clone(),
        cause,
    };
    let mut file = File::open(path).map_err(failed)?;
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}

/// Zeros where the kernel does not tell.
fn sample(now: Duration, array_bytes: u64) -> Sample {
    let mut sample = Sample {
        seconds: now.as_secs_f64(),
        array_bytes,
        ..Sample::default()
    };
    for node in 0..sample.node_bytes.len() {
        let path = format!("/sys/devices/system/node/node{node}/meminfo");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for line in text.lines() {
            // Node 0 MemTotal:  655360 kB
            let mut words = line.split_whitespace().skip(2);
            let to = match words.next() {
                Some("MemTotal:") => &mut sample.node_bytes[node],
                Some("MemFree:") => &mut sample.free_bytes[node],
                Some("FilePages:") => &mut sample.file_bytes[node],
                _ => continue,
            };
            *to = words.next().and_then(|kib| kib.parse().ok()).unwrap_or(0) << 10;
        }
    }
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    for line in text.lines() {
        let Some((name, count)) = line.split_once(' ') else {
            continue;
        };
        let count = count.parse().unwrap_or(0);
        match name {
            "workingset_refault_anon" | "workingset_refault_file" => {
                sample.refaulted_pages += count;
            }
            "oom_kill" => sample.killed = count,
            _ => {}
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        grow: Arguments,
    }

    fn arguments(line: &str) -> Arguments {
        Line::parse_from(line.split_whitespace()).grow
    }

    #[test]
    fn an_array_grows_at_its_pace_and_shrinks_at_once() {
        let region = Region::map(8 << 20).unwrap();
        let mut array = Array {
            region: &region,
            bytes: 0,
        };
        array.approach(5 << 20);
        assert_eq!(array.bytes, STEP_BYTES);
        let second = Duration::from_secs(1);
        assert!(is_due(4 << 20, 0, 4 << 20, second));
        assert!(!is_due(4 << 20, 0, 6 << 20, second));
        assert!(is_due(0, 0, 6 << 20, Duration::ZERO));
        array.region.set(STEP_BYTES / 8 - 1, 7);
        array.approach(1 << 20);
        assert_eq!(array.bytes, 1 << 20);
        array.approach(2 << 20);
        assert_eq!(region.get(STEP_BYTES / 8 - 1), 0, "it was given back");
    }

    #[test]
    fn phases_take_their_time() {
        let mut arguments = arguments(
            "x --sizes 4M,8M,2M --phase-ms 20 --pace 0 --sample-ms 5 --busy-permille 500",
        );
        arguments.cold = std::env::current_exe().ok();
        let began = Instant::now();
        run(&arguments).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(60));
    }

    #[test]
    fn a_size_without_a_hot_part_is_refused() {
        assert!(run(&arguments("x --sizes 4K")).is_err());
    }
}
