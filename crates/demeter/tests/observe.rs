// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `status`, `why`, `metrics` and `top` on a machine without demeter.ko. With it:
//! `tests/suites/observe`.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

fn demeter(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_demeter"))
        .args(arguments)
        .output()
        .expect("demeter starts")
}

/// One line `demeter: error: …; next: …` with these words, and nothing else.
fn assert_one_error(arguments: &[&str], status: i32, words: &str) {
    let output = demeter(arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("demeter: error: "), "{text}");
    assert!(text.contains("; next: ") && text.contains(words), "{text}");
    assert!(output.stdout.is_empty());
}

#[test]
fn without_the_module_each_verb_says_so() {
    if std::path::Path::new("/sys/kernel/mm/demeter").exists() {
        return;
    }
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["why", "1"],
        &["metrics"],
        &["metrics", "--file", "/tmp/demeter-never-made"],
        &["top", "--once"],
    ] {
        assert_one_error(arguments, 1, "is not loaded");
    }
    assert!(!std::path::Path::new("/tmp/demeter-never-made").exists());
}

#[test]
fn wrong_usage_is_refused() {
    for (arguments, words) in [
        (&["why"][..], ""),
        (&["why", "gups"], "gups"),
        (&["metrics", "--every", "5"], "--file"),
        (&["metrics", "--listen", "9400"], "127.0.0.1:9400"),
        (&["metrics", "--listen", "0.0.0.0:0"], "other machines"),
        (&["metrics", "--listen", "/dev/null"], "not a socket"),
        (&["top", "--looks", "3"], "--once"),
        (&["top", "--once", "--size", "1x1"], "100x40"),
        (&["top", "--once", "--interval", "0"], "0.05"),
        (&["top"], "--once"),
    ] {
        assert_one_error(arguments, 2, words);
    }
}

#[test]
fn a_socket_of_something_else_is_told_from_a_guest() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("socket");
    let shown = path.to_str().unwrap();
    assert_one_error(&["status", "--socket", shown], 1, "cannot reach");
    for (answer, words) in [
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
            "missing field",
        ),
        (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\nno module",
            "no module",
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n", "tells nothing of a guest"),
    ] {
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer.as_bytes());
        });
        assert_one_error(&["status", "--socket", shown], 1, words);
        server.join().unwrap();
    }
}
