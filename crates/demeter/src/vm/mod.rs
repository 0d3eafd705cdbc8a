// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm`: guests of the testbed.

mod balloon;
mod compare;
mod cost;
mod damon;
mod damon_auto;
mod data;
mod demo;
mod figures;
mod fleet;
mod guest;
mod heat;
mod heat_view;
mod hypervisor;
mod ideal;
mod knobs;
mod manager;
mod managers;
mod manifest;
mod outcome;
mod policy;
mod pooled;
mod process;
mod qemu;
mod record;
mod recording;
mod run;
mod session;
mod settings;
mod sizing;
mod sockets;
mod step;
mod summary;
mod tail;
mod tmm;
mod watch;
mod workplace;
mod writes;

pub use heat_view::{Picture, SHADES};
pub use hypervisor::HostPhase;
pub use manager::supported as manager_supported;
pub use policy::Peer;
pub use record::THRESHOLD_NS;
pub use settings::{Slow, parse_pair};
pub use tmm::{DEMETER_SCALED, Tmm};
pub use watch::ACCESSES;
pub use workplace::{free_space, to_json, write_atomically};

use crate::error::Error;

/// Verbs of `demeter vm`.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Run COMMAND in one guest; its output and exit status are passed on
    Run(run::Arguments),
    /// Run COMMAND under several managers and print a table
    Compare(compare::Arguments),
    /// The standard comparison: GUPS with the paper's proportions
    Demo(demo::Arguments),
    /// Map the heat of COMMAND's memory over time, by virtual and by physical address
    Heat(heat::Arguments),
    /// The managers that --tmm may name
    Managers(managers::Arguments),
    /// Record what COMMAND accesses, for `demeter sim`
    Record(record::Arguments),
}

impl Verb {
    /// Carries the verb out; returns the exit status.
    pub fn execute(&self) -> Result<u8, Error> {
        match self {
            Self::Run(arguments) => run::execute(arguments),
            Self::Compare(arguments) => compare::execute(arguments),
            Self::Demo(arguments) => demo::execute(arguments),
            Self::Heat(arguments) => heat::execute(arguments),
            Self::Managers(arguments) => managers::execute(arguments),
            Self::Record(arguments) => record::execute(arguments),
        }
    }
}
