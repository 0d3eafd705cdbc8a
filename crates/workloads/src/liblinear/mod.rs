// SPDX-License-Identifier: Apache-2.0 OR MIT
#[derive(clap::Args, Debug, Clone)]
pub struct Arguments {}
pub fn run(_arguments: &Arguments) -> Result<(), crate::Error> {
    Ok(())
}
