// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls of demeterd's control interface.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use demeter_balloon::is_name;
use demeter_balloon::view::Problem;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::error::{Advice, Error};
use crate::interrupt;

/// How often a waiting call looks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(100);

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon says no.
    #[error("{}", .0.error)]
    Refused(Problem),
    /// Nobody is there.
    #[error("cannot reach demeterd at {}: {cause}", control.display())]
    Unreachable {
        /// Its control interface.
        control: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// Somebody else is there, or another version.
    #[error("{} does not answer as demeterd: {cause}", control.display())]
    Strange {
        /// Its control interface.
        control: PathBuf,
        /// What is strange.
        cause: String,
    },
    /// A line that it sent says nothing to us.
    #[error("cannot understand demeterd: {0}")]
    Line(serde_json::Error),
    /// It has gone while it was listened to.
    #[error("demeterd has ended")]
    Ended,
}

impl Advice for ClientError {
    fn next(&self) -> String {
        match self {
            Self::Refused(problem) => problem.next.clone(),
            Self::Unreachable { cause, .. } => unreachable_next(cause.kind()).into(),
            Self::Strange { .. } | Self::Line(_) => "use a demeterd of the same version".into(),
            Self::Ended => "start it again, then `demeter balloon replug --qmp PATH`".into(),
        }
    }
}

/// What to do when nobody can be reached.
fn unreachable_next(cause: io::ErrorKind) -> &'static str {
    match cause {
        // It may well run.
        io::ErrorKind::PermissionDenied => {
            "act as demeterd's user (sudo), whose socket it is, or name another with --control"
        }
        _ => "start demeterd, or name its socket with --control",
    }
}

/// A daemon.
pub struct Client {
    control: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// That listens there.
    pub fn new(control: &Path) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|cause| Error::file("start a runtime for", control, cause))?;
        Ok(Self {
            control: control.to_path_buf(),
            runtime,
        })
    }

    /// Reads.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.call(Method::GET, path, Bytes::new())
    }

    /// Writes.
    pub fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        let body = serde_json::to_vec(body).map_err(|error| self.strange(&error))?;
        self.call(Method::PUT, path, body.into())
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Error> {
        self.interruptible(async {
            let response = self.send(method, path, body).await?;
            let status = response.status();
            let body = response
                .into_body()
                .collect()
                .await
                .map_err(|error| self.strange(&error))?
                .to_bytes();
            if status.is_success() {
                return serde_json::from_slice(&body).map_err(|error| self.strange(&error));
            }
            Err(match serde_json::from_slice::<Problem>(&body) {
                Ok(problem) => ClientError::Refused(problem).into(),
                Err(_) => self.strange(&status),
            })
        })
    }

    /// Hands over a stream of lines until `each` says no.
    pub fn lines(
        &self,
        path: &str,
        mut each: impl FnMut(&[u8]) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        self.interruptible(async {
            let response = self.send(Method::GET, path, Bytes::new()).await?;
            let mut body = response.into_body();
            let mut rest = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| self.strange(&error))?;
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                rest.extend_from_slice(&data);
                while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    if !each(&line[..end])? {
                        return Ok(());
                    }
                }
            }
            Err(ClientError::Ended.into())
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        let stream =
            UnixStream::connect(&self.control)
                .await
                .map_err(|cause| ClientError::Unreachable {
                    control: self.control.clone(),
                    cause,
                })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.strange(&error))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "demeterd")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|error| self.strange(&error))?;
        sender
            .send_request(request)
            .await
            .map_err(|error| self.strange(&error))
    }

    fn strange(&self, cause: &dyn std::fmt::Display) -> Error {
        let cause = cause.to_string();
        let control = self.control.clone();
        ClientError::Strange { control, cause }.into()
    }

    fn interruptible<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.runtime.block_on(async {
            let interrupted = async {
                while !interrupt::raised() {
                    tokio::time::sleep(LOOK).await;
                }
            };
            tokio::select! {
                done = work => done,
                () = interrupted => Err(Error::Interrupted),
            }
        })
    }
}

/// A name as part of a path: anything else would be another path.
pub fn checked_name(name: &str) -> Result<&str, Error> {
    if is_name(name) {
        return Ok(name);
    }
    Err(Error::Usage {
        cause: format!("'{name}' cannot be a guest's name"),
        next: "see the names with `demeter balloon get`".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_may_not_be_reached_is_not_said_to_be_stopped() {
        let next = unreachable_next(io::ErrorKind::PermissionDenied);
        assert!(!next.contains("start demeterd"), "{next}");
        assert!(unreachable_next(io::ErrorKind::NotFound).contains("start demeterd"));
    }

    #[test]
    fn what_the_daemon_would_not_have_is_not_asked_for() {
        assert_eq!(checked_name("web-1").unwrap(), "web-1");
        let long = "x".repeat(65);
        for name in ["", "..", ".hidden", "a/tiers", "a?b", &long] {
            let error = checked_name(name).unwrap_err();
            assert!(matches!(error, Error::Usage { .. }), "{error}");
        }
    }
}
