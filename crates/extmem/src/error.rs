// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why the pager cannot start: one line each, "cause; next: what to do".

use thiserror::Error;

use crate::compressed::CompressedError;
use crate::policy::PolicyError;
use crate::statistics::BoardError;
use crate::swap::{InjectionError, SwapError};

/// Anything that keeps the pager from starting.
#[derive(Debug, Error)]
pub enum Error {
    /// A setting that is not what it should be.
    #[error("{name}={value} is not {expected}; next: correct it")]
    Setting {
        /// Environment variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it should say.
        expected: &'static str,
    },
    /// Neither the new nor the old variable is set.
    #[error("no {what} is given; next: use `demeter extmem run`, or set {name}")]
    Missing {
        /// What is missing.
        what: &'static str,
        /// Where to say it.
        name: &'static str,
    },
    /// Too little DRAM to work with.
    #[error("{dram_bytes} bytes of DRAM are too few; next: give at least {least_bytes}")]
    TooLittle {
        /// Given.
        dram_bytes: u64,
        /// Needed.
        least_bytes: u64,
    },
    /// The kernel lacks userfaultfd or one of its features.
    #[error(
        "this kernel offers no userfaultfd with write protection, move and signals (error {errno}); next: use Linux 6.8 or later, outside a container that forbids it"
    )]
    Userfaultfd {
        /// What it said.
        errno: i32,
    },
    /// Valgrind executes the program.
    #[error(
        "valgrind knows no userfaultfd; next: run the program under one of the two, valgrind or the pager"
    )]
    Valgrind,
    /// No descriptor is left.
    #[error("too few open files are allowed (error {errno}); next: raise the limit (ulimit -n)")]
    Descriptors {
        /// What the kernel said.
        errno: i32,
    },
    /// The arena's place is taken.
    #[error(
        "the address space from {address:#x} on is taken; next: run the program without tools that lay out memory by themselves (sanitizers, valgrind)"
    )]
    PlaceTaken {
        /// The place.
        address: usize,
    },
    /// seccomp is refused.
    #[error(
        "the kernel refuses a system call filter (error {errno}); next: allow seccomp (CONFIG_SECCOMP_FILTER, no other filter in the way)"
    )]
    Filter {
        /// What it said.
        errno: i32,
    },
    /// Filters of the programs that this one comes from are all that the kernel takes.
    #[error(
        "the kernel takes no more system call filters: each program of the run that becomes or starts another leaves one in force for it, and too many did so one after another; next: let fewer programs start each other (some {most} can), or start the last ones outside of the run"
    )]
    FilterDepth {
        /// How many can.
        most: u32,
    },
    /// Address space is refused or taken.
    #[error(
        "cannot reserve {bytes} bytes of address space ({cause}); next: lift the limits on address space and data (ulimit -v unlimited, ulimit -d unlimited)"
    )]
    AddressSpace {
        /// How much.
        bytes: usize,
        /// Why.
        cause: std::io::Error,
    },
    /// A signal handler cannot be set.
    #[error("cannot take signal {signal} (error {errno}); next: report this")]
    Signal {
        /// Which.
        signal: i32,
        /// Why.
        errno: i32,
    },
    /// The C library is not one whose calls we know how to trap.
    #[error("no libc.so.6 is loaded; next: use a program linked with the GNU C library")]
    Library,
    /// Machine architecture.
    #[error("only x86-64 is supported; next: run on an x86-64 machine")]
    Architecture,
    /// The swap store.
    #[error(transparent)]
    Swap(#[from] SwapError),
    /// The policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The compressed tier.
    #[error(transparent)]
    Compressed(#[from] CompressedError),
    /// The statistics file.
    #[error(transparent)]
    Statistics(#[from] BoardError),
    /// The decision log.
    #[error(
        "cannot write the decision log {path} ({cause}); next: name a file in a writable folder"
    )]
    Log {
        /// Where.
        path: std::path::PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// The failure plan for tests.
    #[error(transparent)]
    Injection(#[from] InjectionError),
}
