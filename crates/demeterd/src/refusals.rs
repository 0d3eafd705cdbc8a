// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls that were refused: somebody uses the daemon wrongly, or tries what is not his. They
//! are counted where answers are sent, so that no handler can forget it. What is no HTTP at
//! all is hung up on before that, and is not among them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::Response;

/// Where somebody called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interface {
    /// The socket of the operator.
    Control,
    /// Metrics for everybody.
    Metrics,
    /// The page, for those with the token.
    Page,
}

impl Interface {
    /// In metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Metrics => "metrics",
            Self::Page => "page",
        }
    }
}

/// Since the daemon was started.
#[derive(Default)]
pub struct Refusals {
    /// The daemon's own words say which statuses there are: no stranger makes this long.
    calls: Mutex<BTreeMap<(Interface, u16), u64>>,
    wrong_tokens: AtomicU64,
}

impl Refusals {
    /// An answer; those that are no refusals do not count.
    fn answered(&self, interface: Interface, status: StatusCode) {
        if status.is_client_error() || status.is_server_error() {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let count = calls.entry((interface, status.as_u16())).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// Somebody offered a token that is none; how many there were with that.
    pub fn wrong_token(&self) -> u64 {
        let before = self.wrong_tokens.fetch_add(1, Ordering::Relaxed);
        before.saturating_add(1)
    }

    /// How many that were.
    pub fn wrong_tokens(&self) -> u64 {
        self.wrong_tokens.load(Ordering::Relaxed)
    }

    /// How often each status was answered, by interface.
    pub fn calls(&self) -> BTreeMap<(Interface, u16), u64> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.clone()
    }
}

/// The same routes, whose refusals are counted.
pub fn counted(routes: Router, refusals: Arc<Refusals>, interface: Interface) -> Router {
    routes.layer(map_response(move |response: Response| {
        refusals.answered(interface, response.status());
        std::future::ready(response)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_answered_well_is_no_refusal() {
        let refusals = Refusals::default();
        for status in [200, 201, 204, 304, 404, 404, 503] {
            let status = StatusCode::from_u16(status).unwrap();
            refusals.answered(Interface::Control, status);
        }
        refusals.answered(Interface::Page, StatusCode::NOT_FOUND);
        let counted = [
            ((Interface::Control, 404), 2),
            ((Interface::Control, 503), 1),
            ((Interface::Page, 404), 1),
        ];
        assert_eq!(refusals.calls(), counted.into());
    }
}
