// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter extmem run`: starts a program under the pager and reports what it did.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use demeter_agent::size;
use demeter_extmem_statistics::Summary;

use super::tree::{Dram, Tree};
use super::{forward, program, swap};
use crate::error::{Error, refuse};
use crate::{testbed, userfaultfd};

/// Less leaves no room for the pager's own buffers.
const LEAST_DRAM_BYTES: u64 = 16 << 20;
/// The program's address space that is paged has 12 TiB.
const MOST_DRAM_BYTES: u64 = 8 << 40;
/// DRAM, by the name that programs' scripts already use.
const OLD_DRAM: &str = "DRAMSIZE";
/// Swap, likewise.
const OLD_SWAP: &str = "SWAPDIR";

/// How faults reach the pager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Inline where the kernel lets us, else by handler threads
    Auto,
    /// By a signal in the faulting thread
    Inline,
    /// By handler threads
    Handler,
}

/// Whether pages are compressed before they are written out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Compress {
    /// While it pays
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// In which order several places for swap are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SwapOrder {
    /// First the one that pages come back from soonest, by a short trial
    Measured,
    /// As given
    Given,
}

/// Names of programs without the pager and how often each ran, and how many more there were.
type Escaped = (BTreeMap<String, u64>, u64);

/// Arguments of `extmem run`.
#[derive(clap::Args)]
pub struct Arguments {
    /// DRAM that the memory of the program and of all that it starts may take together, the
    /// pager's own included [old name: $DRAMSIZE]
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    dram: Option<u64>,
    /// DRAM that each of these programs may take, in place of --dram
    #[arg(long, value_parser = size::parse, value_name = "SIZE", conflicts_with = "dram")]
    dram_each: Option<u64>,
    /// Directory, file or block device for what does not fit, or node:N, memory of NUMA node N (CXL);
    /// up to eight times: what finds no room in one goes to the next [old name: $SWAPDIR]
    #[arg(long, value_name = "PLACE")]
    swap: Vec<PathBuf>,
    /// Swap to use there, once for all or once for each --swap; default: all of a file or device,
    /// four times --dram in a directory or on a node
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    swap_size: Vec<u64>,
    /// Which of several is filled first
    #[arg(long, value_enum, default_value_t = SwapOrder::Measured)]
    swap_order: SwapOrder,
    /// default, clock, fifo, or the path of a policy; options after a colon
    #[arg(long, default_value = "default")]
    policy: String,
    /// How faults reach the pager
    #[arg(long, value_enum, default_value_t = Mode::Auto)]
    mode: Mode,
    /// Compress pages in DRAM before they are written out
    #[arg(long, value_enum, default_value_t = Compress::Auto)]
    compress: Compress,
    /// Leave mappings below this size alone
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    min_size: Option<u64>,
    /// Keep live statistics here, for `demeter extmem top`
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Write the summary as JSON here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write each decision of the pager here
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// No summary on standard error; what may have ended the program is told all the same
    #[arg(long, short)]
    quiet: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Starts the program, waits for it, reports; its exit status is ours.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let Some((name, rest)) = arguments.command.split_first() else {
        return Err(refuse("PROGRAM is missing after --", "name a program"));
    };
    let dram = dram(arguments)?;
    let places = swap::places(&swap_paths(arguments)?, &arguments.swap_size)?;
    let policy = policy(&arguments.policy)?;
    let program = program::check(name)?;
    userfaultfd::check()?;
    let library = testbed::pager()?;

    let statistics = arguments.stats.as_deref().map(absolute).transpose()?;
    let mut tree = Tree::open(statistics, places, dram)?;
    if arguments.swap_order == SwapOrder::Measured
        && let Some(shown) = tree.order_swap()
        && !arguments.quiet
    {
        eprintln!("demeter extmem: {shown}");
    }
    let before = Summary::of(tree.board);
    let escaped_before = tree.board.departures().escaped();

    let mut command = Command::new(&program);
    command.arg0(name).args(rest);
    command.env("LD_PRELOAD", preload(&library));
    command.env("DEMETER_EXTMEM_DRAM", dram.bytes().to_string());
    command.env("DEMETER_EXTMEM_POLICY", policy);
    command.env("DEMETER_EXTMEM_MODE", value_name(arguments.mode));
    command.env("DEMETER_EXTMEM_COMPRESS", value_name(arguments.compress));
    tree.hand_on(&mut command);
    if let Some(min_size) = arguments.min_size {
        command.env("DEMETER_EXTMEM_MIN_SIZE", min_size.to_string());
    }
    if let Some(log) = &arguments.log {
        command.env("DEMETER_EXTMEM_LOG", absolute(log)?);
    }
    command.env_remove(OLD_DRAM).env_remove(OLD_SWAP);

    let mut child = forward::spawn(&mut command).map_err(|error| match error.kind() {
        std::io::ErrorKind::Interrupted => Error::Interrupted,
        _ => Error::file("start", &program, error),
    })?;
    // What it took to come here lies in DRAM beside the program's for as long as it runs.
    // SAFETY: gives back memory of the allocator that nobody uses.
    unsafe { libc::malloc_trim(0) };
    let status = tree
        .wait_for(&mut child)
        .map_err(|error| Error::file("wait for", &program, error))?;
    let summary = Summary::of(tree.board).since(&before);
    if summary.processes.is_empty() && status.success() {
        return Err(refuse(
            format!("{} ran without the pager", program.display()),
            "check that it is dynamically linked and does not clear its environment",
        ));
    }
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&summary).unwrap_or_default();
        std::fs::write(path, text + "\n").map_err(|error| Error::file("write", path, error))?;
    }
    if !arguments.quiet && !summary.processes.is_empty() {
        eprint!("demeter extmem: {summary}");
    }
    // What may have ended the program is no summary.
    if (!arguments.quiet || !status.success())
        && let Some(line) = refused(&summary)
    {
        eprintln!("demeter extmem: {line}");
    }
    if !summary.processes.is_empty()
        && let Some(line) = ended_by(status.signal())
    {
        eprintln!("demeter extmem: {line}");
    }
    if !arguments.quiet
        && let Some(line) = escaped(&escaped_before, tree.board.departures().escaped())
    {
        eprintln!("demeter extmem: {line}");
    }
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => 128 + signal.unwrap_or(0) as u8,
    })
}

/// A line about a program that ended by a signal which the pager needs, or that it may have by the
/// pager.
fn ended_by(signal: Option<i32>) -> Option<String> {
    let name = match signal? {
        libc::SIGBUS => "SIGBUS",
        libc::SIGSYS => "SIGSYS",
        libc::SIGSEGV => {
            let line = "the program was ended by SIGSEGV; next: if it runs by itself, try --min-size 16M, or --mode handler, and see the limits in docs/extmem.md";
            return Some(line.to_owned());
        }
        _ => return None,
    };
    Some(format!(
        "the program was ended by {name}, as one is that blocks signals by system calls of its own (not the C library's); next: if it runs by itself, see the limits in docs/extmem.md"
    ))
}

/// A line about memory that was refused.
fn refused(summary: &Summary) -> Option<String> {
    let total = summary.total("enomem");
    if total == 0 {
        return None;
    }
    let processes = summary.processes.iter().filter(|process| process.pid != 0);
    let most_bytes = processes.clone().map(|process| process.swap_bytes).max();
    let limited = processes
        .clone()
        .any(|process| process.counter("enomem") > 0 && Some(process.swap_bytes) < most_bytes);
    let next = if limited {
        "lift the limit that one of the programs has on the size of files (ulimit -f), or give more by --swap-size"
    } else {
        "give more by --swap-size"
    };
    let refused = match total {
        1 => "1 request for memory was refused".to_owned(),
        _ => format!("{total} requests for memory were refused"),
    };
    Some(format!(
        "{refused}, for swap could not hold all that is promised; next: {next}"
    ))
}

/// A line about programs that were started without the pager since `before`.
fn escaped(before: &Escaped, (mut names, more): Escaped) -> Option<String> {
    const MOST_NAMES: usize = 8;
    for (name, count) in &before.0 {
        if let Some(now) = names.get_mut(name) {
            *now = now.saturating_sub(*count);
        }
    }
    names.retain(|_, count| *count > 0);
    let unnamed = more.saturating_sub(before.1);
    let total = names.values().sum::<u64>() + unnamed;
    if total == 0 {
        return None;
    }
    let mut shown: Vec<_> = names
        .iter()
        .take(MOST_NAMES)
        .map(|(name, count)| match (name.as_str(), count) {
            ("", count) => format!("{count} without a name"),
            (name, 1) => name.to_owned(),
            (name, count) => format!("{name} ({count} times)"),
        })
        .collect();
    if names.len() > MOST_NAMES || unnamed > 0 {
        shown.push("others".to_owned());
    }
    let (programs, their) = match total {
        1 => ("program", "its"),
        _ => ("programs", "their"),
    };
    Some(format!(
        "{total} {programs} ran without the pager, and without a bound on {their} memory: {}; next: see what cannot be managed in docs/extmem.md, and leave LD_PRELOAD as it is",
        shown.join(", ")
    ))
}

fn dram(arguments: &Arguments) -> Result<Dram, Error> {
    let (option, given) = match arguments.dram_each {
        Some(bytes) => ("--dram-each", Some(bytes)),
        None => ("--dram", arguments.dram),
    };
    let bytes = match (given, std::env::var(OLD_DRAM)) {
        (Some(bytes), _) => bytes,
        (None, Ok(text)) => size::parse(&text).map_err(|cause| {
            refuse(
                format!("{OLD_DRAM}: {cause}"),
                "give --dram, for example --dram 4G",
            )
        })?,
        (None, Err(_)) => {
            return Err(refuse(
                "--dram is missing",
                "give it, for example --dram 4G",
            ));
        }
    };
    if bytes > MOST_DRAM_BYTES {
        return Err(refuse(
            format!(
                "{option} {} is more than can be managed",
                size::format(bytes)
            ),
            format!("give at most {}", size::format(MOST_DRAM_BYTES)),
        ));
    }
    if bytes < LEAST_DRAM_BYTES {
        return Err(refuse(
            format!("{option} {} is too small", size::format(bytes)),
            format!("give at least {}", size::format(LEAST_DRAM_BYTES)),
        ));
    }
    Ok(match arguments.dram_each {
        Some(_) => Dram::Each(bytes),
        None => Dram::Together(bytes),
    })
}

fn swap_paths(arguments: &Arguments) -> Result<Vec<PathBuf>, Error> {
    if !arguments.swap.is_empty() {
        return Ok(arguments.swap.clone());
    }
    match std::env::var_os(OLD_SWAP) {
        Some(path) => Ok(vec![path.into()]),
        None => Err(refuse(
            "--swap is missing",
            "name a directory, a file, a block device or a memory node (node:1)",
        )),
    }
}

/// A path among policies becomes absolute: the program may change its directory.
fn policy(text: &str) -> Result<OsString, Error> {
    let (name, options) = match text.split_once(':') {
        Some((name, options)) => (name, Some(options)),
        None => (text, None),
    };
    if !name.contains('/') {
        return match name {
            "default" | "clock" | "fifo" => Ok(text.into()),
            _ => Err(refuse(
                format!("there is no built-in policy '{name}'"),
                "use default, clock, fifo, or a path with a slash, like ./policy.so",
            )),
        };
    }
    let path = Path::new(name).canonicalize().map_err(|error| {
        refuse(
            format!("cannot find policy {name}: {error}"),
            "check the path",
        )
    })?;
    let mut value = path.into_os_string();
    if let Some(options) = options {
        value.push(":");
        value.push(options);
    }
    Ok(value)
}

/// Before what the caller preloads already.
fn preload(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    value
}

fn value_name<V: ValueEnum>(value: V) -> String {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|error| Error::file("find", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn run(line: &str) -> Result<u8, Error> {
        let words = ["run"].into_iter().chain(line.split_whitespace());
        execute(&Line::try_parse_from(words).unwrap().arguments)
    }

    #[test]
    fn each_bad_argument_has_its_message() {
        for (line, message) in [
            ("--swap /tmp -- true", "--dram is missing"),
            ("--dram 1G -- true", "--swap is missing"),
            ("--dram 1M --swap /tmp -- true", "too small"),
            (
                "--dram 100T --swap /tmp -- true",
                "more than can be managed",
            ),
            ("--dram 1G --swap /nowhere -- true", "does not exist"),
            (
                "--dram 1G --swap node:one -- true",
                "node:one: it names no memory node",
            ),
            (
                "--dram 1G --swap /tmp --swap /tmp -- true",
                "are the same place",
            ),
            (
                "--dram 1G --swap /tmp --policy lru -- true",
                "no built-in policy 'lru'",
            ),
            (
                "--dram 1G --swap /tmp --policy ./lru.so -- true",
                "cannot find policy",
            ),
            (
                "--dram 1G --swap /tmp -- no-such-program-here",
                "is not found",
            ),
        ] {
            let error = run(line).unwrap_err();
            assert!(error.to_string().contains(message), "{line}: {error}");
            assert_eq!(error.status(), 2, "{line}");
        }
    }

    #[test]
    fn programs_without_the_pager_are_named() {
        let run = |names: &[(&str, u64)], more| {
            let names = names.iter().map(|&(name, count)| (name.to_owned(), count));
            (names.collect::<BTreeMap<_, _>>(), more)
        };
        let before = run(&[("busybox", 2)], 1);
        assert_eq!(escaped(&before, run(&[("busybox", 2)], 1)), None);
        let line = escaped(&before, run(&[("busybox", 5), ("true", 1)], 1)).unwrap();
        assert!(line.starts_with("4 programs ran without"), "{line}");
        assert!(line.contains(": busybox (3 times), true; next: "), "{line}");
        let line = escaped(&before, run(&[], 3)).unwrap();
        assert!(
            line.contains("2 programs") && line.contains(": others;"),
            "{line}"
        );
    }

    #[test]
    fn policies_keep_their_options() {
        assert_eq!(policy("clock:a=1").unwrap(), "clock:a=1");
        let text = policy("/bin/../bin/sh:edges=1").unwrap();
        assert!(text.to_str().unwrap().ends_with("sh:edges=1"));
    }
}
