// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter metrics`: a guest's numbers for Prometheus, printed, as a file for a
//! collector that reads files, or served.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::endpoint::Endpoint;
use super::serve;
use super::source;
use crate::error::Error;
use crate::interrupt;
use crate::vm::write_atomically;

/// Arguments of `metrics`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    source: source::Arguments,
    /// Write to FILE instead of standard output; readers see the old one or the new one
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    file: Option<PathBuf>,
    /// Write FILE again every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", requires = "file")]
    every: Option<f64>,
    /// Serve /metrics and /v1/status on a Unix socket or a TCP port of loopback
    #[arg(long, value_name = "PATH|ADDRESS", conflicts_with = "socket")]
    listen: Option<Endpoint>,
}

/// Prints, writes or serves.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    if let Some(endpoint) = &arguments.listen {
        serve::serve(endpoint)?;
        return Ok(0);
    }
    let Some(file) = &arguments.file else {
        super::print(&text(&arguments.source)?);
        return Ok(0);
    };
    let every = match arguments.every {
        None => None,
        Some(seconds) if (0.05..=86_400.0).contains(&seconds) => {
            Some(Duration::from_secs_f64(seconds))
        }
        Some(seconds) => {
            return Err(Error::Usage {
                cause: format!("--every {seconds} is out of range"),
                next: "give 0.05 to 86400 seconds".into(),
            });
        }
    };
    loop {
        let written =
            text(&arguments.source).and_then(|text| write_atomically(file, text.as_bytes()));
        let Some(every) = every else {
            return written.map(|()| 0);
        };
        if let Err(error) = written {
            // A full disk or a module that is loaded again later passes.
            eprintln!("demeter: error: {error}; next: {}", error.next());
        }
        let wake = Instant::now() + every;
        while Instant::now() < wake && !interrupt::raised() {
            std::thread::sleep(Duration::from_millis(20).min(every));
        }
        if interrupt::raised() {
            return Ok(0);
        }
    }
}

fn text(source: &source::Arguments) -> Result<String, Error> {
    let state = source.read()?;
    demeter_observe::metrics::text(&state).map_err(|error| Error::Malformed {
        path: "metrics".into(),
        cause: error.to_string(),
    })
}
