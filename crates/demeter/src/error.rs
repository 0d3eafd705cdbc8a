// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything that can go wrong, each with its next step and exit status.

use std::path::{Path, PathBuf};

/// Exit status of any failure but wrong usage.
pub const FAILURE: u8 = 1;
/// Exit status of wrong usage.
pub const USAGE: u8 = 2;

/// A failure: [`std::fmt::Display`] is the cause, [`Error::next`] what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Arguments that clap cannot know to be wrong.
    #[error("{cause}")]
    Usage {
        /// What is wrong.
        cause: String,
        /// What to do.
        next: String,
    },
    /// The testbed is not set up.
    #[error("the testbed is not set up: {cause}")]
    Testbed {
        /// What is missing.
        cause: String,
    },
    /// A part of Demeter was not built.
    #[error("{what} is missing at {}", path.display())]
    NotBuilt {
        /// The part.
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
        /// How to make it.
        next: String,
    },
    /// A file operation on the host failed.
    #[error("cannot {action} {}: {cause}", path.display())]
    File {
        /// Verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: std::io::Error,
    },
    /// Not enough room.
    #[error("{} has {free_mib} MiB free where the run needs {needed_mib} MiB", path.display())]
    Space {
        /// The directory.
        path: PathBuf,
        /// Available.
        free_mib: u64,
        /// Needed.
        needed_mib: u64,
        /// What to do.
        next: &'static str,
    },
    /// The output directory holds something else.
    #[error("{} exists and is not a results directory", path.display())]
    NotResults {
        /// The directory.
        path: PathBuf,
    },
    /// The plugin refused to work.
    #[error("machine plugin: {cause}")]
    Plugin {
        /// Its words.
        cause: String,
        /// Its advice.
        next: String,
    },
    /// QEMU did not start or died.
    #[error("QEMU {how}: {cause}")]
    Qemu {
        /// What happened.
        how: String,
        /// Its last words.
        cause: String,
        /// Where the rest is.
        kept: PathBuf,
    },
    /// The guest reported why it cannot go on.
    #[error("{cause}")]
    Guest {
        /// Its words.
        cause: String,
        /// Its advice.
        next: String,
        /// Where the console is.
        kept: PathBuf,
    },
    /// The guest kernel panicked.
    #[error("guest kernel panicked: {cause}")]
    Panic {
        /// The console's line.
        cause: String,
        /// Where the console is.
        kept: PathBuf,
    },
    /// The guest went away without a word.
    #[error("guest stopped without a report (last console line: '{last_line}')")]
    Stopped {
        /// Last console line.
        last_line: String,
        /// Where the console is.
        kept: PathBuf,
    },
    /// The guest took too long.
    #[error("guest did not end within {limit_s} s (last console line: '{last_line}')")]
    Timeout {
        /// Limit in host seconds.
        limit_s: u64,
        /// Last console line.
        last_line: String,
        /// Where the console is.
        kept: PathBuf,
    },
    /// The guest took too long, as another of its pool did not come on.
    #[error(
        "guest {name} did not end within {limit_s} s; it waited for {behind}, with which it shares FMEM"
    )]
    Waited {
        /// Limit in host seconds.
        limit_s: u64,
        /// The guest.
        name: String,
        /// For whom it waited.
        behind: String,
    },
    /// COMMAND could not be started in the guest.
    #[error("the guest cannot start '{program}': {cause}")]
    Command {
        /// Program.
        program: String,
        /// The guest's words.
        cause: String,
        /// 127 or 126.
        status: u8,
    },
    /// What the guest sent is not understood.
    #[error("cannot understand {}: {cause}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Details.
        cause: String,
    },
    /// A record of accesses cannot be replayed.
    #[error("cannot replay `{}`: {cause}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: demeter_simulator::Error,
    },
    /// COMMAND failed where its success was needed.
    #[error("COMMAND ended with status {status} under {tmm}")]
    CommandFailed {
        /// The manager.
        tmm: String,
        /// Its status.
        status: i32,
        /// Where its output is.
        kept: PathBuf,
    },
    /// A row is made of another one's run, which failed.
    #[error("the run under none that it is made of failed")]
    NotRecorded,
    /// Some guests of a comparison failed; the others have their rows.
    #[error("{} of {rows} rows failed: {}", failed.len(), causes(failed))]
    Rows {
        /// Names of rows, and why.
        failed: Vec<(String, Error)>,
        /// How many there should have been.
        rows: usize,
    },
    /// What a part of this program has its own errors for.
    #[error("{0}")]
    Part(Box<dyn Advice>),
    /// demeter.ko cannot be read.
    #[error(transparent)]
    Observe(#[from] demeter_observe::Error),
    /// A signal asked to stop.
    #[error("interrupted; guests were stopped")]
    Interrupted,
    /// `doctor` found something that must work.
    #[error("{failed} of the checks failed")]
    Doctor {
        /// How many.
        failed: usize,
    },
}

/// An error of one module, which knows what to do about it. Wrong usage is none.
pub trait Advice: std::error::Error + Send + Sync {
    /// What the user should do.
    fn next(&self) -> String;
}

impl<E: Advice + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        Self::Part(Box::new(error))
    }
}

impl Error {
    /// A failed file operation.
    pub fn file(action: &'static str, path: impl AsRef<Path>, cause: std::io::Error) -> Self {
        Self::File {
            action,
            path: path.as_ref().to_path_buf(),
            cause,
        }
    }

    /// What the user should do.
    pub fn next(&self) -> String {
        let console = |kept: &Path| format!("read {}", kept.join("console.log").display());
        match self {
            Self::Usage { next, .. } | Self::NotBuilt { next, .. } | Self::Plugin { next, .. } => {
                next.clone()
            }
            Self::Part(error) => error.next(),
            Self::Testbed { .. } => "run `testbed/setup.sh`".into(),
            Self::File { cause, .. } if cause.kind() == std::io::ErrorKind::StorageFull => {
                "free some space and run again".into()
            }
            Self::File { .. } => "check the path and its permissions".into(),
            Self::Space { next, .. } => (*next).to_owned(),
            Self::NotResults { .. } => "choose another directory with --out".into(),
            Self::Qemu { kept, .. } => format!("read {}", kept.join("qemu.log").display()),
            Self::Guest { next, kept, .. } => {
                format!("{next} ({})", kept.join("console.log").display())
            }
            Self::Panic { kept, .. } | Self::Stopped { kept, .. } => console(kept),
            Self::Waited { behind, .. } => {
                format!("see what {behind} did beside it, or give it more time with --timeout")
            }
            Self::Timeout { kept, .. } => {
                format!("give it more time with --timeout, or {}", console(kept))
            }
            Self::Command { status: 126, .. } => "check that it is executable".into(),
            Self::Command { .. } => {
                "check the name; put files into the guest with --copy HOST:GUEST".into()
            }
            Self::Malformed { .. } => "build all parts from the same source (`make build`)".into(),
            Self::Record { cause, .. } => match cause {
                demeter_simulator::Error::Parameter { .. } => "see docs/simulator.md".into(),
                demeter_simulator::Error::Hypervisor(_) => {
                    "record with --machine ept_2m=0, or choose another --tmm: see docs/simulator.md"
                        .into()
                }
                demeter_simulator::Error::Busy => {
                    "give its threads longer periods (--peer-set), or \
                     record with huge pages or less memory: see docs/simulator.md"
                        .into()
                }
                demeter_simulator::Error::Threshold { .. } => {
                    "record it again without --set latency_threshold_ns".into()
                }
                demeter_simulator::Error::Room => "record with more --smem".into(),
                _ => "record it again with `demeter vm record`".into(),
            },
            Self::CommandFailed { kept, .. } => {
                let log = kept.join("command.log");
                format!(
                    "read {}; if it is well, say so with --ok-status",
                    log.display()
                )
            }
            Self::NotRecorded => "see to that one first".into(),
            Self::Rows { failed, .. } => {
                (failed.first()).map_or_else(|| "run again".into(), |(_, error)| error.next())
            }
            Self::Observe(error) => error.next(),
            Self::Interrupted => "run again".into(),
            Self::Doctor { .. } => "do what the failed lines say".into(),
        }
    }

    /// Is it this guest's own, so that others may fare better?
    pub fn is_of_one_guest(&self) -> bool {
        matches!(
            self,
            Self::Qemu { .. }
                | Self::Plugin { .. }
                | Self::Guest { .. }
                | Self::Panic { .. }
                | Self::Stopped { .. }
                | Self::Timeout { .. }
                | Self::Waited { .. }
                | Self::CommandFailed { .. }
                | Self::NotRecorded
        )
    }

    /// Exit status of the process.
    pub fn status(&self) -> u8 {
        match self {
            Self::Usage { .. } => USAGE,
            Self::Command { status, .. } => *status,
            Self::Interrupted => 130,
            _ => FAILURE,
        }
    }
}

/// Each row with its cause.
fn causes(failed: &[(String, Error)]) -> String {
    let causes: Vec<String> = (failed.iter())
        .map(|(row, error)| format!("{row}: {error}"))
        .collect();
    causes.join("; ")
}

/// A refusal before anything was started: exit status 2.
pub fn refuse(cause: impl Into<String>, next: impl Into<String>) -> Error {
    Error::Usage {
        cause: cause.into(),
        next: next.into(),
    }
}
