// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settings, from the environment that `demeter extmem run` prepares.

use std::path::PathBuf;

use demeter_extmem_tree::{Handed, SWAP_VARIABLES};

use crate::error::Error;
use crate::swap::Injection;

/// How faults reach the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The faulting thread resolves its own fault, in a SIGBUS handler.
    Inline,
    /// Threads of the pager do.
    Handler,
}

impl Mode {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Handler => "handler",
        }
    }
}

/// When pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compress {
    /// Never.
    Off,
    /// While it pays.
    Auto,
    /// Always.
    On,
}

/// A directory, file or device to swap to.
#[derive(Debug, PartialEq, Eq)]
pub struct Swap {
    /// Where it is.
    pub path: PathBuf,
    /// How much of it.
    pub bytes: Option<u64>,
    /// The file that the run has there, by descriptor.
    pub handed: Option<Handed>,
}

/// Everything the user can say.
#[derive(Debug)]
pub struct Config {
    /// DRAM for the program and the pager together.
    pub dram_bytes: u64,
    /// The statistics of the run, likewise.
    pub handed_statistics: Option<Handed>,
    /// The budget that the programs of the run share, likewise; None: this one has its own.
    pub handed_ledger: Option<Handed>,
    /// What to swap to, in the order in which it is filled.
    pub swap: Vec<Swap>,
    /// None: the best that works.
    pub mode: Option<Mode>,
    /// Smaller anonymous mappings are left to the kernel.
    pub min_bytes: usize,
    /// Who leaves next: a name, or the path of a plug-in, with options after a colon.
    pub policy: String,
    /// The compressed tier: never, always, or as long as it pays.
    pub compress: Compress,
    /// File of the statistics page.
    pub statistics: Option<PathBuf>,
    /// File of the decision log.
    pub log: Option<PathBuf>,
    /// Pages that are read alone may bring their neighbours.
    pub neighbours: bool,
    /// Failures on request.
    pub inject: Injection,
    /// Say at start what was chosen.
    pub verbose: bool,
}

/// Below this, buffers and tables would leave nothing for the program.
pub const LEAST_DRAM_BYTES: u64 = 16 << 20;
/// The C library maps allocations from this size on; so do most run-time systems.
const DEFAULT_MIN_BYTES: usize = 128 * 1024;

const DRAM: [&str; 2] = ["DEMETER_EXTMEM_DRAM", "DRAMSIZE"];
const OLD_SWAP: &str = "SWAPDIR";

/// Whether the environment asks for the pager at all. A library that is preloaded
/// without settings stays out of the way.
pub fn is_wanted() -> bool {
    DRAM.iter().any(|name| std::env::var_os(name).is_some())
}

impl Config {
    /// Reads the environment.
    pub fn from_env() -> Result<Self, Error> {
        Self::read(&|name| std::env::var_os(name))
    }

    fn read(get: &dyn Fn(&str) -> Option<std::ffi::OsString>) -> Result<Self, Error> {
        let first = |names: [&'static str; 2]| {
            names
                .into_iter()
                .find_map(|name| Some((name, get(name).filter(|value| !value.is_empty())?)))
        };
        let (name, value) = first(DRAM).ok_or(Error::Missing {
            what: "DRAM size",
            name: DRAM[0],
        })?;
        let dram_bytes = bytes(name, &value)?;
        if dram_bytes < LEAST_DRAM_BYTES {
            return Err(Error::TooLittle {
                dram_bytes,
                least_bytes: LEAST_DRAM_BYTES,
            });
        }
        let size = |name: &'static str| get(name).map(|value| bytes(name, &value)).transpose();
        let path = |name: &str| {
            get(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let mode = match get("DEMETER_EXTMEM_MODE") {
            None => None,
            Some(value) => match value.to_string_lossy().as_ref() {
                "auto" | "" => None,
                "inline" => Some(Mode::Inline),
                "handler" => Some(Mode::Handler),
                other => {
                    return Err(Error::Setting {
                        name: "DEMETER_EXTMEM_MODE",
                        value: other.to_owned(),
                        expected: "auto, inline or handler",
                    });
                }
            },
        };
        // Not a setting of the user's: what cannot be read is as if it were not there.
        let handed = |name: &str| get(name).and_then(|value| value.to_str()?.parse().ok());
        let mut swap = Vec::new();
        for (at, variables) in SWAP_VARIABLES.iter().enumerate() {
            let named = path(variables.path);
            let Some(path) = named.or_else(|| (at == 0).then(|| path(OLD_SWAP)).flatten()) else {
                break;
            };
            swap.push(Swap {
                path,
                bytes: size(variables.size)?,
                handed: handed(variables.handed),
            });
        }
        if swap.is_empty() {
            return Err(Error::Missing {
                what: "swap path",
                name: SWAP_VARIABLES[0].path,
            });
        }
        Ok(Self {
            handed_statistics: handed("DEMETER_EXTMEM_STATS_FD"),
            handed_ledger: handed("DEMETER_EXTMEM_LEDGER_FD"),
            dram_bytes,
            swap,
            mode,
            min_bytes: size("DEMETER_EXTMEM_MIN_SIZE")?
                .map_or(DEFAULT_MIN_BYTES, |bytes| (bytes as usize).max(4096)),
            policy: get("DEMETER_EXTMEM_POLICY")
                .filter(|value| !value.is_empty())
                .map_or_else(
                    || "default".to_owned(),
                    |value| value.to_string_lossy().into_owned(),
                ),
            compress: match get("DEMETER_EXTMEM_COMPRESS") {
                None => Compress::Auto,
                Some(value) => match value.to_string_lossy().as_ref() {
                    "auto" | "" => Compress::Auto,
                    "on" => Compress::On,
                    "off" => Compress::Off,
                    other => {
                        return Err(Error::Setting {
                            name: "DEMETER_EXTMEM_COMPRESS",
                            value: other.to_owned(),
                            expected: "auto, on or off",
                        });
                    }
                },
            },
            statistics: path("DEMETER_EXTMEM_STATS"),
            log: path("DEMETER_EXTMEM_LOG"),
            neighbours: get("DEMETER_EXTMEM_NEIGHBOURS").is_some_and(|value| value == "1"),
            inject: Injection::from_env()?,
            verbose: get("DEMETER_EXTMEM_VERBOSE").is_some_and(|value| value == "1"),
        })
    }
}

/// A number of bytes, with K, M, G or T behind it if one likes.
fn bytes(name: &'static str, value: &std::ffi::OsStr) -> Result<u64, Error> {
    let text = value.to_string_lossy();
    let refuse = || Error::Setting {
        name,
        value: text.clone().into_owned(),
        expected: "a size such as 4294967296 or 4G",
    };
    let trimmed = text
        .trim()
        .trim_end_matches(['B', 'b'])
        .trim_end_matches('i');
    let (digits, shift) = match trimmed.chars().last() {
        Some('K' | 'k') => (&trimmed[..trimmed.len() - 1], 10),
        Some('M' | 'm') => (&trimmed[..trimmed.len() - 1], 20),
        Some('G' | 'g') => (&trimmed[..trimmed.len() - 1], 30),
        Some('T' | 't') => (&trimmed[..trimmed.len() - 1], 40),
        _ => (trimmed, 0),
    };
    let number: u64 = digits.parse().map_err(|_| refuse())?;
    number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes <= 1 << 46)
        .ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, Error> {
        Config::read(&|name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn old_names_and_units() {
        let config = read(&[("DRAMSIZE", "1073741824"), ("SWAPDIR", "/tmp")]).unwrap();
        assert_eq!(config.dram_bytes, 1 << 30);
        assert_eq!(config.swap.len(), 1);
        assert_eq!(config.swap[0].path, PathBuf::from("/tmp"));
        assert_eq!(config.mode, None);
        let config = read(&[
            ("DEMETER_EXTMEM_DRAM", "64MiB"),
            ("DRAMSIZE", "1"),
            ("DEMETER_EXTMEM_SWAP", "/swap"),
            ("DEMETER_EXTMEM_MODE", "handler"),
        ])
        .unwrap();
        assert_eq!(config.dram_bytes, 64 << 20);
        assert_eq!(config.mode, Some(Mode::Handler));
    }

    #[test]
    fn several_places_in_their_order() {
        let config = read(&[
            ("DRAMSIZE", "1G"),
            ("DEMETER_EXTMEM_SWAP", "/a"),
            ("DEMETER_EXTMEM_SWAP_SIZE_2", "4G"),
            ("DEMETER_EXTMEM_SWAP_2", "/b"),
            ("DEMETER_EXTMEM_SWAP_FD_2", "300:1:2:3"),
            // Nobody reads behind a gap.
            ("DEMETER_EXTMEM_SWAP_4", "/d"),
        ])
        .unwrap();
        assert_eq!(config.swap.len(), 2);
        assert_eq!(config.swap[0].bytes, None);
        assert_eq!(config.swap[1].path, PathBuf::from("/b"));
        assert_eq!(config.swap[1].bytes, Some(4 << 30));
        assert_eq!(config.swap[1].handed.unwrap().descriptor, 300);
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let swap = ("SWAPDIR", "/tmp");
        for settings in [
            vec![swap],
            vec![("DRAMSIZE", "4G")],
            vec![("DRAMSIZE", "a lot"), swap],
            vec![("DRAMSIZE", "99999999T"), swap],
            vec![("DRAMSIZE", "1M"), swap],
            vec![("DRAMSIZE", ""), swap],
            vec![("DRAMSIZE", "4G"), swap, ("DEMETER_EXTMEM_MODE", "fast")],
        ] {
            let message = read(&settings).unwrap_err().to_string();
            assert!(message.contains("; next: "), "{message}");
        }
    }
}
