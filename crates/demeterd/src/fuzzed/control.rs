// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes that arrive at the control interface, as a person, a program or a stranger may
//! send them: the real routes, fleet and HTTP, with a pipe in place of the socket. The
//! machine's worker is a thread, and it has no driver.
//!
//! One thing is not let through: a machine whose socket or monitor would be elsewhere than
//! in this target's own directory, since the daemon does as it is told.

use std::cell::RefCell;
use std::fs::File;
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use demeter_balloon::view::PolicyView;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::args;
use crate::control;
use crate::fleet::Fleet;
use crate::spec::{Description, Socket};

/// Who asks to wait longer does not hold up the next input.
const LIMIT: Duration = Duration::from_millis(50);
const PIPE_BYTES: usize = 1 << 20;
const TIER_BYTES: u64 = 64 << 12;

struct Ground {
    directory: tempfile::TempDir,
    runtime: Runtime,
    fleet: Arc<Fleet>,
    policy: PolicyView,
}

thread_local! {
    static GROUND: RefCell<Option<Ground>> = const { RefCell::new(None) };
}

impl Ground {
    fn new() -> Self {
        let directory = super::directory();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let (runtime, text) = (
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build(),
            format!(
                "isolation = \"none\"\n[[vm]]\nname = \"a\"\nsocket = \"{}\"\nfmem = \"{}\"\nsmem = \"{}\"\n",
                at("a.sock"),
                at("a.fmem"),
                at("a.smem")
            ),
        );
        for name in ["a.fmem", "a.smem"] {
            let file = File::create(at(name)).expect("a memory file");
            file.set_len(TIER_BYTES).expect("room");
        }
        std::fs::write(at("config"), &text).expect("room for a file");
        let settings = args::settings_of("config".as_ref(), &text).expect("a right file");
        let policy = settings.policy.clone();
        let fleet = Arc::new(Fleet::start(settings, None).expect("a fleet"));
        Self {
            policy,
            fleet,
            runtime: runtime.expect("a runtime"),
            directory,
        }
    }

    /// As it was before any request, so that an input does the same every time.
    fn clear(&self) {
        for vm in self.fleet.vms() {
            let _ = self.fleet.remove(&vm.spec.name);
        }
        self.fleet
            .set_policy(&self.policy)
            .expect("the first policy");
    }
}

/// How many requests were answered.
pub fn run(data: &[u8]) -> u64 {
    GROUND.with_borrow_mut(|ground| {
        let ground = ground.get_or_insert_with(Ground::new);
        let answer = ground.runtime.block_on(ask(ground, data));
        ground.clear();
        let answer = String::from_utf8_lossy(&answer);
        // "Report it" is for what cannot happen.
        assert!(!answer.contains("HTTP/1.1 500"), "{answer}");
        answer.matches("HTTP/1.1 ").count() as u64
    })
}

async fn ask(ground: &Ground, data: &[u8]) -> Vec<u8> {
    let (mut peer, ours) = tokio::io::duplex(PIPE_BYTES);
    let arguments = Arc::new(args::with_config(&ground.directory.path().join("config")));
    let inside: PathBuf = ground.directory.path().to_owned();
    let routes = control::routes(ground.fleet.clone(), arguments).layer(middleware::from_fn(
        move |request, next| only_inside(inside.clone(), request, next),
    ));
    let mut answer = Vec::new();
    let asked = async {
        peer.write_all(data).await?;
        peer.shutdown().await?;
        peer.read_to_end(&mut answer).await
    };
    let served = async { axum::serve(Once(Some(ours)), routes).await };
    let _ = timeout(LIMIT, async {
        tokio::select! {
            asked = asked => asked.map(|_| ()),
            served = served => served,
        }
    })
    .await;
    answer
}

/// A listener with one visitor.
struct Once(Option<DuplexStream>);

impl Listener for Once {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        match self.0.take() {
            Some(stream) => (stream, ()),
            None => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

async fn only_inside(directory: PathBuf, request: Request, next: Next) -> Response {
    if request.method() != Method::POST || request.uri().path() != "/v1/vms" {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, 64 << 10).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    if is_elsewhere(&directory, &body) {
        return StatusCode::FORBIDDEN.into_response();
    }
    next.run(Request::from_parts(parts, Body::from(body))).await
}

fn is_elsewhere(directory: &Path, body: &[u8]) -> bool {
    let Ok(description) = serde_json::from_slice::<Description>(body) else {
        // The call itself reads it the same way, and refuses.
        return false;
    };
    let Ok(spec) = description.finish(&std::collections::BTreeMap::new()) else {
        return false;
    };
    let is_inside = match &spec.socket {
        Socket::Path(path) => path.parent() == Some(directory),
        Socket::Descriptor(_) => false,
    };
    !is_inside || spec.qmp.is_some()
}
