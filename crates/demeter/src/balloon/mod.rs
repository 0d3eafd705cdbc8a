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

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use demeter_balloon::view::{AccountView, Short, Sizing, Stage, TierView, VmView, Why};

use crate::error::{Advice, Error};
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
const OWN_CONTROL: &str = "/run/demeter/demeterd.sock";
/// Where systemd listens for it once demeterd.socket is enabled.
const ACTIVATED_CONTROL: &str = "/run/demeterd.sock";

/// Of these the one that is there.
pub fn default_control() -> PathBuf {
    let activated = Path::new(ACTIVATED_CONTROL);
    if activated.exists() {
        activated.to_path_buf()
    } else {
        OWN_CONTROL.into()
    }
}

/// How to reach the daemon, and how to speak.
#[derive(Args)]
pub struct Common {
    /// Control interface of demeterd [default: /run/demeterd.sock if demeterd.socket is
    /// enabled, else /run/demeter/demeterd.sock]
    #[arg(
        long,
        value_name = "PATH",
        default_value_os_t = default_control(),
        hide_default_value = true
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
                marked_stage(vm),
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

/// Where a guest stands, with a mark if it has a problem besides: each of them may be one of
/// its memory, of a disk, of a socket, whatever its stage.
fn marked_stage(vm: &VmView) -> String {
    let stage = match vm.stage {
        Stage::Waiting => "waiting",
        Stage::Connected => "no driver",
        Stage::Driven => "driven",
        Stage::Disabled => "disabled",
    };
    let mark = if vm.problem.is_some() { " !" } else { "" };
    format!("{stage}{mark}")
}

/// Prints guests as a table, and says what is wrong with them.
fn print(vms: &[VmView]) {
    let rows: Vec<Vec<String>> = vms.iter().flat_map(rows).collect();
    print!("{}", table::render(&HEADER, &rows));
    for vm in vms {
        if let Some(sizing) = &vm.sizing {
            println!("{}: {}", vm.name, reasons(sizing));
        }
        if let Some(account) = &vm.account {
            println!("{}: {}", vm.name, credit(account));
        }
        if let Some(problem) = &vm.problem {
            eprintln!("demeter: {}: {problem}", vm.name);
        }
        for (reason, count) in &vm.violations {
            eprintln!("demeter: {}: {count} violations: {reason}", vm.name);
        }
    }
}

/// What the policy wants a guest's memory to be, and why not otherwise.
fn reasons(sizing: &Sizing) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let why = match sizing.why {
        Why::Free => "its free memory is taken back",
        Why::Cold => "what is cold is looked for",
        Why::Settled => "nothing is left to take",
        Why::Grows => "it allocates, and is given room",
        Why::Suffers => "it missed pages or stalled, and is given more",
        Why::Waits => "it has suffered, and is left alone for a while",
        Why::Kept => "it needs the rest itself, as it says",
        Why::Moving => "it is on its way to its last size",
        Why::Silent => "it says nothing, and keeps what it has",
    };
    let mut text = format!("memory {:.1}: {why}", mib(sizing.memory_bytes));
    let short = sizing.fmem_short.map(|short| match short {
        Short::Pool => "the pool has no more for it",
        Short::Credit => "it has its share, and its credit is spent",
        Short::Ceiling => "it may not have more",
    });
    if let Some(short) = short {
        let (has, useful) = (mib(sizing.fmem_bytes), mib(sizing.fmem_useful_bytes));
        text.push_str(&format!("; FMEM {has:.1} of {useful:.1}: {short}"));
    }
    text
}

/// What a guest may have beyond its share, and what it makes of that.
fn credit(account: &AccountView) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = format!("credit {:.1} s", account.credit_ms as f64 / 1000.0);
    if account.spent {
        text.push_str(" (spent)");
    }
    let (Some(share), Some(charged)) = (account.share_bytes, account.charged_bytes) else {
        text.push_str(", neither pays nor earns");
        return text;
    };
    let differs = mib(charged.abs_diff(share));
    text.push_str(&match charged.cmp(&share) {
        Ordering::Greater => format!(", borrows {differs:.1} MiB beyond its"),
        Ordering::Less => format!(", lends {differs:.1} MiB of its"),
        Ordering::Equal => ", has its".to_owned(),
    });
    text.push_str(&format!(" share of {:.1} MiB", mib(share)));
    text
}

/// What was to be shown has no form as JSON.
#[derive(Debug, thiserror::Error)]
#[error("cannot write JSON: {0}")]
struct JsonError(serde_json::Error);

impl Advice for JsonError {
    fn next(&self) -> String {
        "report it".into()
    }
}

/// Prints anything as JSON.
fn print_json(value: &impl serde::Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(JsonError)?;
    println!("{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lends_and_who_borrows_is_told() {
        let told = |share_bytes, charged_bytes| {
            credit(&AccountView {
                credit_ms: 600_000,
                spent: false,
                share_bytes,
                charged_bytes,
            })
        };
        let mib = |mib: u64| Some(mib << 20);
        let lends = "credit 600.0 s, lends 1.0 MiB of its share of 3.0 MiB";
        assert_eq!(told(mib(3), mib(2)), lends);
        let has = "credit 600.0 s, has its share of 3.0 MiB";
        assert_eq!(told(mib(3), mib(3)), has);
        assert_eq!(told(None, None), "credit 600.0 s, neither pays nor earns");
    }

    #[test]
    fn a_guest_that_is_short_is_told_so_with_the_reason() {
        let sizing = Sizing {
            memory_bytes: 512 << 20,
            why: Why::Waits,
            fmem_useful_bytes: 200 << 20,
            fmem_bytes: 128 << 20,
            fmem_short: Some(Short::Pool),
        };
        assert_eq!(
            reasons(&sizing),
            "memory 512.0: it has suffered, and is left alone for a while; \
             FMEM 128.0 of 200.0: the pool has no more for it"
        );
    }
}
