// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics on TCP, if the operator wants them there. Whoever can connect is a stranger: he
//! is served nothing that changes anything, and one who connects and says nothing, or reads
//! nothing, is let go before he uses up what guests need.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

use crate::control;
use crate::error::Error;
use crate::fleet::Fleet;

/// Connections that are served at once; others wait.
const MOST: usize = 16;
/// A connection ends after so long, whatever it is doing: Prometheus comes again.
const LIMIT: Duration = Duration::from_secs(30);

/// Listens.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|cause| Error::Metrics { address, cause })?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "metrics are there for everybody who can connect");
    }
    Ok(listener)
}

/// Serves for ever.
pub async fn serve(listener: TcpListener, fleet: Arc<Fleet>) {
    let few = Few::new(listener, LIMIT);
    if let Err(error) = axum::serve(few, control::public_routes(fleet)).await {
        tracing::error!("metrics are served no more: {error}");
    }
}

/// A listener with a bounded number of connections.
struct Few {
    listener: TcpListener,
    places: Arc<Semaphore>,
    limit: Duration,
}

impl Few {
    fn new(listener: TcpListener, limit: Duration) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(MOST)),
            limit,
        }
    }
}

impl Listener for Few {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        // Nobody closes the semaphore.
        let place = self.places.clone().acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let visit = Visit {
            stream,
            ends: Box::pin(sleep(self.limit)),
            _place: place,
        };
        (visit, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends in time.
struct Visit {
    stream: TcpStream,
    ends: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Visit {
    /// The stream, unless time is up.
    fn stream(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        match self.ends.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(Pin::new(&mut self.stream)),
        }
    }
}

impl AsyncRead for Visit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream(context)?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream as Peer;

    use axum::Router;
    use axum::routing::get;

    fn ask(address: SocketAddr) -> String {
        let mut peer = Peer::connect(address).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        write!(
            peer,
            "GET / HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).unwrap();
        answer
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn strangers_who_say_nothing_do_not_keep_others_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let few = Few::new(listener, Duration::from_millis(500));
        let routes = Router::new().route("/", get(|| async { "here" }));
        tokio::spawn(async move { axum::serve(few, routes).await });
        let asked = tokio::task::spawn_blocking(move || {
            let silent: Vec<Peer> = (0..2 * MOST)
                .map(|_| Peer::connect(address).unwrap())
                .collect();
            let answer = ask(address);
            drop(silent);
            answer
        });
        assert!(asked.await.unwrap().ends_with("here"));
    }
}
