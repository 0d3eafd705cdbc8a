// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon set`.

use clap::Args;
use demeter_balloon::view::{SizeWish, TierView, VmView, tier_name, tier_node};

use super::client::{Client, checked_name};
use super::{Common, print, print_json};
use crate::error::Error;

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

fn parse_wish(text: &str) -> Result<(u16, u64), String> {
    let (tier, size) = text
        .split_once('=')
        .ok_or_else(|| format!("'{text}' is not TIER=SIZE"))?;
    let node = tier_node(tier).ok_or_else(|| format!("no tier '{tier}'; write fmem or smem"))?;
    let bytes = demeter_agent::size::parse(size).map_err(|error| error.to_string())?;
    Ok((node, bytes))
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
        Some(tier) => Err(not_there(tier)),
        None => Ok(0),
    }
}

/// Not an error of the tool, but scripts must see it.
fn not_there(tier: &TierView) -> Error {
    use demeter_balloon::wire::Outcome;
    let has = tier.size_bytes >> 20;
    let name = &tier.tier;
    if tier.busy {
        return Error::Daemon {
            cause: format!("{name} stands at {has} MiB and is still under way"),
            next: "give it more time with --wait, or look with `demeter balloon get`".into(),
        };
    }
    let (cause, next) = match tier.last.map(|last| last.outcome) {
        Some(Outcome::Floor) => ("the guest needs the rest itself", "ask for a larger size"),
        Some(Outcome::Oom) => (
            "the guest ran out of memory and took pages back",
            "ask for a larger size",
        ),
        Some(Outcome::Superseded) => ("somebody else asked for another size", "look who does"),
        Some(Outcome::Refused) => ("the guest has no such node", "check its NUMA nodes"),
        Some(Outcome::Reached) | None => (
            "the guest did not take the request",
            "check that demeter_balloon.ko is loaded",
        ),
    };
    Error::Daemon {
        cause: format!("{name} stands at {has} MiB: {cause}"),
        next: next.into(),
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
}
