// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon policy`.

use clap::Args;
use demeter_balloon::view::PolicyView;

use super::client::Client;
use super::{Common, print_json};
use crate::error::Error;

/// Options.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// external, static, proportional, guaranteed, pressure or working-set
    name: Option<String>,
    /// FMEM that the policy divides
    #[arg(long, value_name = "SIZE", value_parser = demeter_agent::size::parse)]
    fmem_pool: Option<u64>,
    /// Period of its decisions
    #[arg(long, value_name = "MS")]
    interval_ms: Option<u64>,
}

pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let client = Client::new(&arguments.common.control)?;
    let mut policy: PolicyView = client.get("/v1/policy")?;
    let changes = arguments.name.is_some()
        || arguments.fmem_pool.is_some()
        || arguments.interval_ms.is_some();
    if changes {
        if let Some(name) = &arguments.name {
            policy.name.clone_from(name);
        }
        policy.fmem_pool_bytes = arguments.fmem_pool.unwrap_or(policy.fmem_pool_bytes);
        policy.interval_ms = arguments.interval_ms.unwrap_or(policy.interval_ms);
        policy = client.put("/v1/policy", &policy)?;
    }
    if arguments.common.json {
        print_json(&policy)?;
    } else {
        println!(
            "{}: {} MiB of FMEM, every {} ms",
            policy.name,
            policy.fmem_pool_bytes >> 20,
            policy.interval_ms
        );
    }
    Ok(0)
}
