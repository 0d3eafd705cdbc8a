// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon replug`: the way back after demeterd has died. QEMU cannot
//! reconnect a vhost-user device (a reconnecting chardev makes it abort), so the
//! device is taken out and put in again. The guest keeps the pages meanwhile and
//! names them to the new device.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::qmp::Qmp;
use crate::error::Error;

/// A guest lets go of a device within this.
const LIMIT: Duration = Duration::from_secs(30);
/// QEMU frees the chardev a little later than it tells.
const PAUSE: Duration = Duration::from_millis(50);

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

/// What is put in.
#[derive(Debug, PartialEq, Eq)]
struct Device {
    chardev: String,
    socket: String,
    bus: String,
    properties: Vec<(&'static str, u64)>,
}

/// Of `vhost-user-test-device-pci`.
const PROPERTIES: [(&str, u64); 4] = [
    ("virtio-id", 13),
    ("num_vqs", 4),
    ("vq_size", 256),
    ("config_size", 64),
];

pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let mut qmp = Qmp::connect(&arguments.qmp)?;
    let device = look(&mut qmp, arguments)?;
    take_out(&mut qmp, &arguments.id, &device.chardev)?;
    put_in(&mut qmp, &arguments.id, &device)?;
    eprintln!("demeter: {} is plugged in anew", arguments.id);
    Ok(0)
}

/// Notes all that is needed to put the device back, before it is taken out.
fn look(qmp: &mut Qmp, arguments: &Arguments) -> Result<Device, Error> {
    let path = format!("/machine/peripheral/{}", arguments.id);
    let mut property = |name: &str| {
        let question = json!({"path": path, "property": name});
        qmp.try_execute("qom-get", &question)
    };
    let text = |value: Result<Value, String>| {
        value
            .ok()
            .and_then(|value| value.as_str().map(str::to_owned))
    };
    let is = text(property("type")?);
    if let Some(kind) = &is
        && !kind.starts_with("vhost-user-test-device")
    {
        return Err(Error::Usage {
            cause: format!("{} is a {kind}, not a balloon", arguments.id),
            next: "name the balloon's device with --id".into(),
        });
    }
    let bus = text(property("parent_bus")?)
        .and_then(|path| path.rsplit('/').next().map(str::to_owned))
        .or_else(|| arguments.bus.clone());
    let chardev = text(property("chardev")?).unwrap_or_else(|| arguments.chardev.clone());
    let mut properties = PROPERTIES.to_vec();
    for (name, value) in &mut properties {
        if let Some(told) = property(name)?.ok().and_then(|told| told.as_u64()) {
            *value = told;
        }
    }
    let given = arguments
        .socket
        .as_ref()
        .map(|path| path.to_string_lossy().into_owned());
    let socket = match given {
        Some(path) => Some(path),
        None => chardev_socket(&qmp.execute("query-chardev", &json!({}))?, &chardev),
    };
    let missing = |option: &str| Error::Usage {
        cause: format!(
            "{} is not in the machine and {option} is not given",
            arguments.id
        ),
        next: format!("say {option} as it was when the guest was started"),
    };
    Ok(Device {
        chardev,
        socket: socket.ok_or_else(|| missing("--socket"))?,
        bus: bus.ok_or_else(|| missing("--bus"))?,
        properties,
    })
}

/// The path in `unix:PATH` or `disconnected:unix:PATH,OPTIONS`.
fn chardev_socket(list: &Value, id: &str) -> Option<String> {
    let entry = list.as_array()?.iter().find(|entry| entry["label"] == id)?;
    let name = entry["filename"].as_str()?;
    let name = name.strip_prefix("disconnected:").unwrap_or(name);
    // A connected one is told as "unix:" alone by some versions.
    let path = name.strip_prefix("unix:")?.split(',').next()?;
    path.starts_with('/').then(|| path.to_owned())
}

fn take_out(qmp: &mut Qmp, id: &str, chardev: &str) -> Result<(), Error> {
    match qmp.try_execute("device_del", &json!({"id": id}))? {
        Ok(_) => qmp.wait_event(|event| {
            event["event"] == "DEVICE_DELETED" && event["data"]["device"] == id
        })?,
        // Out already: an earlier attempt ended here.
        Err(words) if words.contains("not found") => {}
        Err(words) => {
            return Err(Error::Daemon {
                cause: format!("QEMU does not take {id} out: {words}"),
                next: "put the device behind a PCIe root port (docs/balloon.md)".into(),
            });
        }
    }
    let limit = Instant::now() + LIMIT;
    loop {
        match qmp.try_execute("chardev-remove", &json!({"id": chardev}))? {
            Ok(_) => return Ok(()),
            Err(words) if words.contains("not found") => return Ok(()),
            Err(words) if Instant::now() > limit => {
                return Err(Error::Daemon {
                    cause: format!("QEMU does not give {chardev} free: {words}"),
                    next: "check that no other device uses it".into(),
                });
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn put_in(qmp: &mut Qmp, id: &str, device: &Device) -> Result<(), Error> {
    let address = json!({"type": "unix", "data": {"path": device.socket}});
    let backend = json!({"type": "socket", "data": {"addr": address, "server": false}});
    let chardev = json!({"id": device.chardev, "backend": backend});
    if let Err(words) = qmp.try_execute("chardev-add", &chardev)? {
        return Err(Error::Daemon {
            cause: format!("QEMU cannot connect to {}: {words}", device.socket),
            next: "start demeterd, then replug again with --socket and --bus".into(),
        });
    }
    let mut arguments = json!({
        "driver": "vhost-user-test-device-pci",
        "id": id,
        "bus": device.bus,
        "chardev": device.chardev,
    });
    for (name, value) in &device.properties {
        arguments[*name] = json!(value);
    }
    qmp.execute("device_add", &arguments)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_socket_of_a_chardev() {
        let list = json!([
            {"label": "a", "filename": "file"},
            {"label": "b", "filename": "disconnected:unix:/run/x.sock"},
            {"label": "c", "filename": "unix:/run/y.sock,server=off"},
            {"label": "d", "filename": "unix:"},
        ]);
        let of = |id| chardev_socket(&list, id);
        assert_eq!(of("a"), None);
        assert_eq!(of("b").as_deref(), Some("/run/x.sock"));
        assert_eq!(of("c").as_deref(), Some("/run/y.sock"));
        assert_eq!(of("d"), None);
        assert_eq!(of("e"), None);
    }
}
