// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One guest from start to end: prepares its files, starts QEMU, watches it,
//! makes sure that it is gone, and collects what it left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use demeter_agent::protocol::Roi;
use demeter_machine::config::{NodeConfig, PluginConfig};
use demeter_machine::series::{RowKind, SeriesRow};

use super::cost::Meter;
use super::outcome::Outcome;
use super::process::Process;
use super::settings::Settings;
use super::tail::Tail;
use super::workplace::{PLUGIN_CONFIG, RamDir, ResultsDir, to_json};
use super::{balloon, data, guest, manager, manifest, qemu, summary};
use crate::error::Error;
use crate::interrupt;
use crate::progress::Line;
use crate::testbed::{self, Built, Testbed};

const POLL: Duration = Duration::from_millis(50);
/// Logs and results of one run, generously.
const RESULTS_BYTES: u64 = 256 << 20;

/// What one guest came to.
pub struct Finished {
    /// The results directory.
    pub directory: PathBuf,
    /// What the guest said.
    pub outcome: Outcome,
    /// The figures.
    pub summary: summary::Summary,
    /// FMEM while it ran, where a double balloon may have changed it.
    pub fmem: Option<balloon::Sizes>,
}

/// How a run is shown while it lasts.
pub struct Show<'a> {
    /// COMMAND's output goes to standard output as it comes.
    pub stream_output: bool,
    /// Progress on the terminal.
    pub line: &'a Line,
    /// Work that makes 100 %, where it is known.
    pub total_work: Option<u64>,
}

/// Runs one guest and writes its results to `out`.
pub fn run(
    testbed: &Testbed,
    settings: &Settings,
    out: &Path,
    seat: Option<&Arc<balloon::Seat>>,
    show: &Show<'_>,
) -> Result<Finished, Error> {
    let began = Instant::now();
    let kernel = testbed.kernel(&settings.kernel)?;
    manager::supported(settings.tmm, kernel)?;
    let built = Built::find()?;
    let module = (settings.tmm.module())
        .map(|name| testbed::module(&kernel.release, name))
        .transpose()?;
    let driver = (settings.balloon.as_ref())
        .map(|balloon| balloon.module(kernel))
        .transpose()?;
    let per_run = guest::per_run(settings, &built, module.as_deref(), driver.as_deref())?;
    let ram_bytes = settings.node_bytes.iter().sum::<u64>() + qemu::BAR_BYTES;
    let ram = RamDir::create(ram_bytes + 2 * per_run.archive.len() as u64 + (64 << 20))?;
    let results = ResultsDir::create(out, RESULTS_BYTES)?;
    let initrd = ram.file("initrd", 0)?;
    guest::write_initrd(&kernel.initrd_base, &per_run.archive, &initrd)?;

    let root_bytes = fs::metadata(&testbed.guest_root)
        .map_err(|cause| Error::file("read", &testbed.guest_root, cause))?
        .len();
    let mut images = vec![(testbed.guest_root.clone(), root_bytes)];
    if let Some(directory) = &settings.data {
        let image = ram.file("data", 0)?;
        let bytes = data::make_image(directory, &image)?;
        images.push((image, bytes));
    }

    let nodes = match seat {
        Some(seat) => seat.nodes.clone(),
        None => ram.nodes(settings.node_bytes)?,
    };
    let mut balloon = (settings.balloon.as_ref())
        .map(|balloon| {
            balloon::Host::start(balloon, settings.node_bytes, &nodes, seat, &ram, &results)
        })
        .transpose()?;
    let files = qemu::Files {
        nodes,
        balloon: balloon
            .as_ref()
            .map_or(Vec::new(), balloon::Host::arguments),
        bar: ram.file("bar", qemu::BAR_BYTES)?,
        kernel: kernel.bootable().to_owned(),
        initrd,
        images,
        plugin: absolute(&built.plugin)?,
        plugin_config: absolute(&results.join(PLUGIN_CONFIG))?,
        console: absolute(&results.join("console.log"))?,
        output: absolute(&results.join("command.log"))?,
        records: absolute(&results.join("records.jsonl"))?,
    };
    let plugin_config = PluginConfig {
        bar: files.bar.clone(),
        nodes: files
            .nodes
            .iter()
            .zip(settings.node_bytes)
            .map(|(path, size_bytes)| NodeConfig {
                path: path.clone(),
                size_bytes,
            })
            .collect(),
        sockets: (settings.sockets.iter())
            .map(|socket| socket.node_bytes)
            .collect(),
        series: absolute(&results.join("series.jsonl"))?,
        summary: absolute(&results.join("machine.json"))?,
        series_interval_ns: settings.series_interval_ns,
        machine: settings.machine.clone(),
        pmu: settings.pmu,
        step: seat.and_then(|seat| seat.step.clone()),
        hypervisor: settings.hypervisor.clone(),
        pool: settings.pool.clone(),
        watch: settings.watch.config(&ram, &results)?,
    };
    results.write(PLUGIN_CONFIG, &to_json(&plugin_config)?)?;
    let arguments = qemu::arguments(settings, &files);
    let log = results.join("qemu.log");
    let started = Instant::now();
    let mut command = Command::new(&testbed.qemu.argv[0]);
    command
        .args(&testbed.qemu.argv[1..])
        .args(&arguments)
        .envs(&testbed.qemu.env);
    let mut meter = Meter::new(began, &files.records);
    let mut machine = Process::start(command, &log)?;
    let ended = watch(
        &mut machine,
        &mut meter,
        settings,
        &files,
        &plugin_config.series,
        balloon.as_mut(),
        show,
    );
    drop(machine);
    let fmem = match balloon {
        Some(balloon) => balloon.finish(&results)?,
        None => None,
    };
    let pages = ram.pages();
    drop(ram);
    let cost = meter.finish(pages);
    let host_s = started.elapsed().as_secs_f64();

    let outcome = match judge(ended, settings, &files, &log) {
        Ok(outcome) => outcome,
        Err(failure) => {
            let kept = results.keep_failed();
            return Err(failure(kept));
        }
    };
    let summary = summary::summarise(settings, &outcome, &plugin_config, &files.output)?;
    results.write("summary.json", &to_json(&summary)?)?;
    let manifest = manifest::manifest(&manifest::Sources {
        testbed,
        kernel,
        settings,
        per_run: &per_run,
        built: &built,
        arguments: &arguments,
        host_s,
        cost,
    })?;
    results.write("manifest.json", &to_json(&manifest)?)?;
    // Named by their place while running; the directory is about to move.
    let _ = fs::remove_file(results.join(PLUGIN_CONFIG));
    let directory = results.publish()?;
    Ok(Finished {
        directory,
        outcome,
        summary,
        fmem,
    })
}

/// How watching ended.
enum Ended {
    Exited(ExitStatus),
    TimedOut,
    Interrupted,
    Lost(std::io::Error),
    Balloon(Error),
}

type Failure = Box<dyn FnOnce(PathBuf) -> Error>;

/// Turns what happened into the guest's outcome or the one failure that
/// explains it, most specific first.
fn judge(
    ended: Ended,
    settings: &Settings,
    files: &qemu::Files,
    log: &Path,
) -> Result<Outcome, Failure> {
    let console = fs::read(&files.console).unwrap_or_default();
    let console = String::from_utf8_lossy(&console).into_owned();
    let last_line = last_line(&console);
    let log = fs::read_to_string(log).unwrap_or_default();
    let status = match ended {
        Ended::Interrupted => return Err(Box::new(|_| Error::Interrupted)),
        Ended::TimedOut => {
            let limit_s = settings.timeout_s;
            return Err(Box::new(move |kept| Error::Timeout {
                limit_s,
                last_line,
                kept,
            }));
        }
        Ended::Lost(cause) => {
            return Err(Box::new(move |kept| Error::Qemu {
                how: "was lost".into(),
                cause: cause.to_string(),
                kept,
            }));
        }
        Ended::Balloon(error) => return Err(Box::new(|_| error)),
        Ended::Exited(status) => status,
    };
    if let Some((cause, next)) = find_error(&log, "demeter-plugin: error: ") {
        return Err(Box::new(move |_| Error::Plugin { cause, next }));
    }
    if !status.success() {
        let cause = self::last_line(&log);
        return Err(Box::new(move |kept| Error::Qemu {
            how: format!("ended with {status}"),
            cause,
            kept,
        }));
    }
    let outcome = Outcome::read(&files.records);
    if let Some((cause, next)) = outcome.failure.clone() {
        return Err(Box::new(move |kept| Error::Guest { cause, next, kept }));
    }
    if outcome.complete {
        return Ok(outcome);
    }
    if let Some((cause, next)) = find_error(&console, "demeter-init: error: ") {
        return Err(Box::new(move |kept| Error::Guest { cause, next, kept }));
    }
    if let Some(line) = console.lines().find(|line| line.contains("Kernel panic")) {
        let cause = without_time(line).to_owned();
        return Err(Box::new(move |kept| Error::Panic { cause, kept }));
    }
    Err(Box::new(move |kept| Error::Stopped { last_line, kept }))
}

/// The one line that a part of ours printed, split at its advice.
fn find_error(text: &str, prefix: &str) -> Option<(String, String)> {
    let line = text
        .lines()
        .find_map(|line| line.split_once(prefix).map(|(_, rest)| rest.trim()))?;
    Some(match line.split_once("; next: ") {
        Some((cause, next)) => (cause.to_owned(), next.to_owned()),
        None => (line.to_owned(), "read the console".to_owned()),
    })
}

fn last_line(text: &str) -> String {
    text.lines()
        .rev()
        .map(|line| without_time(line).trim())
        .find(|line| !line.is_empty())
        .unwrap_or("nothing")
        .chars()
        .take(200)
        .collect()
}

fn without_time(line: &str) -> &str {
    match line.split_once("] ") {
        Some((time, rest)) if time.trim_start().starts_with('[') => rest.trim_end(),
        _ => line,
    }
}

fn watch(
    machine: &mut Process,
    meter: &mut Meter,
    settings: &Settings,
    files: &qemu::Files,
    series: &Path,
    mut balloon: Option<&mut balloon::Host>,
    show: &Show<'_>,
) -> Ended {
    let deadline = Instant::now() + Duration::from_secs(settings.timeout_s);
    let mut output = Tail::new(&files.output);
    let mut rows = Tail::new(series);
    let mut records = Tail::new(&files.records);
    let mut pending = String::new();
    if let Some(balloon) = &mut balloon
        && settings.roi == Roi::Nothing
    {
        balloon.without_model();
    }
    let ended = loop {
        match machine.poll() {
            Ok(Some(status)) => {
                // A daemon that ends can take QEMU with it: then it is the cause.
                let cause = (balloon.as_mut())
                    .filter(|_| !status.success())
                    .and_then(|balloon| balloon.daemon_error());
                break cause.map_or(Ended::Exited(status), Ended::Balloon);
            }
            Ok(None) => {}
            Err(cause) => break Ended::Lost(cause),
        }
        meter.look(machine);
        if interrupt::raised() {
            break Ended::Interrupted;
        }
        if Instant::now() >= deadline {
            break Ended::TimedOut;
        }
        if let Some(balloon) = &mut balloon
            && let Err(error) = balloon.tick(&mut records)
        {
            break Ended::Balloon(error);
        }
        if show.stream_output {
            show.line.print_output(&output.more());
        }
        pending.push_str(&String::from_utf8_lossy(&rows.more()));
        if let Some(end) = pending.rfind('\n') {
            if let Some(balloon) = &mut balloon
                && let Err(error) = balloon.begin()
            {
                break Ended::Balloon(error);
            }
            if let Some(row) = pending[..end].lines().rev().find_map(parse_row) {
                show.line.at(row.t_ns, progress_of(&row), show.total_work);
            }
            pending.drain(..=end);
        }
        show.line.tick();
        std::thread::sleep(POLL);
    };
    if show.stream_output {
        show.line.print_output(&output.more());
    }
    ended
}

fn parse_row(line: &str) -> Option<SeriesRow> {
    serde_json::from_str(line).ok()
}

fn progress_of(row: &SeriesRow) -> Option<u64> {
    (row.kind == RowKind::Progress).then_some(row.value)
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|cause| Error::file("name", path, cause))
}

/// The guest's kernel complained: the run stands, but its user must know.
pub fn warn_of_trouble(finished: &Finished) {
    let trouble = &finished.outcome.kernel_trouble;
    if let Some(first) = trouble.first() {
        eprintln!(
            "demeter: warning: {} lines of trouble in the guest's kernel log, first: '{first}' \
             ({})",
            trouble.len(),
            finished.directory.join("console.log").display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_our_parts_are_split() {
        assert_eq!(
            find_error(
                "x\ndemeter-plugin: error: no hook; next: use QEMU 11\n",
                "demeter-plugin: error: "
            ),
            Some(("no hook".into(), "use QEMU 11".into()))
        );
        assert_eq!(find_error("fine", "demeter-plugin: error: "), None);
    }

    #[test]
    fn last_words() {
        assert_eq!(last_line("[    1.0] a b\r\n\n"), "a b");
        assert_eq!(last_line(""), "nothing");
    }
}
