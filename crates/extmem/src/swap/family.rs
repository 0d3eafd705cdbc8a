// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which process holds which slot, after forks.
//!
//! A child of a fork finds the parent's evicted pages in the parent's slots. So slots
//! have references: one for each process that holds them. Until the first fork the only
//! process holds whatever is taken and nothing here is touched. The first fork starts a
//! bitmap of its slots for each process, and a count of further references a slot.
//!
//! A process can be killed at any point and can exec at any point; then nobody gives its
//! references back. Therefore each holds a lock on a byte of a file in memory that the
//! family has for nothing else (it can be opened again by whatever user the process has
//! become), through a descriptor of its own that exec closes: the kernel drops the lock
//! when the process is gone, and whoever can take it may sweep up. A reference is always
//! counted before it is noted, and struck off before it is uncounted: a kill between the
//! two loses a slot until the family ends, and never frees one that is in use.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::SwapError;
use crate::lock::Lock;
use crate::region::{Region, carved_bytes};
use crate::{byte_lock, descriptor, syscall};

/// Processes of one family at one time.
const MEMBERS: usize = 64;
const _: () = assert!(MEMBERS < u8::MAX as usize);
const SLOTS_PER_WORD: u32 = u64::BITS;

/// Shared by all processes of a family.
#[derive(Debug)]
struct Shared {
    /// There was a fork: references count.
    forked: AtomicBool,
    /// 1 for members that hold references.
    live: [AtomicU32; MEMBERS],
}

/// A child's place, made before the fork.
#[derive(Debug, Clone, Copy)]
pub struct Ticket {
    member: u32,
    lock: RawFd,
}

/// References of a family of processes.
#[derive(Debug)]
pub struct Family {
    /// The file of the locks, -1 before the first fork. The number stays the same in children.
    file: AtomicI32,
    words: usize,
    shared: &'static Shared,
    /// [`MEMBERS`] bitmaps.
    held: &'static [AtomicU64],
    /// References of a slot beyond the first.
    further: &'static [AtomicU8],
    /// This process.
    member: AtomicU32,
    /// Its lock, -1 before the first fork. The number stays the same in children.
    lock: AtomicI32,
    /// One thread of a process sweeps or forks at a time.
    turn: Lock<()>,
}

impl Family {
    /// Bytes of tables, most of them never touched.
    pub fn footprint_bytes(capacity: u64) -> usize {
        carved_bytes::<Shared>(1)
            + carved_bytes::<AtomicU64>(words(capacity) * MEMBERS)
            + carved_bytes::<AtomicU8>(capacity as usize)
    }

    /// A family of one.
    pub fn new(capacity: u64, region: &mut Region) -> Result<Self, SwapError> {
        let words = words(capacity);
        // SAFETY: zero is each of these types.
        let tables = unsafe {
            (
                region.carve::<Shared>(1),
                region.carve::<AtomicU64>(words * MEMBERS),
                region.carve::<AtomicU8>(capacity as usize),
            )
        };
        let (Some([shared]), Some(held), Some(further)) = tables else {
            return Err(SwapError::Memory);
        };
        Ok(Self {
            file: AtomicI32::new(-1),
            words,
            shared,
            held,
            further,
            member: AtomicU32::new(0),
            lock: AtomicI32::new(-1),
            turn: Lock::new(()),
        })
    }

    /// Number of this process in the family, from 1 on.
    pub fn member(&self) -> u8 {
        member_number(self.member.load(Ordering::Relaxed) as usize)
    }

    /// Notes that this process took the slots of `mask`.
    pub fn hold(&self, word: usize, mask: u64) {
        if self.shared.forked.load(Ordering::Relaxed) {
            self.own(word).fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// This process gives the slots of `mask` up; `release` is called for those that
    /// nobody else holds. True when nobody ever forked: then nothing was done.
    pub fn give_up(&self, word: usize, mask: u64, release: &mut dyn FnMut(u32)) -> bool {
        if !self.shared.forked.load(Ordering::Relaxed) {
            return true;
        }
        let held = self.own(word).fetch_and(!mask, Ordering::AcqRel) & mask;
        self.drop_references(word, held, release);
        false
    }

    /// Drops the references of members that are gone, and calls `gone` with the number of each.
    /// `skip`: how many words from this one on no member has slots in.
    /// False when there was none.
    pub fn sweep(
        &self,
        skip: &dyn Fn(usize) -> usize,
        release: &mut dyn FnMut(u32),
        gone: &mut dyn FnMut(u8),
    ) -> bool {
        if !self.shared.forked.load(Ordering::Relaxed) {
            return false;
        }
        let _turn = self.turn.lock();
        let own = self.member.load(Ordering::Relaxed) as usize;
        let lock = self.lock.load(Ordering::Relaxed);
        let mut swept = false;
        for (member, live) in self.shared.live.iter().enumerate() {
            if member == own
                || live.load(Ordering::Acquire) == 0
                || !byte_lock::take(lock, byte_of(member), 1)
            {
                continue;
            }
            self.strip(member, skip, release);
            gone(member_number(member));
            // Only now may another one have the number.
            live.store(0, Ordering::Release);
            byte_lock::give(lock, byte_of(member), 1);
            swept = true;
        }
        swept
    }

    /// A place for a child, with a reference to every slot of this process. `taken` are
    /// all slots in use; `skip` as in [`Self::sweep`].
    pub fn fork_begin(
        &self,
        taken: &[AtomicU64],
        capacity: u64,
        skip: &dyn Fn(usize) -> usize,
    ) -> Option<Ticket> {
        let _turn = self.turn.lock();
        self.begin(taken, capacity, skip)?;
        let own = self.member.load(Ordering::Relaxed) as usize;
        let lock = self.open_lock()?;
        let Some(member) = (0..MEMBERS).find(|&member| {
            member != own
                && self.shared.live[member].load(Ordering::Acquire) == 0
                && byte_lock::take(lock, byte_of(member), 1)
        }) else {
            close(lock);
            return None;
        };
        self.shared.live[member].store(1, Ordering::Release);
        for word in self.words_but(skip) {
            let held = self.own(word).load(Ordering::Relaxed);
            for (done, slot) in slots_of(word, held).enumerate() {
                let counted = self.further[slot as usize].fetch_update(
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                    |count| count.checked_add(1),
                );
                if counted.is_err() {
                    // 256 processes hold this slot: take back what was counted.
                    for slot in slots_of(word, held).take(done) {
                        self.further[slot as usize].fetch_sub(1, Ordering::Relaxed);
                    }
                    self.strip(member, skip, &mut |_| {});
                    self.shared.live[member].store(0, Ordering::Release);
                    close(lock);
                    return None;
                }
            }
            if held != 0 {
                self.held[member * self.words + word].store(held, Ordering::Release);
            }
        }
        Some(Ticket {
            member: member as u32,
            lock,
        })
    }

    /// In the parent: the child has its place, or there is no child.
    pub fn fork_ended(
        &self,
        ticket: Ticket,
        forked: bool,
        skip: &dyn Fn(usize) -> usize,
        release: &mut dyn FnMut(u32),
    ) {
        if !forked {
            let member = ticket.member as usize;
            self.strip(member, skip, release);
            self.shared.live[member].store(0, Ordering::Release);
        }
        // The lock is the child's now: it lives as long as the child's copy.
        close(ticket.lock);
    }

    /// In the child: takes its place.
    pub fn after_fork_in_child(&self, ticket: Ticket) {
        // SAFETY: no thread of this process is in here; the fork left only this one.
        unsafe { self.turn.reset() };
        self.member.store(ticket.member, Ordering::Relaxed);
        // The copy of the parent's lock goes: else it would outlive the parent.
        let kept = descriptor::replace(self.lock.load(Ordering::Relaxed), ticket.lock);
        self.lock.store(kept, Ordering::Relaxed);
    }

    /// From the first fork on references count.
    fn begin(
        &self,
        taken: &[AtomicU64],
        capacity: u64,
        skip: &dyn Fn(usize) -> usize,
    ) -> Option<()> {
        if self.lock.load(Ordering::Relaxed) >= 0 {
            return Some(());
        }
        let lock = descriptor::keep(self.open_lock()?);
        if !byte_lock::take(lock, byte_of(0), 1) {
            close(lock);
            return None;
        }
        self.lock.store(lock, Ordering::Relaxed);
        for word in self.words_but(skip) {
            let Some(taken) = taken.get(word) else { break };
            let real = capacity.saturating_sub(word as u64 * u64::from(SLOTS_PER_WORD));
            let mask = if real >= u64::from(SLOTS_PER_WORD) {
                !0
            } else {
                (1 << real) - 1
            };
            let bits = taken.load(Ordering::Relaxed) & mask;
            if bits != 0 {
                self.own(word).store(bits, Ordering::Relaxed);
            }
        }
        self.shared.live[0].store(1, Ordering::Relaxed);
        self.shared.forked.store(true, Ordering::Release);
        Some(())
    }

    /// Drops all references of a member.
    fn strip(&self, member: usize, skip: &dyn Fn(usize) -> usize, release: &mut dyn FnMut(u32)) {
        for word in self.words_but(skip) {
            let place = &self.held[member * self.words + word];
            if place.load(Ordering::Acquire) != 0 {
                let held = place.swap(0, Ordering::AcqRel);
                self.drop_references(word, held, release);
            }
        }
    }

    /// Words that may have slots in use. The others must not even be looked at: the tables are
    /// shared memory, of which a page that is read becomes physical, and each fork would bring
    /// in those of all of swap (some 256 MiB for 4 TiB).
    fn words_but<'a>(
        &self,
        skip: &'a dyn Fn(usize) -> usize,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let words = self.words;
        let mut next = 0;
        std::iter::from_fn(move || {
            while next < words {
                let skipped = skip(next);
                next += skipped.max(1);
                if skipped == 0 {
                    return Some(next - 1);
                }
            }
            None
        })
    }

    fn drop_references(&self, word: usize, held: u64, release: &mut dyn FnMut(u32)) {
        for slot in slots_of(word, held) {
            let others = self.further[slot as usize].fetch_update(
                Ordering::AcqRel,
                Ordering::Relaxed,
                |count| count.checked_sub(1),
            );
            if others.is_err() {
                release(slot);
            }
        }
    }

    fn own(&self, word: usize) -> &AtomicU64 {
        &self.held[self.member.load(Ordering::Relaxed) as usize * self.words + word]
    }

    /// The file of the locks once more: they belong to the description that took them.
    fn open_lock(&self) -> Option<RawFd> {
        if self.file.load(Ordering::Relaxed) < 0 {
            // SAFETY: a constant name.
            let made = unsafe {
                syscall::call(
                    libc::SYS_memfd_create,
                    [
                        c"demeter-extmem-forks".as_ptr() as usize,
                        libc::MFD_CLOEXEC as usize,
                        0,
                        0,
                        0,
                        0,
                    ],
                )
            };
            let made = RawFd::try_from(made).ok().filter(|&made| made >= 0)?;
            self.file.store(descriptor::keep(made), Ordering::Relaxed);
        }
        descriptor::open_again(self.file.load(Ordering::Relaxed))
    }
}

/// The byte that a member locks while it lives.
fn byte_of(member: usize) -> i64 {
    member as i64
}

fn member_number(member: usize) -> u8 {
    // There are fewer.
    member as u8 + 1
}

fn words(capacity: u64) -> usize {
    capacity.div_ceil(u64::from(SLOTS_PER_WORD)) as usize
}

/// Numbers of the slots whose bits are set.
fn slots_of(word: usize, mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(word as u32 * SLOTS_PER_WORD + bit)
    })
}

fn close(descriptor: RawFd) {
    // SAFETY: ours.
    unsafe { syscall::call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::PAGE_BYTES;

    /// Pages of a mapping that are physical.
    fn physical(start: *const AtomicU64, bytes: usize) -> usize {
        let first = start as usize / PAGE_BYTES * PAGE_BYTES;
        let mut pages = vec![0u8; (start as usize + bytes - first).div_ceil(PAGE_BYTES)];
        // SAFETY: a mapping, and a byte for each of its pages.
        let result = unsafe {
            libc::mincore(
                first as *mut _,
                pages.len() * PAGE_BYTES,
                pages.as_mut_ptr(),
            )
        };
        assert_eq!(result, 0);
        pages.iter().filter(|&&page| page & 1 == 1).count()
    }

    #[test]
    fn a_fork_looks_at_nothing_but_what_is_in_use() {
        // 64 GiB of swap, of which one word is in use.
        const CAPACITY: u64 = 1 << 24;
        const USED: usize = 100_000;
        let skip = |word: usize| match word {
            USED => 0,
            0..USED => USED - word,
            _ => usize::MAX - word,
        };
        let bytes = Family::footprint_bytes(CAPACITY) + words(CAPACITY) * 8 + 2 * PAGE_BYTES;
        let mut region = Region::map_shared(bytes).unwrap();
        // SAFETY: zero is an AtomicU64.
        let taken: &[AtomicU64] = unsafe { region.carve(words(CAPACITY)) }.unwrap();
        taken[USED].store(0b101, Ordering::Relaxed);
        let family = Family::new(CAPACITY, &mut region).unwrap();
        let ticket = family.fork_begin(taken, CAPACITY, &skip).unwrap();
        let member = ticket.member as usize;
        let of_child = &family.held[member * family.words + USED];
        assert_eq!(of_child.load(Ordering::Relaxed), 0b101);
        let mut released = vec![];
        family.fork_ended(ticket, false, &skip, &mut |slot| released.push(slot));
        assert_eq!(of_child.load(Ordering::Relaxed), 0);
        assert!(released.is_empty());
        assert_eq!(physical(taken.as_ptr(), words(CAPACITY) * 8), 1);
        let held = family.held.as_ptr();
        assert!(physical(held, family.held.len() * 8) <= 3);
    }
}
