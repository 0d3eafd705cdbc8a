// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a guest is told of: a Unix socket, or a TCP port of this machine.

use std::net::SocketAddr;
use std::path::PathBuf;

/// A place to listen or to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// Why a word is no endpoint.
#[derive(Debug, thiserror::Error)]
#[error("neither a path with a / nor an address such as 127.0.0.1:9400")]
pub struct NoEndpoint;

impl std::str::FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(word: &str) -> Result<Self, NoEndpoint> {
        if word.contains('/') {
            return Ok(Self::Unix(word.into()));
        }
        word.parse().map(Self::Tcp).map_err(|_| NoEndpoint)
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(formatter),
            Self::Tcp(address) => address.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_addresses() {
        let of = |word: &str| word.parse::<Endpoint>().ok();
        assert_eq!(of("./a"), Some(Endpoint::Unix("./a".into())));
        assert_eq!(
            of("127.0.0.1:9400"),
            Some(Endpoint::Tcp(([127, 0, 0, 1], 9400).into()))
        );
        assert!(of("[::1]:80").is_some());
        assert!(of("9400").is_none() && of("name:80").is_none() && of("").is_none());
    }
}
