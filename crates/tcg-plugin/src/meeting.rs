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
use demeter_machine::config::{STEP_ENDED, StepConfig};
use demeter_machine::hypervisor::pool::{Place, Standing};

use crate::Failure;
use crate::NEXT_FILES;
use crate::ram::Mapping;

/// How often a guest that waits looks again.
const POLL: Duration = Duration::from_micros(50);
/// In a guest's word: it comes no more; the rest is at how many meetings it was.
const LEFT: u64 = 1 << 63;
/// A guest is at most one meeting ahead of another.
const KEPT: usize = 2;

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
    fn comes(&self, guest: usize, number: u64) -> bool {
        let Some(word) = self.word(guest) else {
            return false;
        };
        loop {
            let word = word.load(Ordering::Acquire);
            if word == STEP_ENDED {
                return false;
            }
            if word & !LEFT > number {
                return true;
            }
            if word & LEFT != 0 {
                return false;
            }
            std::thread::sleep(POLL);
        }
    }

    /// The next one.
    fn hold(&mut self, hypervisor: &mut Hypervisor) {
        let number = self.held;
        let own = hypervisor.standing();
        for (word, value) in (self.standing_words(self.config.index, number)).zip(own.words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.held += 1;
        self.publish(self.held);
        let here: Vec<usize> = (0..self.config.guests)
            .filter(|&guest| self.comes(guest, number))
            .collect();
        let standings: Vec<Standing> = (here.iter())
            .map(|&guest| {
                let words = self.standing_words(guest, number);
                Standing::from_words(words.map(|word| word.load(Ordering::Relaxed)))
            })
            .collect();
        let place = Place {
            at: here
                .iter()
                .filter(|&&guest| guest < self.config.index)
                .count() as u64,
            guests: here.len() as u64,
            meeting: number,
        };
        hypervisor.meet(place, &Standing::sum(&standings));
    }

    /// Modelling begins, for all guests together. False where this guest had left: what the others
    /// have taken meanwhile cannot be had back.
    #[must_use]
    pub fn begin(&mut self, now_ns: u64, hypervisor: &mut Hypervisor) -> bool {
        if self.left {
            return false;
        }
        if self.began_ns.is_none() {
            self.began_ns = Some(now_ns);
            self.hold(hypervisor);
        }
        true
    }

    /// The guest's clock has come so far: holds all meetings that are due.
    #[inline]
    pub fn keep(&mut self, now_ns: u64, hypervisor: &mut Hypervisor) {
        let Some(began_ns) = self.began_ns.filter(|_| !self.left) else {
            return;
        };
        while now_ns >= began_ns + self.held * self.config.window_ns {
            self.hold(hypervisor);
        }
    }

    /// Modelling ended: this guest's FMEM is the others' now, and nobody waits for it any more.
    pub fn leave(&mut self) {
        self.left = true;
        self.publish(LEFT | self.held);
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
            assert!(fast.begin(70_000, &mut many));
            let _ = said.send(("began", grow(&mut many)));
            fast.keep(70_999, &mut many);
            fast.keep(72_500, &mut many);
            let _ = said.send(("two more", grow(&mut many)));
            fast.keep(73_000, &mut many);
            let _ = said.send(("the other has left", grow(&mut many)));
        });
        let short = Duration::from_millis(30);
        assert!(heard.recv_timeout(short).is_err());
        assert!(slow.begin(5_000, &mut few));
        // Half each; then of 40 that are free, half.
        assert_eq!(heard.recv(), Ok(("began", 70)));
        assert!(heard.recv_timeout(short).is_err());
        slow.keep(6_000, &mut few);
        for page in 10..20 {
            few.resident(page * PAGE);
        }
        slow.keep(7_000, &mut few);
        // What ours had at that one, 20; of 10 that are free, half.
        assert_eq!(heard.recv(), Ok(("two more", 75)));
        assert!(heard.recv_timeout(short).is_err());
        slow.leave();
        assert_eq!(heard.recv(), Ok(("the other has left", 100)));
        assert!(thread.join().is_ok());
        assert!(!slow.begin(9_000, &mut few), "it cannot come back");
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn one_that_died_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("demeter-died-{}", std::process::id()));
        let (mut seat, mut hypervisor) = guest(&path, 0, 200);
        if let Some(word) = seat.word(1) {
            word.store(STEP_ENDED, Ordering::Release);
        }
        assert!(seat.begin(1, &mut hypervisor));
        seat.keep(9_000, &mut hypervisor);
        assert_eq!(seat.held, 9);
        let _ = std::fs::remove_file(&path);
    }
}
