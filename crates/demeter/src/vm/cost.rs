// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest costs its host, by what it is spent on: COMMAND and all the rest.
//! Differs from run to run; nothing that is measured in the guest depends on it.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::process::Process;
use super::tail::Tail;
use super::workplace::Pages;

/// `host` of a manifest. Times are the host's; those of COMMAND are seen when the
/// guest is looked at, each 50 ms.
#[derive(Debug, Clone, Serialize)]
pub struct Cost {
    /// What guest RAM is made of.
    ram: Pages,
    /// Before QEMU starts: archive, memory.
    prepare_s: f64,
    /// From there to COMMAND's start: firmware, kernel, agent.
    boot_s: Option<f64>,
    /// COMMAND, from the switch of the model on to that off where all is modelled.
    command_s: Option<f64>,
    /// From COMMAND's end until nothing of the guest is left.
    end_s: Option<f64>,
    /// CPU time of QEMU.
    cpu_s: f64,
    /// Of it in COMMAND.
    command_cpu_s: Option<f64>,
}

/// When the guest was seen to reach a stage, and QEMU's CPU time then.
#[derive(Clone, Copy)]
struct Seen {
    at: Instant,
    cpu_s: f64,
}

/// Collects a [`Cost`] while a guest runs.
pub struct Meter {
    began: Instant,
    started: Instant,
    records: Tail,
    pending: Vec<u8>,
    cpu_s: f64,
    start: Option<Seen>,
    exit: Option<Seen>,
}

impl Meter {
    /// `began` is when preparation began; QEMU is about to be started.
    pub fn new(began: Instant, records: &Path) -> Self {
        Self {
            began,
            started: Instant::now(),
            records: Tail::new(records),
            pending: Vec::new(),
            cpu_s: 0.0,
            start: None,
            exit: None,
        }
    }

    /// Looks at the guest.
    pub fn look(&mut self, machine: &Process) {
        self.cpu_s = machine.cpu_s().unwrap_or(self.cpu_s);
        self.read();
    }

    fn read(&mut self) {
        self.pending.extend(self.records.more());
        let Some(end) = self.pending.iter().rposition(|&byte| byte == b'\n') else {
            return;
        };
        let seen = Seen {
            at: Instant::now(),
            cpu_s: self.cpu_s,
        };
        for line in self.pending[..end].split(|&byte| byte == b'\n') {
            if line.starts_with(br#"{"kind":"start""#) {
                self.start = Some(seen);
            } else if line.starts_with(br#"{"kind":"exit""#) {
                self.exit = Some(seen);
            }
        }
        self.pending.drain(..=end);
    }

    /// Nothing of the guest is left but what it wrote since it was looked at last: it ends
    /// within milliseconds of COMMAND.
    pub fn finish(mut self, ram: Pages) -> Cost {
        self.read();
        let seconds = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64();
        let both = self.start.zip(self.exit);
        Cost {
            ram,
            prepare_s: seconds(self.began, self.started),
            boot_s: self.start.map(|start| seconds(self.started, start.at)),
            command_s: both.map(|(start, exit)| seconds(start.at, exit.at)),
            end_s: self.exit.map(|exit| seconds(exit.at, Instant::now())),
            cpu_s: self.cpu_s,
            command_cpu_s: both.map(|(start, exit)| exit.cpu_s - start.cpu_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_ended_with_its_guest_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let mut meter = Meter::new(Instant::now(), &path);
        std::fs::write(&path, "{\"kind\":\"start\"}\n").unwrap();
        meter.read();
        std::fs::write(&path, "{\"kind\":\"start\"}\n{\"kind\":\"exit\"}\n").unwrap();
        let cost = meter.finish(Pages::Small);
        assert!(cost.command_s.is_some() && cost.command_cpu_s.is_some());
    }
}
