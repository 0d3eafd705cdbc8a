// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page for people, if the operator wants one: what the guests have and why, over time.
//! Whoever can connect is a stranger until he offers the token, is served nothing that
//! changes anything, and holds a connection for a bounded time. The page itself says
//! nothing of any guest: it asks for that with the token that it is given.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::{TcpListener, UnixListener};

use crate::address::{Address, Settings};
use crate::control::{self, Failure};
use crate::error::Error;
use crate::fleet::Fleet;
use crate::refusals::{Interface, Refusals, counted};
use crate::sockets;
use crate::token::Token;
use crate::visits::Few;

/// Its own files and figures, nothing of anybody else, nothing in other pages, and no
/// text that becomes a program.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";
/// Wrong tokens are told in the log at the first, second, fourth, eighth…
const TOLD: fn(u64) -> bool = u64::is_power_of_two;

/// A socket that listens, and who is admitted.
pub struct Page {
    bound: Bound,
    token: Token,
}

enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// Listens.
pub async fn listen(settings: &Settings) -> Result<Page, Error> {
    let token = Token::read(&settings.token_file)?;
    let bound = match &settings.address {
        Address::Tcp(address) => {
            let listener = TcpListener::bind(address).await;
            let address = *address;
            if !address.ip().is_loopback() {
                tracing::warn!(%address, "the page's token crosses the network in clear: put TLS before it");
            }
            Bound::Tcp(listener.map_err(|cause| Error::Web { address, cause })?)
        }
        Address::Unix(path) => {
            let listener = sockets::listen(path, settings.access)?;
            let listener = (listener.set_nonblocking(true))
                .and_then(|()| UnixListener::from_std(listener))
                .map_err(|cause| Error::System {
                    action: "serve the page",
                    cause,
                })?;
            Bound::Unix(listener, path.clone())
        }
    };
    Ok(Page { bound, token })
}

impl Page {
    /// The socket's file, which is ours to remove.
    pub fn path(&self) -> Option<&Path> {
        match &self.bound {
            Bound::Tcp(_) => None,
            Bound::Unix(_, path) => Some(path),
        }
    }

    /// Serves for ever.
    pub async fn serve(self, fleet: Arc<Fleet>) {
        let routes = routes(fleet, self.token);
        let served = match self.bound {
            Bound::Tcp(listener) => axum::serve(Few::new(listener), routes).await,
            Bound::Unix(listener, _) => axum::serve(Few::new(listener), routes).await,
        };
        if let Err(error) = served {
            tracing::error!("the page is served no more: {error}");
        }
    }
}

struct Door {
    token: Token,
    refusals: Arc<Refusals>,
}

/// A file of the page: path, type, content.
type Asset = (&'static str, &'static str, &'static str);

const ASSETS: [Asset; 4] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("web/page.html"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("web/page.css"),
    ),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("web/page.js"),
    ),
    (
        "/chart.js",
        "text/javascript; charset=utf-8",
        include_str!("web/chart.js"),
    ),
];

fn routes(fleet: Arc<Fleet>, token: Token) -> Router {
    let refusals = fleet.refusals.clone();
    let door = Arc::new(Door {
        token,
        refusals: refusals.clone(),
    });
    let mut routes = control::views().route_layer(from_fn_with_state(door, admit));
    for (path, kind, content) in ASSETS {
        let asset = move || async move { ([(header::CONTENT_TYPE, kind)], content) };
        routes = routes.route(path, get(asset));
    }
    let routes = control::with_refusals(routes)
        .layer(map_response(strict))
        .with_state(fleet);
    counted(routes, refusals, Interface::Page)
}

/// Those who offer the token.
async fn admit(
    State(door): State<Arc<Door>>,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    let offered = headers.get(header::AUTHORIZATION);
    if offered.is_some_and(|value| door.token.is_offered(value.as_bytes())) {
        return next.run(request).await;
    }
    if offered.is_some() {
        let refused = door.refusals.wrong_token();
        if TOLD(refused) {
            tracing::warn!(refused, "the page was asked with a wrong token");
        }
    }
    let failure = Failure::new(
        StatusCode::UNAUTHORIZED,
        if offered.is_some() {
            "this is not the token"
        } else {
            "the token is missing"
        },
        "send the content of the daemon's token file: Authorization: Bearer TOKEN",
    );
    let scheme = HeaderValue::from_static("Bearer realm=\"demeterd\"");
    ([(header::WWW_AUTHENTICATE, scheme)], failure).into_response()
}

/// Nothing is kept, guessed, framed or told to others.
async fn strict(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        // A browser that keeps its connections would keep places from others.
        (header::CONNECTION, "close"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_tcp_or_of_a_file() {
        let parse = |text: &str| text.parse::<Address>().ok();
        let tcp = Address::Tcp("[::1]:9465".parse().unwrap());
        assert_eq!(parse("[::1]:9465"), Some(tcp));
        assert_eq!(parse("/run/w"), Some(Address::Unix("/run/w".into())));
        for wrong in ["", "9465", "example.org:9465", "run/w"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_page_is_of_its_own_files_only() {
        for (path, _, content) in ASSETS {
            for foreign in [
                "http://",
                "https://www.w3.org/1999/xhtml",
                "<style",
                "style=",
                "onclick",
                "innerHTML",
            ] {
                let found = content
                    .replace("http://www.w3.org/2000/svg", "")
                    .contains(foreign);
                assert!(!found, "{path}: {foreign}");
            }
        }
    }
}
