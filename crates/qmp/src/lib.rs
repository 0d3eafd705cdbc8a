// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU's machine protocol, as far as taking a balloon's device out and putting it
//! in needs it.

mod error;
mod plug;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use error::{QmpError, Refusal};
pub use plug::{Place, Plug};

/// A monitor that says nothing for so long has a problem.
const SILENCE: Duration = Duration::from_secs(30);
/// No message that we ask for, or wait for, is longer: the longest is the list of chardevs
/// (`query-chardev`), some 200 bytes each; all others are a word or a number. As a value a line
/// takes up to a hundred times its length.
const MAX_LINE_BYTES: usize = 256 << 10;

/// Events that wait for somebody to ask for them: a machine has a few a minute.
const MAX_EVENTS: usize = 1024;
/// All of them together, as they came.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// An event, as far as somebody may wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What has happened.
    pub name: String,
    /// The device that it has happened to.
    pub device: Option<String>,
}

impl Event {
    /// What is kept of a message; none: it is no event.
    fn of(message: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let name = message.get("event")?;
        Some(Self {
            name: text(name).unwrap_or_default(),
            device: text(&message["data"]["device"]),
        })
    }
}

/// A connection.
pub struct Qmp {
    stream: BufReader<UnixStream>,
    events: VecDeque<Event>,
    event_bytes: usize,
    patience: Duration,
    interrupted: fn() -> bool,
}

impl Qmp {
    /// Connects and ends the greeting. What waits ends when `interrupted` says so.
    ///
    /// # Errors
    /// Nobody is there, or speaks something else.
    pub fn connect(path: &Path, interrupted: fn() -> bool) -> Result<Self, QmpError> {
        let stream = UnixStream::connect(path)
            .and_then(|stream| stream.set_write_timeout(Some(SILENCE)).map(|()| stream))
            .map_err(|cause| QmpError::Connect {
                path: path.to_path_buf(),
                cause,
            })?;
        let mut qmp = Self {
            stream: BufReader::new(stream),
            events: VecDeque::new(),
            event_bytes: 0,
            patience: SILENCE,
            interrupted,
        };
        let limit = qmp.limit();
        qmp.message(limit)?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    fn limit(&self) -> Instant {
        Instant::now() + self.patience
    }

    /// The next message, whole before `limit`; its length too.
    fn message(&mut self, limit: Instant) -> Result<(Value, usize), QmpError> {
        let mut line = Vec::new();
        loop {
            if (self.interrupted)() {
                return Err(QmpError::Interrupted);
            }
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(QmpError::Slow(self.patience));
            }
            (self.stream.get_ref().set_read_timeout(Some(left))).map_err(QmpError::Silent)?;
            let patience = self.patience;
            let part = self.stream.fill_buf().map_err(|cause| match cause.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => QmpError::Slow(patience),
                _ => QmpError::Silent(cause),
            })?;
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
        Ok((serde_json::from_slice(&line)?, line.len()))
    }

    /// Keeps an event for whoever waits for it.
    fn keep(&mut self, event: Event, bytes: usize) -> Result<(), QmpError> {
        self.event_bytes += bytes;
        if self.events.len() == MAX_EVENTS || self.event_bytes > MAX_EVENT_BYTES {
            return Err(QmpError::Flood);
        }
        self.events.push_back(event);
        Ok(())
    }

    /// Executes a command. The inner error is QEMU's own.
    ///
    /// # Errors
    /// The connection does not work.
    pub fn try_execute(
        &mut self,
        command: &str,
        arguments: &Value,
    ) -> Result<Result<Value, Refusal>, QmpError> {
        let mut text = json!({"execute": command, "arguments": arguments}).to_string();
        text.push('\n');
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .map_err(QmpError::Deaf)?;
        let limit = self.limit();
        loop {
            let (mut message, bytes) = self.message(limit)?;
            if let Some(event) = Event::of(&message) {
                self.keep(event, bytes)?;
            } else if let Some(error) = message.get("error") {
                let text =
                    |key: &str, without: &str| error[key].as_str().unwrap_or(without).to_owned();
                return Ok(Err(Refusal {
                    class: text("class", "GenericError"),
                    words: text("desc", "no reason given"),
                }));
            } else {
                // Of what is no object nothing may be taken by its name.
                let answer = message.get_mut("return");
                return Ok(Ok(answer.map(Value::take).unwrap_or_default()));
            }
        }
    }

    /// Executes a command that must succeed.
    ///
    /// # Errors
    /// It does not, or the connection does not work.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        self.try_execute(command, arguments)?
            .map_err(|refusal| QmpError::Refused {
                command: command.to_owned(),
                refusal,
            })
    }

    /// Waits for an event; some may have come already.
    ///
    /// # Errors
    /// It does not come, or the connection does not work.
    pub fn wait_event(&mut self, wanted: impl Fn(&Event) -> bool) -> Result<(), QmpError> {
        let limit = self.limit();
        loop {
            while let Some(event) = self.events.pop_front() {
                if wanted(&event) {
                    return Ok(());
                }
            }
            // Nobody waits for those.
            self.event_bytes = 0;
            let (message, bytes) = match self.message(limit) {
                Err(QmpError::Slow(_)) => return Err(QmpError::Unfinished),
                message => message?,
            };
            if let Some(event) = Event::of(&message) {
                self.keep(event, bytes)?;
            }
        }
    }
}

#[cfg(test)]
mod tests;
