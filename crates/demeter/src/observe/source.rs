// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a state comes from: this machine's module, or a guest that tells of its own.

use std::future::Future;
use std::time::Duration;

use demeter_observe::{Module, State};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::endpoint::Endpoint;
use super::serve::STATUS;
use crate::error::{Advice, Error};

/// A guest that does not answer for so long is taken for dead.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a guest says nothing.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error("cannot reach {endpoint}: {cause}")]
    Unreachable {
        endpoint: String,
        cause: std::io::Error,
    },
    #[error("{endpoint} tells nothing of a guest: {cause}")]
    Strange { endpoint: String, cause: String },
}

impl Advice for SourceError {
    fn next(&self) -> String {
        let next = match self {
            Self::Unreachable { .. } => "run `demeter metrics --listen` there, in the guest",
            Self::Strange { .. } => {
                "run `demeter metrics --listen` of the same version there, where demeter.ko is loaded"
            }
        };
        next.into()
    }
}

/// Which module is looked at.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Arguments {
    /// Ask `demeter metrics --listen` there, instead of this machine's own module
    #[arg(long, value_name = "PATH|ADDRESS")]
    socket: Option<Endpoint>,
}

impl Arguments {
    /// Its name, for titles.
    pub fn name(&self) -> String {
        (self.socket.as_ref()).map_or_else(|| "this machine".to_owned(), Endpoint::to_string)
    }

    /// Everything it shows.
    pub fn read(&self) -> Result<State, Error> {
        match &self.socket {
            None => Ok(Module::default().read()?),
            Some(endpoint) => ask(endpoint),
        }
    }
}

fn ask(endpoint: &Endpoint) -> Result<State, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| Error::file("start a runtime for", endpoint.to_string(), cause))?;
    runtime.block_on(async {
        let answer = async {
            match endpoint {
                Endpoint::Unix(path) => get(UnixStream::connect(path), endpoint).await,
                Endpoint::Tcp(address) => get(TcpStream::connect(address), endpoint).await,
            }
        };
        tokio::time::timeout(PATIENCE, answer)
            .await
            .unwrap_or_else(|_| Err(strange(endpoint, &"no answer within 10 s")))
    })
}

async fn get<S>(
    connecting: impl Future<Output = std::io::Result<S>>,
    endpoint: &Endpoint,
) -> Result<State, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = connecting.await.map_err(|cause| SourceError::Unreachable {
        endpoint: endpoint.to_string(),
        cause,
    })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| strange(endpoint, &error))?;
    tokio::spawn(connection);
    let request = Request::get(STATUS)
        .header("host", "demeter")
        .body(Empty::<Bytes>::new())
        .map_err(|error| strange(endpoint, &error))?;
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| strange(endpoint, &error))?;
    let status = response.status();
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| strange(endpoint, &error))?
        .to_bytes();
    if !status.is_success() {
        return Err(strange(
            endpoint,
            &String::from_utf8_lossy(&body).trim_end(),
        ));
    }
    serde_json::from_slice(&body).map_err(|error| strange(endpoint, &error))
}

fn strange(endpoint: &Endpoint, cause: &dyn std::fmt::Display) -> Error {
    let (endpoint, cause) = (endpoint.to_string(), cause.to_string());
    SourceError::Strange { endpoint, cause }.into()
}
