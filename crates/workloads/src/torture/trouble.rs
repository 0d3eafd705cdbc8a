// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `torture` finds wrong.

use std::io;

/// A step that is right, or what was wrong with it.
pub type Check<T> = Result<T, Trouble>;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A call failed that must not.
    #[error("{call}: {cause}")]
    Call {
        /// Its name.
        call: String,
        /// The system's words.
        cause: io::Error,
    },
    /// A call did a part.
    #[error("{call} moved {got} bytes instead of {expected}")]
    Length {
        /// Its name.
        call: String,
        /// Bytes.
        got: usize,
        /// Bytes.
        expected: usize,
    },
    /// A call that is to be refused was not, or for another reason.
    #[error("{call} gave {result}, error {cause:?}")]
    NotRefused {
        /// What it was.
        call: &'static str,
        /// Its result.
        result: i64,
        /// `errno`.
        cause: Option<i32>,
    },
    /// A page does not hold what was written.
    #[error(
        "page {page} of {pages} at {address:#x} holds {wrong} wrong words; its header is \
         {header:#x}, of page {key:#x} version {version}"
    )]
    Page {
        /// Its number.
        page: usize,
        /// Of so many.
        pages: usize,
        /// Where it is.
        address: usize,
        /// How many words.
        wrong: u64,
        /// Its first word.
        header: u64,
        /// What it should be of.
        key: u64,
        /// And which version of that.
        version: u32,
    },
    /// A copy of a page does not.
    #[error("a copy of page {page} holds {wrong} wrong words")]
    Copy {
        /// Number of the page.
        page: usize,
        /// How many words.
        wrong: u64,
    },
    /// Memory went elsewhere.
    #[error("mremap to {target:#x} went to {base:#x}")]
    Moved {
        /// Where it was to go.
        target: usize,
        /// Where it is.
        base: usize,
    },
    /// Bytes that should be random are as before.
    #[error("{same} of {of} random bytes are the old ones")]
    NotRandom {
        /// How many.
        same: usize,
        /// Of so many.
        of: usize,
    },
    /// After a fork.
    #[error("the parent of a fork found {0} wrong pages")]
    Parent(u64),
    /// After a fork.
    #[error("the child of a fork ended with status {0:#x}")]
    Child(i32),
    /// A program did something else than it does.
    #[error("/bin/echo gave {output:?} and {status}")]
    Program {
        /// What it printed.
        output: Vec<u8>,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// A page that a handler put there is not of zeros.
    #[error("a mended page begins with {0}")]
    Mended(u8),
    /// Signal handlers, which cannot stop at what they find.
    #[error("handlers of {handled} signals found {wrong} wrong words")]
    Handlers {
        /// How many ran.
        handled: u64,
        /// How many words.
        wrong: u64,
    },
    /// Anything else that is not as it must be.
    #[error("{0}")]
    Wrong(&'static str),
    /// In which step.
    #[error("{step}: {trouble}")]
    In {
        /// Its thread, operation or call.
        step: String,
        /// What was wrong.
        trouble: Box<Trouble>,
    },
}

impl Trouble {
    /// The last error of the C library, for a call.
    pub fn of_call(call: &str) -> Self {
        Self::Call {
            call: call.to_owned(),
            cause: io::Error::last_os_error(),
        }
    }

    /// Says where that was.
    pub fn during(self, step: String) -> Self {
        Self::In {
            step,
            trouble: Box::new(self),
        }
    }
}
