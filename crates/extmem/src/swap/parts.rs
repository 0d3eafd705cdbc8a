// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of a file or device that several programs swap to.
//!
//! A script that is managed starts programs that are managed too, and all of them were
//! given the same file. So it is divided, and a program takes a part when it first needs
//! it, by a lock on that part's range of words, which goes when the program and its forks
//! are gone. The lock has a description of its own: the kernel drops rings, and with them
//! what they do with the file, a good while after the program. In a sparse file the disk
//! space of a part is taken with it, so that no write can fail for want of it.
//!
//! All threads and forks of a program lock through that one description, so the lock keeps
//! none of them out. Who asks for a part therefore signs for it first, with its number in the
//! family, and strikes that out when it has the part or was refused. What was signed for by
//! a process that is gone is given back by whoever sweeps up after it (`family`).

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use demeter_extmem_tree::{MOST_PARTS, PARTS, PlaceError, largest_file_bytes, part_words, parts};

use super::backing::{Backing, Shared};
use super::backoff::Backoff;
use super::node_memory::NodeMemory;
use super::obstacle::Obstacle;
use super::{SLOT_BYTES, SwapError};
use crate::region::{Region, carved_bytes};
use crate::{byte_lock, clock, descriptor, syscall};

/// Parts that may be refused in one look. Where the disk is full for one it is for most, a
/// refusal may take a journal's commit, and there may be thousands of parts; …
const MOST_REFUSALS: u32 = 8;
/// … fewer where a refusal takes long: no other is asked for after so much time.
const MOST_LOOK_NS: u64 = 100_000_000;

/// Which parts are ours. Shared by forks.
#[derive(Debug)]
pub struct Parts {
    file: RawFd,
    start_bytes: u64,
    /// Where locks are taken; None: nobody else uses the file.
    locks: Option<RawFd>,
    sparse: bool,
    /// Where space is memory of a node.
    node: Option<NodeMemory>,
    /// Bytes of all parts; the last one may be smaller.
    total_bytes: u64,
    part_words: usize,
    count: usize,
    ours: &'static [AtomicU64],
    /// Who of the family asks for a part just now; 0: nobody.
    askers: &'static [AtomicU8],
    /// The [`Obstacle`] when a part was last asked for; 0: none.
    obstacle: AtomicU8,
    /// Where the next look begins: behind what was refused, so that a part that has its
    /// space yet is found in time.
    next: AtomicUsize,
    /// When to ask for a part again after none could be had.
    backoff: Backoff,
}

impl Parts {
    /// Bytes of tables.
    pub fn footprint_bytes() -> usize {
        carved_bytes::<AtomicU64>(MOST_PARTS / 64) + carved_bytes::<AtomicU8>(MOST_PARTS)
    }

    /// The parts of what is under a store.
    pub fn new(backing: &Backing, region: &mut Region) -> Result<Self, SwapError> {
        let file = backing.descriptor();
        let locks = match backing.shared {
            Shared::Alone => None,
            _ => Some(descriptor::keep(descriptor::open_again(file).ok_or(
                SwapError::Place {
                    place: backing.place,
                    cause: PlaceError::Locks,
                },
            )?)),
        };
        // SAFETY: zero is each of these types.
        let tables = unsafe {
            (
                region.carve::<AtomicU64>(MOST_PARTS / 64),
                region.carve::<AtomicU8>(MOST_PARTS),
            )
        };
        let (Some(ours), Some(askers)) = tables else {
            return Err(SwapError::Memory);
        };
        Ok(Self {
            file,
            start_bytes: backing.start_bytes,
            locks,
            sparse: backing.sparse,
            node: backing.node.map(NodeMemory::new),
            total_bytes: backing.slots * SLOT_BYTES as u64,
            part_words: part_words(backing.slots),
            count: parts(backing.slots),
            ours,
            askers,
            obstacle: AtomicU8::new(0),
            next: AtomicUsize::new(0),
            backoff: Backoff::default(),
        })
    }

    /// How many words from this one on may not be used: 0 if it may.
    pub fn skip(&self, word: usize) -> usize {
        if self.is_ours(word / self.part_words) {
            return 0;
        }
        self.part_words - word % self.part_words
    }

    /// Whether somebody else's parts, or nobody's, are left to take.
    pub fn may_grow(&self) -> bool {
        (0..self.count).any(|part| !self.is_ours(part))
    }

    /// What keeps the store from growing, if that is not the size given.
    pub fn obstacle(&self) -> Option<Obstacle> {
        let seen = self.obstacle.load(Ordering::Relaxed);
        [Obstacle::Disk, Obstacle::Limit, Obstacle::Node]
            .into_iter()
            .find(|&one| one as u8 == seen)
    }

    /// Whether one of the family asks for a part just now.
    pub fn is_asked_for(&self) -> bool {
        let mut askers = self.askers[..self.count].iter();
        askers.any(|asker| asker.load(Ordering::Acquire) != 0)
    }

    /// Takes another part for this member of the family. False when all are taken or cannot be
    /// had, and for a while after that without a look.
    pub fn grow(&self, member: u8) -> bool {
        self.backoff.is_due(clock::now_ns()) && self.grow_now(member)
    }

    /// The same with a look each time, for who has no other way left.
    pub fn grow_now(&self, member: u8) -> bool {
        let begun_ns = clock::now_ns();
        let mut hole = 0..0;
        let has_data = |part| self.has_data(part, &mut hole);
        let grown = self.look(member, begun_ns, has_data, |part| self.fill(part));
        if grown {
            self.backoff.was_good();
        } else {
            self.backoff
                .was_in_vain(begun_ns, clock::now_ns(), self.obstacle());
        }
        grown
    }

    /// Takes the first part that can be locked and filled. Once the disk was full for one, only
    /// those with data of somebody before, which have their space yet, and no more than so many.
    /// What another one of the family asks for is left to it.
    fn look(
        &self,
        member: u8,
        begun_ns: u64,
        mut has_data: impl FnMut(usize) -> bool,
        mut fill: impl FnMut(usize) -> Result<(), Obstacle>,
    ) -> bool {
        self.obstacle.store(0, Ordering::Relaxed);
        let first = self.next.swap(0, Ordering::Relaxed);
        let mut refusals = 0;
        for part in (first..self.count).chain(0..first) {
            if self.is_ours(part) || (refusals > 0 && !has_data(part)) || !self.ask(part, member) {
                continue;
            }
            match fill(part) {
                Ok(()) => {
                    self.ours[part / 64].fetch_or(1 << (part % 64), Ordering::AcqRel);
                    self.strike_out(part);
                    return true;
                }
                Err(obstacle) => {
                    self.obstacle.store(obstacle as u8, Ordering::Relaxed);
                    self.unlock(part);
                    self.strike_out(part);
                    // That costs nothing, and those below the limit may come free.
                    if obstacle == Obstacle::Limit {
                        continue;
                    }
                    refusals += 1;
                    let took_ns = clock::now_ns().saturating_sub(begun_ns);
                    if refusals == MOST_REFUSALS || took_ns > MOST_LOOK_NS {
                        self.next.store((part + 1) % self.count, Ordering::Relaxed);
                        return false;
                    }
                }
            }
        }
        false
    }

    /// A member of the family is gone, and this one sweeps up: what it asked for is nobody's, for
    /// other programs, too.
    pub fn sweep(&self, gone: u8, member: u8) {
        for (part, asker) in self.askers[..self.count].iter().enumerate() {
            // Who sweeps signs, too: it may be killed as well.
            if asker.load(Ordering::Relaxed) == gone && change(asker, gone, member) {
                // It may have come so far.
                if !self.is_ours(part) {
                    self.unlock(part);
                }
                self.strike_out(part);
            }
        }
    }

    /// Signs for a part and locks it, if that is nobody's.
    fn ask(&self, part: usize, member: u8) -> bool {
        if !change(&self.askers[part], 0, member) {
            return false;
        }
        // It may have become ours since the caller looked.
        if !self.is_ours(part) && self.lock(part) {
            return true;
        }
        self.strike_out(part);
        false
    }

    /// After the last that is done to a part's lock.
    fn strike_out(&self, part: usize) {
        self.askers[part].store(0, Ordering::Release);
    }

    fn lock(&self, part: usize) -> bool {
        let (first, words) = self.range(part);
        self.locks
            .is_none_or(|locks| byte_lock::take(locks, first, words))
    }

    fn unlock(&self, part: usize) {
        let (first, words) = self.range(part);
        if let Some(locks) = self.locks {
            byte_lock::give(locks, first, words);
        }
    }

    /// The words of a part, as they are locked. Whoever divides the same file in another way
    /// is kept out by the same ranges.
    fn range(&self, part: usize) -> (i64, i64) {
        let words = self.part_words as i64;
        (PARTS + part as i64 * words, words)
    }

    /// Whether there may be data in a part. `hole`: where there is none, as last seen, so that a
    /// stretch of parts without costs one call.
    fn has_data(&self, part: usize, hole: &mut Range<u64>) -> bool {
        let part_bytes = (self.part_words * 64 * SLOT_BYTES) as u64;
        let start = self.start_bytes + part as u64 * part_bytes;
        if !hole.contains(&start) {
            // SAFETY: no pointers. The offset that it sets is used by nobody.
            let found = unsafe {
                syscall::call(
                    libc::SYS_lseek,
                    [
                        self.file as usize,
                        start as usize,
                        libc::SEEK_DATA as usize,
                        0,
                        0,
                        0,
                    ],
                )
            };
            let end = match i32::try_from(-found) {
                // None up to the end.
                Ok(libc::ENXIO) => u64::MAX,
                // Not told.
                Ok(1..) => start,
                _ => found as u64,
            };
            *hole = start..end;
        }
        hole.end < start + part_bytes
    }

    /// Takes the disk space of a part, where the file system can.
    fn fill(&self, part: usize) -> Result<(), Obstacle> {
        if !self.sparse {
            return Ok(());
        }
        let part_bytes = (self.part_words * 64 * SLOT_BYTES) as u64;
        let start = part as u64 * part_bytes;
        let bytes = part_bytes.min(self.total_bytes - start);
        // The program may have set a limit since. To run into it is a signal that kills.
        if self.start_bytes + start + bytes > largest_file_bytes() {
            return Err(Obstacle::Limit);
        }
        if let Some(node) = &self.node {
            let part = self.start_bytes + start..self.start_bytes + start + bytes;
            return match node.take(self.file, part) {
                true => Ok(()),
                false => Err(Obstacle::Node),
            };
        }
        let result = loop {
            // SAFETY: no pointers.
            let result = unsafe {
                syscall::call(
                    libc::SYS_fallocate,
                    [
                        self.file as usize,
                        0,
                        (self.start_bytes + start) as usize,
                        bytes as usize,
                        0,
                        0,
                    ],
                )
            };
            if result != -(libc::EINTR as isize) {
                break result;
            }
        };
        match i32::try_from(-result) {
            Ok(libc::ENOSPC | libc::EDQUOT) => Err(Obstacle::Disk),
            Ok(libc::EFBIG) => Err(Obstacle::Limit),
            _ => Ok(()),
        }
    }

    fn is_ours(&self, part: usize) -> bool {
        self.ours[part / 64].load(Ordering::Acquire) >> (part % 64) & 1 == 1
    }
}

fn change(asker: &AtomicU8, from: u8, to: u8) -> bool {
    asker
        .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

impl Drop for Parts {
    fn drop(&mut self) {
        if let Some(locks) = self.locks {
            // SAFETY: ours; the locks go with it.
            unsafe { syscall::call(libc::SYS_close, [locks as usize, 0, 0, 0, 0, 0]) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    use demeter_extmem_tree::Handed;

    use super::*;
    use crate::swap::spans::{Spans, lay_out};

    const PARTS_OF_FILE: u64 = 100;
    const SLOTS: u64 = PARTS_OF_FILE * 1024;
    /// When a look began that is not ended by the time it takes.
    const NEVER_LATE_NS: u64 = u64::MAX;
    /// Number of this process.
    const ME: u8 = 1;

    /// A file whose parts another program has, and the locks of that one.
    fn taken() -> (Backing, File) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("swap");
        let open = |create| {
            (File::options().read(true).write(true).create(create))
                .open(&path)
                .unwrap()
        };
        let (file, other) = (open(true), open(false));
        assert!(byte_lock::take(
            other.as_raw_fd(),
            PARTS,
            (SLOTS / 64) as i64
        ));
        let handed = Handed::hand_on(&file, descriptor::lowest(), SLOTS).unwrap();
        (Backing::inherited(&handed, folder.path()).unwrap(), other)
    }

    #[test]
    fn what_was_in_vain_is_left_alone_for_a_moment() {
        let (backing, other) = taken();
        let mut region = Region::map_shared(Parts::footprint_bytes()).unwrap();
        let parts = Parts::new(&backing, &mut region).unwrap();
        for _ in 0..10 {
            assert!(!parts.grow_now(ME));
        }
        assert_eq!(parts.obstacle(), None);
        let begun = Instant::now();
        byte_lock::give(other.as_raw_fd(), PARTS, (SLOTS / 64) as i64);
        let at_once = parts.grow(ME);
        assert!(!at_once || begun.elapsed() > Duration::from_millis(100));
        while !parts.grow(ME) {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(5));
        }
        // There is no pause any more.
        assert!(parts.grow(ME) && parts.grow(ME));
    }

    #[test]
    fn a_full_disk_is_asked_for_few_parts_at_a_time_and_for_all_in_turn() {
        let (backing, other) = taken();
        byte_lock::give(other.as_raw_fd(), PARTS, (SLOTS / 64) as i64);
        let mut region = Region::map_shared(Parts::footprint_bytes()).unwrap();
        let parts = Parts::new(&backing, &mut region).unwrap();
        let count = parts.count;
        assert!(count > 2 * MOST_REFUSALS as usize);
        let mut asked = vec![0; count];
        for _ in 0..count.div_ceil(MOST_REFUSALS as usize) {
            let mut calls = 0;
            assert!(!parts.look(
                ME,
                NEVER_LATE_NS,
                |_| true,
                |part| {
                    (calls, asked[part]) = (calls + 1, asked[part] + 1);
                    Err(Obstacle::Disk)
                }
            ));
            assert!(calls <= MOST_REFUSALS);
            assert_eq!(parts.obstacle(), Some(Obstacle::Disk));
        }
        assert!(
            asked.iter().all(|times| (1..=2).contains(times)),
            "{asked:?}"
        );
        // A refusal that takes long is the last one of a look.
        let mut calls = 0;
        assert!(!parts.look(
            ME,
            clock::now_ns() - MOST_LOOK_NS - 1,
            |_| true,
            |_| {
                calls += 1;
                Err(Obstacle::Disk)
            }
        ));
        assert_eq!(calls, 1);
        // The only one that has its space is found; nothing refused is kept locked.
        let looks = (1..=count).find(|_| {
            parts.look(
                ME,
                NEVER_LATE_NS,
                |_| true,
                |part| (part == 50).then_some(()).ok_or(Obstacle::Disk),
            )
        });
        assert!(looks.is_some() && parts.is_ours(50) && !parts.is_ours(49));
        assert!(byte_lock::take(
            other.as_raw_fd(),
            PARTS,
            50 * parts.part_words as i64
        ));
    }

    #[test]
    fn on_a_full_disk_what_has_its_space_is_found_at_once() {
        let (backing, other) = taken();
        byte_lock::give(other.as_raw_fd(), PARTS, (SLOTS / 64) as i64);
        let mut region = Region::map_shared(Parts::footprint_bytes()).unwrap();
        let parts = Parts::new(&backing, &mut region).unwrap();
        let part_bytes = (parts.part_words * 64 * SLOT_BYTES) as u64;
        let fill = |with: &'static [usize], calls: &mut u32| {
            let mut hole = 0..0;
            let has_data = |part| parts.has_data(part, &mut hole);
            parts.look(ME, NEVER_LATE_NS, has_data, |part| {
                *calls += 1;
                let found = with.contains(&part).then_some(());
                found.ok_or(Obstacle::Disk)
            })
        };
        let mut calls = 0;
        assert!(!fill(&[], &mut calls));
        assert_eq!(calls, 1);
        for part in [7, 70, 90] {
            use std::os::unix::fs::FileExt;
            other.write_all_at(&[1; 8192], part * part_bytes).unwrap();
        }
        for (with, asked) in [(&[70usize, 90][..], 3), (&[70, 90], 3), (&[], 2)] {
            calls = 0;
            assert_eq!(fill(with, &mut calls), !with.is_empty());
            assert_eq!(calls, asked);
        }
        assert!(parts.is_ours(70) && parts.is_ours(90) && !parts.is_ours(7));
        // One before where the look began, with the first ours.
        parts.ours[0].fetch_or(1, Ordering::Relaxed);
        parts.next.store(95, Ordering::Relaxed);
        assert!(fill(&[7], &mut calls) && parts.is_ours(7));
        // What lies above a limit ends no look.
        calls = 0;
        assert!(!parts.look(
            ME,
            NEVER_LATE_NS,
            |_| false,
            |_| {
                calls += 1;
                Err(Obstacle::Limit)
            }
        ));
        assert_eq!(calls as usize, parts.count - 4);
    }

    #[test]
    fn a_place_that_cannot_grow_is_passed_over_until_it_can() {
        let (backing, other) = taken();
        let backings = vec![backing, Backing::for_tests(1 << 20)];
        let firsts = lay_out(&backings).unwrap();
        let mut region = Region::map_shared(Spans::footprint_bytes(&backings)).unwrap();
        let spans = Spans::new(backings, &firsts, &mut region).unwrap();
        let place = || {
            let (slot, _) = spans.allocate(1).unwrap();
            spans.of(slot).0.index
        };
        assert!((0..100).all(|_| place() == 1));
        byte_lock::give(other.as_raw_fd(), PARTS, (SLOTS / 64) as i64);
        let begun = Instant::now();
        while place() == 1 {
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        assert!((0..100).all(|_| place() == 0));
        // What has nothing else left looks without a pause.
        let (backing, other) = taken();
        let backings = vec![backing];
        let firsts = lay_out(&backings).unwrap();
        let mut region = Region::map_shared(Spans::footprint_bytes(&backings)).unwrap();
        let spans = Spans::new(backings, &firsts, &mut region).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| spans.allocate(1));
            std::thread::sleep(Duration::from_millis(100));
            byte_lock::give(other.as_raw_fd(), PARTS, (SLOTS / 64) as i64);
            assert!(waits.join().unwrap().is_some());
        });
    }

    /// Threads and forks have one description, whose locks do not exclude each other: while one
    /// fills a part, another looks for one, too. Either may be refused.
    #[test]
    fn who_is_refused_a_part_does_not_unlock_what_a_thread_beside_it_took() {
        let (backing, other) = taken();
        byte_lock::give(other.as_raw_fd(), PARTS, (SLOTS / 64) as i64);
        let mut region = Region::map_shared(Parts::footprint_bytes()).unwrap();
        let parts = &Parts::new(&backing, &mut region).unwrap();
        for (refused, beside_refused) in [(true, false), (false, true)] {
            let outcome = |refused| match refused {
                true => Err(Obstacle::Disk),
                false => Ok(()),
            };
            let look = |fill: &mut dyn FnMut(usize) -> Result<(), Obstacle>| {
                parts.look(ME, NEVER_LATE_NS, |_| false, fill)
            };
            let grown = look(&mut |_| {
                let grown = std::thread::scope(|scope| {
                    let beside = scope.spawn(|| look(&mut |_| outcome(beside_refused)));
                    beside.join().unwrap()
                });
                assert_eq!(grown, !beside_refused);
                outcome(refused)
            });
            assert_eq!(grown, !refused);
        }
        // Another program gets what nobody took, and nothing that somebody has.
        let mut ours = 0;
        for part in 0..parts.count {
            let (first, words) = parts.range(part);
            let may_be_had = byte_lock::take(other.as_raw_fd(), first, words);
            assert_eq!(may_be_had, !parts.is_ours(part), "part {part}");
            ours += usize::from(parts.is_ours(part));
        }
        assert_eq!(ours, 2);
        assert!(!parts.is_asked_for());
    }

    /// Spans of one file, of which all but the first part is another program's.
    fn one_part_left() -> (Spans, File) {
        let (backing, other) = taken();
        let backings = vec![backing];
        let firsts = lay_out(&backings).unwrap();
        let mut region = Region::map_shared(Spans::footprint_bytes(&backings)).unwrap();
        let spans = Spans::new(backings, &firsts, &mut region).unwrap();
        let (first, words) = parts_of(&spans).range(0);
        byte_lock::give(other.as_raw_fd(), first, words);
        (spans, other)
    }

    fn parts_of(spans: &Spans) -> &Parts {
        &spans.iter().next().unwrap().slots.parts
    }

    /// A child that takes so many seconds to fill the part that it asks for, once it does.
    fn relative(spans: &Spans, seconds: u64) -> libc::pid_t {
        let turn = crate::swap::tests::forking();
        let tickets = spans.fork_begin().unwrap();
        // SAFETY: the child only uses what needs no other thread, until it ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            spans.after_fork_in_child(tickets);
            let slots = &spans.iter().next().unwrap().slots;
            let fill = |_| {
                std::thread::sleep(Duration::from_secs(seconds));
                Ok(())
            };
            (slots.parts).look(slots.family.member(), NEVER_LATE_NS, |_| false, fill);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        spans.fork_ended(tickets, true);
        drop(turn);
        while !parts_of(spans).is_asked_for() {
            std::thread::yield_now();
        }
        child
    }

    fn end(child: libc::pid_t, signal: libc::c_int) {
        // SAFETY: our child.
        unsafe {
            libc::kill(child, signal);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }

    #[test]
    fn what_a_relative_asks_for_is_waited_for_however_slow_its_disk_is() {
        let (spans, other) = one_part_left();
        let begun = Instant::now();
        let child = relative(&spans, 4);
        let (slot, _) = spans.allocate(1).unwrap();
        assert!(slot.0 < 1024 && begun.elapsed() > Duration::from_secs(3));
        end(child, 0);
        let (first, words) = parts_of(&spans).range(0);
        assert!(!byte_lock::take(other.as_raw_fd(), first, words));
    }

    #[test]
    fn a_part_that_a_killed_relative_asked_for_can_be_had() {
        let (spans, other) = one_part_left();
        let child = relative(&spans, 30);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| spans.allocate(1));
            std::thread::sleep(Duration::from_secs(3));
            assert!(!waits.is_finished());
            end(child, libc::SIGKILL);
            assert!(waits.join().unwrap().is_some());
        });
        // If we need none, by others.
        let (spans, another) = one_part_left();
        end(relative(&spans, 30), libc::SIGKILL);
        let (first, words) = parts_of(&spans).range(0);
        let take = |file: &File| byte_lock::take(file.as_raw_fd(), first, words);
        assert!(!take(&another) && !spans.iter().next().unwrap().slots.is_asked_for());
        assert!(take(&another) && !take(&other));
    }
}
