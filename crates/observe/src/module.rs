// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the module's directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::groups;
use crate::heat::Heat;
use crate::ledger::Ledger;
use crate::record::Malformed;
use crate::state::{FORMAT, Node, State, Tier, targets};

/// Where the module is found.
pub const DIRECTORY: &str = "/sys/kernel/mm/demeter";
/// Two readers at a time can cut a dump short: how often it is read again.
const TRIES: u32 = 4;

/// The module of this machine.
#[derive(Debug, Clone)]
pub struct Module {
    directory: PathBuf,
    nodes: PathBuf,
    processes: PathBuf,
}

impl Default for Module {
    fn default() -> Self {
        Self {
            directory: DIRECTORY.into(),
            nodes: "/sys/devices/system/node".into(),
            processes: "/proc".into(),
        }
    }
}

impl Module {
    /// One that shows itself in another directory, nodes and processes too: a copy.
    pub fn at(directory: &Path, nodes: &Path, processes: &Path) -> Self {
        Self {
            directory: directory.into(),
            nodes: nodes.into(),
            processes: processes.into(),
        }
    }

    /// Everything it shows.
    pub fn read(&self) -> Result<State, Error> {
        if !self.directory.exists() {
            return Err(Error::NotLoaded {
                path: self.directory.clone(),
            });
        }
        let ledger = self.optional_dump("ledger", Ledger::parse)?;
        let heat = self.dump("ranges", Heat::parse)?;
        let mut targets = targets(&heat, ledger.as_ref());
        for target in &mut targets {
            target.command = self.command(target.pid);
        }
        let managed = |of: fn(&crate::heat::Range) -> u64| -> u64 {
            heat.ranges.iter().map(|range| of(range) << 12).sum()
        };
        Ok(State {
            format: FORMAT,
            time_ns: heat.time_ns,
            enabled: self.word("enabled")? == "1",
            sampler: self.word("sampler")?,
            sampler_delivery: self.word("sampler_delivery")?,
            tiers: vec![
                self.tier("fmem", &heat.fmem_nodes, managed(|range| range.fmem_pages)),
                self.tier("smem", &heat.smem_nodes, managed(|range| range.smem_pages)),
            ],
            params: self.numbers("params")?,
            stats: self.numbers("stats")?,
            targets,
            groups: groups::read(&self.directory)?,
            heat,
            ledger,
        })
    }

    fn word(&self, name: &str) -> Result<String, Error> {
        let path = self.directory.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim_end().to_owned()),
            Err(cause) => Err(Error::of_read(&self.directory, &path, cause)),
        }
    }

    /// Every number below a directory, by path relative to it. Files that are no
    /// number are none of it, so that a newer module can have some.
    fn numbers(&self, name: &str) -> Result<BTreeMap<String, i64>, Error> {
        let root = self.directory.join(name);
        let mut numbers = BTreeMap::new();
        let mut left = vec![root.clone()];
        while let Some(directory) = left.pop() {
            let failed = |cause| Error::of_read(&self.directory, &directory, cause);
            for entry in fs::read_dir(&directory).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let path = entry.path();
                if entry.file_type().map_err(failed)?.is_dir() {
                    left.push(path);
                    continue;
                }
                let text = fs::read_to_string(&path)
                    .map_err(|cause| Error::of_read(&self.directory, &path, cause))?;
                if let (Ok(number), Ok(name)) = (number(text.trim()), path.strip_prefix(&root)) {
                    numbers.insert(name.display().to_string(), number);
                }
            }
        }
        Ok(numbers)
    }

    fn dump<T>(
        &self,
        name: &'static str,
        parse: fn(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Error> {
        self.optional_dump(name, parse)?
            .ok_or(Error::Lacks { what: name })
    }

    fn optional_dump<T>(
        &self,
        name: &str,
        parse: fn(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Error> {
        let path = self.directory.join(name);
        let mut tries = 0;
        loop {
            tries += 1;
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(cause)
                    if cause.kind() == std::io::ErrorKind::NotFound && self.directory.exists() =>
                {
                    return Ok(None);
                }
                Err(cause) => return Err(Error::of_read(&self.directory, &path, cause)),
            };
            match parse(&bytes) {
                Ok(parsed) => return Ok(Some(parsed)),
                Err(Malformed::Short { .. }) if tries < TRIES => {}
                Err(malformed) => {
                    return Err(Error::Foreign {
                        path,
                        cause: malformed.to_string(),
                    });
                }
            }
        }
    }

    fn tier(&self, name: &str, nodes: &[u32], managed_bytes: u64) -> Tier {
        let nodes: Vec<Node> = nodes.iter().map(|&node| self.node(node)).collect();
        // Unknown of one is unknown of all.
        let sum = |of: fn(&Node) -> Option<u64>| {
            (nodes
                .iter()
                .map(of)
                .reduce(|one, other| Some(one? + other?)))
            .flatten()
        };
        Tier {
            name: name.to_owned(),
            node: nodes.first().map_or(0, |node| node.node),
            total_bytes: sum(|node| node.total_bytes),
            free_bytes: sum(|node| node.free_bytes),
            managed_bytes,
            nodes,
        }
    }

    fn node(&self, node: u32) -> Node {
        let path = self.nodes.join(format!("node{node}/meminfo"));
        let meminfo = fs::read_to_string(path).unwrap_or_default();
        let pages = |name: &str| -> Option<u64> {
            let path = self.directory.join(format!("nodes/node{node}/{name}"));
            let pages: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
            pages.checked_mul(4096)
        };
        Node {
            node,
            total_bytes: of_meminfo(&meminfo, "MemTotal:"),
            free_bytes: of_meminfo(&meminfo, "MemFree:"),
            managed_bytes: pages("resident_pages"),
            arrived_bytes: pages("arrived_pages"),
        }
    }

    fn command(&self, pid: u32) -> Option<String> {
        let path = self.processes.join(format!("{pid}/comm"));
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim_end().to_owned())
    }
}

fn number(text: &str) -> Result<i64, std::num::ParseIntError> {
    // Only a bound such as ULONG_MAX does not fit.
    text.parse::<i64>()
        .or_else(|error| text.parse::<u64>().map(|_| i64::MAX).map_err(|_| error))
}

/// `Node 0 MemTotal:  2048 kB`
fn of_meminfo(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|&word| word != name);
        words.next()?;
        words.next()?.parse::<u64>().ok()?.checked_mul(1024)
    })
}
