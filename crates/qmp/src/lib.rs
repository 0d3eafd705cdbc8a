// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU's machine protocol, as far as taking a balloon's device out and putting it
//! in needs it.

mod error;
mod plug;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use error::QmpError;
pub use plug::{Place, Plug};

/// A monitor that says nothing for so long has a problem.
const SILENCE: Duration = Duration::from_secs(30);
/// No message of QEMU is longer.
const MAX_LINE_BYTES: usize = 8 << 20;

/// A connection.
pub struct Qmp {
    stream: BufReader<UnixStream>,
    events: VecDeque<Value>,
    interrupted: fn() -> bool,
}

impl Qmp {
    /// Connects and ends the greeting. What waits ends when `interrupted` says so.
    ///
    /// # Errors
    /// Nobody is there, or speaks something else.
    pub fn connect(path: &Path, interrupted: fn() -> bool) -> Result<Self, QmpError> {
        let stream = UnixStream::connect(path)
            .and_then(|stream| stream.set_read_timeout(Some(SILENCE)).map(|()| stream))
            .map_err(|cause| QmpError::Connect {
                path: path.to_path_buf(),
                cause,
            })?;
        let mut qmp = Self {
            stream: BufReader::new(stream),
            events: VecDeque::new(),
            interrupted,
        };
        qmp.message()?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    fn message(&mut self) -> Result<Value, QmpError> {
        let mut line = Vec::new();
        loop {
            if (self.interrupted)() {
                return Err(QmpError::Interrupted);
            }
            let part = self.stream.fill_buf().map_err(QmpError::Silent)?;
            if part.is_empty() {
                return Err(QmpError::Closed);
            }
            let end = part.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(part.len(), |end| end + 1);
            line.extend_from_slice(&part[..taken]);
            self.stream.consume(taken);
            if line.len() > MAX_LINE_BYTES {
                return Err(QmpError::Endless);
            }
            if end.is_some() {
                break;
            }
        }
        Ok(serde_json::from_slice(&line)?)
    }

    /// Executes a command. The inner error is QEMU's own.
    ///
    /// # Errors
    /// The connection does not work.
    pub fn try_execute(
        &mut self,
        command: &str,
        arguments: &Value,
    ) -> Result<Result<Value, String>, QmpError> {
        let mut text = json!({"execute": command, "arguments": arguments}).to_string();
        text.push('\n');
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .map_err(QmpError::Deaf)?;
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
    ///
    /// # Errors
    /// It does not, or the connection does not work.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        self.try_execute(command, arguments)?
            .map_err(|words| QmpError::Refused {
                command: command.to_owned(),
                words,
            })
    }

    /// Waits for an event; some may have come already.
    ///
    /// # Errors
    /// It does not come, or the connection does not work.
    pub fn wait_event(&mut self, wanted: impl Fn(&Value) -> bool) -> Result<(), QmpError> {
        let limit = Instant::now() + SILENCE;
        loop {
            while let Some(event) = self.events.pop_front() {
                if wanted(&event) {
                    return Ok(());
                }
            }
            if Instant::now() > limit {
                return Err(QmpError::Unfinished);
            }
            let message = self.message()?;
            if message.get("event").is_some() {
                self.events.push_back(message);
            }
        }
    }
}
