// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A modelled machine, its monitor included, for a daemon that somebody else started:
//! `tests/suites/packages`. `MACHINE` is a directory; `fmem`, `smem` in it are its memory, `qmp` is
//! where it takes commands, and `state` tells how it fares. `MACHINE_SOCKET` is the daemon's. It
//! stays until it is killed.

#[path = "rings/model.rs"]
mod model;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use demeter_balloon::wire::{
    HELLO_RESYNC, INFLATED_RESYNC, OP_DEFLATE, OP_DONE, OP_HELLO, OP_INFLATED, Range, Report,
    Request,
};
use model::{Guest, NODE_BYTES};
use serde_json::{Value, json};

/// Of each node; the rings lie in the first 64 of FMEM.
const NODE_PAGES: u64 = NODE_BYTES >> 12;
const RING_PAGES: u64 = 64;
const BEGINS: [u64; 2] = [0, 1 << 30];
/// Between looks at the rings.
const PAUSE: Duration = Duration::from_millis(50);

/// What is plugged in, as the monitor knows it.
#[derive(Default)]
struct Plugged {
    /// The device is in.
    device: bool,
    /// So is its connection.
    chardev: bool,
    /// Whose other end is gone.
    cut: bool,
    /// The guest's driver runs on it.
    driven: bool,
    /// How often it was put in.
    added: u64,
}

#[derive(Default)]
struct Machine {
    plugged: Mutex<Plugged>,
    changed: Condvar,
}

/// The guest's driver: what it gave up is its balloon, whoever serves it.
struct Driver {
    balloon: [BTreeSet<u64>; 2],
    /// Everything else is still as it was written.
    intact: bool,
}

impl Driver {
    fn new() -> Self {
        Self {
            balloon: Default::default(),
            intact: true,
        }
    }

    fn own_pages(node: usize) -> std::ops::Range<u64> {
        [RING_PAGES, 0][node]..NODE_PAGES
    }

    /// Pages of a node as a report; none if nobody answers.
    fn tell(guest: &mut Guest, node: usize, mut report: Report, pages: &[u64]) -> Option<u32> {
        let gpa = |page: &u64| BEGINS[node] + (page << 12);
        let ranges: Vec<Range> = pages
            .iter()
            .map(|page| Range {
                gpa: gpa(page),
                nr_pages: 1,
            })
            .collect();
        report.node = node as u16;
        guest.try_report(node, report, &ranges)
    }

    /// A new device hears of what an earlier one was given.
    fn begin(&self, guest: &mut Guest) -> Option<()> {
        for (node, held) in self.balloon.iter().enumerate() {
            let kept: Vec<u64> = held.iter().copied().collect();
            let hello = Report {
                op: OP_HELLO,
                flags: if kept.is_empty() { 0 } else { HELLO_RESYNC },
                current_pages: kept.len() as u64,
                ..Report::default()
            };
            assert_eq!(Self::tell(guest, node, hello, &[])?, 0);
            let inflated = Report {
                op: OP_INFLATED,
                flags: INFLATED_RESYNC,
                current_pages: kept.len() as u64,
                ..Report::default()
            };
            if !kept.is_empty() {
                assert_eq!(Self::tell(guest, node, inflated, &kept)?, 0);
            }
        }
        Some(())
    }

    fn obey(&mut self, guest: &mut Guest) -> Option<()> {
        while let Some(bytes) = guest.poll_request() {
            let request = Request::from_bytes(&bytes).unwrap();
            let node = usize::from(request.node);
            let now = self.balloon[node].len() as u64;
            let missing = request.target_pages.saturating_sub(now) as usize;
            let surplus = now.saturating_sub(request.target_pages) as usize;
            let (op, pages): (u16, Vec<u64>) = if missing > 0 {
                let free = Self::own_pages(node).rev();
                let free = free.filter(|page| !self.balloon[node].contains(page));
                (OP_INFLATED, free.take(missing).collect())
            } else {
                let held = self.balloon[node].iter().copied();
                (OP_DEFLATE, held.take(surplus).collect())
            };
            let mut report = Report {
                id: request.id,
                op,
                current_pages: request.target_pages,
                ..Report::default()
            };
            if !pages.is_empty() {
                // Without an answer the device may have taken note of them or not.
                if op == OP_INFLATED {
                    self.balloon[node].extend(&pages);
                }
                assert_eq!(Self::tell(guest, node, report, &pages)?, 0);
                if op == OP_DEFLATE {
                    for page in pages {
                        guest.mark(node, page);
                        self.balloon[node].remove(&page);
                    }
                }
            }
            report.op = OP_DONE;
            assert_eq!(Self::tell(guest, node, report, &[])?, 0);
        }
        Some(())
    }

    fn each_used(&self) -> impl Iterator<Item = (usize, u64)> {
        (0..2).flat_map(move |node| {
            Self::own_pages(node)
                .filter(move |page| !self.balloon[node].contains(page))
                .map(move |page| (node, page))
        })
    }

    fn check(&mut self, guest: &Guest) {
        let intact = self
            .each_used()
            .all(|(node, page)| guest.is_marked(node, page));
        self.intact &= intact;
    }
}

/// Takes commands as QEMU does, of one client at a time.
fn take_commands(machine: &Machine, listener: &UnixListener, socket: &str) {
    for stream in listener.incoming() {
        // Whoever hangs up in the middle is followed by the next one.
        let _ = converse(machine, stream.unwrap(), socket);
    }
}

fn converse(machine: &Machine, stream: UnixStream, socket: &str) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    writeln!(writer, "{}", json!({"QMP": {}}))?;
    for line in BufReader::new(stream).lines() {
        let command: Value = serde_json::from_str(&line?)?;
        let name = command["execute"].as_str().unwrap_or_default();
        let answer = execute(machine, name, &command["arguments"], socket);
        writeln!(writer, "{answer}")?;
        if name == "device_del" && answer.get("return").is_some() {
            let plugged = machine.plugged.lock().unwrap();
            // The guest lets go of it.
            let waited = machine
                .changed
                .wait_while(plugged, |plugged| plugged.driven);
            drop(waited.unwrap());
            let data = json!({"device": "balloon0"});
            writeln!(
                writer,
                "{}",
                json!({"event": "DEVICE_DELETED", "data": data})
            )?;
        }
    }
    Ok(())
}

fn execute(machine: &Machine, name: &str, arguments: &Value, socket: &str) -> Value {
    let mut plugged = machine.plugged.lock().unwrap();
    let absent = json!({"error": {"class": "DeviceNotFound", "desc": "not found"}});
    match (name, arguments["property"].as_str()) {
        ("qom-get", _) if !plugged.device => return absent,
        ("qom-get", Some("type")) => return json!({"return": "vhost-user-test-device-pci"}),
        ("qom-get", Some("parent_bus")) => {
            return json!({"return": "/machine/peripheral/port0/port0"});
        }
        ("qom-get", Some("chardev")) => return json!({"return": "balloon-socket"}),
        ("query-chardev", _) => {
            let how = if plugged.cut { "disconnected:" } else { "" };
            let file = format!("{how}unix:{socket}");
            let entry = json!({"label": "balloon-socket", "filename": file});
            let list = if plugged.chardev {
                vec![entry]
            } else {
                Vec::new()
            };
            return json!({"return": list});
        }
        ("device_del", _) if !plugged.device => return absent,
        ("device_del", _) => plugged.device = false,
        ("chardev-remove", _) if !plugged.chardev => return absent,
        ("chardev-remove", _) => plugged.chardev = false,
        ("chardev-add", _) if !Path::new(socket).exists() => {
            return json!({"error": {"class": "GenericError", "desc": "no such socket"}});
        }
        ("chardev-add", _) => (plugged.chardev, plugged.cut) = (true, false),
        ("device_add", _) => {
            plugged.device = true;
            plugged.added += 1;
        }
        _ => {}
    }
    machine.changed.notify_all();
    json!({"return": {}})
}

fn write_state(directory: &Path, driver: &Driver, plugged: &Plugged) {
    let [fmem, smem] = driver.balloon.each_ref().map(|held| held.len() as u64 * 4);
    let (served, added) = (plugged.driven && !plugged.cut, plugged.added);
    let text = format!(
        "served={}\nadded={added}\nfmem_balloon_kib={fmem}\nsmem_balloon_kib={smem}\nintact={}\n",
        u8::from(served),
        u8::from(driver.intact)
    );
    let new = directory.join("state.new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, directory.join("state")).unwrap();
}

#[test]
#[ignore = "a machine for other tests, until it is killed"]
fn machine() {
    let directory = PathBuf::from(std::env::var("MACHINE").unwrap());
    let socket = std::env::var("MACHINE_SOCKET").unwrap();
    let memory = ["fmem", "smem"].map(|node| directory.join(node));
    let listener = UnixListener::bind(directory.join("qmp")).unwrap();
    let everybody = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(directory.join("qmp"), everybody).unwrap();
    let machine = Arc::new(Machine::default());
    {
        let mut plugged = machine.plugged.lock().unwrap();
        (plugged.device, plugged.chardev) = (true, true);
    }
    let (monitor, at) = (machine.clone(), socket.clone());
    std::thread::spawn(move || take_commands(&monitor, &listener, &at));

    let mut driver = Driver::new();
    let mut guest: Option<Guest> = None;
    let mut is_marked = false;
    loop {
        let has_device = machine.plugged.lock().unwrap().device;
        if !has_device {
            guest = None;
        } else if guest.is_none() {
            let mut new = Guest::at("machine", Path::new(&socket), &memory);
            if !is_marked {
                for (node, page) in driver.each_used() {
                    new.mark(node, page);
                }
                is_marked = true;
            }
            let _ = driver.begin(&mut new);
            guest = Some(new);
        }
        let is_cut = match &mut guest {
            Some(guest) => guest.is_cut() || driver.obey(guest).is_none(),
            None => false,
        };
        if let Some(guest) = &guest {
            driver.check(guest);
        }
        let mut plugged = machine.plugged.lock().unwrap();
        plugged.driven = guest.is_some();
        plugged.cut |= is_cut;
        write_state(&directory, &driver, &plugged);
        machine.changed.notify_all();
        drop(plugged);
        std::thread::sleep(PAUSE);
    }
}
