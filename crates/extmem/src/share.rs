// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this process has of a budget that all programs of a run share.
//!
//! It asks for more when it runs out of frames, a sixteenth of what it has at a time, and
//! gives back what it does not use, or what the runner's mark says. The lock on its entry
//! has a description of its own, which goes with the process.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use demeter_extmem_tree::{Account, FLOOR_PAGES, Handed, Ledger};

use crate::{byte_lock, descriptor, syscall};

/// More is asked for in pieces of one page in so many of what there is, and at least so many.
const STEP_SHARE: i64 = 16;
const LEAST_STEP_PAGES: i64 = 64;
/// Beyond one page in so many, and so many, what is not used is given back.
const SLACK_SHARE: i64 = 4;
const SLACK_PAGES: i64 = 1024;

/// A runner that was not heard of for so long is gone, whatever ended it.
const SILENCE_NS: u64 = 2_000_000_000;

/// No entry.
const NONE: u32 = u32::MAX;

/// This process's part.
#[derive(Debug)]
pub struct Share {
    ledger: Ledger,
    file: RawFd,
    /// [`NONE`]: this fork found no entry, and has the budget to itself.
    account: AtomicU32,
    lock: AtomicI32,
    dram_pages: i64,
    /// Rounds of the runner when it was heard of last, and when that was.
    rounds: AtomicU32,
    heard_ns: AtomicU64,
    /// It is gone.
    alone: AtomicBool,
}

impl Share {
    /// A part of what was handed on, if it is still there and has room for one more.
    pub fn enroll(handed: &Handed) -> Option<Self> {
        if !handed.is_there() {
            return None;
        }
        let file = descriptor::inherit(handed.descriptor);
        let ledger = Ledger::map(file).ok()?;
        let (account, lock) = enter(&ledger, file)?;
        Some(Self {
            ledger,
            file,
            account: AtomicU32::new(account.number()),
            lock: AtomicI32::new(descriptor::keep(lock)),
            dram_pages: i64::try_from(handed.detail).unwrap_or(i64::MAX),
            rounds: AtomicU32::new(0),
            heard_ns: AtomicU64::new(crate::clock::now_ns()),
            alone: AtomicBool::new(false),
        })
    }

    fn account(&self) -> Option<Account> {
        let number = self.account.load(Ordering::Relaxed);
        (number != NONE).then(|| self.ledger.account(number))
    }

    /// Pages it may use now, the pager's own with them.
    pub fn limit_pages(&self) -> i64 {
        self.account().map_or(self.dram_pages, |account| {
            account.pages().min(account.mark_pages())
        })
    }

    /// Asks for more, which others must give up if it `needs` them; how many pages it may
    /// use more than before.
    pub fn ask(&self, pages: i64, needs: bool) -> i64 {
        let Some(account) = self.account() else {
            return 0;
        };
        let step = (account.pages() / STEP_SHARE).max(LEAST_STEP_PAGES);
        let got = account.ask(pages.max(step), false);
        if got >= pages {
            return got;
        }
        got + account.ask(pages - got, needs)
    }

    /// So many pages are in use, whether or not they were to be had.
    pub fn cover(&self, used_pages: i64) {
        if let Some(account) = self.account() {
            let missing = used_pages - account.pages();
            if missing > 0 {
                account.force(missing);
            }
        }
    }

    /// So many pages are in use: gives back what is beyond the mark, and what is idle.
    pub fn settle(&self, used_pages: i64) {
        let Some(account) = self.account() else {
            return;
        };
        self.do_without_runner(account);
        let pages = account.pages();
        let mark = account.mark_pages().max(FLOOR_PAGES);
        if pages > mark {
            account.keep(used_pages.max(mark));
        } else if pages > used_pages + used_pages / SLACK_SHARE + SLACK_PAGES {
            account.keep(used_pages + SLACK_PAGES);
        }
    }

    /// A runner that was killed leaves programs that outlive it: they do of its work what
    /// keeps them going. A runner that was only stopped for a while loses nothing by that.
    fn do_without_runner(&self, account: Account) {
        let (rounds, now_ns) = (account.rounds(), crate::clock::now_ns());
        if self.rounds.swap(rounds, Ordering::Relaxed) != rounds {
            self.heard_ns.store(now_ns, Ordering::Relaxed);
            self.alone.store(false, Ordering::Relaxed);
        }
        let heard_ns = self.heard_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(heard_ns) < SILENCE_NS {
            return;
        }
        // Not again for as long.
        self.heard_ns.store(now_ns, Ordering::Relaxed);
        self.alone.store(true, Ordering::Relaxed);
        let lock = self.lock.load(Ordering::Relaxed);
        self.ledger.strike_out(
            Some(account.number()),
            |byte| byte_lock::take(lock, byte, 1),
            |byte| byte_lock::give(lock, byte, 1),
        );
        account.do_without_clerk();
    }

    /// The child of a fork has an entry of its own. For a moment what it has in common with
    /// its parent is not counted twice.
    pub fn after_fork_in_child(&self) {
        let had_pages = self.limit_pages();
        let held = self.lock.load(Ordering::Relaxed);
        // The copy of the parent's lock goes: else it would outlive the parent.
        let number = match enter(&self.ledger, self.file) {
            Some((account, lock)) => {
                account.inherit(had_pages);
                if self.alone.load(Ordering::Relaxed) {
                    account.do_without_clerk();
                }
                self.lock
                    .store(descriptor::replace(held, lock), Ordering::Relaxed);
                account.number()
            }
            None => {
                close(held);
                NONE
            }
        };
        self.account.store(number, Ordering::Relaxed);
    }
}

/// An entry, and the descriptor that locks it.
fn enter(ledger: &Ledger, file: RawFd) -> Option<(Account, RawFd)> {
    let lock = descriptor::open_again(file)?;
    let account = ledger.enroll(|byte| byte_lock::take(lock, byte, 1));
    if account.is_none() {
        close(lock);
    }
    account.map(|account| (account, lock))
}

fn close(fd: RawFd) {
    // SAFETY: ours.
    unsafe { syscall::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}
