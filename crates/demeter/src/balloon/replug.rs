// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon replug`: the way back after demeterd has died, and after a
//! migration; `demeter balloon unplug`: the way to a migration.

use std::path::PathBuf;

use clap::Args;

use super::qmp::{self, Place, Plug};
use crate::error::Error;

/// Options. What the device in the machine says wins over them.
#[derive(Args)]
pub struct Arguments {
    /// QMP socket of the guest's QEMU
    #[arg(long, value_name = "PATH")]
    qmp: PathBuf,
    /// Id of the device
    #[arg(long, value_name = "ID", default_value = "balloon0")]
    id: String,
    /// demeterd's vhost-user socket; needed if the device is out already
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Root port; needed if the device is out already
    #[arg(long, value_name = "BUS")]
    bus: Option<String>,
    /// Id of the chardev
    #[arg(long, value_name = "ID", default_value = "balloon-socket")]
    chardev: String,
}

impl Arguments {
    fn place(&self) -> Place {
        Place {
            id: self.id.clone(),
            chardev: self.chardev.clone(),
            socket: (self.socket.as_ref()).map(|path| path.to_string_lossy().into_owned()),
            bus: self.bus.clone(),
        }
    }
}

pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let mut qmp = qmp::connect(&arguments.qmp)?;
    let plug = Plug::look(&mut qmp, &arguments.place())?;
    plug.take_out(&mut qmp)?;
    plug.put_in(&mut qmp)?;
    eprintln!("demeter: {} is plugged in anew", arguments.id);
    Ok(0)
}

/// Options of `unplug`.
#[derive(Args)]
pub struct Out {
    /// QMP socket of the guest's QEMU
    #[arg(long, value_name = "PATH")]
    qmp: PathBuf,
    /// Id of the device
    #[arg(long, value_name = "ID", default_value = "balloon0")]
    id: String,
}

/// Takes the device out, and says how it comes back.
pub fn unplug(arguments: &Out) -> Result<u8, Error> {
    let mut qmp = qmp::connect(&arguments.qmp)?;
    let place = Place {
        id: arguments.id.clone(),
        ..Place::default()
    };
    let plug = Plug::look(&mut qmp, &place)?;
    plug.take_out(&mut qmp)?;
    eprintln!(
        "demeter: {} is out; the guest keeps its pages for a minute",
        plug.id
    );
    println!(
        "demeter balloon replug --qmp {} --id {} --chardev {} --socket {} --bus {}",
        arguments.qmp.display(),
        plug.id,
        plug.chardev,
        plug.socket,
        plug.bus
    );
    Ok(0)
}
