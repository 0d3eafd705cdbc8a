// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU's machine protocol, as far as a re-plug needs it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::Error;
use crate::interrupt;

/// A monitor that says nothing for so long has a problem.
const SILENCE: Duration = Duration::from_secs(30);
/// No message of QEMU is longer.
const MAX_LINE_BYTES: usize = 8 << 20;

/// A connection.
pub struct Qmp {
    stream: BufReader<UnixStream>,
    events: VecDeque<Value>,
}

fn failed(cause: impl Into<String>) -> Error {
    Error::Daemon {
        cause: cause.into(),
        next: "check the QMP socket and QEMU's log".into(),
    }
}

impl Qmp {
    /// Connects and ends the greeting.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let stream = UnixStream::connect(path)
            .and_then(|stream| stream.set_read_timeout(Some(SILENCE)).map(|()| stream))
            .map_err(|cause| Error::file("connect to", path, cause))?;
        let mut qmp = Self {
            stream: BufReader::new(stream),
            events: VecDeque::new(),
        };
        qmp.message()?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    fn message(&mut self) -> Result<Value, Error> {
        let mut line = Vec::new();
        loop {
            if interrupt::raised() {
                return Err(Error::Interrupted);
            }
            let part = self
                .stream
                .fill_buf()
                .map_err(|cause| failed(format!("QEMU does not answer: {cause}")))?;
            if part.is_empty() {
                return Err(failed("QEMU closed the QMP socket"));
            }
            let end = part.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(part.len(), |end| end + 1);
            line.extend_from_slice(&part[..taken]);
            self.stream.consume(taken);
            if line.len() > MAX_LINE_BYTES {
                return Err(failed("QEMU's answer has no end"));
            }
            if end.is_some() {
                break;
            }
        }
        serde_json::from_slice(&line).map_err(|cause| failed(format!("this is not QMP: {cause}")))
    }

    /// Executes a command. The inner error is QEMU's own.
    pub fn try_execute(
        &mut self,
        command: &str,
        arguments: &Value,
    ) -> Result<Result<Value, String>, Error> {
        let mut text = json!({"execute": command, "arguments": arguments}).to_string();
        text.push('\n');
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .map_err(|cause| failed(format!("QEMU does not listen: {cause}")))?;
        loop {
            let mut message = self.message()?;
            if message.get("event").is_some() {
                self.events.push_back(message);
            } else if let Some(error) = message.get("error") {
                let words = error["desc"].as_str().unwrap_or("no reason given");
                return Ok(Err(words.to_owned()));
            } else {
                return Ok(Ok(message["return"].take()));
            }
        }
    }

    /// Executes a command that must succeed.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, Error> {
        self.try_execute(command, arguments)?
            .map_err(|words| failed(format!("QEMU refused {command}: {words}")))
    }

    /// Waits for an event; some may have come already.
    pub fn wait_event(&mut self, wanted: impl Fn(&Value) -> bool) -> Result<(), Error> {
        let limit = Instant::now() + SILENCE;
        loop {
            while let Some(event) = self.events.pop_front() {
                if wanted(&event) {
                    return Ok(());
                }
            }
            if Instant::now() > limit {
                return Err(failed("QEMU does not finish"));
            }
            let message = self.message()?;
            if message.get("event").is_some() {
                self.events.push_back(message);
            }
        }
    }
}
