// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter extmem`: one program whose memory outgrows its share of DRAM.

mod forward;
mod ground;
mod order;
mod program;
mod run;
mod swap;
mod top;
mod tree;

use crate::doctor;
use crate::error::Error;

/// Verbs of `demeter extmem`.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Run PROGRAM with at most --dram of its memory in DRAM and the rest in --swap
    Run(run::Arguments),
    /// Watch running programs through their statistics file
    Top(top::Arguments),
    /// Can programs be paged here, and why not: `demeter doctor extmem`
    Doctor(doctor::Form),
}

impl Verb {
    /// Carries the verb out; returns the exit status.
    pub fn execute(&self) -> Result<u8, Error> {
        match self {
            Self::Run(arguments) => run::execute(arguments),
            Self::Top(arguments) => top::execute(arguments),
            Self::Doctor(form) => doctor::execute(&form.of_extmem()),
        }
    }
}
