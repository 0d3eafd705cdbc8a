// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the page for people is served, and to whom.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::sockets::Access;

/// Where the page is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `127.0.0.1:9465`.
    Tcp(SocketAddr),
    /// `/run/demeter/web.sock`.
    Unix(PathBuf),
}

/// Not an address.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is neither ADDRESS:PORT nor the path of a socket")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        let address = text.parse().map_err(|_| AddressError(text.to_owned()))?;
        Ok(Self::Tcp(address))
    }
}

/// As configured.
#[derive(Debug)]
pub struct Settings {
    /// Where.
    pub address: Address,
    /// File of the token.
    pub token_file: PathBuf,
    /// Of a Unix socket.
    pub access: Access,
}
