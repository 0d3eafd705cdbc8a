// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who holds a machine's socket against others, and for how long.

use super::*;

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Instant;

use vhost::VhostBackend;
use vhost::vhost_user::Frontend;

use crate::pair;
use crate::sockets::Access;

/// Of these tests: a monitor has a minute.
const PATIENCE: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);

/// A machine that is served, without a worker.
struct Served {
    directory: tempfile::TempDir,
    server: Server,
}

impl Served {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let guest = pair::driven_with(directory.path(), "memory", "").guest;
        guest.disconnected();
        let listener = sockets::listen(&directory.path().join("socket"), Access::OWNER).unwrap();
        let server = start(guest, listener, PATIENCE).unwrap();
        Self { directory, server }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn connect(&self) -> UnixStream {
        connect(&self.socket())
    }

    /// One who asks as soon as it is served, and says when that was.
    fn wait(&self) -> Receiver<Instant> {
        let (stream, (served, is_served)) = (self.connect(), channel());
        thread::spawn(move || {
            if monitor(&stream).get_features().is_ok() {
                let _ = served.send(Instant::now());
            }
        });
        is_served
    }
}

fn connect(socket: &std::path::Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn monitor(stream: &UnixStream) -> Frontend {
    Frontend::from_stream(stream.try_clone().unwrap(), 4)
}

fn is_hung_up(mut stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0]) {
        Ok(0) => true,
        other => {
            let kind = other.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::WouldBlock));
            false
        }
    }
}

/// QEMU connects before it allocates the guest's memory, and speaks after it.
#[test]
fn who_says_nothing_is_served_until_somebody_else_wants_to_be() {
    let [wanted, alone, greeted] = [(); 3].map(|()| Served::start());
    let began = Instant::now();
    let silent = [&wanted, &alone].map(Served::connect);
    // That allocation may take longer than anybody is waited for who says nothing.
    let spoken = greeted.connect();
    monitor(&spoken).get_features().unwrap();
    let _another = greeted.connect();
    let served = wanted.wait().recv_timeout(LIMIT);
    let served = served.expect("it waits for ever");
    assert!(served - began >= PATIENCE, "it was hung up on at once");
    assert!(is_hung_up(&silent[0]), "it is there yet");
    thread::sleep(PATIENCE);
    // Nobody else wants to be served there.
    assert!(!is_hung_up(&silent[1]), "it was hung up on");
    assert!(!is_hung_up(&spoken), "it has spoken");
    for served in [wanted, alone, greeted] {
        served.server.stop();
    }
}
