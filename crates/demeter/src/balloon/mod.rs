// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon`: what each guest has of each tier, and how to change it.

pub mod client;
mod frame;
mod get;
mod policy;
pub mod qmp;
mod replug;
mod set;
mod top;
mod watch;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use demeter_balloon::view::{Stage, TierView, VmView};

use crate::error::Error;
use crate::table;

/// What to do.
#[derive(Subcommand)]
pub enum Verb {
    /// What guests have, of each tier
    Get(get::Arguments),
    /// Set sizes of a guest's tiers, and wait until the guest is there
    Set(set::Arguments),
    /// Tell every change
    Watch(watch::Arguments),
    /// All guests, live: both tiers, what was asked and reached, pressure
    Top(top::Arguments),
    /// Who decides sizes; with a name, who shall
    Policy(policy::Arguments),
    /// Put the device of a running guest in anew, after its daemon was restarted
    Replug(replug::Arguments),
    /// Take the device of a running guest out, before it is migrated
    Unplug(replug::Out),
}

impl Verb {
    /// Exit status.
    pub fn execute(self) -> Result<u8, Error> {
        match self {
            Self::Get(arguments) => get::execute(&arguments),
            Self::Set(arguments) => set::execute(&arguments),
            Self::Watch(arguments) => watch::execute(&arguments),
            Self::Top(arguments) => top::execute(&arguments),
            Self::Policy(arguments) => policy::execute(&arguments),
            Self::Replug(arguments) => replug::execute(&arguments),
            Self::Unplug(arguments) => replug::unplug(&arguments),
        }
    }
}

/// Where the daemon listens unless it is told otherwise.
pub const DEFAULT_CONTROL: &str = "/run/demeter/demeterd.sock";

/// How to reach the daemon, and how to speak.
#[derive(Args)]
pub struct Common {
    /// Control interface of demeterd
    #[arg(
        long,
        value_name = "PATH",
        default_value = DEFAULT_CONTROL
    )]
    control: PathBuf,
    /// JSON, with sizes in bytes
    #[arg(long)]
    json: bool,
}

const HEADER: [&str; 8] = [
    "guest", "tier", "total", "size", "wanted", "host", "last", "stage",
];

/// A row for each tier; sizes in MiB.
fn rows(vm: &VmView) -> Vec<Vec<String>> {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), mib);
    vm.tiers
        .iter()
        .map(|tier| {
            vec![
                vm.name.clone(),
                tier.tier.clone(),
                mib(tier.total_bytes),
                mib(tier.size_bytes),
                known(tier.wanted_size_bytes),
                known(tier.backing_bytes),
                last(tier),
                stage(vm).to_owned(),
            ]
        })
        .collect()
}

fn last(tier: &TierView) -> String {
    if tier.busy {
        return "under way".to_owned();
    }
    tier.last.as_ref().map_or_else(
        || "-".to_owned(),
        |last| format!("{:?}", last.outcome).to_lowercase(),
    )
}

fn stage(vm: &VmView) -> &'static str {
    if vm.problem.is_some() {
        return "wrong memory";
    }
    match vm.stage {
        Stage::Waiting => "waiting",
        Stage::Connected => "no driver",
        Stage::Driven => "driven",
        Stage::Disabled => "disabled",
    }
}

/// Prints guests as a table, and says what is wrong with them.
fn print(vms: &[VmView]) {
    let rows: Vec<Vec<String>> = vms.iter().flat_map(rows).collect();
    print!("{}", table::render(&HEADER, &rows));
    for vm in vms {
        if let Some(problem) = &vm.problem {
            eprintln!("demeter: {}: {problem}", vm.name);
        }
        for (reason, count) in &vm.violations {
            eprintln!("demeter: {}: {count} violations: {reason}", vm.name);
        }
    }
}

/// Prints anything as JSON.
fn print_json(value: &impl serde::Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Daemon {
        cause: format!("cannot write JSON: {error}"),
        next: "report it".into(),
    })?;
    println!("{text}");
    Ok(())
}
