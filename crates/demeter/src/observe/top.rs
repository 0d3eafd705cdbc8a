// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter top`: a guest's tiers, processes, rates, gains and heat, live.

use demeter_observe::State;
use ratatui::Frame;
use serde::Serialize;

use super::frame::View;
use super::rates::Rates;
use super::source;
use crate::error::Error;
use crate::live::{Live, Options};

/// Arguments of `top`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    source: source::Arguments,
    #[command(flatten)]
    options: Options,
}

#[derive(Serialize)]
struct Told<'a> {
    /// Since the look before; none at the first.
    rates: Option<&'a Rates>,
    #[serde(flatten)]
    state: &'a State,
}

/// A guest that is looked at.
struct Guest<'a> {
    source: &'a source::Arguments,
    view: View,
}

impl Live for Guest<'_> {
    fn look(&mut self) -> Result<(), Error> {
        self.view.look(self.source.read()?);
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
        serde_json::to_string(&Told {
            rates: self.view.rates(),
            state: self.view.state(),
        })
    }
}

/// Looks until told to stop.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    arguments.options.check()?;
    let source = &arguments.source;
    let view = View::new(source.name(), source.read()?);
    arguments.options.show(&mut Guest { source, view })
}
