// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The services of packaging/systemd may do what they need, and no more; and the daemon takes
//! what a socket unit passes.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn units() -> [PathBuf; 2] {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    ["demeterd.service", "demeterd@.service"].map(|name| directory.join(name))
}

#[test]
fn a_service_has_no_privileges() {
    for unit in units() {
        let text = std::fs::read_to_string(&unit).unwrap();
        let has = |line: &str| text.lines().any(|other| other == line);
        for line in [
            "DynamicUser=yes",
            "CapabilityBoundingSet=",
            "SystemCallFilter=@system-service",
            "RestrictAddressFamilies=AF_UNIX",
            "OOMPolicy=continue",
        ] {
            assert!(has(line), "{}: {line}", unit.display());
        }
        assert!(!text.contains("CAP_DAC_OVERRIDE") && !text.contains("ReadWritePaths"));
    }
}

/// systemd's own measure: at most 2.0 of 10.
#[test]
fn systemd_finds_the_exposure_low() {
    for unit in units() {
        let analysed = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=20", "--no-pager"])
            .arg(&unit)
            .output();
        match analysed {
            Ok(output) => {
                let words = String::from_utf8_lossy(&output.stdout);
                let last = words.lines().last().unwrap_or_default();
                assert!(output.status.success(), "{}: {last}", unit.display());
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("not checked: there is no systemd-analyze here");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn systemd_reads_the_units() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    // Of an installed program it wants to see the file.
    let place = tempfile::tempdir().unwrap();
    for name in ["demeterd.service", "demeterd@.service", "demeterd.socket"] {
        let text = std::fs::read_to_string(directory.join(name)).unwrap();
        let text = text.replace("/usr/bin/demeterd", env!("CARGO_BIN_EXE_demeterd"));
        std::fs::write(place.path().join(name), text).unwrap();
    }
    let verified = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(
            [
                "demeterd.socket",
                "demeterd.service",
                "demeterd@web.service",
            ]
            .map(|name| place.path().join(name)),
        )
        .output();
    match verified {
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr);
            let ours: Vec<_> = words
                .lines()
                .filter(|line| line.contains("demeterd"))
                .collect();
            assert!(output.status.success() && ours.is_empty(), "{words}");
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("not checked: there is no systemd-analyze here");
        }
        Err(error) => panic!("{error}"),
    }
}

/// As systemd starts a service that a socket unit passes that descriptor to.
fn activated(descriptor: OwnedFd, state: &Path) -> Child {
    let script =
        "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=control exec \"$@\"";
    Command::new("sh")
        .args([
            "-c",
            script,
            "sh",
            env!("CARGO_BIN_EXE_demeterd"),
            "--state-dir",
        ])
        .arg(state)
        .stdin(Stdio::from(descriptor))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Sends a call; its answer comes when somebody serves.
fn call(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    write!(
        stream,
        "GET /v1/policy HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    stream
}

#[test]
fn a_socket_unit_s_calls_wait_while_the_daemon_is_restarted() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, state) = (
        directory.path().join("control"),
        directory.path().join("state"),
    );
    let listener = UnixListener::bind(&socket).unwrap();
    // Before the first start, and between two.
    for _ in 0..2 {
        let mut stream = call(&socket);
        let mut daemon = activated(listener.try_clone().unwrap().into(), &state);
        let mut answer = String::new();
        let answered = stream.read_to_string(&mut answer);
        // SAFETY: to a child that nobody has waited for.
        unsafe { libc::kill(daemon.id() as libc::pid_t, libc::SIGTERM) };
        let ended = daemon.wait().unwrap();
        assert!(
            answered.is_ok() && answer.starts_with("HTTP/1.1 200"),
            "{answer}"
        );
        assert!(ended.success(), "{ended}");
        assert!(socket.exists(), "the service manager's file is removed");
    }
}

#[test]
fn what_does_not_listen_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let refused = activated(ours.into(), &directory.path().join("state"));
    let output = refused.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{words}");
    assert!(
        words.contains("not a Unix socket that listens; next: "),
        "{words}"
    );
}
