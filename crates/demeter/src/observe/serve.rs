// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The endpoint of a guest: metrics for Prometheus, the whole state for `demeter top`.
//! Read-only, and only on this machine: a Unix socket of the owner, or loopback.

use std::convert::Infallible;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use demeter_observe::{Module, metrics};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use super::endpoint::Endpoint;
use crate::error::Error;
use crate::interrupt;

/// Path of the state as JSON.
pub const STATUS: &str = "/v1/status";
/// Path of the metrics.
pub const METRICS: &str = "/metrics";
const LOOK: Duration = Duration::from_millis(100);
/// A client that does not say what it wants for so long is left.
const PATIENCE: Duration = Duration::from_secs(10);

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Serves until interrupted.
pub fn serve(endpoint: &Endpoint) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| Error::file("start a runtime for", endpoint.to_string(), cause))?;
    runtime.block_on(async {
        let listener = listen(endpoint).await?;
        eprintln!("demeter: {METRICS} and {STATUS} on {endpoint}");
        let interrupted = async {
            while !interrupt::raised() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = accept(&listener) => {}
            () = interrupted => {}
        }
        if let Endpoint::Unix(path) = endpoint {
            let _ = std::fs::remove_file(path);
        }
        Ok(())
    })
}

async fn listen(endpoint: &Endpoint) -> Result<Listener, Error> {
    let failed = |cause| Error::file("listen on", endpoint.to_string(), cause);
    match endpoint {
        Endpoint::Tcp(address) if !address.ip().is_loopback() => Err(Error::Usage {
            cause: format!("{address} can be reached from other machines"),
            next: "listen on 127.0.0.1 or a Unix socket, and let something that asks for a \
                   password forward it"
                .into(),
        }),
        Endpoint::Tcp(address) => {
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            Ok(Listener::Tcp(listener))
        }
        Endpoint::Unix(path) => {
            make_way(path)?;
            let listener = UnixListener::bind(path).map_err(failed)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
                .map_err(failed)?;
            Ok(Listener::Unix(listener))
        }
    }
}

/// What an earlier one left there is replaced; anything that is not a socket is not.
fn make_way(path: &Path) -> Result<(), Error> {
    let Ok(metadata) = path.symlink_metadata() else {
        return Ok(());
    };
    let taken = |cause: String| Error::Usage {
        cause,
        next: "choose another path with --listen".into(),
    };
    if !metadata.file_type().is_socket() {
        return Err(taken(format!(
            "{} exists and is not a socket",
            path.display()
        )));
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(taken(format!("another one listens on {}", path.display())));
    }
    std::fs::remove_file(path).map_err(|cause| Error::file("replace", path, cause))
}

async fn accept(listener: &Listener) {
    loop {
        let accepted = match listener {
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| talk(stream)),
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| talk(stream)),
        };
        if accepted.is_err() {
            // Too many open files, for example: it passes.
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn talk<S>(stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        // How it ended only matters to the one who asked.
        let _ = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .serve_connection(TokioIo::new(stream), service_fn(answer))
            .await;
    });
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, METRICS) => told(metrics::CONTENT_TYPE, metrics::text),
        (&Method::GET, STATUS) => told("application/json", serde_json::to_string),
        (&Method::GET, _) => (
            StatusCode::NOT_FOUND,
            PLAIN,
            format!("there are {METRICS} and {STATUS}\n"),
        ),
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            PLAIN,
            "this only tells\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    (response.headers_mut()).insert(
        "content-type",
        hyper::header::HeaderValue::from_static(kind),
    );
    Ok(response)
}

const PLAIN: &str = "text/plain; charset=utf-8";

fn told<E: std::fmt::Display>(
    kind: &'static str,
    tell: impl Fn(&demeter_observe::State) -> Result<String, E>,
) -> (StatusCode, &'static str, String) {
    let cause = match Module::default().read() {
        Ok(state) => match tell(&state) {
            Ok(body) => return (StatusCode::OK, kind, body),
            Err(error) => error.to_string(),
        },
        Err(error) => format!("{error}; next: {}", error.next()),
    };
    (StatusCode::SERVICE_UNAVAILABLE, PLAIN, cause + "\n")
}
