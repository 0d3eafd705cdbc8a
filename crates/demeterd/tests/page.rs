// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page is there for those with the token only, if somebody wants it at all. What a
//! browser sees of it is the suite `web`'s.

#[path = "rings/model.rs"]
mod model;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use model::{Daemon, LIMIT, directory, program};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A secret, or not quite, for whoever has that mode.
fn token_file(directory: &Path, word: &str, mode: u32) -> String {
    let path = directory.join("token");
    std::fs::write(&path, word).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.display().to_string()
}

/// The daemon's last words; it shall not start.
fn refused(directory: &Path, listen: &str, token_file: &str) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    // A daemon that starts even so is ended by this limit.
    let output = Command::new("timeout")
        .arg("60")
        .arg(program())
        .args(["--control", &at("control"), "--state-dir", &at("state")])
        .args(["--web-listen", listen, "--web-token-file", token_file])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_ne!(output.status.code(), Some(124), "it serves: {said}");
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("; next: "), "{said}");
    said
}

#[test]
fn no_page_without_a_secret() {
    let directory = directory();
    let place = directory.path();
    let listen = place.join("web").display().to_string();
    let said = refused(place, &listen, &token_file(place, TOKEN, 0o644));
    assert!(said.contains("chmod 600"), "{said}");
    let said = refused(place, &listen, &token_file(place, "secret", 0o600));
    assert!(said.contains("/dev/urandom"), "{said}");
    let said = refused(place, &listen, &place.join("none").display().to_string());
    assert!(said.contains("No such file"), "{said}");
    let good = token_file(place, TOKEN, 0o600);
    let said = refused(place, "example.org:80", &good);
    assert!(said.contains("127.0.0.1:9465"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let said = refused(place, &taken.local_addr().unwrap().to_string(), &good);
    assert!(said.contains("another port for [web] listen"), "{said}");
    std::fs::write(place.join("precious"), "precious").unwrap();
    let said = refused(place, &place.join("precious").display().to_string(), &good);
    assert!(said.contains("not a socket"), "{said}");
}

fn status(path: &Path, what: &str, header: &str) -> u16 {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {what} HTTP/1.1\r\nHost: d\r\n{header}\r\n").unwrap();
    let mut answer = String::new();
    // It closes by itself: a browser must not hold places that others wait for.
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn it_is_off_by_default_and_leaves_no_socket_behind() {
    let plain = Daemon::start(&["a"], &[]);
    assert_eq!(plain.status("GET /", "").0, 404);
    assert_eq!(plain.status("GET /page.js", "").0, 404);
    let directory = directory();
    let path = directory.path().join("web");
    let token = token_file(directory.path(), TOKEN, 0o640);
    let options = [
        "--web-listen",
        &path.display().to_string(),
        "--web-token-file",
        &token,
    ];
    let daemon = Daemon::start(&["a"], &options);
    assert_eq!(status(&path, "/", ""), 200);
    assert_eq!(status(&path, "/v1/vms", ""), 401);
    let admitted = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(status(&path, "/v1/vms", &admitted), 200);
    daemon.signal(libc::SIGTERM);
    let began = Instant::now();
    while path.exists() {
        assert!(began.elapsed() < LIMIT, "the socket is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whoever guesses the token, or uses the interface wrongly, is seen.
#[test]
fn what_others_send_wrong_is_counted() {
    let directory = directory();
    let path = directory.path().join("web");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap().to_string();
    drop(port);
    let options = [
        "--web-listen",
        &path.display().to_string(),
        "--web-token-file",
        &token_file(directory.path(), TOKEN, 0o640),
        "--metrics-listen",
        &address,
    ];
    let daemon = Daemon::start(&["a"], &options);
    let wrong_tokens = || daemon.counter("demeter_balloon_wrong_tokens_total");
    assert_eq!(wrong_tokens(), 0);
    let with = |word: &str| format!("Authorization: Bearer {word}\r\n");
    // Without one nobody has guessed.
    assert_eq!(status(&path, "/v1/vms", ""), 401);
    assert_eq!(wrong_tokens(), 0);
    for word in ["guess", "another"] {
        assert_eq!(status(&path, "/v1/vms", &with(word)), 401);
    }
    assert_eq!(wrong_tokens(), 2);
    assert_eq!(status(&path, "/v1/vms", &with(TOKEN)), 200);
    assert_eq!(status(&path, "/v1/vms/none", &with(TOKEN)), 404);
    assert_eq!(status(&path, "/nothing", ""), 404);
    assert_eq!(daemon.status("GET /v1/vms/none", "").0, 404);
    assert_eq!(daemon.status("PATCH /v1/vms", "").0, 405);
    // Of a machine that no monitor has.
    let size = r#"{"size_bytes": 4096}"#;
    assert_eq!(daemon.status("PUT /v1/vms/a/tiers/fmem", size).0, 409);
    assert_eq!(daemon.status("PUT /v1/vms/a/tiers/fmem", "{").0, 400);
    let mut stranger = std::net::TcpStream::connect(&address).unwrap();
    write!(
        stranger,
        "GET /v1/vms HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stranger.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    for (interface, status, count) in [
        ("page", 401, 3),
        ("page", 404, 2),
        ("control", 404, 1),
        ("control", 405, 1),
        ("control", 409, 1),
        ("control", 400, 1),
        ("metrics", 404, 1),
    ] {
        let labels = format!("{{interface=\"{interface}\",status=\"{status}\"}}");
        let counted = daemon.counter(&format!("demeter_balloon_refused_calls_total{labels}"));
        assert_eq!(counted, count, "{labels}");
    }
}
