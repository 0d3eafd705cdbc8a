// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm run`: COMMAND in one guest.

use std::io::Write;
use std::path::PathBuf;

use super::fleet;
use super::ideal;
use super::pooled;
use super::session::{self, Show};
use super::settings::Options;
use super::tmm::Tmm;
use super::workplace::to_json;
use crate::error::Error;
use crate::progress::Board;
use crate::testbed::Testbed;

/// Arguments of `vm run`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Memory manager
    #[arg(long, value_enum, default_value_t = Tmm::None)]
    tmm: Tmm,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    fleet: fleet::Options,
    /// Results directory
    #[arg(long, default_value = "out/run", value_name = "DIR")]
    out: PathBuf,
    /// Print the summary as JSON instead of COMMAND's output
    #[arg(long)]
    json: bool,
    /// Program of the guest and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Carries the verb out.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    if let Some(vms) = arguments.fleet.vms {
        let fleet = fleet::Fleet {
            vms,
            options: &arguments.fleet,
            guest: &arguments.options,
            tmm: arguments.tmm,
            command: &arguments.command,
        };
        let knobs = arguments.tmm.peer_knobs(&arguments.options.peer_set)?;
        let hypervisor = arguments.tmm.hypervisor(&knobs, arguments.options.fmem)?;
        let (out, json) = (&arguments.out, arguments.json);
        return match hypervisor {
            Some(config) => pooled::execute(&fleet, &config, out, json),
            None => fleet::execute(&fleet, out, json),
        };
    }
    let mut settings = arguments
        .options
        .settings(arguments.tmm, &arguments.command)?;
    let testbed = Testbed::load()?;
    let mut recorded_s = None;
    if let Some(order) = arguments.tmm.ideal_order() {
        let (options, command, out) = (&arguments.options, &arguments.command, &arguments.out);
        let (ideal, recorded) = ideal::record_first(&testbed, options, command, order, out)?;
        recorded_s = Some(recorded.summary.whole.time_s);
        settings.watch.ideal = Some(ideal);
    }
    let board = Board::new();
    let line = board.line(arguments.tmm.row());
    let finished = session::run(
        &testbed,
        &settings,
        &arguments.out,
        None,
        &Show {
            stream_output: !arguments.json,
            line: &line,
            total_work: None,
        },
    )?;
    drop(line);
    if arguments.json {
        let text = to_json(&finished.summary)?;
        let _ = std::io::stdout().write_all(&text);
    }
    if let (Some(none_s), Some(promise)) = (recorded_s, &finished.summary.placement) {
        let realised = ideal::realised(promise, none_s, finished.summary.whole.time_s);
        eprintln!(
            "demeter: {}: {}",
            arguments.tmm.row(),
            ideal::describe(promise, realised)
        );
    }
    session::warn_of_trouble(&finished);
    if let Some((cause, status)) = &finished.outcome.not_started {
        return Err(Error::Command {
            program: arguments.command[0].clone(),
            cause: cause.clone(),
            status: u8::try_from(*status).unwrap_or(127),
        });
    }
    Ok(u8::try_from(finished.outcome.shell_status()).unwrap_or(1))
}
