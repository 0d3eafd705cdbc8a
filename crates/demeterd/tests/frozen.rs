// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A state directory whose disk does not answer: a real file system that is frozen, as `fsfreeze`
//! does before a snapshot. Whoever writes there sleeps where no signal reaches it. And one that
//! is full.

#[path = "rings/model.rs"]
mod model;

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use model::{Daemon, Guest, LIMIT, directory, keys_of, make_memory, program};
use serde_json::{Value, json};

/// A file system of its own: ext4 in a file, or some pages of memory.
struct Disk(PathBuf);

impl Disk {
    /// In that directory, at `state`.
    fn mount(directory: &Path) -> Self {
        let (image, place) = (directory.join("image"), directory.join("state"));
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(16 << 20).unwrap();
        std::fs::create_dir(&place).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(&image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&place));
        Self(place)
    }

    /// Of a few pages, each of which is taken when it is first written to: a line that the last
    /// one does not hold is cut.
    fn mount_small(directory: &Path) -> Self {
        let place = directory.join("state");
        std::fs::create_dir(&place).unwrap();
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "small"])
            .arg(&place));
        Self(place)
    }

    /// Takes what room is left, until it is deleted.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("ballast");
        let mut file = std::fs::File::create(&path).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        path
    }

    fn freeze(&self) -> Frozen<'_> {
        run(Command::new("fsfreeze").arg("-f").arg(&self.0));
        Frozen(&self.0)
    }
}

/// Until this goes. Nobody who waits for a writer may outlive it: not even SIGKILL ends one.
struct Frozen<'a>(&'a Path);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(self.0).status();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

fn until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < limit, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// With `a`, which has more than its share, and `b`.
fn daemon(directory: tempfile::TempDir) -> Daemon {
    daemon_with(directory, &[])
}

fn daemon_with(directory: tempfile::TempDir, more: &[&str]) -> Daemon {
    let mut options: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
    for (name, weight) in [("a", 1), ("b", 1000)] {
        make_memory(directory.path(), name);
        let keys = keys_of(directory.path(), name).map(|(key, path)| format!("{key}={path}"));
        options.push("--vm".to_owned());
        options.push(format!("{name},weight={weight},{}", keys.join(",")));
    }
    Daemon::in_directory(directory, options)
}

fn greeted(daemon: &Daemon, name: &str) -> Guest {
    let mut guest = Guest::connect(daemon, name);
    guest.greet();
    guest
}

#[test]
#[ignore = "mounts a file system: as root, `cargo test -p demeterd --test frozen -- --ignored`"]
fn a_disk_that_does_not_answer_holds_up_neither_guests_nor_the_end() {
    let directory = directory();
    let disk = Disk::mount(directory.path());
    let mut daemon = daemon(directory);
    let divide = |bytes: u64| {
        let wish = json!({"name": "guaranteed", "fmem_pool_bytes": bytes, "interval_ms": 100});
        daemon.call("PUT /v1/policy", &wish.to_string());
    };
    divide(8 << 20);
    let a = greeted(&daemon, "a");
    let _b = greeted(&daemon, "b");
    let wanted_bytes = || daemon.view("a")["tiers"][0]["wanted_size_bytes"].as_u64();
    until("it is promised all", LIMIT, || {
        wanted_bytes() == Some(4 << 20)
    });
    // That is more than its share now, and it pays for it.
    divide(16 << 10);
    let saved = daemon.path("state/accounts.json");
    until("accounts are kept", LIMIT, || saved.exists());
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    let (accounts, ledger) = (text(&saved), text(&daemon.path("state/a.jsonl")));
    let frozen = disk.freeze();
    // Guests come, go and are decided upon.
    drop(a);
    until("it is gone", LIMIT, || {
        daemon.view("a")["stage"] == "waiting"
    });
    let _a = greeted(&daemon, "a");
    let decisions = daemon.counter("demeter_balloon_decisions_total");
    until("it is said not to answer", LIMIT, || {
        daemon.counter("demeter_balloon_state_unanswered_seconds") > 5
    });
    assert!(daemon.counter("demeter_balloon_decisions_total") > decisions + 20);
    // What could not be remembered is refused, in the end at once.
    let wish = json!({"name": "static", "fmem_pool_bytes": 4096, "interval_ms": 100});
    let (status, answer) = daemon.status("PUT /v1/policy", &wish.to_string());
    assert_eq!(status, 503, "{answer}");
    assert!(answer.contains("does not answer"), "{answer}");
    let began = Instant::now();
    let (status, answer) = daemon.status("POST /v1/vms", &daemon.prepare("c").to_string());
    assert_eq!(status, 503, "{answer}");
    assert!(began.elapsed() < Duration::from_secs(4));
    assert_eq!(daemon.call("GET /v1/policy", "")["name"], "guaranteed");
    // It can be read: nobody is taken away for nothing.
    let (status, answer) = daemon.status("POST /v1/reload", "");
    assert_eq!(status, 200, "{answer}");
    assert_eq!(daemon.view("b")["stage"], "driven");
    let began = Instant::now();
    daemon.signal(libc::SIGTERM);
    until("it has ended", LIMIT, || daemon.has_ended());
    println!("ended after {:?}", began.elapsed());
    let log = text(&daemon.path("log"));
    let told = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(told("does not answer: ledgers"), 1, "{log}");
    assert_eq!(told("accounts of guests, the last sizes of a;"), 1, "{log}");
    // Its sockets are closed, and nobody else may write there.
    // A worker lives on until it sees that the daemon does not.
    for socket in ["control", "a.sock"] {
        let kinds = [ErrorKind::ConnectionRefused, ErrorKind::NotFound];
        until(&format!("{socket} is closed"), LIMIT, || {
            UnixStream::connect(daemon.path(socket))
                .is_err_and(|refused| kinds.contains(&refused.kind()))
        });
    }
    let second = Command::new(program())
        .args(["--state-dir", &disk.0.display().to_string()])
        .args(["--control", &daemon.path("other").display().to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("another daemon"), "{said}");
    // What was there is there, and nobody writes any more.
    drop(frozen);
    daemon.wait();
    assert_eq!(text(&saved), accounts);
    let lines = text(&daemon.path("state/a.jsonl"));
    assert!(lines.starts_with(&ledger));
    for line in lines.lines() {
        serde_json::from_str::<Value>(line).expect(line);
    }
    daemon.restart();
    greeted(&daemon, "a");
    daemon.stop();
    assert_ne!(text(&saved), accounts);
}

/// The directory of a service lies below the mount, and no file there can be made.
#[test]
#[ignore = "mounts a file system: as root, `cargo test -p demeterd --test frozen -- --ignored`"]
fn a_daemon_that_starts_on_a_frozen_disk_serves_what_it_knows() {
    let directory = directory();
    let disk = Disk::mount(directory.path());
    std::fs::create_dir(disk.0.join("below")).unwrap();
    let below = disk.0.join("below").display().to_string();
    let mut daemon = daemon_with(directory, &["--state-dir", &below]);
    let added = daemon.prepare("c").to_string();
    assert_eq!(daemon.status("POST /v1/vms", &added).0, 201);
    let _guest = greeted(&daemon, "a");
    daemon.ask("a", "fmem", 3 << 20);
    daemon.stop();
    let frozen = disk.freeze();
    daemon.restart();
    let wanted =
        |daemon: &Daemon, name: &str| daemon.view(name)["tiers"][0]["wanted_size_bytes"].as_u64();
    for name in ["a", "b", "c"] {
        let _guest = greeted(&daemon, name);
        let size_bytes = (name == "a").then_some(3 << 20);
        until("it is known", LIMIT, || {
            size_bytes.is_none() || wanted(&daemon, name) == size_bytes
        });
        daemon.ask(name, "fmem", 2 << 20);
    }
    drop(frozen);
    daemon.stop();
    daemon.restart();
    for name in ["a", "b", "c"] {
        let _guest = greeted(&daemon, name);
        until("its size is", LIMIT, || {
            wanted(&daemon, name) == Some(2 << 20)
        });
    }
}

#[test]
#[ignore = "mounts a file system: as root, `cargo test -p demeterd --test frozen -- --ignored`"]
fn what_waited_for_a_disk_is_written_when_it_answers() {
    let directory = directory();
    let disk = Disk::mount(directory.path());
    let mut daemon = daemon(directory);
    let _guest = greeted(&daemon, "a");
    daemon.ask("a", "fmem", 3 << 20);
    let frozen = disk.freeze();
    for size in 0..400 {
        daemon.ask("a", "fmem", (1 << 20) + 4096 * (size % 16));
    }
    daemon.ask("a", "smem", 1 << 20);
    drop(frozen);
    daemon.stop();
    daemon.restart();
    let _guest = greeted(&daemon, "a");
    let wanted = |tier: usize| daemon.view("a")["tiers"][tier]["wanted_size_bytes"].as_u64();
    until("its sizes are known", LIMIT, || {
        wanted(1) == Some(1 << 20) && wanted(0) == Some((1 << 20) + 4096 * 15)
    });
    let log = std::fs::read_to_string(daemon.path("log")).unwrap();
    assert!(log.contains("entries are left out"), "{log}");
}

/// Who makes room then starts the daemon again, or ends it in order, and is not told to look after
/// permissions.
#[test]
#[ignore = "mounts a file system: as root, `cargo test -p demeterd --test frozen -- --ignored`"]
fn a_daemon_starts_on_a_full_disk_and_what_it_did_not_take_is_written_at_the_end() {
    let directory = directory();
    let disk = Disk::mount_small(directory.path());
    let mut daemon = daemon(directory);
    let guest = greeted(&daemon, "a");
    daemon.ask("a", "fmem", 3 << 20);
    let ledger = daemon.path("state/a.jsonl");
    until("it is written", LIMIT, || {
        std::fs::read_to_string(&ledger)
            .unwrap()
            .contains("3145728")
    });
    let ballast = disk.fill();
    let is_cut = || !std::fs::read(&ledger).unwrap().ends_with(b"\n");
    until("a line is cut", LIMIT, || {
        daemon.ask("a", "smem", 1 << 20);
        daemon.ask("a", "smem", 2 << 20);
        is_cut()
    });
    drop(guest);
    daemon.kill();
    daemon.restart();
    let log = || std::fs::read_to_string(daemon.path("log")).unwrap();
    assert!(log().contains("a.jsonl is not written"), "{}", log());
    let wanted = |daemon: &Daemon, tier: usize| {
        let view = daemon.view("a");
        view["tiers"][tier]["wanted_size_bytes"].as_u64()
    };
    let guest = greeted(&daemon, "a");
    until("its size is known", LIMIT, || {
        wanted(&daemon, 0) == Some(3 << 20)
    });
    daemon.ask("a", "fmem", 2 << 20);
    std::fs::remove_file(&ballast).unwrap();
    daemon.stop();
    drop(guest);
    daemon.restart();
    let _guest = greeted(&daemon, "a");
    until("its last size is", LIMIT, || {
        wanted(&daemon, 0) == Some(2 << 20)
    });
}
