// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A run in a few lines of text, or whole as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::block::{Block, ENDED, LEFT};
use crate::board::{Board, lives};
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

/// A file, device or directory that is swapped to.
#[derive(Debug, Clone, Serialize)]
pub struct SwapPlace {
    /// Its path; of a long one the end.
    pub path: String,
    /// Device and inode: files without a name in one directory are different ones.
    pub file: [u64; 2],
    /// What of it is used.
    pub used_bytes: u64,
    /// What of it may be used.
    pub size_bytes: u64,
}

impl SwapPlace {
    /// The places of a process, in order.
    fn all_of(block: &Block) -> Vec<Self> {
        let places = block.swap.iter().map(|place| Self {
            path: place.path.get(),
            file: (place.file.each_ref()).map(|word| word.load(Ordering::Relaxed)),
            used_bytes: place.used_bytes.get(),
            size_bytes: place.size_bytes.load(Ordering::Relaxed),
        });
        places.take_while(|place| place.size_bytes > 0).collect()
    }
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
    /// "runs", "ended", "killed" when it never said so, or "left" while it is another program,
    /// without the pager or not yet with it.
    pub state: &'static str,
    /// When it last looked at itself, by CLOCK_MONOTONIC; a fork that has not: when its parent did.
    pub updated_ns: u64,
    /// From its start to its last sample.
    pub seconds: f64,
    /// DRAM it may use.
    pub dram_bytes: u64,
    /// Swap it may use.
    pub swap_bytes: u64,
    /// When the process started that it and its relatives by fork come from: they share their swap.
    pub family_start_ns: u64,
    /// Where it swaps to, in the order in which that is filled.
    pub swap: Vec<SwapPlace>,
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
        let state = match block.state.load(Ordering::Relaxed) {
            ENDED => "ended",
            _ if pid == 0 => "ended",
            LEFT if lives(pid) => "left",
            LEFT => "ended",
            _ if lives(pid) => "runs",
            _ => "killed",
        };
        Self {
            start_ns,
            pid,
            command: block.command.get(),
            policy: block.policy.get(),
            mode: block.mode.get(),
            engine: block.engine.get(),
            state,
            updated_ns,
            seconds: updated_ns.saturating_sub(start_ns) as f64 * 1e-9,
            dram_bytes: block.dram_bytes.load(Ordering::Relaxed),
            swap_bytes: block.swap_bytes.load(Ordering::Relaxed),
            family_start_ns: block.family_start_ns.load(Ordering::Relaxed),
            swap: SwapPlace::all_of(block),
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

    /// How full each place for swap is with what programs that run have there, in the order in
    /// which they are filled. The programs of a run share its places.
    pub fn swap_places(&self) -> Vec<SwapPlace> {
        let mut found = BTreeMap::<_, (u64, BTreeMap<u64, (u64, u64)>)>::new();
        for process in self.processes.iter().filter(|one| one.state == "runs") {
            // What it was before an exec has nothing there any more.
            let is_later = |one: &&Process| one.start_ns > process.start_ns;
            let mut later = self.processes.iter().filter(is_later);
            if later.any(|one| one.pid == process.pid) {
                continue;
            }
            for (at, place) in process.swap.iter().enumerate() {
                let (size_bytes, used) = found.entry((at, &place.path, place.file)).or_default();
                // One that may not make files as large may use less.
                *size_bytes = place.size_bytes.max(*size_bytes);
                // Relatives share what they have there; one of them has looked last.
                let latest = used.entry(process.family_start_ns).or_default();
                *latest = (process.updated_ns, place.used_bytes).max(*latest);
            }
        }
        let shown = found
            .into_iter()
            .map(|((_, path, file), (size_bytes, used))| {
                let used_bytes = used.into_values().map(|(_, used_bytes)| used_bytes);
                let used_bytes = used_bytes.fold(0, u64::saturating_add);
                SwapPlace {
                    path: path.clone(),
                    file,
                    used_bytes,
                    size_bytes,
                }
            });
        shown.collect()
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
        // Scripts start helpers: the one with the most memory is the program. Of the earliest of
        // many only sums are known.
        let Some(first) = self.processes.iter().max_by_key(|process| {
            (
                process.pid != 0,
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
            match (
                self.processes.len(),
                self.processes.iter().any(|one| one.pid == 0)
            ) {
                (1, _) => String::new(),
                (more, false) => format!(", and {} processes more", more - 1),
                (more, true) => format!(", and at least {} processes more", more - 1),
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
    use crate::{About, AboutSwap, MOST_SWAP_PLACES, Place, Statistics};

    #[test]
    fn text_and_json_say_what_was_counted() {
        let about = About {
            command: "sort",
            policy: "clock",
            mode: "inline",
            engine: "io_uring",
            dram_bytes: 64 << 20,
            swap_bytes: 1 << 30,
            swap: Default::default(),
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
        let mut with_earlier = summary.clone();
        let mut earlier = summary.processes[0].clone();
        (earlier.pid, earlier.command) = (0, "(earlier processes)".to_owned());
        earlier.counters.insert("first_touches", 1 << 40);
        with_earlier.processes.push(earlier);
        let text = with_earlier.to_string();
        assert!(text.starts_with("sort: "), "{text}");
        assert!(text.contains("at least 1 processes more"), "{text}");
        let json = serde_json::to_value(&summary).unwrap();
        let process = &json["processes"][0];
        assert_eq!(process["state"], "ended");
        assert_eq!(process["counters"]["faults_swap"], 17);
        assert_eq!(process["history"][0]["resident_bytes"], 5 << 20);
    }

    #[test]
    fn places_for_swap_are_summed_over_a_run_and_forks_share_them() {
        let mut swap = [AboutSwap::default(); MOST_SWAP_PLACES];
        (swap[0], swap[1]) = (
            AboutSwap {
                path: "/z",
                size_bytes: 100,
                file: [1, 1],
            },
            AboutSwap {
                path: "/a",
                size_bytes: 1000,
                file: [1, 2],
            },
        );
        let about = About {
            command: "sort",
            policy: "clock",
            mode: "inline",
            engine: "plain",
            dram_bytes: 1,
            swap_bytes: 1100,
            swap,
        };
        let one = Statistics::open(Place::Private, &about).unwrap();
        let board = one.board();
        let mut sleeps = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let (fork, other) = (
            board.claim(sleeps.id(), 2, &about),
            board.claim(1, 3, &about),
        );
        let family_start_ns = one.block().family_start_ns.load(Ordering::Relaxed);
        (fork.family_start_ns).store(family_start_ns, Ordering::Relaxed);
        (fork.updated_ns).store(u64::MAX, Ordering::Relaxed);
        let uses = [(one.block(), 60, 0), (fork, 70, 5), (other, 10, 900)];
        for (block, first, second) in uses {
            block.swap[0].used_bytes.set(first);
            block.swap[1].used_bytes.set(second);
        }
        let shown = |board| {
            let places = Summary::of(board).swap_places().into_iter();
            let shown = places.map(|place| (place.path, place.used_bytes, place.size_bytes));
            shown.collect::<Vec<_>>()
        };
        let place = |path: &str, used, size| (path.to_owned(), used, size);
        assert_eq!(shown(board), [place("/z", 80, 100), place("/a", 905, 1000)]);
        // Of relatives that who looked last knows, if that is less, too.
        fork.swap[0].used_bytes.set(1);
        assert_eq!(shown(board), [place("/z", 11, 100), place("/a", 905, 1000)]);
        (fork.updated_ns).store(0, Ordering::Relaxed);
        assert_eq!(shown(board), [place("/z", 70, 100), place("/a", 900, 1000)]);
        // What a process that is gone had there is free, and so is what one had before an exec.
        one.finish();
        assert_eq!(shown(board), [place("/z", 11, 100), place("/a", 905, 1000)]);
        let became = board.claim(1, 4, &about);
        became.swap[1].used_bytes.set(7);
        assert_eq!(shown(board), [place("/z", 1, 100), place("/a", 12, 1000)]);
        // It has ended, though nobody waits for it yet.
        sleeps.kill().unwrap();
        let begun = std::time::Instant::now();
        while shown(board) != [place("/z", 0, 100), place("/a", 7, 1000)] {
            assert!(begun.elapsed().as_secs() < 20, "{:?}", shown(board));
        }
        sleeps.wait().unwrap();
        assert_eq!(shown(board), [place("/z", 0, 100), place("/a", 7, 1000)]);
        let json = serde_json::to_value(Summary::of(board)).unwrap();
        let processes = json["processes"].as_array().unwrap();
        let of_other = processes.iter().find(|one| one["start_ns"] == 3).unwrap();
        assert_eq!(of_other["swap"][1]["used_bytes"], 900);
        assert_eq!(of_other["swap"].as_array().unwrap().len(), 2);
    }

    fn about_one_place(file: [u64; 2]) -> About<'static> {
        let mut swap = [AboutSwap::default(); MOST_SWAP_PLACES];
        swap[0] = AboutSwap {
            path: "/a",
            size_bytes: 100,
            file,
        };
        About {
            command: "sh",
            policy: "clock",
            mode: "inline",
            engine: "plain",
            dram_bytes: 1,
            swap_bytes: 100,
            swap,
        }
    }

    fn used_of_100(board: Board) -> Vec<u64> {
        let places = Summary::of(board).swap_places().into_iter();
        let used = places.map(|place| {
            assert_eq!((&*place.path, place.size_bytes), ("/a", 100));
            place.used_bytes
        });
        used.collect()
    }

    #[test]
    fn runs_share_a_row_only_if_they_share_the_file() {
        let one = Statistics::open(Place::Private, &about_one_place([1, 1])).unwrap();
        one.block().swap[0].used_bytes.set(60);
        let board = one.board();
        let mut sleeps = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        // Beside it one with a file of its own in the same directory, and one with the same file.
        for (pid, file, used) in [(1, [1, 2], 70), (sleeps.id(), [1, 1], 10)] {
            let block = board.claim(pid, u64::from(pid), &about_one_place(file));
            block.swap[0].used_bytes.set(used);
        }
        assert_eq!(used_of_100(board), [70, 70]);
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
        assert_eq!(used_of_100(board), [60, 70]);
    }

    #[test]
    fn who_became_a_program_without_the_pager_has_no_swap() {
        let one = Statistics::open(Place::Private, &about_one_place([1, 1])).unwrap();
        let (board, own) = (one.board(), std::process::id());
        one.block().swap[0].used_bytes.set(60);
        let state = || Summary::of(board).processes[0].state;
        // A child by vfork, which has no block.
        one.leave(own + 1, b"/bin/static");
        assert_eq!((used_of_100(board), state()), (vec![60], "runs"));
        let left = one.leave(own, b"/bin/static");
        assert_eq!((used_of_100(board), state()), (vec![], "left"));
        one.stayed(own, left);
        assert_eq!((used_of_100(board), state()), (vec![60], "runs"));
        one.leave(own, b"/bin/static");
        one.block().pid.store(0x7fff_fffe, Ordering::Relaxed);
        assert_eq!((used_of_100(board), state()), (vec![], "ended"));
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
