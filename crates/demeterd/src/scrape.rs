// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics on TCP, if the operator wants them there. Whoever can connect is a stranger: he
//! is served nothing that changes anything.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use crate::control;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::visits::Few;

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
    let few = Few::new(listener);
    if let Err(error) = axum::serve(few, control::public_routes(fleet)).await {
        tracing::error!("metrics are served no more: {error}");
    }
}
