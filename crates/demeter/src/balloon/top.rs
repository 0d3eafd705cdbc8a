// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon top`: all guests of a daemon, both tiers, live.

use ratatui::Frame;

use super::client::Client;
use super::default_control;
use super::frame::{Fleet, View};
use crate::error::Error;
use crate::live::{Live, Options};

/// Arguments of `balloon top`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Control interface of demeterd
    #[arg(
        long,
        value_name = "PATH",
        default_value_os_t = default_control(),
        hide_default_value = true
    )]
    control: std::path::PathBuf,
    #[command(flatten)]
    options: Options,
}

/// A daemon that is looked at.
struct Daemon {
    client: Client,
    view: View,
}

fn read(client: &Client) -> Result<Fleet, Error> {
    Ok(Fleet {
        policy: client.get("/v1/policy")?,
        guests: client.get("/v1/vms")?,
    })
}

impl Live for Daemon {
    fn look(&mut self) -> Result<(), Error> {
        self.view.look(read(&self.client)?);
        Ok(())
    }

    fn fail(&mut self, cause: String) {
        self.view.fail(cause);
    }

    fn draw(&self, frame: &mut Frame) {
        self.view.draw(frame);
    }

    fn choose(&mut self, forward: bool) {
        self.view.choose(forward);
    }

    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self.view.fleet())
    }
}

pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    arguments.options.check()?;
    let client = Client::new(&arguments.control)?;
    let view = View::new(read(&client)?);
    arguments.options.show(&mut Daemon { client, view })
}
