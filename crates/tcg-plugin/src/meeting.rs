// SPDX-License-Identifier: GPL-2.0-or-later
//! Where guests that share FMEM meet, each in a process of its own: what they tell each other
//! ([`Standing`]) goes through a file that all of them map.
//!
//! A guest comes to each meeting at the same time of its clock, and waits until all others that
//! have not left have come to that one too; what it hears is how they stood there, not how they
//! stand. So runs are equal, whichever guest is faster on the host. Waiting takes no guest time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use demeter_machine::Hypervisor;
use demeter_machine::config::{POOL_LEFT, STEP_ENDED, StepConfig};
use demeter_machine::hypervisor::pool::{Meeting as Gathered, Standing};

use crate::Failure;
use crate::NEXT_FILES;
use crate::ram::Mapping;

/// How often a guest that waits looks again.
const POLL: Duration = Duration::from_micros(50);
/// A guest is at most one meeting ahead of another.
const KEPT: usize = 2;

/// Why a guest cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum MeetingError {
    /// What it would find of the pool is not what it would have found.
    #[error("guest {0}, with which FMEM is shared, ended before it had left")]
    Lost(usize),
    /// What the others have taken meanwhile cannot be had back.
    #[error("the model is switched on again in a guest that shares FMEM")]
    Again,
}

impl MeetingError {
    /// What to do.
    pub const fn next(&self) -> &'static str {
        match self {
            Self::Lost(_) => "see what that guest said",
            Self::Again => "have COMMAND measure one part, as with --roi command",
        }
    }
}

/// A guest's seat.
pub struct Meeting {
    file: Mapping,
    config: StepConfig,
    /// The guest clock when modelling began.
    began_ns: Option<u64>,
    /// Meetings that it was at.
    held: u64,
    left: bool,
}

impl Meeting {
    /// Maps the file.
    pub fn new(config: StepConfig) -> Result<Self, Failure> {
        let path = config.path.display().to_string();
        let words = config.guests * (1 + KEPT * Standing::WORDS);
        let file = Mapping::shared(&config.path, words * size_of::<u64>()).map_err(|error| {
            Failure::new(
                format!("cannot map the guests' meetings `{path}`: {error}"),
                NEXT_FILES,
            )
        })?;
        Ok(Self {
            file,
            config,
            began_ns: None,
            held: 0,
            left: false,
        })
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        let word = self.file.at::<u64>(at * size_of::<u64>())?;
        // SAFETY: inside the mapping, aligned, never unmapped; everybody uses it atomically.
        Some(unsafe { AtomicU64::from_ptr(word) })
    }

    /// What a guest tells at a meeting of that number.
    fn standing_words(&self, guest: usize, number: u64) -> impl Iterator<Item = &AtomicU64> {
        let kept = (number % KEPT as u64) as usize;
        let first = self.config.guests + (guest * KEPT + kept) * Standing::WORDS;
        (first..first + Standing::WORDS).filter_map(|at| self.word(at))
    }

    fn publish(&self, word: u64) {
        if let Some(own) = self.word(self.config.index) {
            own.store(word, Ordering::Release);
        }
    }

    /// Waits for a guest to come to the meeting of that number; false if it has left before.
    fn comes(&self, guest: usize, number: u64) -> Result<bool, MeetingError> {
        let Some(word) = self.word(guest) else {
            return Err(MeetingError::Lost(guest));
        };
        loop {
            let word = word.load(Ordering::Acquire);
            if word == STEP_ENDED {
                return Err(MeetingError::Lost(guest));
            }
            if word & !POOL_LEFT > number {
                return Ok(true);
            }
            if word & POOL_LEFT != 0 {
                return Ok(false);
            }
            std::thread::sleep(POLL);
        }
    }

    /// The next one: tells and hears.
    ///
    /// # Errors
    /// Another guest is lost.
    pub fn hold(&mut self, hypervisor: &mut Hypervisor) -> Result<(), MeetingError> {
        let number = self.held;
        let own = hypervisor.standing();
        for (word, value) in (self.standing_words(self.config.index, number)).zip(own.words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.held += 1;
        self.publish(self.held);
        let mut here = Vec::new();
        for guest in 0..self.config.guests {
            if self.comes(guest, number)? {
                here.push(guest);
            }
        }
        let standings: Vec<Standing> = (here.iter())
            .map(|&guest| {
                let words = self.standing_words(guest, number);
                Standing::from_words(words.map(|word| word.load(Ordering::Relaxed)))
            })
            .collect();
        let at = (here.iter()).take_while(|&&guest| guest < self.config.index);
        let gathered = Gathered::new(number, hypervisor.capacity_pages(), standings);
        hypervisor.meet(at.count(), &gathered);
        Ok(())
    }

    /// Modelling begins, for all guests together.
    ///
    /// # Errors
    /// This guest had left, or another is lost.
    pub fn begin(&mut self, now_ns: u64, hypervisor: &mut Hypervisor) -> Result<(), MeetingError> {
        if self.left {
            return Err(MeetingError::Again);
        }
        if self.began_ns.is_none() {
            self.began_ns = Some(now_ns);
            self.hold(hypervisor)?;
        }
        Ok(())
    }

    /// The guest's time between two.
    pub const fn distance_ns(&self) -> u64 {
        self.config.window_ns
    }

    /// When the next one is due, if that is not after `now_ns`.
    #[inline]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let began_ns = self.began_ns.filter(|_| !self.left)?;
        Some(began_ns + self.held * self.config.window_ns).filter(|&due_ns| due_ns <= now_ns)
    }

    /// Modelling ended: this guest's FMEM is the others' now, and nobody waits for it any more.
    pub fn leave(&mut self) {
        self.left = true;
        self.publish(POOL_LEFT | self.held);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::channel;

    use demeter_machine::config::{MachineConfig, Preset};
    use demeter_machine::{HypervisorConfig, MemoryLayout};

    use super::*;

    const PAGE: u64 = 4096;
    const MIB: u64 = 1 << 20;

    /// Holds all that are due.
    fn keep(seat: &mut Meeting, now_ns: u64, hypervisor: &mut Hypervisor) {
        while seat.due_ns(now_ns).is_some() {
            assert!(seat.hold(hypervisor).is_ok());
        }
    }

    /// A guest that has touched so many pages, with its seat.
    fn guest(path: &Path, index: usize, pages: u64) -> (Meeting, Hypervisor) {
        let config = HypervisorConfig {
            fmem_bytes: 100 * PAGE,
            demote_basis_points: 0,
            ..HypervisorConfig::default()
        };
        let machine = MachineConfig::preset(Preset::Pmem);
        let layout = MemoryLayout::new(4 * MIB, 4 * MIB);
        let mut hypervisor = Hypervisor::new(&config, &machine, layout, 1);
        hypervisor.share_among(2);
        for page in 0..pages {
            hypervisor.resident(page * PAGE);
        }
        let Ok(meeting) = Meeting::new(StepConfig {
            path: path.to_owned(),
            index,
            guests: 2,
            window_ns: 1000,
        }) else {
            panic!("no meetings");
        };
        (meeting, hypervisor)
    }

    #[test]
    fn what_is_heard_is_how_others_stood_at_the_meeting() {
        let path = std::env::temp_dir().join(format!("demeter-meeting-{}", std::process::id()));
        let (mut slow, mut few) = guest(&path, 1, 10);
        let (said, heard) = channel();
        let place = path.clone();
        let thread = std::thread::spawn(move || {
            let (mut fast, mut many) = guest(&place, 0, 200);
            let mut pages = 200..;
            let mut grow = |many: &mut Hypervisor| {
                for page in pages.by_ref().take(200) {
                    many.resident(page * PAGE);
                }
                many.counters().fmem_pages
            };
            // Clocks of guests differ when modelling begins; time since then counts.
            assert!(fast.begin(70_000, &mut many).is_ok());
            let _ = said.send(("began", grow(&mut many)));
            keep(&mut fast, 70_999, &mut many);
            keep(&mut fast, 72_500, &mut many);
            let _ = said.send(("two more", grow(&mut many)));
            keep(&mut fast, 73_000, &mut many);
            let _ = said.send(("the other has left", grow(&mut many)));
        });
        let short = Duration::from_millis(30);
        assert!(heard.recv_timeout(short).is_err());
        assert!(slow.begin(5_000, &mut few).is_ok());
        // Half each; then most of 40 that are free, as it asked for more than the other.
        assert_eq!(heard.recv(), Ok(("began", 88)));
        assert!(heard.recv_timeout(short).is_err());
        keep(&mut slow, 6_000, &mut few);
        for page in 10..20 {
            few.resident(page * PAGE);
        }
        keep(&mut slow, 7_000, &mut few);
        // The two that were free at the first went to ours, which asked; none was at the second.
        assert_eq!(heard.recv(), Ok(("two more", 88)));
        assert!(heard.recv_timeout(short).is_err());
        slow.leave();
        assert_eq!(heard.recv(), Ok(("the other has left", 100)));
        assert!(thread.join().is_ok());
        let again = slow.begin(9_000, &mut few);
        assert!(matches!(again, Err(MeetingError::Again)), "{again:?}");
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn one_that_died_is_not_waited_for_and_ends_the_others() {
        let path = std::env::temp_dir().join(format!("demeter-died-{}", std::process::id()));
        let (mut seat, mut hypervisor) = guest(&path, 0, 200);
        if let Some(word) = seat.word(1) {
            word.store(STEP_ENDED, Ordering::Release);
        }
        let lost = seat.begin(1, &mut hypervisor);
        assert!(matches!(lost, Err(MeetingError::Lost(1))), "{lost:?}");
        let _ = std::fs::remove_file(&path);
    }
}
