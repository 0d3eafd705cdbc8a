// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `xsbench`: cross-section look-ups of Monte Carlo neutron transport, after
//! XSBench (Tramm, Siegel, Islam, Schulz, PHYSOR 2014). The published
//! verification checksums of the small and the large problem are known here and
//! checked where the run has the default number of look-ups.

mod grid;
mod lcg;
mod materials;

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use demeter_agent::size;
use serde::Serialize;

use self::grid::{Grid, Kind};
use self::lcg::Lcg;
use self::materials::Material;
use crate::Error;
use crate::array::Pages;
use crate::interest::{Interest, Times};
use crate::number::{self, OutOfBounds};
use crate::report;

const START: u64 = 1070;
const DEFAULT_ROWS: usize = 11_303;
const DEFAULT_PARTICLES: u64 = 500_000;
const LOOKUPS_PER_PARTICLE: u64 = 34;
const DEFAULT_LOOKUPS: u64 = DEFAULT_PARTICLES * LOOKUPS_PER_PARTICLE;
/// Look-ups in tables of some footprint: about a minute in a guest.
const FOOTPRINT_LOOKUPS: u64 = 300_000;
/// The published checksum is the sum of all look-ups modulo this prime.
const CHECKSUM_MODULUS: u64 = 999_983;
/// Look-ups or particles a thread takes at a time, as published.
const CHUNK: u64 = 100;

/// Arguments of `xsbench`.
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {
    /// The reactor
    #[arg(long, value_enum, default_value_t = Size::Small)]
    size: Size,
    /// How look-ups depend on each other
    #[arg(long, value_enum, default_value_t = Mode::Event)]
    mode: Mode,
    /// How a position in the tables is found
    #[arg(long, value_enum, default_value_t = Kind::Unionized)]
    grid: Kind,
    /// Size of all tables: gives the number of rows
    #[arg(long, conflicts_with = "gridpoints", value_parser = size::parse)]
    footprint: Option<u64>,
    /// Rows for each nuclide
    #[arg(long, default_value_t = DEFAULT_ROWS, value_parser = rows)]
    gridpoints: usize,
    /// Look-ups in all; in history mode rounded up to whole particles
    /// [default: 17000000, with --footprint 300000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    lookups: Option<u64>,
    /// Seed of energies and materials; the default is the published one
    #[arg(long, default_value_t = START, value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    seed: u64,
    /// Times that progress is reported, evenly spread over the look-ups
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    progress: u64,
    /// Advice on huge pages
    #[arg(long, value_enum, default_value_t = Pages::System)]
    pages: Pages,
    /// Threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Read lines `THREADS SECONDS` from standard input, do look-ups for as long,
    /// and print one JSON object for each; --lookups does not count
    #[arg(long)]
    steps: bool,
}

/// The reactor.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// 68 nuclides
    Small,
    /// 355 nuclides
    Large,
}

/// How look-ups depend on each other.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All are independent
    Event,
    /// Those of one particle follow from each other
    History,
}

fn rows(text: &str) -> Result<usize, OutOfBounds> {
    number::within(text, "rows", 2, 10_000_000)
}

/// The verification checksums that XSBench prints as valid.
fn published(size: Size, mode: Mode) -> u64 {
    match (size, mode) {
        (Size::Small, Mode::Event) => 945_990,
        (Size::Large, Mode::Event) => 952_131,
        (Size::Small, Mode::History) => 941_535,
        (Size::Large, Mode::History) => 954_318,
    }
}

/// What `xsbench` prints, one JSON object.
#[derive(Serialize)]
struct Outcome {
    workload: &'static str,
    table_bytes: u64,
    rows: usize,
    resident_bytes: u64,
    lookups: u64,
    seconds: f64,
    lookups_per_s: f64,
    lookups_per_s_last_quarter: f64,
    checksum: u64,
    /// What the published code gets, where it says so
    published_checksum: Option<u64>,
    /// The published checksum; else that of a search in each nuclide's own
    /// table, and all tables as they were made
    verified: bool,
}

/// One step, as `--steps` prints it.
#[derive(Serialize)]
struct Step {
    threads: u64,
    seconds: f64,
    lookups: u64,
    lookups_per_s: f64,
}

struct Reactor {
    grid: Grid,
    materials: Vec<Material>,
    /// How look-ups find a position: as the grid does, but for the check
    kind: Kind,
    seed: u64,
    rows: usize,
}

impl Reactor {
    fn new(arguments: &Arguments) -> Result<Self, Error> {
        let nuclides = match arguments.size {
            Size::Small => materials::SMALL_NUCLIDES,
            Size::Large => materials::LARGE_NUCLIDES,
        };
        let rows = match arguments.footprint {
            None => arguments.gridpoints,
            Some(footprint) => {
                let count = footprint / grid::row_bytes(arguments.grid, nuclides);
                rows(&count.to_string()).map_err(|what| {
                    Error::Usage(format!(
                        "a footprint of {footprint} bytes gives {count} rows: {what}"
                    ))
                })?
            }
        };
        Ok(Self {
            grid: Grid::new(arguments.grid, nuclides, rows, arguments.pages)?,
            materials: materials::all(nuclides, arguments.seed * arguments.seed),
            kind: arguments.grid,
            seed: arguments.seed,
            rows,
        })
    }

    /// One look-up; returns the number of the largest channel, from 1, and how
    /// many channels are above 1.
    #[inline]
    fn look_up(&self, random: &mut Lcg) -> (u64, u64) {
        let energy = random.unit();
        let material = materials::pick(random);
        let sections = self
            .grid
            .macroscopic(self.kind, energy, &self.materials[material].nuclides);
        let (mut largest, mut at) = (-1.0, 0);
        for (channel, &section) in sections.iter().enumerate() {
            if section > largest {
                (largest, at) = (section, channel);
            }
        }
        let above_one = sections.iter().filter(|&&section| section > 1.0).count();
        (at as u64 + 1, above_one as u64)
    }

    /// Event number `index`: one look-up.
    fn event(&self, index: u64) -> u64 {
        self.look_up(&mut Lcg(self.seed).ahead(2 * index)).0
    }

    /// A number of look-ups from the first on, in chunks; returns the sum of
    /// their results and how many they were.
    fn all(
        &self,
        mode: Mode,
        lookups: u64,
        threads: u64,
        reach: impl Fn(u64) + Sync,
    ) -> (u64, u64) {
        let go_on = AtomicBool::new(false);
        let done = AtomicU64::new(0);
        let count = |lookups: u64| reach(done.fetch_add(lookups, Ordering::Relaxed) + lookups);
        match mode {
            Mode::Event => {
                let event = |index| {
                    let result = self.event(index);
                    count(1);
                    result
                };
                (parallel(threads, 0, lookups, &go_on, event).0, lookups)
            }
            Mode::History => {
                let end = lookups.div_ceil(LOOKUPS_PER_PARTICLE);
                let history = |index| {
                    let result = self.history(index);
                    count(LOOKUPS_PER_PARTICLE);
                    result
                };
                let (sum, particles) = parallel(threads, 0, end, &go_on, history);
                (sum, particles * LOOKUPS_PER_PARTICLE)
            }
        }
    }

    /// History number `index`: the look-ups of one particle.
    fn history(&self, index: u64) -> u64 {
        let mut random = Lcg(self.seed).ahead(index * LOOKUPS_PER_PARTICLE * 10);
        (0..LOOKUPS_PER_PARTICLE)
            .map(|_| {
                let (channel, above_one) = self.look_up(&mut random);
                random = random.ahead(above_one);
                channel
            })
            .sum()
    }
}

/// Runs `one` for the numbers from `first`, below `end`, until `stop`, on some threads;
/// returns the sum of what it returns and the first number not taken.
fn parallel(
    threads: u64,
    first: u64,
    end: u64,
    stop: &AtomicBool,
    one: impl Fn(u64) -> u64 + Sync,
) -> (u64, u64) {
    let (next, sum) = (AtomicU64::new(first), AtomicU64::new(0));
    let worker = || {
        let mut mine = 0;
        while !stop.load(Ordering::Relaxed) {
            let chunk = next.fetch_add(CHUNK, Ordering::Relaxed);
            if chunk >= end {
                break;
            }
            mine += (chunk..(chunk + CHUNK).min(end)).map(&one).sum::<u64>();
        }
        sum.fetch_add(mine, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(worker);
        }
        worker();
    });
    (sum.into_inner(), next.into_inner().min(end))
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut reactor = Reactor::new(arguments)?;
    let mut out = std::io::stdout().lock();
    if !arguments.steps {
        let (outcome, wrong) = whole(&mut reactor, arguments);
        report::line(&mut out, &outcome)?;
        return wrong;
    }
    let mut next = 0;
    for line in std::io::stdin().lock().lines() {
        let (threads, seconds) = parse(&line?)?;
        let (step, first) = timed(&reactor, arguments.mode, threads, seconds, next);
        next = first;
        report::line(&mut out, &step)?;
    }
    Ok(())
}

/// All look-ups that were asked for, and what is wrong with their result.
fn whole(reactor: &mut Reactor, arguments: &Arguments) -> (Outcome, Result<(), Error>) {
    let lookups = arguments.lookups.unwrap_or(match arguments.footprint {
        Some(_) => FOOTPRINT_LOOKUPS,
        None => DEFAULT_LOOKUPS,
    });
    let interest = Interest::begin(lookups, arguments.progress);
    let (checksum, lookups) = reactor.all(arguments.mode, lookups, arguments.threads, |done| {
        interest.reach(done);
    });
    let times = interest.end();
    let is_published =
        reactor.rows == DEFAULT_ROWS && lookups == DEFAULT_LOOKUPS && arguments.seed == START;
    let published_checksum = is_published.then(|| published(arguments.size, arguments.mode));
    let right = match published_checksum {
        Some(published) if published == checksum % CHECKSUM_MODULUS => Ok(()),
        Some(published) => Err(Error::Checksum {
            found: format!("checksum {}", checksum % CHECKSUM_MODULUS),
            expected: format!("{published}, as published"),
        }),
        None => verify(reactor, arguments, lookups, checksum),
    };
    let outcome = outcome(
        reactor,
        &times,
        lookups,
        checksum,
        published_checksum,
        &right,
    );
    (outcome, right)
}

fn outcome(
    reactor: &Reactor,
    times: &Times,
    lookups: u64,
    checksum: u64,
    published_checksum: Option<u64>,
    right: &Result<(), Error>,
) -> Outcome {
    Outcome {
        workload: "xsbench",
        table_bytes: reactor.grid.bytes(),
        rows: reactor.rows,
        resident_bytes: times.resident_bytes,
        lookups,
        seconds: times.seconds,
        lookups_per_s: lookups as f64 / times.seconds.max(1e-9),
        lookups_per_s_last_quarter: times.per_s_last_quarter(),
        checksum: checksum % CHECKSUM_MODULUS,
        published_checksum,
        verified: right.is_ok(),
    }
}

/// Does all look-ups once more by searching each nuclide's own table, and goes
/// over the tables.
fn verify(
    reactor: &mut Reactor,
    arguments: &Arguments,
    lookups: u64,
    checksum: u64,
) -> Result<(), Error> {
    let wrong = reactor.grid.wrong_rows();
    if wrong > 0 {
        return Err(Error::Checksum {
            found: format!("{wrong} wrong rows in the tables"),
            expected: "none".into(),
        });
    }
    reactor.kind = Kind::Nuclide;
    let (expected, _) = reactor.all(arguments.mode, lookups, arguments.threads, |_| {});
    reactor.kind = reactor.grid.kind();
    if checksum == expected {
        return Ok(());
    }
    Err(Error::Checksum {
        found: format!("a sum of {checksum}"),
        expected: format!("{expected} by the other way of finding rows"),
    })
}

/// Look-ups for a time, from number `first`; returns the next number too.
fn timed(reactor: &Reactor, mode: Mode, threads: u64, seconds: f64, first: u64) -> (Step, u64) {
    let stop = AtomicBool::new(false);
    let began = Instant::now();
    let (next, lookups_each) = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs_f64(seconds));
            stop.store(true, Ordering::Relaxed);
        });
        match mode {
            Mode::Event => {
                let event = |index| reactor.event(index);
                (parallel(threads, first, u64::MAX, &stop, event).1, 1)
            }
            Mode::History => {
                let history = |index| reactor.history(index);
                let next = parallel(threads, first, u64::MAX, &stop, history).1;
                (next, LOOKUPS_PER_PARTICLE)
            }
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let lookups = (next - first) * lookups_each;
    let step = Step {
        threads,
        seconds,
        lookups,
        lookups_per_s: lookups as f64 / seconds.max(1e-9),
    };
    (step, next)
}

/// `THREADS SECONDS`.
fn parse(line: &str) -> Result<(u64, f64), Error> {
    let parsed = line.split_once(' ').and_then(|(threads, seconds)| {
        Some((
            threads.parse().ok().filter(|n| (1..=64).contains(n))?,
            seconds
                .parse()
                .ok()
                .filter(|s| (0.01..=3600.0).contains(s))?,
        ))
    });
    parsed.ok_or_else(|| Error::Usage(format!("step '{line}' is not THREADS SECONDS")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        xsbench: Arguments,
    }

    fn arguments(line: &str) -> Arguments {
        Line::parse_from(std::iter::once("xsbench").chain(line.split_whitespace())).xsbench
    }

    fn checksum(line: &str) -> u64 {
        let arguments = arguments(line);
        let (outcome, right) = whole(&mut Reactor::new(&arguments).unwrap(), &arguments);
        right.unwrap();
        outcome.checksum
    }

    #[test]
    fn sizes_follow_the_footprint_and_seeds_differ() {
        for line in ["", "--size large", "--grid nuclide"] {
            let arguments = arguments(&format!("--footprint 5M {line}"));
            let bytes = Reactor::new(&arguments).unwrap().grid.bytes();
            assert!(bytes <= 5 << 20 && bytes > (5 << 20) * 19 / 20, "{bytes}");
        }
        let small = "--footprint 5M --lookups 20000";
        assert_ne!(checksum(small), checksum(&format!("{small} --seed 7")));
        let arguments = arguments("--footprint 10K");
        assert!(matches!(Reactor::new(&arguments), Err(Error::Usage(_))));
    }

    #[test]
    fn a_wrong_sum_is_noticed() {
        let arguments = arguments("--gridpoints 100");
        let mut reactor = Reactor::new(&arguments).unwrap();
        let (sum, lookups) = reactor.all(arguments.mode, 1000, 1, |_| {});
        verify(&mut reactor, &arguments, lookups, sum).unwrap();
        assert!(verify(&mut reactor, &arguments, lookups, sum + 1).is_err());
    }

    #[test]
    fn neither_grid_nor_threads_change_the_result() {
        for mode in ["event", "history"] {
            let line = format!("--gridpoints 300 --lookups 34000 --mode {mode}");
            let expected = checksum(&line);
            assert!(expected > 34_000);
            assert_eq!(checksum(&format!("{line} --threads 3")), expected);
            assert_eq!(checksum(&format!("{line} --grid nuclide")), expected);
        }
    }

    /// The published checksums; minutes, so not by default. `tests/suites/extmem`
    /// runs one of them.
    #[test]
    #[ignore = "minutes"]
    fn published_checksums() {
        for (size, mode) in [
            ("small", "event"),
            ("small", "history"),
            ("large", "event"),
            ("large", "history"),
        ] {
            run(&arguments(&format!(
                "--size {size} --mode {mode} --grid nuclide --threads 2"
            )))
            .unwrap();
        }
    }

    #[test]
    fn steps_are_parsed_or_refused() {
        assert!(parse("2 0.5").is_ok());
        for line in ["", "2", "0 1", "2 nan", "2 -1", "two 1"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
