// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `mmapbench` prints: one CSV row a second, or one JSON object a step.

use std::io::{BufRead, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::pattern::UnknownPattern;
use super::{Access, Arguments, Bench, Counters, Hint, Pattern, map, sleep_until};
use crate::memory::PAGE_BYTES;
use crate::{Error, report};

const GIB: f64 = (1_u64 << 30) as f64;
/// Share of a step that is not measured, so that the threads run when it begins.
const WARM_UP: f64 = 0.15;

/// Prints the header and one row for each second.
pub fn every_second(arguments: &Arguments, bench: &Bench) -> Result<(), Error> {
    let pattern = Pattern::Steady(arguments.pattern, arguments.access);
    let hint = match arguments.hint {
        Hint::Normal => "normal",
        Hint::Random => "random",
        Hint::Sequential => "sequential",
    };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "dev,pattern,hint,threads,time,workGB,tlb,readGB,CPUwork,Updates"
    )?;
    bench.run(
        arguments.pattern,
        arguments.access,
        arguments.threads,
        arguments.cpu_work,
        || {
            let began = Instant::now();
            let mut last = (Counters::now(), bench.touches(), 0);
            for second in 1..=arguments.seconds {
                sleep_until(began, Duration::from_secs(second));
                let now = (
                    Counters::now(),
                    bench.touches(),
                    bench.cpu_units.load(Ordering::Relaxed),
                );
                let touches = now.1 - last.1;
                let delta = now.0.since(&last.0);
                writeln!(
                    out,
                    "{},{pattern},{hint},{},{:.3},{:.4},{},{:.4},{},{}",
                    arguments.dev,
                    arguments.threads,
                    began.elapsed().as_secs_f64(),
                    (touches * PAGE_BYTES) as f64 / GIB,
                    delta.tlb_shootdowns,
                    delta.read_bytes as f64 / GIB,
                    now.2 - last.2,
                    if arguments.access == Access::Write {
                        touches
                    } else {
                        0
                    },
                )?;
                out.flush()?;
                last = now;
            }
            Ok(())
        },
    )
}

/// One step's outcome.
#[derive(Serialize)]
struct Step {
    pattern: String,
    threads: u64,
    seconds: f64,
    touches: u64,
    touches_per_s: f64,
    /// Of the thread that touched fewest; 0 of a step that has an end
    least_touches: u64,
    /// Since the process began; anything but 0 is a lost or torn page
    wrong_words: u64,
    major_faults: u64,
    minor_faults: u64,
    cpu_seconds: f64,
    read_bytes: u64,
    written_bytes: u64,
    tlb_shootdowns: u64,
}

/// Does what standard input asks for until it ends.
pub fn steps(arguments: &Arguments, bench: &Bench, fill_seconds: f64) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let fill = outcome(
        bench,
        "fill",
        1,
        fill_seconds,
        bench.pages(),
        0,
        &Counters::default(),
    );
    report::line(&mut out, &fill)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (pattern, threads, seconds, cpu_work) = parse(&line)?;
        let step = match pattern {
            Pattern::FirstTouch => {
                let region = map(arguments)?;
                let (before, began) = (Counters::now(), Instant::now());
                bench.fill(&region, threads);
                let seconds = began.elapsed().as_secs_f64();
                outcome(
                    bench,
                    "first-touch",
                    threads,
                    seconds,
                    bench.pages(),
                    0,
                    &Counters::now().since(&before),
                )
            }
            Pattern::Steady(order, access) => bench.run(order, access, threads, cpu_work, || {
                std::thread::sleep(Duration::from_secs_f64(seconds * WARM_UP));
                let (before, touched) = (Counters::now(), bench.touches_of(threads));
                let began = Instant::now();
                sleep_until(began, Duration::from_secs_f64(seconds * (1.0 - WARM_UP)));
                let touches: Vec<u64> = (bench.touches_of(threads).iter().zip(touched))
                    .map(|(now, before)| now - before)
                    .collect();
                outcome(
                    bench,
                    &pattern.to_string(),
                    threads,
                    began.elapsed().as_secs_f64(),
                    touches.iter().sum(),
                    touches.iter().min().copied().unwrap_or(0),
                    &Counters::now().since(&before),
                )
            }),
        };
        report::line(&mut out, &step)?;
    }
    Ok(())
}

fn outcome(
    bench: &Bench,
    pattern: &str,
    threads: u64,
    seconds: f64,
    touches: u64,
    least_touches: u64,
    counters: &Counters,
) -> Step {
    Step {
        pattern: pattern.to_owned(),
        threads,
        seconds,
        touches,
        touches_per_s: touches as f64 / seconds.max(1e-9),
        least_touches,
        wrong_words: bench.wrong(),
        major_faults: counters.major_faults,
        minor_faults: counters.minor_faults,
        cpu_seconds: counters.cpu_seconds,
        read_bytes: counters.read_bytes,
        written_bytes: counters.written_bytes,
        tlb_shootdowns: counters.tlb_shootdowns,
    }
}

/// `PATTERN THREADS SECONDS [CPU_WORK]`.
fn parse(line: &str) -> Result<(Pattern, u64, f64, u64), Error> {
    let wrong = |what: &str| Error::Usage(format!("step '{line}': {what}"));
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (&[pattern, threads, seconds], cpu_work) = fields
        .split_first_chunk()
        .ok_or_else(|| wrong("not PATTERN THREADS SECONDS [CPU_WORK]"))?;
    let cpu_work = match cpu_work {
        [] => 0,
        [cpu_work] => cpu_work
            .parse()
            .ok()
            .filter(|cpu_work| *cpu_work <= 64)
            .ok_or_else(|| wrong("competing threads are 0 to 64"))?,
        _ => return Err(wrong("too many words")),
    };
    let pattern = (pattern.parse()).map_err(|error: UnknownPattern| wrong(&error.to_string()))?;
    let threads = threads
        .parse()
        .ok()
        .filter(|threads| (1..=64).contains(threads))
        .ok_or_else(|| wrong("threads are 1 to 64"))?;
    let seconds = seconds
        .parse()
        .ok()
        .filter(|seconds| (0.01..=3600.0).contains(seconds))
        .ok_or_else(|| wrong("seconds are 0.01 to 3600"))?;
    Ok((pattern, threads, seconds, cpu_work))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_parsed_or_refused() {
        assert!(parse("hot-write 2 1.5").is_ok_and(|step| step.3 == 0));
        assert!(parse("first-touch 2 1.5 2").is_ok_and(|step| step.3 == 2));
        for line in [
            "",
            "hot-write 2",
            "hot 2 1",
            "hot-write 0 1",
            "hot-write 2 nan",
            "hot-write 2 -1",
            "hot-write 2 1 x",
            "hot-write 2 1 1 1",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
