// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes a balloon's device out of a running machine, and puts it in. QEMU cannot
//! reconnect a vhost-user device (a reconnecting chardev makes it abort), nor
//! migrate it. The guest keeps the pages meanwhile and names them to the new
//! device.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Qmp, QmpError, Refusal};

/// A guest lets go of a device within this.
const LIMIT: Duration = Duration::from_secs(30);
/// And QEMU the chardev of one that was taken out before.
const PATIENCE: Duration = Duration::from_secs(1);
/// QEMU frees the chardev a little later than it tells.
const PAUSE: Duration = Duration::from_millis(50);

/// How the device is found, and put in if the machine does not have it. What the
/// device in the machine says wins.
#[derive(Debug, Clone)]
pub struct Place {
    /// Id of the device.
    pub id: String,
    /// Id of the chardev.
    pub chardev: String,
    /// The daemon's vhost-user socket.
    pub socket: Option<String>,
    /// Root port.
    pub bus: Option<String>,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            id: "balloon0".into(),
            chardev: "balloon-socket".into(),
            socket: None,
            bus: None,
        }
    }
}

/// All that is needed to put the device in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plug {
    /// Id of the device.
    pub id: String,
    /// Id of the chardev.
    pub chardev: String,
    /// The daemon's vhost-user socket.
    pub socket: String,
    /// Root port.
    pub bus: String,
    /// The device is in the machine now.
    pub is_in: bool,
    /// Its daemon is gone.
    pub is_cut: bool,
    properties: Vec<(&'static str, u64)>,
}

/// Of `vhost-user-test-device-pci`.
const PROPERTIES: [(&str, u64); 4] = [
    ("virtio-id", 13),
    ("num_vqs", 4),
    ("vq_size", 256),
    ("config_size", 64),
];

impl Plug {
    /// Notes all that is needed to put the device back, before it is taken out.
    ///
    /// # Errors
    /// It is no balloon, or it is out and `place` does not say all.
    pub fn look(qmp: &mut Qmp, place: &Place) -> Result<Self, QmpError> {
        let path = format!("/machine/peripheral/{}", place.id);
        let mut property = |name: &str| {
            let question = json!({"path": path, "property": name});
            qmp.try_execute("qom-get", &question)
        };
        let text = |value: Result<Value, Refusal>| {
            value
                .ok()
                .and_then(|value| value.as_str().map(str::to_owned))
        };
        let is = text(property("type")?);
        if let Some(kind) = &is
            && !kind.starts_with("vhost-user-test-device")
        {
            return Err(QmpError::NotABalloon {
                id: place.id.clone(),
                kind: kind.clone(),
            });
        }
        let (mut bus, mut chardev) = (place.bus.clone(), place.chardev.clone());
        let mut properties = PROPERTIES.to_vec();
        // Somebody may put it in between two questions: who was told that it is out must not
        // learn from what is in now where it was, and take that out.
        if is.is_some() {
            bus = text(property("parent_bus")?)
                .and_then(|path| path.rsplit('/').next().map(str::to_owned))
                .or(bus);
            chardev = text(property("chardev")?).unwrap_or(chardev);
            for (name, value) in &mut properties {
                if let Some(told) = property(name)?.ok().and_then(|told| told.as_u64()) {
                    *value = told;
                }
            }
        }
        let list = qmp.execute("query-chardev", &json!({}))?;
        let told = filename(&list, &chardev);
        let missing = |what| QmpError::Missing {
            id: place.id.clone(),
            what,
        };
        Ok(Self {
            id: place.id.clone(),
            is_in: is.is_some(),
            is_cut: told.is_some_and(|name| name.starts_with("disconnected:")),
            socket: (place.socket.clone().or_else(|| told.and_then(socket_path)))
                .ok_or_else(|| missing("--socket"))?,
            bus: bus.ok_or_else(|| missing("--bus"))?,
            chardev,
            properties,
        })
    }

    /// Takes it out, if it was in when it was looked at. The guest keeps its pages for a while.
    ///
    /// # Errors
    /// QEMU or the guest does not let it go.
    pub fn take_out(&self, qmp: &mut Qmp) -> Result<(), QmpError> {
        let (id, chardev) = (&self.id, &self.chardev);
        if self.is_in {
            match qmp.try_execute("device_del", &json!({"id": id}))? {
                Ok(_) => qmp.wait_event(|event| {
                    event.name == "DEVICE_DELETED" && event.device.as_ref() == Some(id)
                })?,
                // Out already: an earlier attempt ended here.
                Err(refusal) if refusal.is_not_found() => {}
                Err(refusal) => {
                    return Err(QmpError::Stuck {
                        id: id.clone(),
                        refusal,
                    });
                }
            }
        }
        // Of one that was out the chardev is free, or somebody has put it in meanwhile, who is to
        // be seen.
        let patience = if self.is_in { LIMIT } else { PATIENCE };
        let limit = Instant::now() + patience;
        loop {
            match qmp.try_execute("chardev-remove", &json!({"id": chardev}))? {
                Ok(_) => return Ok(()),
                Err(refusal) if refusal.is_not_found() => return Ok(()),
                Err(refusal) if Instant::now() > limit => {
                    return Err(QmpError::Kept {
                        chardev: chardev.clone(),
                        refusal,
                    });
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Puts it in. The daemon must be there.
    ///
    /// # Errors
    /// It is not, or QEMU refuses.
    pub fn put_in(&self, qmp: &mut Qmp) -> Result<(), QmpError> {
        let address = json!({"type": "unix", "data": {"path": self.socket}});
        let backend = json!({"type": "socket", "data": {"addr": address, "server": false}});
        let chardev = json!({"id": self.chardev, "backend": backend});
        if let Err(refusal) = qmp.try_execute("chardev-add", &chardev)? {
            return Err(QmpError::NoDaemon {
                socket: self.socket.clone(),
                refusal,
            });
        }
        let mut arguments = json!({
            "driver": "vhost-user-test-device-pci",
            "id": self.id,
            "bus": self.bus,
            "chardev": self.chardev,
        });
        for (name, value) in &self.properties {
            arguments[*name] = json!(value);
        }
        qmp.execute("device_add", &arguments)?;
        Ok(())
    }
}

/// What QEMU calls that chardev.
fn filename<'a>(list: &'a Value, id: &str) -> Option<&'a str> {
    let entry = list.as_array()?.iter().find(|entry| entry["label"] == id)?;
    entry["filename"].as_str()
}

/// The path in `unix:PATH` or `disconnected:unix:PATH,OPTIONS`.
fn socket_path(name: &str) -> Option<String> {
    let name = name.strip_prefix("disconnected:").unwrap_or(name);
    // A connected one is told as "unix:" alone by some versions.
    let path = name.strip_prefix("unix:")?.split(',').next()?;
    path.starts_with('/').then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::{Receiver, channel};

    #[test]
    fn finds_the_socket_of_a_chardev() {
        let list = json!([
            {"label": "a", "filename": "file"},
            {"label": "b", "filename": "disconnected:unix:/run/x.sock"},
            {"label": "c", "filename": "unix:/run/y.sock,server=off"},
            {"label": "d", "filename": "unix:"},
        ]);
        let of = |id| filename(&list, id).and_then(socket_path);
        assert_eq!(of("a"), None);
        assert_eq!(of("b").as_deref(), Some("/run/x.sock"));
        assert_eq!(of("c").as_deref(), Some("/run/y.sock"));
        assert_eq!(of("d"), None);
        assert_eq!(of("e"), None);
    }

    /// A monitor that answers so, and notes what it is told.
    fn monitor(answer: fn(&Value) -> Value) -> (tempfile::TempDir, Qmp, Receiver<String>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let (said, told) = channel();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut writer = stream.try_clone().unwrap();
            writeln!(writer, "{}", json!({"QMP": {}})).unwrap();
            for line in BufReader::new(stream).lines() {
                let command: Value = serde_json::from_str(&line.unwrap()).unwrap();
                let name = command["execute"].as_str().unwrap().to_owned();
                if name == "device_del" {
                    let data = json!({"device": "balloon0"});
                    let event = json!({"event": "DEVICE_DELETED", "data": data});
                    writeln!(writer, "{event}").unwrap();
                }
                said.send(name).unwrap();
                writeln!(writer, "{}", answer(&command)).unwrap();
            }
        });
        let qmp = Qmp::connect(&path, || false).unwrap();
        (directory, qmp, told)
    }

    #[test]
    fn what_is_out_comes_back_with_what_is_said() {
        let (_directory, mut qmp, told) = monitor(|command| match command["execute"].as_str() {
            Some("qom-get") => json!({"error": {"desc": "Device 'balloon0' not found"}}),
            Some("query-chardev") => json!({"return": []}),
            _ => json!({"return": {}}),
        });
        let nothing = Plug::look(&mut qmp, &Place::default()).unwrap_err();
        assert!(nothing.to_string().contains("--socket"), "{nothing}");
        assert!(nothing.is_usage());
        let place = Place {
            socket: Some("/run/x.sock".into()),
            bus: Some("port0".into()),
            ..Place::default()
        };
        let plug = Plug::look(&mut qmp, &place).unwrap();
        assert!(!plug.is_in && !plug.is_cut);
        plug.put_in(&mut qmp).unwrap();
        let said: Vec<String> = told.try_iter().collect();
        assert!(
            said.ends_with(&["chardev-add".into(), "device_add".into()]),
            "{said:?}"
        );
    }

    #[test]
    fn what_somebody_puts_in_while_one_looks_is_not_taken_for_ones_own() {
        let (_directory, mut qmp, _told) = monitor(|command| {
            let property = command["arguments"]["property"].as_str();
            match (command["execute"].as_str(), property) {
                // Asked first: it is not in yet.
                (_, Some("type")) => json!({"error": {"desc": "Device 'balloon0' not found"}}),
                (_, Some("parent_bus")) => json!({"return": "/machine/peripheral/port0/port0"}),
                (_, Some("chardev")) => json!({"return": "balloon-socket"}),
                (_, Some(_)) => json!({"return": 256}),
                _ => json!({"return": [
                    {"label": "balloon-socket", "filename": "unix:/run/x.sock"}
                ]}),
            }
        });
        let place = Place {
            socket: Some("/run/x.sock".into()),
            ..Place::default()
        };
        let looked = Plug::look(&mut qmp, &place);
        assert!(
            matches!(looked, Err(QmpError::Missing { .. })),
            "{looked:?}"
        );
    }

    #[test]
    fn what_is_in_is_taken_out() {
        let (_directory, mut qmp, told) = monitor(|command| {
            let property = command["arguments"]["property"].as_str();
            match (command["execute"].as_str(), property) {
                (_, Some("type")) => json!({"return": "vhost-user-test-device-pci"}),
                (_, Some("parent_bus")) => json!({"return": "/machine/peripheral/port0/port0"}),
                (_, Some("chardev")) => json!({"return": "balloon-socket"}),
                (_, Some(_)) => json!({"return": 256}),
                (Some("query-chardev"), _) => json!({"return": [
                    {"label": "balloon-socket", "filename": "unix:/run/x.sock"}
                ]}),
                _ => json!({"return": {}}),
            }
        });
        let plug = Plug::look(&mut qmp, &Place::default()).unwrap();
        assert!(plug.is_in && !plug.is_cut);
        assert_eq!(
            (plug.socket.as_str(), plug.bus.as_str()),
            ("/run/x.sock", "port0")
        );
        plug.take_out(&mut qmp).unwrap();
        let said: Vec<String> = told.try_iter().collect();
        assert!(
            said.ends_with(&["device_del".into(), "chardev-remove".into()]),
            "{said:?}"
        );
    }
}
