// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter`: runs tiered virtual machines, compares memory managers,
//! diagnoses a host. Data goes to standard output, everything else to
//! standard error.

mod balloon;
mod cpio;
mod digest;
mod doctor;
mod error;
mod extmem;
mod interrupt;
mod live;
mod manual;
mod observe;
mod progress;
mod sim;
mod table;
mod testbed;
mod userfaultfd;
mod vm;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use demeter_extmem_tree::Printable;

use crate::error::Error;

#[derive(Parser)]
#[command(name = "demeter", version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Guests with a fast and a slow memory tier
    #[command(subcommand)]
    Vm(Box<vm::Verb>),
    /// What a manager would make of recorded accesses, without a guest
    Sim(sim::Arguments),
    /// One program whose memory outgrows its share of DRAM
    #[command(subcommand)]
    Extmem(Box<extmem::Verb>),
    /// Memory of running guests, by tier: sizes, policies, recovery
    #[command(subcommand)]
    Balloon(balloon::Verb),
    /// What this host and its guests can and cannot do, and why
    Doctor(doctor::Arguments),
    /// What demeter.ko manages here, and what came of it
    Status(observe::status::Arguments),
    /// Why the pages of a process were moved or not, and what that gained
    Why(observe::why::Arguments),
    /// Numbers of demeter.ko for Prometheus: printed, in a file, or served
    Metrics(observe::metrics::Arguments),
    /// Tiers, processes, rates, gains and heat of a guest, live
    Top(observe::top::Arguments),
    /// Completions of this command for a shell
    Completions(manual::Completions),
    /// Manual pages of this command
    Man(manual::Pages),
}

fn main() -> ExitCode {
    interrupt::install();
    let outcome = parse().and_then(|arguments| match arguments {
        None => Ok(0),
        Some(Arguments {
            verb: Verb::Vm(verb),
        }) => verb.execute(),
        Some(Arguments {
            verb: Verb::Sim(arguments),
        }) => sim::execute(&arguments),
        Some(Arguments {
            verb: Verb::Extmem(verb),
        }) => verb.execute(),
        Some(Arguments {
            verb: Verb::Balloon(verb),
        }) => verb.execute(),
        Some(Arguments {
            verb: Verb::Doctor(arguments),
        }) => doctor::execute(&arguments),
        Some(Arguments {
            verb: Verb::Status(arguments),
        }) => observe::status::execute(&arguments),
        Some(Arguments {
            verb: Verb::Why(arguments),
        }) => observe::why::execute(&arguments),
        Some(Arguments {
            verb: Verb::Metrics(arguments),
        }) => observe::metrics::execute(&arguments),
        Some(Arguments {
            verb: Verb::Top(arguments),
        }) => observe::top::execute(&arguments),
        Some(Arguments {
            verb: Verb::Completions(arguments),
        }) => arguments.execute(Arguments::command()),
        Some(Arguments {
            verb: Verb::Man(arguments),
        }) => arguments.execute(Arguments::command()),
    });
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            let next = error.next();
            // A line, whatever the name of a file holds.
            let line = Printable(format_args!("{error}; next: {next}"));
            eprintln!("demeter: error: {line}");
            ExitCode::from(error.status())
        }
    }
}

/// None when help or version was printed.
fn parse() -> Result<Option<Arguments>, Error> {
    match Arguments::try_parse() {
        Ok(arguments) => Ok(Some(arguments)),
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            Ok(None)
        }
        Err(error) => Err(usage(&error)),
    }
}

/// clap explains at length; we say it in a line.
fn usage(error: &clap::Error) -> Error {
    use clap::error::ErrorKind;
    let rendered = error.to_string();
    let cause = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "a verb is missing".to_owned()
        }
        ErrorKind::MissingRequiredArgument if rendered.contains("COMMAND") => {
            "COMMAND is missing after --".to_owned()
        }
        ErrorKind::MissingRequiredArgument if rendered.contains("PROGRAM") => {
            "PROGRAM is missing after --".to_owned()
        }
        _ => one_line(&rendered),
    };
    Error::Usage {
        cause,
        next: "see `demeter help`".into(),
    }
}

fn one_line(rendered: &str) -> String {
    let paragraph: Vec<&str> = rendered
        .trim_start_matches("error: ")
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty())
        .collect();
    paragraph.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn wrong_usage_is_one_line() {
        for line in [
            "demeter",
            "demeter vm run --tmm nonsense -- true",
            "demeter vm run",
            "demeter vm run --fmem 12Q -- true",
        ] {
            let Err(error) = Arguments::try_parse_from(line.split(' ')) else {
                panic!("{line} was accepted");
            };
            let text = usage(&error).to_string();
            assert!(!text.contains('\n') && !text.is_empty(), "{text}");
        }
    }
}
