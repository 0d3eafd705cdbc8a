// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter doctor`: what works here, what does not, and why.
//!
//! Four subjects, as Demeter has four jobs: this machine as a host of guests whose memory
//! is resized, as a guest (or any machine) that manages its own tiers, as a testbed, and
//! for one program whose memory outgrows DRAM. Nobody has all of them, so without a name only those
//! are looked at that apply.

mod extmem;
mod guest;
mod host;
mod machine;
mod testbed;

use std::io::Write;

use demeter_extmem_tree::Printable;
use serde::Serialize;

use crate::error::Error;

/// Arguments of `doctor`.
#[derive(clap::Args)]
pub struct Arguments {
    /// What to look at; without it all that applies here
    #[arg(value_enum)]
    subject: Option<Subject>,
    /// Print the checks as JSON
    #[arg(long)]
    json: bool,
}

/// Arguments where the subject is told by the command.
#[derive(clap::Args)]
pub struct Form {
    /// Print the checks as JSON
    #[arg(long)]
    json: bool,
}

impl Form {
    /// For `demeter extmem doctor`.
    pub fn of_extmem(&self) -> Arguments {
        Arguments {
            subject: Some(Subject::Extmem),
            json: self.json,
        }
    }
}

/// What this machine may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Subject {
    /// demeterd, which resizes guests
    Host,
    /// demeter.ko, which manages the memory of this machine
    Guest,
    /// `demeter vm`, which boots guests with modelled tiers
    Testbed,
    /// `demeter extmem`, which pages one program
    Extmem,
}

impl Subject {
    const ALL: [Self; 4] = [Self::Host, Self::Guest, Self::Testbed, Self::Extmem];

    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Guest => "guest",
            Self::Testbed => "testbed",
            Self::Extmem => "extmem",
        }
    }

    fn applies(self) -> bool {
        match self {
            Self::Host => host::applies(),
            Self::Guest => guest::applies(),
            Self::Testbed => testbed::applies(),
            Self::Extmem => extmem::applies(),
        }
    }

    fn checks(self) -> Checks {
        match self {
            Self::Host => host::checks(),
            Self::Guest => guest::checks(),
            Self::Testbed => testbed::checks(),
            Self::Extmem => extmem::checks(),
        }
    }
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Works.
    Ok,
    /// Does not work; only some uses need it.
    Limited,
    /// Does not work; the subject needs it.
    Failed,
}

#[derive(Debug, Serialize)]
struct Check {
    name: String,
    state: State,
    finding: String,
    /// What to do, where something can be done.
    next: Option<String>,
}

/// Those of a subject.
type Checks = Vec<Check>;

impl Check {
    fn new(name: &str, state: State, finding: impl Into<String>, next: Option<String>) -> Self {
        Self {
            name: name.into(),
            state,
            finding: finding.into(),
            next,
        }
    }

    fn ok(name: &str, finding: impl Into<String>) -> Self {
        Self::new(name, State::Ok, finding, None)
    }

    fn limited(name: &str, finding: impl Into<String>, next: &str) -> Self {
        Self::new(name, State::Limited, finding, Some(next.into()))
    }

    fn failed(name: &str, finding: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(name, State::Failed, finding, Some(next.into()))
    }

    /// Failed, in an error's own words.
    fn of_error(name: &str, error: &Error) -> Self {
        Self::failed(name, error.to_string(), error.next())
    }
}

#[derive(Serialize)]
struct Report {
    subject: Subject,
    checks: Checks,
}

/// Runs the checks and prints them.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let subjects: Vec<Subject> = match arguments.subject {
        Some(subject) => vec![subject],
        None => Subject::ALL.into_iter().filter(|s| s.applies()).collect(),
    };
    let reports: Vec<Report> = subjects
        .into_iter()
        .map(|subject| Report {
            subject,
            checks: subject.checks(),
        })
        .collect();
    let text = if arguments.json {
        serde_json::to_string_pretty(&reports).map_err(|error| Error::Malformed {
            path: "doctor".into(),
            cause: error.to_string(),
        })? + "\n"
    } else {
        render(&reports)
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    let checks = reports.iter().flat_map(|report| &report.checks);
    match checks.filter(|check| check.state == State::Failed).count() {
        0 => Ok(0),
        failed => Err(Error::Doctor { failed }),
    }
}

fn render(reports: &[Report]) -> String {
    let names = reports.iter().flat_map(|report| &report.checks);
    let width = names.map(|check| check.name.chars().count()).max();
    let width = width.unwrap_or(0);
    let mut text = String::new();
    for report in reports {
        text.push_str(&format!("{}\n", report.subject.name()));
        for check in &report.checks {
            let state = match check.state {
                State::Ok => "ok     ",
                State::Limited => "limited",
                State::Failed => "FAILED ",
            };
            text.push_str(&format!(
                "  {state}  {:<width$}  {}\n",
                check.name,
                Printable(&check.finding)
            ));
            if let Some(next) = &check.next {
                let next = Printable(next);
                text.push_str(&format!("{:11}{:width$}  next: {next}\n", "", ""));
            }
        }
    }
    if reports.is_empty() {
        text.push_str(
            "nothing of Demeter is installed here, and no tier is to be managed; name one of: ",
        );
        text.push_str(&Subject::ALL.map(Subject::name).join(", "));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_next_step() {
        let text = render(&[Report {
            subject: Subject::Host,
            checks: vec![
                Check::ok("a", "fine"),
                Check::failed("bb", "broken", "mend it"),
            ],
        }]);
        assert!(
            text.starts_with("host\n  ok       a   fine\n  FAILED   bb  broken\n"),
            "{text}"
        );
        assert!(text.contains("next: mend it"));
        assert!(render(&[]).contains("guest"));
    }
}
