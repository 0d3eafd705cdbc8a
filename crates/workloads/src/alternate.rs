// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest whose load comes and goes: GUPS in every other phase, next to nothing
//! in between. Guests of one experiment are told apart by a number; the odd ones
//! work while the even ones idle.
//!
//! Time is fixed, not work: phases of all guests begin together, and a guest is
//! judged by what it got done.

use std::io::Write;
use std::time::{Duration, Instant};

use demeter_agent::{magic, roi, size};
use serde::Serialize;

use crate::Error;
use crate::gups::{Layout, Place, seed_of, update};
use crate::memory::Region;

/// Updates between two looks at the clock.
const BATCH: u64 = 1000;
/// An idle guest does something this often.
const IDLE_SLICE: Duration = Duration::from_millis(10);
/// What Linux tells of FMEM.
const NODE_MEMINFO: &str = "/sys/devices/system/node/node0/meminfo";

/// Arguments of `alternate`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// Size of the array
    #[arg(long, default_value = "352M", value_parser = size::parse)]
    footprint: u64,
    /// Size of its hot part
    #[arg(long, default_value = "80M", value_parser = size::parse)]
    hot: u64,
    /// Share of updates that go to the hot part, in permille
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u32).range(0..=1000))]
    hot_permille: u32,
    /// Number of phases, working and idle ones
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    phases: u64,
    /// Length of a phase
    #[arg(long, default_value_t = 2000, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    phase_ms: u64,
    /// Updates of every 10 ms in which it idles
    #[arg(long, default_value_t = 1000)]
    idle_updates: u64,
    /// Which guest this is: even ones begin with work
    #[arg(long, env = "DEMETER_VM", default_value_t = 0)]
    vm: u64,
    /// How often its FMEM is noted
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    sample_ms: u64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a phase came to.
#[derive(Serialize)]
struct Phase {
    works: bool,
    updates: u64,
    seconds: f64,
}

/// FMEM at a moment.
#[derive(Serialize)]
struct Sample {
    seconds: f64,
    works: bool,
    /// What the kernel manages of node 0.
    node0_bytes: u64,
}

/// What `alternate` prints, one JSON object.
#[derive(Serialize)]
struct Outcome {
    workload: &'static str,
    vm: u64,
    updates: u64,
    seconds: f64,
    phases: Vec<Phase>,
    samples: Vec<Sample>,
}

/// Runs all phases and prints what came of them.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    let layout = Layout::new(arguments.footprint, arguments.hot, Place::End)?;
    let region = Region::map(layout.words() * 8)?;
    region.advise_huge(true);
    region.touch(0, region.words());
    let mut state = seed_of(arguments.seed, arguments.vm);
    let mut outcome = Outcome {
        workload: "alternate",
        vm: arguments.vm,
        updates: 0,
        seconds: 0.0,
        phases: Vec::new(),
        samples: Vec::new(),
    };
    let phase = Duration::from_millis(arguments.phase_ms);
    let sample = Duration::from_millis(arguments.sample_ms);

    crate::begin();
    let started = Instant::now();
    let mut sample_at = Duration::ZERO;
    for number in 0..arguments.phases {
        let works = (number + arguments.vm).is_multiple_of(2);
        let began = started.elapsed();
        let end = phase * (number as u32 + 1);
        let mut updates = 0;
        loop {
            let now = started.elapsed();
            if now >= end {
                break;
            }
            if now >= sample_at {
                sample_at = now + sample;
                outcome.samples.push(Sample {
                    seconds: now.as_secs_f64(),
                    works,
                    node0_bytes: node0_bytes(),
                });
                magic::progress(outcome.updates + updates);
            }
            let batch = if works { BATCH } else { arguments.idle_updates };
            state = update(&layout, &region, arguments.hot_permille, state, batch);
            updates += batch;
            if !works {
                std::thread::sleep(IDLE_SLICE.min(end.saturating_sub(started.elapsed())));
            }
        }
        outcome.updates += updates;
        outcome.phases.push(Phase {
            works,
            updates,
            seconds: (started.elapsed() - began).as_secs_f64(),
        });
    }
    outcome.seconds = started.elapsed().as_secs_f64();
    magic::progress(outcome.updates);
    roi::end();

    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, &outcome).map_err(std::io::Error::from)?;
    writeln!(stdout)?;
    Ok(())
}

/// 0 where there is no such node.
fn node0_bytes() -> u64 {
    let text = std::fs::read_to_string(NODE_MEMINFO).unwrap_or_default();
    let total = text.lines().find(|line| line.contains("MemTotal:"));
    let kib = total.and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        alternate: Arguments,
    }

    #[test]
    fn phases_take_their_time() {
        let line = "x --footprint 4M --hot 1M --phases 3 --phase-ms 20 --vm 1 --sample-ms 5";
        let arguments = Line::parse_from(line.split_whitespace()).alternate;
        let began = Instant::now();
        run(&arguments).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(60));
    }
}
