// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all programs of a run share: statistics, DRAM, and in a directory one swap file.
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
    Clerk, CreateError, Handed, Ledger, SwapFile, largest_file_bytes, lowest_descriptor,
};

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

/// The parts of a run.
pub struct Tree {
    /// What its programs count.
    pub board: Board,
    statistics: Handed,
    statistics_path: Option<PathBuf>,
    swap: Option<(SwapFile, Handed)>,
    dram: Option<(Clerk, Handed)>,
}

impl Tree {
    /// Opens them. `swap` is a directory, a file or a block device, of which `swap_bytes` may be
    /// used; statistics are kept in memory where they have no absolute path.
    pub fn open(
        statistics_path: Option<PathBuf>,
        swap: &Path,
        swap_bytes: Option<u64>,
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
        let swap = swap
            .is_dir()
            .then(|| SwapFile::create(swap, swap_bytes, dram.bytes()))
            .transpose()
            .map_err(|error| no_room(swap, error))?;
        let hand_on = |file: &File, detail| {
            Handed::hand_on(file, lowest, detail).map_err(|error| {
                refuse(
                    format!("cannot keep a descriptor for the programs: {error}"),
                    "raise the limit on open files (ulimit -n)",
                )
            })
        };
        Ok(Self {
            board,
            statistics: hand_on(&file, 0)?,
            statistics_path,
            swap: swap
                .map(|swap| hand_on(&swap.file, swap.slots).map(|handed| (swap, handed)))
                .transpose()?,
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

    /// Tells a program where all of it is.
    pub fn hand_on(&self, command: &mut Command) {
        command.env("DEMETER_EXTMEM_STATS_FD", self.statistics.to_string());
        match &self.statistics_path {
            Some(path) => command.env("DEMETER_EXTMEM_STATS", path),
            None => command.env_remove("DEMETER_EXTMEM_STATS"),
        };
        match &self.swap {
            Some((_, handed)) => command.env("DEMETER_EXTMEM_SWAP_FD", handed.to_string()),
            None => command.env_remove("DEMETER_EXTMEM_SWAP_FD"),
        };
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
            if let Some((swap, _)) = &self.swap {
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
            if let Some((swap, _)) = &self.swap
                && gave_back.elapsed() >= GIVE_BACK_PERIOD
            {
                gave_back = Instant::now();
                if swap.taken_bytes() > 0 {
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

fn no_room(directory: &Path, error: CreateError) -> Error {
    let shown = directory.display();
    match error {
        CreateError::System { errno } => refuse(
            format!(
                "cannot make a swap file in {shown}: {}",
                std::io::Error::from_raw_os_error(errno)
            ),
            "check its permissions, or name another directory",
        ),
        CreateError::TooSmall {
            available_bytes,
            needed_bytes,
        } => refuse(
            format!(
                "{shown} has {} MiB free where {} MiB of swap are needed",
                available_bytes >> 20,
                needed_bytes >> 20
            ),
            "free some space, or name a larger place",
        ),
        CreateError::Limited {
            limit_bytes,
            needed_bytes,
        } => limited(limit_bytes, needed_bytes),
    }
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
