// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A run in a few lines of text, or whole as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::block::{Block, ENDED};
use crate::board::{Board, runs};
use crate::history::Sample;

/// Collects text and writes it to a descriptor, without allocating.
#[derive(Debug)]
pub struct FdWriter {
    descriptor: RawFd,
    used: usize,
    buffer: [u8; 512],
}

impl FdWriter {
    /// Writes to `descriptor`, when dropped or full.
    pub fn new(descriptor: RawFd) -> Self {
        Self {
            descriptor,
            used: 0,
            buffer: [0; 512],
        }
    }

    fn flush(&mut self) {
        let mut rest = &self.buffer[..self.used];
        while !rest.is_empty() {
            // SAFETY: `rest` is readable.
            let written = unsafe { libc::write(self.descriptor, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(written) if written > 0 => rest = rest.get(written..).unwrap_or_default(),
                _ => break,
            }
        }
        self.used = 0;
    }
}

impl fmt::Write for FdWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for chunk in text.as_bytes().chunks(self.buffer.len()) {
            if self.used + chunk.len() > self.buffer.len() {
                self.flush();
            }
            self.buffer[self.used..self.used + chunk.len()].copy_from_slice(chunk);
            self.used += chunk.len();
        }
        Ok(())
    }
}

impl Drop for FdWriter {
    fn drop(&mut self) {
        self.flush();
    }
}

/// One line about a block, for the end of a run without the command line tool. Does
/// not allocate.
pub fn write_line(block: &Block, descriptor: RawFd) {
    let counters = &block.counters;
    let mut out = FdWriter::new(descriptor);
    let _ = writeln!(
        out,
        "demeter extmem: {} first touches, faults: {} swap, {} compressed, {} victim cache; \
         {} pages evicted; {} MiB read, {} MiB written; {} ms in faults",
        counters.first_touches.get(),
        counters.faults_swap.get(),
        counters.faults_compressed.get(),
        counters.faults_victim_cache.get(),
        counters.evicted_clean_pages.get()
            + counters.evicted_dirty_pages.get()
            + counters.evicted_compressed_pages.get(),
        counters.read_bytes.get() >> 20,
        counters.write_bytes.get() >> 20,
        counters.fault_ns.get() / 1_000_000,
    );
}

/// A process, or all that have no block any more.
#[derive(Debug, Clone, Serialize)]
pub struct Process {
    /// When it started, by CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Its number; 0 for all that have no block any more.
    pub pid: u32,
    /// Its program.
    pub command: String,
    /// Its policy.
    pub policy: String,
    /// Its fault path.
    pub mode: String,
    /// How it swaps.
    pub engine: String,
    /// "runs", "ended", or "killed" when it never said so.
    pub state: &'static str,
    /// From its start to its last sample.
    pub seconds: f64,
    /// DRAM it may use.
    pub dram_bytes: u64,
    /// Swap it may use.
    pub swap_bytes: u64,
    /// Sums.
    pub counters: BTreeMap<&'static str, u64>,
    /// Last values.
    pub gauges: BTreeMap<&'static str, u64>,
    /// Most DRAM that managed memory, buffers and tables were seen to take.
    pub peak_resident_bytes: u64,
    /// Values over time.
    pub history: Vec<Sample>,
}

impl Process {
    fn of(block: &Block) -> Self {
        let history = block.history.read();
        let start_ns = block.start_ns.load(Ordering::Relaxed);
        let updated_ns = block.updated_ns.load(Ordering::Relaxed);
        let pid = block.pid.load(Ordering::Relaxed);
        Self {
            start_ns,
            pid,
            command: block.command.get(),
            policy: block.policy.get(),
            mode: block.mode.get(),
            engine: block.engine.get(),
            state: if block.state.load(Ordering::Relaxed) == ENDED || pid == 0 {
                "ended"
            } else if runs(pid) {
                "runs"
            } else {
                "killed"
            },
            seconds: updated_ns.saturating_sub(start_ns) as f64 * 1e-9,
            dram_bytes: block.dram_bytes.load(Ordering::Relaxed),
            swap_bytes: block.swap_bytes.load(Ordering::Relaxed),
            counters: block
                .counters
                .each()
                .map(|(name, counter)| (name, counter.get()))
                .collect(),
            gauges: block
                .gauges
                .each()
                .map(|(name, gauge)| (name, gauge.get()))
                .collect(),
            peak_resident_bytes: history
                .iter()
                .map(|sample| sample.resident_bytes)
                .max()
                .unwrap_or(0),
            history,
        }
    }

    /// A counter, or 0.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// A gauge, or 0.
    pub fn gauge(&self, name: &str) -> u64 {
        self.gauges.get(name).copied().unwrap_or(0)
    }
}

/// All processes of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Version of this form.
    pub format: u32,
    /// Each of them.
    pub processes: Vec<Process>,
}

impl Summary {
    /// What the board says now. Processes come in the order of their start.
    pub fn of(board: Board) -> Self {
        let mut processes: Vec<_> = board.blocks().map(Process::of).collect();
        processes.sort_by_key(|process| process.start_ns);
        let gone = Process::of(board.gone());
        if gone.counters.values().any(|&sum| sum > 0) {
            processes.push(Process {
                command: "(earlier processes)".into(),
                ..gone
            });
        }
        Self {
            format: 1,
            processes,
        }
    }

    /// Without the processes that were there earlier, when a file is used again.
    pub fn since(mut self, earlier: &Self) -> Self {
        self.processes.retain(|process| {
            !earlier
                .processes
                .iter()
                .any(|old| (old.pid, old.start_ns) == (process.pid, process.start_ns))
        });
        self
    }

    /// Sum of a counter over all processes, whatever is in the file.
    pub fn total(&self, name: &str) -> u64 {
        self.processes
            .iter()
            .map(|process| process.counter(name))
            .fold(0, u64::saturating_add)
    }
}

/// The text at the end of a run.
impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        // Scripts start helpers: the one with the most memory is the program.
        let Some(first) = self.processes.iter().max_by_key(|process| {
            (
                process.counter("first_touches"),
                process.peak_resident_bytes,
            )
        }) else {
            return writeln!(out, "no process was managed");
        };
        writeln!(
            out,
            "{}: {:.1} s, {:.0} MiB of DRAM, policy {}, {} faults, {}{}",
            first.command,
            first.seconds,
            mib(first.dram_bytes),
            first.policy,
            first.mode,
            first.engine,
            match self.processes.len() {
                1 => String::new(),
                more => format!(", and {} processes more", more - 1),
            }
        )?;
        let total = |name| self.total(name);
        writeln!(
            out,
            "  faults    {} first touch, {} swap, {} compressed, {} victim cache, {} zero, {} first write",
            total("first_touches"),
            total("faults_swap"),
            total("faults_compressed"),
            total("faults_victim_cache"),
            total("faults_zero"),
            total("faults_write_protect"),
        )?;
        writeln!(
            out,
            "  prefetch  {} pages asked for",
            total("prefetch_issued_pages"),
        )?;
        writeln!(
            out,
            "  evicted   {} pages dropped, {} written, {} compressed ({} of all by the faulting thread)",
            total("evicted_clean_pages"),
            total("evicted_dirty_pages"),
            total("evicted_compressed_pages"),
            total("evictions_inline_pages"),
        )?;
        writeln!(
            out,
            "  swap      {:.0} MiB in {} reads, {:.0} MiB in {} writes, {} errors",
            mib(total("read_bytes")),
            total("reads"),
            mib(total("write_bytes")),
            total("writes"),
            total("io_errors"),
        )?;
        writeln!(
            out,
            "  time      {:.2} s in faults, {:.2} s of CPU evicting, {:.2} s prefetching",
            total("fault_ns") as f64 * 1e-9,
            total("evict_cpu_ns") as f64 * 1e-9,
            total("prefetch_cpu_ns") as f64 * 1e-9,
        )?;
        writeln!(
            out,
            "  resident  at most {:.0} MiB (sampled)",
            mib(first.peak_resident_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{About, Place, Statistics};

    #[test]
    fn text_and_json_say_what_was_counted() {
        let about = About {
            command: "sort",
            policy: "clock",
            mode: "inline",
            engine: "io_uring",
            dram_bytes: 64 << 20,
            swap_bytes: 1 << 30,
        };
        let statistics = Statistics::open(Place::Private, &about).unwrap();
        let block = statistics.block();
        block.counters.faults_swap.add(17);
        block.counters.read_bytes.add(3 << 20);
        block.gauges.resident_bytes.set(5 << 20);
        statistics.sample();
        block.gauges.resident_bytes.set(0);
        statistics.finish();
        let summary = Summary::of(statistics.board());
        let text = summary.to_string();
        for part in [
            "sort: ",
            "64 MiB of DRAM",
            "clock",
            "17 swap",
            "3 MiB in",
            "at most 5 MiB",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let json = serde_json::to_value(&summary).unwrap();
        let process = &json["processes"][0];
        assert_eq!(process["state"], "ended");
        assert_eq!(process["counters"]["faults_swap"], 17);
        assert_eq!(process["history"][0]["resident_bytes"], 5 << 20);
    }

    #[test]
    fn the_writer_passes_long_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text");
        let file = std::fs::File::create(&path).unwrap();
        let text = "0123456789".repeat(200);
        let mut writer = FdWriter::new(std::os::fd::AsRawFd::as_raw_fd(&file));
        writer.write_str("start ").unwrap();
        writer.write_str(&text).unwrap();
        drop(writer);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            format!("start {text}")
        );
    }
}
