// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon set`.

use clap::Args;
use demeter_agent::size;
use demeter_balloon::view::{SizeWish, TierView, VmView, tier_name, tier_node};
use demeter_balloon::wire::Outcome;

use super::client::{Client, checked_name};
use super::{Common, print, print_json};
use crate::error::{Advice, Error};

/// Options.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// The guest
    vm: String,
    /// What to leave to it: fmem=512M smem=1G
    #[arg(required = true, value_name = "TIER=SIZE", value_parser = parse_wish)]
    sizes: Vec<(u16, u64)>,
    /// Seconds to wait for the guest; 0: do not wait
    #[arg(long, value_name = "S", default_value_t = 60)]
    wait: u64,
    /// For the ledger
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
}

/// What is no TIER=SIZE.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum WishError {
    #[error("'{0}' is not TIER=SIZE")]
    Form(String),
    #[error("no tier '{0}'; write fmem or smem")]
    Tier(String),
    #[error(transparent)]
    Size(#[from] size::SizeError),
}

fn parse_wish(text: &str) -> Result<(u16, u64), WishError> {
    let (tier, size) = text
        .split_once('=')
        .ok_or_else(|| WishError::Form(text.to_owned()))?;
    let node = tier_node(tier).ok_or_else(|| WishError::Tier(tier.to_owned()))?;
    Ok((node, size::parse(size)?))
}

pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let client = Client::new(&arguments.common.control)?;
    let name = checked_name(&arguments.vm)?;
    let mut latest: Option<VmView> = None;
    for &(node, size_bytes) in &arguments.sizes {
        let wish = SizeWish {
            size_bytes,
            why: arguments.why.clone(),
            wait_ms: arguments.wait.saturating_mul(1000),
        };
        let path = format!("/v1/vms/{name}/tiers/{}", tier_name(node));
        latest = Some(client.put(&path, &wish)?);
    }
    let Some(vm) = latest else { return Ok(0) };
    if arguments.common.json {
        print_json(&vm)?;
    } else {
        print(std::slice::from_ref(&vm));
    }
    if arguments.wait == 0 {
        return Ok(0);
    }
    let short = arguments.sizes.iter().find_map(|&(node, size_bytes)| {
        let tier = vm.tiers.get(usize::from(node))?;
        (tier.size_bytes != size_bytes.next_multiple_of(4096)).then_some(tier)
    });
    match short {
        Some(tier) => Err(Short::of(tier).into()),
        None => Ok(0),
    }
}

/// A size that was not reached. Not an error of the tool, but scripts must see it.
#[derive(Debug, thiserror::Error)]
#[error("{tier} stands at {has_mib} MiB{}", self.why())]
struct Short {
    tier: String,
    has_mib: u64,
    /// How the guest's last request ended; none while it is under way.
    last: Option<Ended>,
}

/// How a request ended that did not reach its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Floor,
    Oom,
    Superseded,
    Refused,
    /// The guest says nothing of it.
    NotTaken,
}

impl Short {
    fn of(tier: &TierView) -> Self {
        let ended = match tier.last.map(|last| last.outcome) {
            Some(Outcome::Floor) => Ended::Floor,
            Some(Outcome::Oom) => Ended::Oom,
            Some(Outcome::Superseded) => Ended::Superseded,
            Some(Outcome::Refused) => Ended::Refused,
            Some(Outcome::Reached) | None => Ended::NotTaken,
        };
        Self {
            tier: tier.tier.clone(),
            has_mib: tier.size_bytes >> 20,
            last: (!tier.busy).then_some(ended),
        }
    }

    fn why(&self) -> &'static str {
        match self.last {
            None => " and is still under way",
            Some(Ended::Floor) => ": the guest needs the rest itself",
            Some(Ended::Oom) => ": the guest ran out of memory and took pages back",
            Some(Ended::Superseded) => ": somebody else asked for another size",
            Some(Ended::Refused) => ": the guest has no such node",
            Some(Ended::NotTaken) => ": the guest did not take the request",
        }
    }
}

impl Advice for Short {
    fn next(&self) -> String {
        let next = match self.last {
            None => "give it more time with --wait, or look with `demeter balloon get`",
            Some(Ended::Floor | Ended::Oom) => "ask for a larger size",
            Some(Ended::Superseded) => "look who does",
            Some(Ended::Refused) => "check its NUMA nodes",
            Some(Ended::NotTaken) => "check that demeter_balloon.ko is loaded",
        };
        next.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes() {
        assert_eq!(parse_wish("fmem=512M"), Ok((0, 512 << 20)));
        assert_eq!(parse_wish("node3=1G"), Ok((3, 1 << 30)));
        for wrong in ["fmem", "fmem=", "fast=1G", "fmem=x", "node9=1G"] {
            assert!(parse_wish(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_not_reached_is_told_with_what_to_do() {
        let short = |last| Short {
            tier: "fmem".into(),
            has_mib: 12,
            last,
        };
        let told = |last| (short(last).to_string(), short(last).next());
        let (cause, next) = told(None);
        assert_eq!(cause, "fmem stands at 12 MiB and is still under way");
        assert!(next.contains("--wait"), "{next}");
        let (cause, next) = told(Some(Ended::Oom));
        assert!(cause.starts_with("fmem stands at 12 MiB: the guest ran out"));
        assert_eq!(next, "ask for a larger size");
    }
}
