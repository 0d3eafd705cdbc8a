// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections of strangers: few at a time, and none for long. One who connects and says
//! nothing, or reads nothing, is let go before he uses up what guests need.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Connections that are served at once; others wait.
const MOST: usize = 16;
/// A connection ends after so long, whatever it is doing: who wants more comes again.
const LIMIT: Duration = Duration::from_secs(30);
/// One that is waited for, until it has said all that it asks (to the end of a request's head), after
/// so long: the first time, and once it is answered.
const SILENCE_LIMIT: Duration = Duration::from_secs(2);

/// A listener with a bounded number of connections.
pub struct Few<L> {
    listener: L,
    places: Arc<Semaphore>,
}

impl<L: Listener> Few<L> {
    /// Of that listener.
    pub fn new(listener: L) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(MOST)),
        }
    }
}

impl<L: Listener> Listener for Few<L>
where
    L::Io: Unpin,
{
    type Io = Visit<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // Nobody closes the semaphore.
        let place = self.places.clone().acquire_owned().await.ok();
        let (stream, address) = self.listener.accept().await;
        let visit = Visit {
            stream,
            ends: Box::pin(sleep(SILENCE_LIMIT)),
            last: Instant::now() + LIMIT,
            stage: Stage::Asks,
            newest: 0,
            _place: place,
        };
        (visit, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// The end of a request's head.
const HEAD_END: u32 = u32::from_be_bytes(*b"\r\n\r\n");
/// The same as the parser takes it, too.
const BARE_END: u32 = u32::from_be_bytes(*b"\0\0\n\n");

/// What a connection is about.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    /// A request's head is waited for.
    Asks,
    /// It has come.
    Asked,
    /// Some of the answer was written.
    Answered,
}

/// A connection that ends in time.
pub struct Visit<S> {
    stream: S,
    ends: Pin<Box<Sleep>>,
    /// It ends then in any case.
    last: Instant,
    stage: Stage,
    /// The newest bytes that were read.
    newest: u32,
    _place: Option<OwnedSemaphorePermit>,
}

impl<S: Unpin> Visit<S> {
    /// The stream, unless time is up.
    fn stream(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut S>> {
        match self.ends.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(Pin::new(&mut self.stream)),
        }
    }

    fn enter(&mut self, stage: Stage) {
        let ends = match stage {
            Stage::Asks => self.last.min(Instant::now() + SILENCE_LIMIT),
            Stage::Asked | Stage::Answered => self.last,
        };
        self.stage = stage;
        self.newest = 0;
        self.ends.as_mut().reset(ends);
    }

    fn hear(&mut self, bytes: &[u8]) {
        for byte in bytes {
            // Empty lines before a request are none.
            if self.newest == 0 && matches!(byte, b'\r' | b'\n') {
                continue;
            }
            self.newest = self.newest << 8 | u32::from(*byte);
            if self.newest == HEAD_END || self.newest & 0xffff == BARE_END {
                return self.enter(Stage::Asked);
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Visit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = self.stream(context)?.poll_read(context, buffer);
        if self.stage == Stage::Asks {
            self.hear(&buffer.filled()[before..]);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Visit<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = self.stream(context)?.poll_write(context, bytes);
        if self.stage != Stage::Answered && matches!(polled, Poll::Ready(Ok(1..))) {
            self.enter(Stage::Answered);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream(context)?.poll_flush(context);
        if self.stage == Stage::Answered && matches!(polled, Poll::Ready(Ok(()))) {
            self.enter(Stage::Asks);
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream as Peer};

    use axum::Router;
    use axum::routing::get;
    use tokio::net::TcpListener;

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
        let few = Few::new(listener);
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

    /// Nor those who begin to ask, or have their answer and stay.
    #[tokio::test(flavor = "multi_thread")]
    async fn who_asks_slowly_or_stays_keeps_nobody_waiting_either() {
        for said in ["G", "\r\n\r\n", "GET / HTTP/1.1\r\nHost: d\r\n\r\n"] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let application = Router::new().route("/", get(|| async { "here" }));
            tokio::spawn(async move { axum::serve(Few::new(listener), application).await });
            let asked = tokio::task::spawn_blocking(move || {
                let began = Instant::now();
                let staying: Vec<Peer> = (0..2 * MOST)
                    .map(|_| {
                        let mut peer = Peer::connect(address).unwrap();
                        peer.write_all(said.as_bytes()).unwrap();
                        peer
                    })
                    .collect();
                let answer = ask(address);
                drop(staying);
                (answer, began.elapsed())
            });
            let (answer, took) = asked.await.unwrap();
            assert!(answer.ends_with("here"), "{said:?}");
            assert!(took < LIMIT, "{said:?}: {took:?}");
        }
    }
}
