// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all programs of a run share: statistics, DRAM, and in each directory, and on each memory
//! node, one swap file.
//!
//! They get these by descriptor. Whatever ends a program, the kernel drops its locks on
//! its share of DRAM and on parts of the swap file, and both are freed from here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use demeter_extmem_statistics::{Board, BoardError};
use demeter_extmem_tree::{
    Clerk, Handed, Ledger, NamedPlace, Promises, SWAP_VARIABLES, SwapFile, SwapVariables,
    largest_file_bytes, lowest_descriptor, time_copies, time_reads,
};

use super::order;
use super::swap::{Place, unusable as unusable_place};
use crate::error::{Error, refuse};

/// How often space of programs that ended is freed while others run.
const GIVE_BACK_PERIOD: Duration = Duration::from_millis(500);

/// How often DRAM is divided anew.
const DIVIDE_PERIOD: Duration = Duration::from_millis(50);
const PAGE_BYTES: u64 = 4096;

/// DRAM of a run.
#[derive(Debug, Clone, Copy)]
pub enum Dram {
    /// For all its programs together.
    Together(u64),
    /// For each of them.
    Each(u64),
}

impl Dram {
    /// What one program may have at most.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Together(bytes) | Self::Each(bytes) => bytes,
        }
    }
}

/// A place for swap, with the file that all programs have in it if it is a directory or a node.
pub struct SwapPlace {
    place: Place,
    file: Option<(SwapFile, Handed)>,
}

impl SwapPlace {
    /// Where it is.
    fn path(&self) -> &Path {
        &self.place.path
    }

    /// How long a page takes from there; None where that cannot be found out.
    fn time_reads(&self) -> Option<Duration> {
        if let Some((swap, _)) = &self.file {
            if self.place.node.is_some() {
                return time_copies(&swap.file, swap.slots).ok();
            }
            return time_reads(&swap.file, 0, swap.slots, true).ok();
        }
        // What cannot be used the library refuses, and says why; it is not to be overwritten
        // before. That all of them have their space was seen.
        let place = NamedPlace::open(&self.place.path, self.place.bytes, &Promises::default());
        let place = place.ok()?;
        time_reads(&place.file, NamedPlace::START_BYTES, place.slots, false).ok()
    }

    fn hand_on(&self, variables: &SwapVariables, command: &mut Command) {
        command.env(variables.path, &self.place.path);
        let size = self.place.bytes.map(|bytes| bytes.to_string());
        let handed = self.file.as_ref().map(|(_, handed)| handed.to_string());
        for (name, value) in [(variables.size, size), (variables.handed, handed)] {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
}

/// The parts of a run.
pub struct Tree {
    /// What its programs count.
    pub board: Board,
    statistics: Handed,
    statistics_path: Option<PathBuf>,
    swap: Vec<SwapPlace>,
    dram: Option<(Clerk, Handed)>,
}

impl Tree {
    /// Opens them; statistics are kept in memory where they have no absolute path.
    pub fn open(
        statistics_path: Option<PathBuf>,
        swap: Vec<Place>,
        dram: Dram,
    ) -> Result<Self, Error> {
        check_limits()?;
        let lowest = lowest_descriptor(soft_limit());
        let file = statistics_file(statistics_path.as_deref())?;
        let shown = || {
            statistics_path
                .clone()
                .unwrap_or_else(|| PathBuf::from("in memory"))
        };
        let board = Board::of(&file).map_err(|error| unusable(&shown(), error))?;
        let hand_on = |file: &File, detail| {
            Handed::hand_on(file, lowest, detail).map_err(|error| {
                refuse(
                    format!("cannot keep a descriptor for the programs: {error}"),
                    "raise the limit on open files (ulimit -n)",
                )
            })
        };
        let mut promises = Promises::default();
        for place in swap.iter().filter(|place| place.node.is_none()) {
            NamedPlace::promise_missing(&place.path, place.bytes, &mut promises)
                .map_err(|error| unusable_place(&place.path, error))?;
        }
        let mut open_swap = |place: Place| {
            if place.node.is_none() && !place.path.is_dir() {
                return Ok(SwapPlace { place, file: None });
            }
            let (bytes, dram_bytes) = (place.bytes, dram.bytes());
            let made = match place.node {
                Some(node) => SwapFile::create_on(node, bytes, dram_bytes, &mut promises),
                None => SwapFile::create(&place.path, bytes, dram_bytes, &mut promises),
            };
            let made = made.map_err(|error| unusable_place(&place.path, error))?;
            let handed = hand_on(&made.file, made.slots)?;
            let file = Some((made, handed));
            Ok(SwapPlace { place, file })
        };
        Ok(Self {
            board,
            statistics: hand_on(&file, 0)?,
            statistics_path,
            swap: swap
                .into_iter()
                .map(&mut open_swap)
                .collect::<Result<_, Error>>()?,
            dram: match dram {
                Dram::Each(_) => None,
                Dram::Together(bytes) => {
                    let pages = bytes / PAGE_BYTES;
                    let (file, clerk) =
                        ledger(pages).map_err(|error| unmade("a ledger in memory", error))?;
                    Some((clerk, hand_on(&file, pages)?))
                }
            },
        })
    }

    /// Has swap filled in the order of how soon pages come back, which is measured if there
    /// are several places; that order, for people.
    pub fn order_swap(&mut self) -> Option<String> {
        if self.swap.len() < 2 {
            return None;
        }
        let order = order::by_time(self.swap.iter().map(SwapPlace::time_reads));
        let paths: Vec<&Path> = self.swap.iter().map(SwapPlace::path).collect();
        let shown = order::shown(&paths, &order);
        let mut places: Vec<_> = std::mem::take(&mut self.swap)
            .into_iter()
            .map(Some)
            .collect();
        self.swap = (order.iter())
            .filter_map(|&(index, _)| places.get_mut(index)?.take())
            .collect();
        Some(shown)
    }

    fn swap_files(&self) -> impl Iterator<Item = &SwapFile> {
        self.swap
            .iter()
            .filter_map(|place| Some(&place.file.as_ref()?.0))
    }

    /// Tells a program where all of it is.
    pub fn hand_on(&self, command: &mut Command) {
        command.env("DEMETER_EXTMEM_STATS_FD", self.statistics.to_string());
        match &self.statistics_path {
            Some(path) => command.env("DEMETER_EXTMEM_STATS", path),
            None => command.env_remove("DEMETER_EXTMEM_STATS"),
        };
        for (at, variables) in SWAP_VARIABLES.iter().enumerate() {
            match self.swap.get(at) {
                Some(place) => place.hand_on(variables, command),
                // This run may be a program of another one.
                None => {
                    for name in [variables.path, variables.size, variables.handed] {
                        command.env_remove(name);
                    }
                }
            }
        }
        match &self.dram {
            Some((_, handed)) => command.env("DEMETER_EXTMEM_LEDGER_FD", handed.to_string()),
            None => command.env_remove("DEMETER_EXTMEM_LEDGER_FD"),
        };
    }

    /// Waits for the program; meanwhile divides DRAM, and frees the disk space of those
    /// that end before it.
    pub fn wait_for(&self, child: &mut Child) -> std::io::Result<ExitStatus> {
        std::thread::scope(|scope| {
            let (ended, told) = channel::<()>();
            scope.spawn(move || self.look_after(&told));
            let status = child.wait();
            drop(ended);
            // Now, and not when the kernel gets round to it.
            for swap in self.swap_files() {
                swap.give_back();
            }
            status
        })
    }

    fn look_after(&self, told: &Receiver<()>) {
        let period = match self.dram {
            Some(_) => DIVIDE_PERIOD,
            None => GIVE_BACK_PERIOD,
        };
        let mut gave_back = Instant::now();
        while told.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
            if let Some((clerk, _)) = &self.dram {
                clerk.round();
            }
            if gave_back.elapsed() >= GIVE_BACK_PERIOD {
                gave_back = Instant::now();
                for swap in self.swap_files().filter(|swap| swap.taken_bytes() > 0) {
                    swap.give_back();
                }
            }
        }
    }
}

fn ledger(dram_pages: u64) -> std::io::Result<(File, Clerk)> {
    let (file, ledger) = Ledger::create(dram_pages)?;
    let clerk = Clerk::new(ledger, &file)?;
    Ok((file, clerk))
}

/// The named file, or one in memory that outlives the programs.
fn statistics_file(path: Option<&Path>) -> Result<File, Error> {
    let Some(path) = path else {
        return nix::sys::memfd::memfd_create(
            c"demeter-extmem-statistics",
            nix::sys::memfd::MFdFlags::MFD_CLOEXEC,
        )
        .map(File::from)
        .map_err(|error| unmade("a statistics file in memory", error.into()));
    };
    Board::open_file(path).map_err(|error| unusable(path, error.into()))
}

fn soft_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 1024,
        rlim_max: 1024,
    };
    // SAFETY: fills one rlimit, or leaves it.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// What all programs share is in files, some of them in memory. To run into the limit is a
/// signal that would kill us.
fn check_limits() -> Result<(), Error> {
    const NEEDED_BYTES: u64 = 4 << 20;
    match largest_file_bytes() {
        bytes if bytes < NEEDED_BYTES => Err(limited(bytes, NEEDED_BYTES)),
        _ => Ok(()),
    }
}

fn limited(limit_bytes: u64, needed_bytes: u64) -> Error {
    refuse(
        format!(
            "files may have at most {} KiB where {} KiB are needed",
            limit_bytes >> 10,
            needed_bytes >> 10
        ),
        "raise the limit on the size of files (ulimit -f)",
    )
}

/// Without a descriptor for it.
fn unmade(what: &str, error: std::io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => refuse(
            format!("cannot make {what}: {error}"),
            "raise the limit on open files (ulimit -n)",
        ),
        _ => Error::file("make", what, error),
    }
}

fn unusable(path: &Path, error: BoardError) -> Error {
    match error {
        BoardError::Io(error) => refuse(
            format!(
                "cannot make the statistics file {}: {error}",
                path.display()
            ),
            "name another with --stats",
        ),
        BoardError::Foreign => refuse(
            format!("{} exists and is no statistics file", path.display()),
            "name another with --stats",
        ),
    }
}
