// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machines and policies come, go, and are there after a restart; what others have
//! is left alone.

#[path = "rings/model.rs"]
mod model;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use model::{Daemon, Guest, LIMIT, directory, keys_of, make_memory, program};
use serde_json::{Value, json};

const POLICY: &str = r#"{"name": "static", "fmem_pool_bytes": 8388608, "interval_ms": 500}"#;

fn names(daemon: &Daemon) -> Vec<String> {
    let list = daemon.call("GET /v1/vms", "");
    let name = |vm: &Value| vm["name"].as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(name).collect()
}

fn empty(options: &[&str]) -> Daemon {
    let directory = directory();
    Daemon::in_directory(directory, options.iter().map(|&word| word.into()).collect())
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn machines_come_and_go_while_others_are_served() {
    let daemon = empty(&[]);
    let add = |name: &str| daemon.status("POST /v1/vms", &daemon.prepare(name).to_string());
    assert_eq!(add("a").0, 201);
    let mut a = Guest::connect(&daemon, "a");
    a.greet();
    assert_eq!(add("b").0, 201);
    let mut b = Guest::connect(&daemon, "b");
    b.greet();
    assert_eq!(names(&daemon), ["a", "b"]);
    // Twice, and wrongly.
    let (status, answer) = add("b");
    assert_eq!(status, 409, "{answer}");
    let (status, answer) = daemon.status("POST /v1/vms", r#"{"name": "c", "colour": "red"}"#);
    assert_eq!(status, 422, "{answer}");
    assert!(
        answer.contains("fmem-floor") && answer.contains("next"),
        "{answer}"
    );
    let (status, answer) = daemon.status("POST /v1/vms", r#"{"name": "c", "socket": "/s"}"#);
    assert_eq!(status, 400, "{answer}");
    // Away with one that is connected; the other one does not notice.
    assert_eq!(daemon.status("DELETE /v1/vms/b", "").0, 204);
    assert_eq!(daemon.status("DELETE /v1/vms/b", "").0, 404);
    assert!(!daemon.path("b.sock").exists());
    assert_eq!(names(&daemon), ["a"]);
    a.greet();
    drop(b);
    assert_eq!(add("b").0, 201);
    Guest::connect(&daemon, "b").greet();
}

#[test]
fn a_restart_knows_machines_and_policy() {
    let mut daemon = Daemon::start(&["configured"], &[]);
    for name in ["a", "b"] {
        let mut description = daemon.prepare(name);
        description["weight"] = 300.into();
        description["memory"] = "6M".into();
        let (status, answer) = daemon.status("POST /v1/vms", &description.to_string());
        assert_eq!(status, 201, "{answer}");
    }
    assert_eq!(daemon.status("DELETE /v1/vms/b", "").0, 204);
    let (status, answer) = daemon.status("DELETE /v1/vms/configured", "");
    assert_eq!(status, 409, "{answer}");
    daemon.call("PUT /v1/policy", POLICY);
    let (status, _) = daemon.status("PUT /v1/policy", &POLICY.replace("500", "5"));
    assert_eq!(status, 400);
    daemon.kill();
    daemon.restart();
    assert_eq!(names(&daemon), ["a", "configured"]);
    let policy = daemon.call("GET /v1/policy", "");
    assert_eq!(policy["name"], "static");
    assert_eq!(policy["fmem_pool_bytes"], 8 << 20);
    Guest::connect(&daemon, "a").greet();
}

/// `a` has a part of a page where there are few, and half of FMEM where there are many; what it
/// has beyond that it pays for.
fn divide(daemon: &Daemon, pool_pages: u64) {
    let wish = json!({
        "name": "guaranteed", "fmem_pool_bytes": pool_pages << 12, "interval_ms": 100,
    });
    daemon.call("PUT /v1/policy", &wish.to_string());
}

/// Why the last size of `a` was asked for.
fn last_reason(daemon: &Daemon) -> (u64, String) {
    let ledger = daemon.call("GET /v1/vms/a/ledger", "");
    let asked = |entry: &&Value| entry["what"] == "asked";
    let last = ledger.as_array().unwrap().iter().rfind(asked);
    let last = last.cloned().unwrap_or_default();
    let why = last["why"].as_str().unwrap_or_default();
    (last["size_bytes"].as_u64().unwrap_or(0), why.to_owned())
}

/// Whoever makes the daemon restart, or is there when it is upgraded, has no new account for it.
#[test]
fn whose_credit_is_gone_has_none_after_a_restart_either() {
    let directory = directory();
    let mut options = Vec::new();
    for (name, weight) in [("a", 1), ("b", 1000)] {
        make_memory(directory.path(), name);
        let keys = keys_of(directory.path(), name).map(|(key, path)| format!("{key}={path}"));
        options.push("--vm".to_owned());
        options.push(format!("{name},weight={weight},{}", keys.join(",")));
    }
    let mut daemon = Daemon::in_directory(directory, options);
    let greet = |daemon: &Daemon| {
        ["b", "a"].map(|name| {
            let mut guest = Guest::connect(daemon, name);
            guest.greet();
            guest
        })
    };
    const FEW: u64 = 4;
    const MANY: u64 = 2048;
    divide(&daemon, MANY);
    let mut guests = greet(&daemon);
    until("its credit is gone", || {
        divide(&daemon, FEW);
        std::thread::sleep(Duration::from_millis(500));
        divide(&daemon, MANY);
        std::thread::sleep(Duration::from_millis(300));
        let (size_bytes, why) = last_reason(&daemon);
        size_bytes == 4 << 20 && why.contains("no credit")
    });
    // Stopped in order; killed, where what it knew was written some seconds ago; and with a file
    // that was cut, which stops nobody.
    for (orderly, cut) in [(true, false), (false, false), (true, true)] {
        if orderly {
            daemon.stop();
        } else {
            daemon.kill();
        }
        drop(guests);
        if cut {
            std::fs::write(daemon.path("state/accounts.json"), "{").unwrap();
        }
        daemon.restart();
        // Nothing is paid before the first decision, and that one asks for another size.
        divide(&daemon, FEW);
        guests = greet(&daemon);
        until("little is asked for", || {
            last_reason(&daemon).0 <= FEW << 12
        });
        let (_, why) = last_reason(&daemon);
        assert!(cut || why.contains("no credit"), "{why}");
        assert_eq!(daemon.path("state/accounts.unread").exists(), cut);
        divide(&daemon, MANY);
        until("all is asked for", || last_reason(&daemon).0 == 4 << 20);
    }
}

#[test]
fn a_configuration_is_read_anew_without_harm_to_those_who_stay() {
    let directory = directory();
    let config = directory.path().join("demeterd.toml");
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    write("");
    let options = vec!["--config".into(), config.display().to_string()];
    let daemon = Daemon::in_directory(directory, options);
    let table = |name: &str, more: &str| {
        let description = daemon.prepare(name);
        let mut text = "[[vm]]\n".to_owned();
        for (key, value) in description.as_object().unwrap() {
            text.push_str(&format!("{key} = {value}\n"));
        }
        text + more
    };
    write(&(table("a", "") + &table("b", "")));
    daemon.call("POST /v1/reload", "");
    assert_eq!(names(&daemon), ["a", "b"]);
    let mut a = Guest::connect(&daemon, "a");
    a.greet();
    let added = daemon.prepare("by-hand").to_string();
    assert_eq!(daemon.status("POST /v1/vms", &added).0, 201);
    // One goes, one comes, one is entitled to more; by a signal this time.
    write(&(table("a", "weight = 300\n") + &table("c", "")));
    daemon.signal(libc::SIGHUP);
    until("c is there", || names(&daemon) == ["a", "by-hand", "c"]);
    a.greet();
    // A wrong file changes nothing.
    write("[[vm]]\nname = 'a'\ncolour = 'red'");
    let (status, answer) = daemon.status("POST /v1/reload", "");
    assert_eq!(status, 409, "{answer}");
    assert!(answer.contains("line 3"), "{answer}");
    assert_eq!(names(&daemon), ["a", "by-hand", "c"]);
    a.greet();
}

/// What is wrong with it, as it says itself.
fn problem(daemon: &Daemon, name: &str) -> String {
    let view = daemon.view(name);
    view["problem"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn an_added_machine_that_cannot_be_served_at_a_start_is_not_forgotten() {
    let mut daemon = Daemon::start(&["configured"], &[]);
    let place = daemon.path("place");
    let make = || std::fs::create_dir(&place).unwrap();
    make();
    let mut description = daemon.prepare("added");
    description["socket"] = place.join("s").display().to_string().into();
    assert_eq!(
        daemon.status("POST /v1/vms", &description.to_string()).0,
        201
    );
    let lose = |daemon: &mut Daemon| {
        daemon.kill();
        std::fs::remove_dir_all(daemon.path("place")).unwrap();
        daemon.restart();
    };
    lose(&mut daemon);
    assert_eq!(names(&daemon), ["added", "configured"]);
    assert_eq!(daemon.view("added")["stage"], "waiting");
    let said = problem(&daemon, "added");
    assert!(said.contains("make its directory"), "{said}");
    Guest::connect(&daemon, "configured").greet();
    // It is tried again without anybody's doing, and when somebody asks.
    make();
    until("it is served", || problem(&daemon, "added").is_empty());
    assert!(place.join("s").exists());
    lose(&mut daemon);
    make();
    daemon.call("POST /v1/reload", "");
    assert_eq!(problem(&daemon, "added"), "");
    lose(&mut daemon);
    assert_eq!(
        daemon.status("POST /v1/vms", &description.to_string()).0,
        409
    );
    assert_eq!(daemon.status("DELETE /v1/vms/added", "").0, 204);
    daemon.kill();
    make();
    daemon.restart();
    assert_eq!(names(&daemon), ["configured"]);
}

#[test]
fn one_machine_without_a_socket_costs_no_other_and_not_its_old_one() {
    let directory = directory();
    let config = directory.path().join("demeterd.toml");
    let place = directory.path().join("place");
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    write("");
    let options = vec!["--config".into(), config.display().to_string()];
    let mut daemon = Daemon::in_directory(directory, options);
    let table = |daemon: &Daemon, name: &str, place: &str| {
        let mut description = daemon.prepare(name);
        let socket = daemon.path(&format!("{place}{name}.sock"));
        description["socket"] = socket.display().to_string().into();
        let pairs = description.as_object().unwrap();
        let lines = pairs
            .iter()
            .map(|(key, value)| format!("{key} = {value}\n"));
        format!("[[vm]]\n{}", lines.collect::<String>())
    };
    write(&(table(&daemon, "a", "") + &table(&daemon, "b", "place/")));
    daemon.kill();
    daemon.restart();
    assert_eq!(names(&daemon), ["a", "b"]);
    assert!(problem(&daemon, "b").contains("make its directory"));
    let mut a = Guest::connect(&daemon, "a");
    a.greet();
    // It moves to where nothing can be: it stays, and its guest does not notice.
    write(&table(&daemon, "a", "place/"));
    let (status, answer) = daemon.status("POST /v1/reload", "");
    assert_eq!(status, 409, "{answer}");
    assert_eq!(names(&daemon), ["a"]);
    assert!(problem(&daemon, "a").contains("served as before"));
    a.greet();
    std::fs::create_dir(&place).unwrap();
    daemon.call("POST /v1/reload", "");
    assert_eq!(problem(&daemon, "a"), "");
    assert!(place.join("a.sock").exists() && !daemon.path("a.sock").exists());
    // One that waits for another's socket stays where it is when that one does.
    write(&(table(&daemon, "a", "place/") + &table(&daemon, "b", "place/")));
    daemon.call("POST /v1/reload", "");
    let follows = table(&daemon, "a", "place/").replace("a.sock", "b.sock");
    write(&(follows + &table(&daemon, "b", "missing/")));
    let (status, answer) = daemon.status("POST /v1/reload", "");
    assert_eq!(status, 409, "{answer}");
    for name in ["a", "b"] {
        assert!(problem(&daemon, name).contains("served as before"));
        let memory = ["fmem", "smem"].map(|node| daemon.path(&format!("{name}.{node}")));
        Guest::at(name, &place.join(format!("{name}.sock")), &memory).greet();
    }
}

/// The daemon's last words; it shall not start.
fn refused(words: &[&str]) -> String {
    let output = Command::new(program())
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn nothing_of_others_is_deleted_for_a_machines_socket() {
    let daemon = Daemon::start(&["a"], &[]);
    let at = |name: &str| daemon.path(name).display().to_string();
    let vm = |socket: &str| format!("x,socket={},fmem={}", at(socket), at("a.fmem"));
    std::fs::write(daemon.path("precious"), "precious").unwrap();
    let other = at("other");
    // A daemon that starts even so is ended by whoever asked for this limit.
    for socket in ["precious", "a.sock"] {
        let words = ["60", "--control", &other, "--vm", &vm(socket)];
        let output = Command::new("timeout")
            .arg(words[0])
            .arg(program())
            .args(&words[1..])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{socket}: {said}");
        assert!(said.contains("next:"), "{said}");
    }
    let text = std::fs::read_to_string(daemon.path("precious")).unwrap();
    assert_eq!(text, "precious");
    Guest::connect(&daemon, "a").greet();
    let said = refused(&["--control", &other, "--vm", &vm("s"), "--socket-mode", "rw"]);
    assert!(said.contains("octal"), "{said}");
}

#[test]
fn a_state_has_one_daemon() {
    let mut daemon = Daemon::start(&["a"], &[]);
    let at = |name: &str| daemon.path(name).display().to_string();
    let (control, state) = (at("other-control"), at("state"));
    let words = ["60", "--control", &control, "--state-dir", &state];
    let output = Command::new("timeout")
        .arg(words[0])
        .arg(program())
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("another daemon (process") && said.contains("another --state-dir"),
        "{said}"
    );
    assert!(!daemon.path("other-control").exists());
    // The first one does not notice, and has its state again however it ended.
    let added = daemon.prepare("b").to_string();
    assert_eq!(daemon.status("POST /v1/vms", &added).0, 201);
    daemon.kill();
    daemon.restart();
    assert_eq!(names(&daemon), ["a", "b"]);
}

#[test]
fn a_machine_that_goes_in_mid_resize_ends_the_wait_for_it() {
    let daemon = empty(&[]);
    for name in ["a", "b"] {
        let description = daemon.prepare(name).to_string();
        assert_eq!(daemon.status("POST /v1/vms", &description).0, 201);
    }
    let mut a = Guest::connect(&daemon, "a");
    a.greet();
    let mut b = Guest::connect(&daemon, "b");
    b.greet();
    let wish = r#"{"size_bytes": 2097152, "wait_ms": 60000}"#;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| daemon.status("PUT /v1/vms/b/tiers/smem", wish));
        // The guest was told, and does nothing.
        let mut request = None;
        until("b was told", || {
            request = b.poll_request();
            request.is_some()
        });
        assert!(!waits.is_finished());
        assert_eq!(daemon.status("DELETE /v1/vms/b", "").0, 204);
        let began = Instant::now();
        let (status, answer) = waits.join().unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "it waits on");
        assert_eq!(status, 404, "{answer}");
        assert!(answer.contains("no machine 'b'"), "{answer}");
    });
    let (status, answer) = daemon.status("PUT /v1/vms/b/tiers/smem", wish);
    assert_eq!(status, 404, "{answer}");
    // Others are served, and one of that name begins anew: nothing is wanted of it.
    a.greet();
    drop(b);
    let description = daemon.prepare("b").to_string();
    assert_eq!(daemon.status("POST /v1/vms", &description).0, 201);
    let mut b = Guest::connect(&daemon, "b");
    b.greet();
    let view = daemon.view("b");
    assert_eq!(view["tiers"][1]["wanted_size_bytes"], Value::Null, "{view}");
    assert_eq!(view["tiers"][1]["busy"], false, "{view}");
    assert!(b.poll_request().is_none());
}

#[test]
fn monitors_of_another_user_can_connect_if_that_is_wanted() {
    let mode = |daemon: &Daemon, name: &str| {
        let metadata = daemon.path(name).metadata().unwrap();
        metadata.permissions().mode() & 0o777
    };
    let closed = Daemon::start(&["a"], &[]);
    assert_eq!(mode(&closed, "a.sock"), 0o600);
    let open = Daemon::start(&["a"], &["--socket-mode", "0660"]);
    assert_eq!(mode(&open, "a.sock"), 0o660);
    assert_eq!(mode(&open, "control"), 0o600);
}

/// A monitor as QMP shows it: with a device whose daemon is gone. Says what it was
/// told to do.
fn monitor(listener: &UnixListener, socket: String, said: &mpsc::Sender<String>) {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer: UnixStream = stream;
    let mut send = |value: Value| writeln!(writer, "{value}");
    send(json!({"QMP": {}})).unwrap();
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap_or(0) > 0 {
        let command: Value = serde_json::from_str(&line).unwrap();
        line.clear();
        let arguments = &command["arguments"];
        let name = command["execute"].as_str().unwrap();
        let answer = match (name, arguments["property"].as_str()) {
            ("qom-get", Some("type")) => json!("vhost-user-test-device-pci"),
            ("qom-get", Some("parent_bus")) => json!("/machine/peripheral/port0/port0"),
            ("qom-get", Some("chardev")) => json!("balloon-socket"),
            ("qom-get", _) => json!(4),
            ("query-chardev", _) => json!([{
                "label": "balloon-socket",
                "filename": format!("disconnected:unix:{socket}"),
            }]),
            _ => json!({}),
        };
        if send(json!({"return": answer})).is_err() {
            return;
        }
        if name == "device_del" {
            let data = json!({"device": "balloon0"});
            send(json!({"event": "DEVICE_DELETED", "data": data})).unwrap();
        }
        if name == "chardev-add" {
            let address = &arguments["backend"]["data"]["addr"];
            assert_eq!(address["data"]["path"], socket.as_str());
        }
        if !["qmp_capabilities", "qom-get", "query-chardev"].contains(&name) {
            said.send(name.to_owned()).unwrap();
        }
    }
}

#[test]
fn a_restarted_daemon_plugs_its_devices_in_by_itself() {
    let mut daemon = empty(&[]);
    let mut description = daemon.prepare("a");
    description["qmp"] = daemon.path("qmp").display().to_string().into();
    let (status, answer) = daemon.status("POST /v1/vms", &description.to_string());
    assert_eq!(status, 201, "{answer}");
    // The first daemon tries, too: it must be gone before there is anybody to talk to.
    daemon.kill();
    let listener = UnixListener::bind(daemon.path("qmp")).unwrap();
    let socket = daemon.path("a.sock").display().to_string();
    let (said, told) = mpsc::channel();
    let thread = std::thread::spawn(move || monitor(&listener, socket, &said));
    daemon.restart();
    let commands: Vec<String> = (0..4)
        .map(|_| told.recv_timeout(LIMIT).expect("it does not"))
        .collect();
    let wanted = ["device_del", "chardev-remove", "chardev-add", "device_add"];
    assert_eq!(commands, wanted);
    thread.join().unwrap();
    Guest::connect(&daemon, "a").greet();
}
