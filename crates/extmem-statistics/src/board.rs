// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file: a header, sums of processes long gone, and a block for each of the rest.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::block::{About, Block, CHANGING, ENDED, FREE, LEFT, LIVE};
use crate::departures::{Departure, Departures};

const MAGIC: u64 = u64::from_le_bytes(*b"DMTRXTM5");
/// Processes that are told apart at one time.
const BLOCKS: usize = 32;

#[repr(C, align(4096))]
struct Header {
    /// Written last. The magic's last character is the version.
    magic: AtomicU64,
}

#[repr(C)]
struct Layout {
    header: Header,
    /// Sums of ended processes whose block was needed again.
    gone: Block,
    blocks: [Block; BLOCKS],
    departures: Departures,
}

/// Why a statistics file cannot be used.
#[derive(Debug)]
pub enum BoardError {
    /// The system refused.
    Io(io::Error),
    /// It is something else.
    Foreign,
}

impl std::fmt::Display for BoardError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(formatter, "cannot open the statistics file: {error}"),
            Self::Foreign => formatter.write_str("not a statistics file of this version"),
        }
    }
}

impl std::error::Error for BoardError {}

impl From<io::Error> for BoardError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A mapped statistics file. Lives as long as the process.
#[derive(Debug, Clone, Copy)]
pub struct Board {
    layout: NonNull<Layout>,
}

// SAFETY: everything behind the pointer is atomic and never unmapped.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Opens the file, or makes it.
    pub fn create(path: &Path) -> Result<Self, BoardError> {
        Self::of(&Self::open_file(path)?)
    }

    /// The file for a board, as it is, or made.
    pub fn open_file(path: &Path) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)
    }

    /// The board in an open file.
    pub fn of(file: &File) -> Result<Self, BoardError> {
        let length = file.metadata()?.len();
        if length != 0 && length != size_of::<Layout>() as u64 {
            return Err(BoardError::Foreign);
        }
        // Many processes may do this at once: it changes nothing the second time.
        file.set_len(size_of::<Layout>() as u64)?;
        let board = Self::map(Some(file), true)?;
        match board.layout().header.magic.compare_exchange(
            0,
            MAGIC,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) | Err(MAGIC) => Ok(board),
            Err(_) => Err(BoardError::Foreign),
        }
    }

    /// Opens a file to look at it.
    pub fn watch(path: &Path) -> Result<Self, BoardError> {
        let file = File::open(path)?;
        if file.metadata()?.len() != size_of::<Layout>() as u64 {
            return Err(BoardError::Foreign);
        }
        let board = Self::map(Some(&file), false)?;
        if board.layout().header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(BoardError::Foreign);
        }
        Ok(board)
    }

    /// Memory that only this process and its forks see.
    pub fn private() -> Result<Self, BoardError> {
        Ok(Self::map(None, true)?)
    }

    /// The board of a place.
    pub fn at(place: Place<'_>) -> Result<Self, BoardError> {
        match place {
            Place::Private => Self::private(),
            Place::Path(path) => Self::create(path),
            Place::PathIfThere(path) => Self::create(path).or_else(|_| Self::private()),
            Place::Descriptor(descriptor) => {
                // SAFETY: open, and not closed here.
                let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
                Self::of(&file)
            }
        }
    }

    /// Sums of processes that have no block any more.
    pub fn gone(&self) -> &'static Block {
        &self.layout().gone
    }

    /// Programs that were started without the pager.
    pub fn departures(&self) -> &'static Departures {
        &self.layout().departures
    }

    /// Blocks of processes that run or ran.
    pub fn blocks(&self) -> impl Iterator<Item = &'static Block> {
        self.layout()
            .blocks
            .iter()
            .filter(|block| matches!(block.state.load(Ordering::Acquire), LIVE | ENDED | LEFT))
    }

    /// A block for this process. When all are taken, the block of an ended process;
    /// when all run, the last one is shared.
    pub fn claim(&self, pid: u32, now_ns: u64, about: &About<'_>) -> &'static Block {
        let layout = self.layout();
        for block in &layout.blocks {
            // What this process was before an exec.
            block.change(pid, LEFT, ENDED);
        }
        let is_gone = |block: &Block| !runs(block.pid.load(Ordering::Relaxed));
        let block = self
            .take(FREE, |_| true)
            .or_else(|| self.take(ENDED, |_| true))
            .or_else(|| self.take(LIVE, is_gone))
            .or_else(|| self.take(LEFT, is_gone));
        match block {
            Some(block) => {
                block.begin(pid, now_ns, about);
                block
            }
            None => &layout.blocks[BLOCKS - 1],
        }
    }

    fn take(&self, state: u32, suits: impl Fn(&Block) -> bool) -> Option<&'static Block> {
        let layout = self.layout();
        let block = layout.blocks.iter().find(|block| {
            block.state.load(Ordering::Relaxed) == state
                && suits(block)
                && block
                    .state
                    .compare_exchange(state, CHANGING, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })?;
        if state != FREE {
            layout.gone.absorb(block);
        }
        Some(block)
    }

    fn layout(&self) -> &'static Layout {
        // SAFETY: mapped for the life of the process; any bytes are a Layout.
        unsafe { self.layout.as_ref() }
    }

    fn map(file: Option<&File>, writable: bool) -> io::Result<Self> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let (flags, descriptor) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: a fresh mapping.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Layout>(),
                protection,
                flags,
                descriptor,
                0,
            )
        };
        match NonNull::new(address.cast::<Layout>()) {
            Some(layout) if address != libc::MAP_FAILED => Ok(Self { layout }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// True while a process of that number exists.
pub(crate) fn runs(pid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let result = unsafe { libc::kill(pid as libc::pid_t, 0) };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// True while it has memory, too: what has ended and was not waited for yet has none.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    runs(pid) && !is_zombie(&String::from_utf8_lossy(&stat))
}

/// Whether that is the line of a process of which no thread is left.
fn is_zombie(stat: &str) -> bool {
    // Its name, in parentheses, may hold anything.
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return false;
    };
    let mut fields = rest.split_whitespace();
    let is_over = matches!(fields.next(), Some("Z" | "X"));
    // The first thread may end before the others; it counts all the same.
    is_over && matches!(fields.nth(16), None | Some("0" | "1"))
}

/// CLOCK_MONOTONIC, by the kernel itself: a library that the program loads may have a clock of its
/// own, and variables of a thread, which threads of the pager have none of.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is writable.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Where statistics are kept.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// In memory that only this process and its forks see.
    Private,
    /// In the file at a path.
    Path(&'a Path),
    /// Likewise, and in private memory where that cannot be.
    PathIfThere(&'a Path),
    /// In an open file, which stays open.
    Descriptor(RawFd),
}

/// The writing side in one process.
#[derive(Debug)]
pub struct Statistics {
    board: Board,
    /// Another process' where there are too many.
    block: AtomicPtr<Block>,
    /// This process.
    pid: AtomicU32,
    /// When the process started that it and its relatives by fork come from.
    family_start_ns: u64,
}

impl Statistics {
    /// Takes a block.
    pub fn open(place: Place<'_>, about: &About<'_>) -> Result<Self, BoardError> {
        let board = Board::at(place)?;
        let start_ns = now_ns();
        let block = board.claim(std::process::id(), start_ns, about);
        board.departures().arrived(std::process::id());
        Ok(Self {
            board,
            block: AtomicPtr::new(std::ptr::from_ref(block).cast_mut()),
            pid: AtomicU32::new(std::process::id()),
            family_start_ns: start_ns,
        })
    }

    /// This process's block.
    pub fn block(&self) -> &'static Block {
        // SAFETY: only blocks of the mapping are stored.
        unsafe { &*self.block.load(Ordering::Relaxed) }
    }

    /// The file.
    pub fn board(&self) -> Board {
        self.board
    }

    /// A process, this one or its child by vfork, is about to exec a program.
    pub fn leave(&self, pid: u32, path: &[u8]) -> Option<Departure> {
        self.block().change(pid, LIVE, LEFT);
        self.board.departures().leave(pid, path)
    }

    /// The exec failed.
    pub fn stayed(&self, pid: u32, departure: Option<Departure>) {
        self.board.departures().stayed(departure);
        self.block().change(pid, LEFT, LIVE);
    }

    /// In the child of a fork: a block of its own.
    pub fn after_fork_in_child(&self, about: &About<'_>) {
        let pid = std::process::id();
        let (parent, parent_pid) = (self.block(), self.pid.swap(pid, Ordering::Relaxed));
        let block = self.board.claim(pid, now_ns(), about);
        if block.pid.load(Ordering::Relaxed) == pid {
            (block.family_start_ns).store(self.family_start_ns, Ordering::Relaxed);
            if parent.pid.load(Ordering::Relaxed) == parent_pid {
                block.inherit(parent);
            }
        }
        self.block
            .store(std::ptr::from_ref(block).cast_mut(), Ordering::Relaxed);
    }

    /// Takes the gauges into the history; every 100 ms is often enough.
    pub fn sample(&self) {
        self.block().sample(now_ns());
    }

    /// Before the process ends in order.
    pub fn finish(&self) {
        let block = self.block();
        block.sample(now_ns());
        if block.pid.load(Ordering::Relaxed) == std::process::id() {
            block.state.store(ENDED, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AboutSwap, MOST_SWAP_PLACES, Summary};

    const ABOUT: About<'_> = About {
        command: "test",
        policy: "default",
        mode: "inline",
        engine: "plain",
        dram_bytes: 1,
        swap_bytes: 2,
        swap: [AboutSwap {
            path: "",
            size_bytes: 0,
            file: [0; 2],
        }; MOST_SWAP_PLACES],
    };

    #[test]
    fn nothing_is_lost_when_more_processes_come_than_blocks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("statistics");
        for _ in 0..100 {
            let statistics = Statistics::open(Place::Path(&path), &ABOUT).unwrap();
            statistics.block().counters.faults_swap.add(3);
            statistics.finish();
        }
        let board = Board::watch(&path).unwrap();
        assert_eq!(board.blocks().count(), BLOCKS);
        let sum: u64 = board
            .blocks()
            .chain([board.gone()])
            .map(|block| block.counters.faults_swap.get())
            .sum();
        assert_eq!(sum, 300);
    }

    #[test]
    fn killed_processes_give_their_block_back_and_crowds_share() {
        let board = Board::private().unwrap();
        let own = std::process::id();
        for _ in 0..BLOCKS {
            board.claim(own, 1, &ABOUT);
        }
        let shared = board.claim(own, 1, &ABOUT);
        assert!(std::ptr::eq(
            shared,
            &raw const board.layout().blocks[BLOCKS - 1]
        ));
        // A process number that cannot exist.
        board.layout().blocks[7]
            .pid
            .store(0x7fff_fffe, Ordering::Relaxed);
        let block = board.claim(own, 1, &ABOUT);
        assert!(std::ptr::eq(block, &raw const board.layout().blocks[7]));
    }

    #[test]
    fn who_left_gives_its_block_back_when_it_is_gone() {
        let statistics = Statistics::open(Place::Private, &ABOUT).unwrap();
        let (board, own) = (statistics.board(), std::process::id());
        while board.blocks().count() < BLOCKS {
            board.claim(own, 1, &ABOUT);
        }
        let left = statistics.leave(own, b"/bin/static");
        let is_left = |block: &Block| std::ptr::eq(block, statistics.block());
        // The exec may fail, and then it goes on there.
        assert!(!is_left(board.claim(1, 2, &ABOUT)));
        statistics.stayed(own, left);
        assert!(!is_left(board.claim(own, 2, &ABOUT)));
        statistics.leave(own, b"/bin/static");
        // Its next image has a pager after all.
        assert!(is_left(board.claim(own, 2, &ABOUT)));
        statistics.leave(own, b"/bin/static");
        (statistics.block().pid).store(0x7fff_fffe, Ordering::Relaxed);
        assert!(is_left(board.claim(own, 3, &ABOUT)));
    }

    #[test]
    fn a_zombie_has_no_thread_left() {
        let line = |name: &str, state: &str, threads: u32| {
            format!(
                "7 ({name}) {state} 1 7 7 0 -1 4228100 0 0 0 0 0 0 0 0 20 0 {threads} 0 4 0 0\n"
            )
        };
        assert!(is_zombie(&line("sort", "Z", 1)) && is_zombie(&line(") R (", "X", 0)));
        assert!(!is_zombie(&line("sort", "S", 1)) && !is_zombie(&line(") Z (", "R", 1)));
        // Its first thread has ended.
        assert!(!is_zombie(&line("sort", "Z", 11)) && !is_zombie(&line("sort", "Z", 2)));
        assert!(!is_zombie("") && !is_zombie("7 (sort"));
        assert!(lives(std::process::id()) && lives(1) && !lives(0x7fff_fffe));
    }

    #[test]
    fn other_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("other");
        std::fs::write(&path, "text").unwrap();
        assert!(matches!(Board::create(&path), Err(BoardError::Foreign)));
        assert!(matches!(Board::watch(&path), Err(BoardError::Foreign)));
        assert_eq!(std::fs::read(&path).unwrap(), b"text");
        std::fs::write(&path, vec![1; size_of::<Layout>()]).unwrap();
        assert!(matches!(Board::create(&path), Err(BoardError::Foreign)));
        let missing = Board::watch(&directory.path().join("none"));
        assert!(matches!(missing, Err(BoardError::Io(_))));
    }

    /// Any bytes behind the magic: what is printed of them is text, and nothing more.
    #[test]
    fn a_file_of_any_bytes_is_read_without_harm() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("scribbled");
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut seen = 0;
        for _ in 0..2 {
            let mut bytes: Vec<u8> = (0..size_of::<Layout>() / 8)
                .map(|_| match random() % 6 {
                    0 => 0,
                    1 => u64::MAX,
                    // Live or ended, if it is the word of a state.
                    2 | 3 => (random() & 3) | random() << 32,
                    _ => random(),
                })
                .flat_map(u64::to_ne_bytes)
                .collect();
            bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
            std::fs::write(&path, &bytes).unwrap();
            let board = Board::watch(&path).unwrap();
            let summary = Summary::of(board);
            seen += summary.processes.len();
            let text = summary.to_string();
            let is_harmless = |letter: char| letter == '\n' || !letter.is_control();
            assert!(text.chars().all(is_harmless), "{text:?}");
            let json = serde_json::to_string(&summary).unwrap();
            assert!(json.chars().all(is_harmless));
            let first = summary.total("faults_swap");
            assert!(
                summary
                    .processes
                    .iter()
                    .all(|process| process.counter("faults_swap") <= first)
            );
            assert!(
                board
                    .departures()
                    .escaped()
                    .0
                    .keys()
                    .all(|name| name.chars().all(is_harmless))
            );
            // Who joins such a run takes a block of it, and counts.
            let statistics = Statistics::open(Place::Path(&path), &ABOUT).unwrap();
            (0..300).for_each(|_| statistics.sample());
            statistics.finish();
        }
        assert!(seen > 2, "{seen} processes");
    }

    #[test]
    fn a_forked_child_counts_for_itself() {
        let statistics = Statistics::open(Place::Private, &ABOUT).unwrap();
        let block = statistics.block();
        block.gauges.swap_used_bytes.set(7);
        block.gauges.resident_bytes.set(8);
        block.swap[0].used_bytes.set(9);
        statistics.sample();
        // SAFETY: the child only stores and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            statistics.after_fork_in_child(&ABOUT);
            statistics.block().counters.faults_swap.add(5);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(statistics.block().counters.faults_swap.get(), 0);
        let sums: Vec<u64> = statistics
            .board()
            .blocks()
            .map(|block| block.counters.faults_swap.get())
            .collect();
        assert_eq!(sums, [0, 5]);
        // It holds what its parent holds, before it has looked for itself.
        let fork = statistics.board().blocks().last().unwrap();
        assert_eq!(fork.gauges.swap_used_bytes.get(), 7);
        assert_eq!(fork.gauges.resident_bytes.get(), 8);
        assert_eq!(fork.swap[0].used_bytes.get(), 9);
        let times = [fork, block].map(|block| {
            let times = [&block.updated_ns, &block.family_start_ns];
            times.map(|time| time.load(Ordering::Relaxed))
        });
        assert_eq!(times[0], times[1]);
    }
}
