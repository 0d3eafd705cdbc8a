// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One budget of DRAM for all programs of a run.
//!
//! Each process has an entry in memory that all of them share, and writes there how many
//! pages it may use. There is no count of free pages: whoever is killed between two steps
//! would leave it wrong. What is free is what the entries leave.
//!
//! Whoever finds nothing left says so. The runner, as [`Clerk`], then gives all processes
//! a mark that those above it come down to: those that want little keep it, the others get
//! equal shares. It also strikes out processes that are gone, by the locks that they held.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// Processes of a run at one time that share; others have the budget to themselves.
pub const ENTRIES: usize = 1024;
/// No mark is below this: a process makes progress with so many pages.
pub const FLOOR_PAGES: i64 = 1024;
/// Rounds of the clerk after which pages of a fork count as its own.
const GROWN_UP_ROUNDS: u32 = 2;
/// So small a share of the budget is nothing to wait for.
const REST_SHARE: i64 = 64;
/// More than any machine has, and so few that no sum of all entries overflows.
const MOST_PAGES: i64 = 1 << 48;
const RELAXED: Ordering = Ordering::Relaxed;

/// Pages in memory that every program of the run may scribble on.
fn pages_in(word: &AtomicI64) -> i64 {
    word.load(RELAXED).clamp(0, MOST_PAGES)
}

const FREE: u32 = 0;
const LIVE: u32 = 1;

/// One process. All bits zero is a free entry.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    state: AtomicU32,
    /// It found nothing left since the clerk looked last.
    wants: AtomicU32,
    /// Rounds of the clerk that it has seen.
    rounds: AtomicU32,
    /// What it may use.
    granted_pages: AtomicI64,
    /// What it shares with the process it is a fork of: not counted twice while it is young.
    inherited_pages: AtomicI64,
    /// What it should come down to; 0 is anything.
    mark_pages: AtomicI64,
}

#[derive(Debug)]
#[repr(C)]
struct Layout {
    dram_pages: AtomicI64,
    /// Entries from here on were never used.
    used: AtomicU32,
    entries: [Entry; ENTRIES],
}

/// The entries, mapped for the life of the process.
#[derive(Debug, Clone, Copy)]
pub struct Ledger {
    layout: NonNull<Layout>,
}

// SAFETY: everything behind the pointer is atomic and never unmapped.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

impl Ledger {
    /// An empty one in memory, and its file.
    ///
    /// # Errors
    /// Those of the system.
    pub fn create(dram_pages: u64) -> io::Result<(File, Self)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a constant name.
        let descriptor = unsafe { libc::memfd_create(c"demeter-extmem-ledger".as_ptr(), flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: ours.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(size_of::<Layout>() as u64)?;
        // Programs that inherit it cannot take it away from the others.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: no memory is passed.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let ledger = Self::map(file.as_raw_fd())?;
        let dram_pages = i64::try_from(dram_pages).unwrap_or(i64::MAX);
        ledger.layout().dram_pages.store(dram_pages, RELAXED);
        Ok((file, ledger))
    }

    /// The one behind a descriptor.
    ///
    /// # Errors
    /// Those of the system; and of a file that is too short, which cannot be read.
    pub fn map(descriptor: RawFd) -> io::Result<Self> {
        if descriptor < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: not closed here; whether it is open at all is what we ask.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
        if file.metadata()?.len() != size_of::<Layout>() as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a fresh mapping.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Layout>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                descriptor,
                0,
            )
        };
        match NonNull::new(address.cast::<Layout>()) {
            Some(layout) if address != libc::MAP_FAILED => Ok(Self { layout }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes the first free entry whose byte `lock` locks.
    pub fn enroll(&self, lock: impl Fn(i64) -> bool) -> Option<Account> {
        let layout = self.layout();
        let number = (0..ENTRIES).find(|&number| {
            layout.entries[number].state.load(RELAXED) == FREE && lock(number as i64)
        })?;
        let account = self.account(number as u32);
        let entry = account.entry();
        entry.clear();
        entry.state.store(LIVE, Ordering::Release);
        layout.used.fetch_max(number as u32 + 1, RELAXED);
        Some(account)
    }

    /// The entry of this number, which [`Account::number`] told.
    pub fn account(&self, number: u32) -> Account {
        Account {
            ledger: *self,
            number,
        }
    }

    /// Pages that all processes may use now; whatever a program has scribbled, none has
    /// less than nothing.
    pub fn granted_pages(&self) -> i64 {
        (self.live())
            .map(|(_, entry)| pages_in(&entry.granted_pages))
            .sum()
    }

    /// Strikes out processes that are gone: those whose byte `lock` locks, but for `own`.
    pub fn strike_out(&self, own: Option<u32>, lock: impl Fn(i64) -> bool, unlock: impl Fn(i64)) {
        for (number, entry) in self.live() {
            if own != Some(number as u32) && lock(number as i64) {
                entry.clear();
                entry.state.store(FREE, Ordering::Release);
                unlock(number as i64);
            }
        }
    }

    fn dram_pages(&self) -> i64 {
        pages_in(&self.layout().dram_pages)
    }

    fn live(&self) -> impl Iterator<Item = (usize, &'static Entry)> {
        let layout = self.layout();
        let used = (layout.used.load(RELAXED) as usize).min(ENTRIES);
        layout.entries[..used]
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.state.load(Ordering::Acquire) == LIVE)
    }

    fn layout(&self) -> &'static Layout {
        // SAFETY: mapped for the life of the process; any bytes are a Layout.
        unsafe { self.layout.as_ref() }
    }
}

impl Entry {
    fn clear(&self) {
        self.wants.store(0, RELAXED);
        self.rounds.store(0, RELAXED);
        self.granted_pages.store(0, RELAXED);
        self.inherited_pages.store(0, RELAXED);
        self.mark_pages.store(0, RELAXED);
    }
}

/// The entry of this process.
#[derive(Debug, Clone, Copy)]
pub struct Account {
    ledger: Ledger,
    number: u32,
}

impl Account {
    /// Which it is.
    pub fn number(&self) -> u32 {
        self.number
    }

    fn entry(&self) -> &'static Entry {
        &self.ledger.layout().entries[self.number as usize % ENTRIES]
    }

    /// Pages it may use.
    pub fn pages(&self) -> i64 {
        let entry = self.entry();
        pages_in(&entry.granted_pages) + pages_in(&entry.inherited_pages)
    }

    /// Pages it should come down to, if it has more.
    pub fn mark_pages(&self) -> i64 {
        match self.entry().mark_pages.load(RELAXED) {
            0 => i64::MAX,
            mark => mark.max(FLOOR_PAGES),
        }
    }

    /// Asks for more; returns how many it got. That those are fewer is told to the clerk
    /// if they are needed now (`needs`).
    pub fn ask(&self, pages: i64, needs: bool) -> i64 {
        let entry = self.entry();
        let most = pages
            .min(self.mark_pages().saturating_sub(self.pages()))
            .max(0);
        // First its own entry, then the sum: two that meet both step back.
        entry.granted_pages.fetch_add(most, Ordering::SeqCst);
        let over = self.ledger.granted_pages() - self.ledger.dram_pages();
        let back = over.clamp(0, most);
        entry.granted_pages.fetch_sub(back, Ordering::SeqCst);
        let got = most - back;
        if needs && got < pages {
            entry.wants.store(1, RELAXED);
        }
        got
    }

    /// Rounds of the clerk that it has seen.
    pub fn rounds(&self) -> u32 {
        self.entry().rounds.load(RELAXED)
    }

    /// There is no clerk any more: what it has in common with the process that it came from
    /// counts, and where all have too much, it should come down to an equal part.
    pub fn do_without_clerk(&self) {
        let entry = self.entry();
        let inherited = entry.inherited_pages.swap(0, RELAXED).max(0);
        entry.granted_pages.fetch_add(inherited, RELAXED);
        let dram_pages = self.ledger.dram_pages();
        let mark = if self.ledger.granted_pages() > dram_pages {
            (dram_pages / self.ledger.live().count().max(1) as i64).max(FLOOR_PAGES)
        } else {
            0
        };
        entry.mark_pages.store(mark, RELAXED);
    }

    /// Takes pages that are in use already.
    pub fn force(&self, pages: i64) {
        self.entry().granted_pages.fetch_add(pages, RELAXED);
    }

    /// Gives back all but so many.
    pub fn keep(&self, pages: i64) {
        let entry = self.entry();
        let least = pages - pages_in(&entry.inherited_pages);
        let over = pages_in(&entry.granted_pages) - least.max(0);
        if over > 0 {
            entry.granted_pages.fetch_sub(over, RELAXED);
        }
    }

    /// It is a fork, and uses so many pages of the process it came from.
    pub fn inherit(&self, pages: i64) {
        self.entry().inherited_pages.store(pages, RELAXED);
    }
}

/// Who divides what there is. The runner, every few hundredths of a second.
#[derive(Debug)]
pub struct Clerk {
    ledger: Ledger,
    /// A description of the file of its own: it must not hold what others lock.
    locks: File,
}

impl Clerk {
    /// Of a ledger and its file.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(ledger: Ledger, file: &File) -> io::Result<Self> {
        let locks = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Self { ledger, locks })
    }

    /// Strikes out who is gone, and marks what each may have.
    pub fn round(&self) {
        let mut wanted = false;
        let set = |byte, kind| crate::lock::bytes(&self.locks, byte, 1, kind);
        self.ledger.strike_out(
            None,
            |byte| set(byte, libc::F_WRLCK),
            |byte| {
                set(byte, libc::F_UNLCK);
            },
        );
        for (_, entry) in self.ledger.live() {
            if entry.rounds.fetch_add(1, RELAXED).wrapping_add(1) == GROWN_UP_ROUNDS {
                let inherited = entry.inherited_pages.swap(0, RELAXED).max(0);
                entry.granted_pages.fetch_add(inherited, RELAXED);
            }
            wanted |= entry.wants.load(RELAXED) != 0;
        }
        let rest = self.ledger.dram_pages() - self.ledger.granted_pages();
        // Forks that have grown up may make it too little without a word.
        let least = if wanted {
            self.ledger.dram_pages() / REST_SHARE
        } else {
            0
        };
        let mark = if rest < least {
            self.level().max(FLOOR_PAGES)
        } else {
            0
        };
        for (_, entry) in self.ledger.live() {
            entry.mark_pages.store(mark, RELAXED);
            entry.wants.store(0, RELAXED);
        }
    }

    /// What each process that has more, or wants more, may have.
    fn level(&self) -> i64 {
        let mut left = self.ledger.dram_pages();
        let mut sharing = self.ledger.live().count() as i64;
        let mut level = left / sharing.max(1);
        loop {
            // Those that keep less than the level leave more to the others.
            let (mut count, mut kept) = (0, 0);
            for (_, entry) in self.ledger.live() {
                let pages = pages_in(&entry.granted_pages);
                if entry.wants.load(RELAXED) == 0 && pages <= level {
                    count += 1;
                    kept += pages;
                }
            }
            left = self.ledger.dram_pages() - kept;
            let others = self.ledger.live().count() as i64 - count;
            if others <= 0 || others >= sharing {
                return level;
            }
            sharing = others;
            level = left / others;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    struct Process {
        account: Account,
        _lock: File,
    }

    fn process(ledger: &Ledger, file: &File) -> Process {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let account = ledger
            .enroll(|byte| crate::lock::bytes(&lock, byte, 1, libc::F_WRLCK))
            .unwrap();
        Process {
            account,
            _lock: lock,
        }
    }

    #[test]
    fn who_is_gone_leaves_its_share() {
        let (file, ledger) = Ledger::create(64_000).unwrap();
        let clerk = Clerk::new(ledger, &file).unwrap();
        let one = process(&ledger, &file);
        let two = process(&ledger, &file);
        assert_eq!(one.account.ask(50_000, true), 50_000);
        assert_eq!(two.account.ask(50_000, true), 14_000);
        assert_eq!(ledger.granted_pages(), 64_000);
        drop(one);
        clerk.round();
        assert_eq!(two.account.ask(100_000, true), 50_000);
        // Its entry is another's.
        let three = process(&ledger, &file);
        assert_eq!((three.account.number, three.account.pages()), (0, 0));
    }

    #[test]
    fn without_a_clerk_those_left_strike_out_who_is_gone() {
        let (file, ledger) = Ledger::create(64_000).unwrap();
        let clerk = Clerk::new(ledger, &file).unwrap();
        let one = process(&ledger, &file);
        let two = process(&ledger, &file);
        assert_eq!(one.account.ask(60_000, true), 60_000);
        assert_eq!(two.account.ask(60_000, true), 4_000);
        clerk.round();
        assert_eq!(
            (one.account.rounds(), two.account.mark_pages()),
            (1, 32_000)
        );
        drop(clerk);
        let strike_out = |process: &Process| {
            let set = |byte, kind| crate::lock::bytes(&process._lock, byte, 1, kind);
            ledger.strike_out(
                Some(process.account.number),
                |byte| set(byte, libc::F_WRLCK),
                |byte| assert!(set(byte, libc::F_UNLCK)),
            );
        };
        // Nobody is gone yet, and it does not take itself for gone.
        strike_out(&two);
        assert_eq!((one.account.pages(), two.account.pages()), (60_000, 4_000));
        drop(one);
        strike_out(&two);
        assert_eq!(two.account.ask(60_000, true), 28_000, "up to the last mark");
        two.account.do_without_clerk();
        assert_eq!(two.account.ask(60_000, true), 32_000);
        assert_eq!(process(&ledger, &file).account.number, 0);
    }

    #[test]
    fn forks_without_a_clerk_count_and_come_down_to_equal_parts() {
        let (file, ledger) = Ledger::create(64_000).unwrap();
        let parent = process(&ledger, &file);
        assert_eq!(parent.account.ask(60_000, true), 60_000);
        let children = [(); 3].map(|()| {
            let child = process(&ledger, &file);
            child.account.inherit(parent.account.pages());
            child.account.do_without_clerk();
            child
        });
        assert_eq!(ledger.granted_pages(), 240_000);
        parent.account.do_without_clerk();
        for process in children.iter().chain([&parent]) {
            process.account.do_without_clerk();
            assert_eq!(process.account.mark_pages(), 16_000);
        }
        for process in children.iter().chain([&parent]) {
            process.account.keep(process.account.mark_pages());
        }
        assert_eq!(ledger.granted_pages(), 64_000);
        parent.account.do_without_clerk();
        assert_eq!(parent.account.mark_pages(), i64::MAX);
    }

    #[test]
    fn what_a_program_scribbles_harms_nobody_else() {
        let (file, ledger) = Ledger::create(64_000).unwrap();
        let clerk = Clerk::new(ledger, &file).unwrap();
        let (bad, good) = (process(&ledger, &file), process(&ledger, &file));
        assert!(file.set_len(0).is_err(), "it is the others', too");
        for granted in [i64::MIN, i64::MIN / 2, i64::MAX] {
            bad.account.entry().granted_pages.store(granted, RELAXED);
            clerk.round();
            let pages = ledger.granted_pages();
            assert!(pages == 0 || pages == MOST_PAGES, "{pages}");
            assert!(good.account.ask(1_000_000, true) <= 64_000);
            good.account.entry().granted_pages.store(0, RELAXED);
        }
    }

    /// Any words in the whole of it: no answer is out of bounds, and none is waited for.
    #[test]
    fn a_ledger_of_any_words_answers_within_bounds() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let (file, ledger) = Ledger::create(64_000).unwrap();
        let clerk = Clerk::new(ledger, &file).unwrap();
        let words = size_of::<Layout>() / 8;
        for round in 0..200 {
            let bytes: Vec<u8> = (0..words)
                .map(|_| match random() % 8 {
                    0 => u64::MAX,
                    1 => i64::MIN as u64,
                    2 => i64::MAX as u64,
                    3 => 0,
                    // Live ones, if it is the word of a state.
                    4 | 5 => u64::from(LIVE) | random() << 32,
                    _ => random(),
                })
                .flat_map(u64::to_ne_bytes)
                .collect();
            file.write_all_at(&bytes, 0).unwrap();
            let account = ledger.account(random() as u32);
            for pages in [0, 1, 100_000, MOST_PAGES] {
                let got = account.ask(pages, true);
                assert!(
                    (0..=pages).contains(&got),
                    "round {round}: {got} of {pages}"
                );
            }
            account.keep(random() as i64 >> 20);
            account.do_without_clerk();
            assert!((0..=2 * MOST_PAGES).contains(&account.pages()));
            assert!(account.mark_pages() >= FLOOR_PAGES);
            if round % 2 == 0 {
                // Nobody holds a lock: it strikes out all.
                clerk.round();
                assert_eq!(ledger.live().count(), 0);
            }
            assert!(clerk.level() >= 0);
        }
    }

    #[test]
    fn other_files_are_no_ledger() {
        let file = tempfile::tempfile().unwrap();
        for bytes in [0, 1, size_of::<Layout>() as u64 - 1, 1 << 30] {
            file.set_len(bytes).unwrap();
            let error = Ledger::map(file.as_raw_fd()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert!(Ledger::map(-1).is_err());
    }

    #[test]
    fn those_that_want_more_share_what_the_others_leave() {
        let (file, ledger) = Ledger::create(64_000).unwrap();
        let clerk = Clerk::new(ledger, &file).unwrap();
        let small = process(&ledger, &file);
        let large = process(&ledger, &file);
        let late = process(&ledger, &file);
        assert_eq!(small.account.ask(4_000, true), 4_000);
        assert_eq!(large.account.ask(60_000, true), 60_000);
        clerk.round();
        assert_eq!(large.account.mark_pages(), i64::MAX);
        assert_eq!(late.account.ask(1000, true), 0);
        clerk.round();
        assert_eq!(large.account.mark_pages(), 30_000);
        large.account.keep(large.account.mark_pages());
        assert_eq!(late.account.ask(64_000, true), 30_000);
        clerk.round();
        assert_eq!(small.account.mark_pages(), 30_000);
        assert_eq!(small.account.pages(), 4_000);
        // While nobody asks nobody is held.
        drop(late);
        clerk.round();
        clerk.round();
        assert_eq!(large.account.ask(64_000, true), 30_000);
    }

    #[test]
    fn a_fork_counts_once_it_has_grown_up() {
        let (file, ledger) = Ledger::create(64_000).unwrap();
        let clerk = Clerk::new(ledger, &file).unwrap();
        let parent = process(&ledger, &file);
        assert_eq!(parent.account.ask(40_000, true), 40_000);
        let child = process(&ledger, &file);
        child.account.inherit(parent.account.pages());
        assert_eq!(
            (child.account.pages(), ledger.granted_pages()),
            (40_000, 40_000)
        );
        clerk.round();
        assert_eq!(parent.account.mark_pages(), i64::MAX);
        clerk.round();
        assert_eq!(
            (child.account.pages(), ledger.granted_pages()),
            (40_000, 80_000)
        );
        for process in [&parent, &child] {
            assert_eq!(process.account.mark_pages(), 32_000);
            process.account.keep(32_000);
        }
        clerk.round();
        assert_eq!(ledger.granted_pages(), 64_000);
    }

    #[test]
    fn many_small_ones_and_a_large_one() {
        let (file, ledger) = Ledger::create(16_000).unwrap();
        let clerk = Clerk::new(ledger, &file).unwrap();
        let large = process(&ledger, &file);
        large.account.ask(16_000, true);
        let small: Vec<_> = (0..40).map(|_| process(&ledger, &file)).collect();
        small.iter().for_each(|small| small.account.force(160));
        small[0].account.ask(1, true);
        clerk.round();
        let mark = large.account.mark_pages();
        assert!((4_000..10_000).contains(&mark), "{mark}");
    }
}
