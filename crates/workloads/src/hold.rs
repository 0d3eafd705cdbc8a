// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hold`: keeps memory occupied while a command runs.

use std::process::Command;

use demeter_agent::size;

use crate::Error;
use crate::memory::Region;

/// Arguments of `hold`.
#[derive(clap::Args)]
pub struct Arguments {
    /// How much to allocate and touch
    #[arg(long, value_parser = size::parse)]
    bytes: u64,
    /// Take it from this node
    #[arg(long)]
    node: Option<u32>,
    /// Command to run meanwhile
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the command and returns its status.
pub fn run(arguments: &Arguments) -> Result<u8, Error> {
    let region = Region::map(arguments.bytes)?;
    if let Some(node) = arguments.node {
        region.bind(0, region.words(), node)?;
    }
    region.touch(0, region.words());
    let status = Command::new(&arguments.command[0])
        .args(&arguments.command[1..])
        .status()
        .map_err(|cause| Error::Start {
            program: arguments.command[0].clone(),
            cause,
        })?;
    drop(region);
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1))
}
