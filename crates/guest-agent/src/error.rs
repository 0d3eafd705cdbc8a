// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can stop a run inside the guest, each with its next step.

use std::path::Path;

use crate::report;

/// Why the agent cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run description is not understood.
    #[error("guest agent cannot read its run description: {cause}")]
    Description {
        /// Details.
        cause: String,
    },
    /// A file operation failed.
    #[error("guest agent cannot use {path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// The system's words.
        cause: std::io::Error,
    },
    /// The guest clock does not follow the model.
    #[error("guest clock moved {seen_ns} ns when the model charged {asked_ns} ns")]
    Clock {
        /// Charged.
        asked_ns: u64,
        /// Seen.
        seen_ns: u64,
    },
    /// A node is too small.
    #[error("node {node} has {free_bytes} bytes free where {wanted_bytes} were asked for")]
    TooSmall {
        /// NUMA node.
        node: u32,
        /// MemFree.
        free_bytes: u64,
        /// Asked for.
        wanted_bytes: u64,
    },
    /// A node could not be brought to its size.
    #[error("node {node} stays at {free_bytes} bytes free where {wanted_bytes} were asked for")]
    Ballast {
        /// NUMA node.
        node: u32,
        /// MemFree.
        free_bytes: u64,
        /// Asked for.
        wanted_bytes: u64,
    },
    /// The host does not take or bring the memory.
    #[error("nodes stay at {now_bytes:?} bytes where {wanted_bytes:?} were asked for")]
    Resize {
        /// MemTotal by node.
        now_bytes: Vec<u64>,
        /// Asked for.
        wanted_bytes: Vec<u64>,
    },
    /// The kernel refused the manager's module.
    #[error("the guest kernel refused {path}: {cause}")]
    Module {
        /// The module.
        path: String,
        /// The system's words.
        cause: String,
    },
    /// A knob of the manager could not be set.
    #[error("cannot write '{value}' to {path} for {manager}: {cause}")]
    Knob {
        /// The manager.
        manager: String,
        /// The file.
        path: String,
        /// The value.
        value: String,
        /// The system's words.
        cause: std::io::Error,
    },
    /// One of the above, of which the kernel log says more.
    #[error("{error} ('{line}')")]
    Explained {
        /// What happened.
        error: Box<Error>,
        /// What the module said.
        line: String,
    },
}

impl Error {
    /// With the last of `lines` in which the module says what to do.
    pub fn explained_by(self, lines: &[String]) -> Self {
        match lines.iter().rfind(|line| report::is_advice(line)) {
            Some(line) => Self::Explained {
                error: Box::new(self),
                line: line.clone(),
            },
            None => self,
        }
    }

    /// A failed file operation.
    pub fn file(path: impl AsRef<Path>, cause: std::io::Error) -> Self {
        Self::File {
            path: path.as_ref().display().to_string(),
            cause,
        }
    }

    /// What the user should do.
    pub fn next(&self) -> String {
        match self {
            Self::Description { .. } => {
                "build command line and agent from the same source (`make build`)".into()
            }
            Self::File { .. } => "see console.log of the run".into(),
            Self::Clock { .. } => {
                "the plugin's clock hook does not work with this QEMU; run `demeter doctor`".into()
            }
            Self::TooSmall { .. } => {
                "give the guest kernel more room with --kernel-reserve or make the tiers smaller"
                    .into()
            }
            Self::Ballast { .. } => "see console.log of the run and report it".into(),
            Self::Resize { .. } => {
                "see balloon.log of the run; ask for larger tiers if the guest needs the rest"
                    .into()
            }
            Self::Module { .. } => {
                "read the last lines of console.log; build the module for this kernel with \
                 `testbed/build-modules.sh`"
                    .into()
            }
            Self::Knob { .. } => {
                "check the name and value given with --set, --nbt-set, --damon-set, \
                 --damon-auto-set or --peer-set for this guest kernel"
                    .into()
            }
            Self::Explained { .. } => "do what the guest's kernel says there".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_carries_the_words_of_the_module() {
        let refused = || Error::Knob {
            manager: "demeter".into(),
            path: "/sys/kernel/mm/demeter/sampler".into(),
            value: "pebs".into(),
            cause: std::io::Error::from_raw_os_error(libc::ENODEV),
        };
        let words = "demeter: sampler pebs refused: the PMU has no PEBS; next: use another";
        let lines = ["WARNING: CPU: 0", words, "BUG: x"].map(str::to_owned);
        let told = refused().explained_by(&lines);
        assert!(told.to_string().contains("cannot write 'pebs'"), "{told}");
        assert!(told.to_string().contains(words), "{told}");
        assert!(told.next().contains("kernel says"));
        let untold = refused().explained_by(&lines[..1]);
        assert!(matches!(untold, Error::Knob { .. }));
    }
}
