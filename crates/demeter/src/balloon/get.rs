// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon get`.

use clap::Args;
use demeter_balloon::view::VmView;

use super::client::{Client, checked_name};
use super::{Common, print, print_json};
use crate::error::Error;

/// Options.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// One guest; all without it
    vm: Option<String>,
}

pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let client = Client::new(&arguments.common.control)?;
    let vms: Vec<VmView> = match &arguments.vm {
        Some(name) => vec![client.get(&format!("/v1/vms/{}", checked_name(name)?))?],
        None => client.get("/v1/vms")?,
    };
    if arguments.common.json {
        print_json(&vms)?;
    } else {
        print(&vms);
    }
    Ok(0)
}
