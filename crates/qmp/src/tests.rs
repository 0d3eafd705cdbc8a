// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Monitors that say too much, or never what was asked for.

use super::*;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::channel;
use std::thread;

/// A monitor that greets, takes the first command, and then does as `body` says.
fn monitor(
    body: impl FnOnce(&mut UnixStream) -> std::io::Result<()> + Send + 'static,
) -> (tempfile::TempDir, Qmp) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qmp");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        writeln!(stream, "{}", json!({"QMP": {}})).unwrap();
        lines.next().unwrap().unwrap();
        writeln!(stream, "{}", json!({"return": {}})).unwrap();
        // Until nobody listens any more.
        let _ = body(&mut stream);
        lines.for_each(drop);
    });
    let qmp = Qmp::connect(&path, || false).unwrap();
    (directory, qmp)
}

/// What a command brings, which must be over in time.
fn within(mut qmp: Qmp, body: fn(&mut Qmp) -> QmpError) -> QmpError {
    let (done, ends) = channel();
    thread::spawn(move || done.send(body(&mut qmp)).unwrap());
    (ends.recv_timeout(Duration::from_secs(20))).expect("it waits for ever")
}

fn event(text: &str) -> Value {
    json!({"event": "RTC_CHANGE", "data": {"text": text}})
}

fn ask(qmp: &mut Qmp) -> QmpError {
    qmp.try_execute("query-status", &json!({})).unwrap_err()
}

#[test]
fn events_instead_of_an_answer_have_an_end_in_time() {
    let (_directory, mut qmp) = monitor(|stream| {
        loop {
            writeln!(stream, "{}", event("tick"))?;
            thread::sleep(Duration::from_millis(20));
        }
    });
    qmp.patience = Duration::from_millis(300);
    assert!(matches!(within(qmp, ask), QmpError::Slow(_)));
}

#[test]
fn a_line_that_comes_byte_by_byte_has_an_end_in_time() {
    let (_directory, mut qmp) = monitor(|stream| {
        loop {
            stream.write_all(b" ")?;
            thread::sleep(Duration::from_millis(20));
        }
    });
    qmp.patience = Duration::from_millis(300);
    assert!(matches!(within(qmp, ask), QmpError::Slow(_)));
}

#[test]
fn events_are_kept_up_to_a_number() {
    let (_directory, qmp) = monitor(|stream| {
        for _ in 0..=MAX_EVENTS {
            writeln!(stream, "{}", event("tick"))?;
        }
        writeln!(stream, "{}", json!({"return": {}}))
    });
    assert!(matches!(within(qmp, ask), QmpError::Flood));
}

#[test]
fn events_are_kept_up_to_a_length() {
    let (_directory, qmp) = monitor(|stream| {
        let long = event(&"x".repeat(MAX_EVENT_BYTES / 8));
        for _ in 0..9 {
            writeln!(stream, "{long}")?;
        }
        writeln!(stream, "{}", json!({"return": {}}))
    });
    assert!(matches!(within(qmp, ask), QmpError::Flood));
}

/// Each of its words is many times as long as a value.
#[test]
fn a_line_is_no_longer_than_an_answer_can_be() {
    let (_directory, qmp) = monitor(|stream| {
        let zeros = vec!["0"; 150 << 10].join(",");
        writeln!(stream, "[{zeros}]")?;
        writeln!(stream, "{}", json!({"return": {}}))
    });
    let words = "QEMU's answer has no end";
    assert_eq!(within(qmp, ask).to_string(), words);
}

#[test]
fn an_answer_that_is_no_object_says_nothing() {
    let (_directory, mut qmp) = monitor(|stream| {
        for _ in 0..2 {
            writeln!(stream, "[1]\n\"return\"")?;
        }
        Ok(())
    });
    for _ in 0..4 {
        assert_eq!(
            qmp.execute("query-status", &json!({})).unwrap(),
            json!(null)
        );
    }
}

#[test]
fn of_an_event_its_name_and_device_are_kept() {
    let (_directory, mut qmp) = monitor(|stream| {
        let zeros = vec![0; 1000];
        let odd = json!({"event": "A", "data": zeros, "device": "b"});
        let known = json!({"event": "C", "data": {"device": "d", "more": zeros}});
        writeln!(stream, "{odd}")?;
        writeln!(stream, "{known}")?;
        writeln!(stream, "{}", json!({"return": 7}))
    });
    assert_eq!(qmp.execute("query-status", &json!({})).unwrap(), json!(7));
    let kept = |name: &str, device: Option<&str>| Event {
        name: name.into(),
        device: device.map(str::to_owned),
    };
    assert_eq!(qmp.events, [kept("A", None), kept("C", Some("d"))]);
    qmp.wait_event(|event| event.device.as_deref() == Some("d"))
        .unwrap();
}

#[test]
fn an_event_that_does_not_come_has_an_end_in_time() {
    let (_directory, mut qmp) = monitor(|stream| {
        loop {
            writeln!(stream, "{}", event("tick"))?;
        }
    });
    qmp.patience = Duration::from_millis(300);
    let ended = within(qmp, |qmp| qmp.wait_event(|_| false).unwrap_err());
    assert!(matches!(ended, QmpError::Unfinished), "{ended}");
}

#[test]
fn a_refusal_has_its_class_and_words() {
    let (_directory, mut qmp) = monitor(|stream| {
        let error = json!({"class": "DeviceNotFound", "desc": "no such thing"});
        writeln!(stream, "{}", json!({"error": error}))
    });
    let answer = qmp.try_execute("device_del", &json!({})).unwrap();
    let refusal = answer.unwrap_err();
    assert!(refusal.is_not_found());
    assert_eq!(refusal.to_string(), "no such thing");
}

#[test]
fn whoever_may_not_connect_is_told_so() {
    let error = QmpError::Connect {
        path: "/run/q".into(),
        cause: std::io::ErrorKind::PermissionDenied.into(),
    };
    assert!(error.next().contains("ls -l /run/q"), "{}", error.next());
}
