// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that a managed one started and that are not managed.
//!
//! Before an exec the old image notes its process, and the pager of the new image strikes
//! the note out as soon as it runs. What is left are images without a pager: static ones,
//! those of another C library, those that were started with another environment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::block::{Counter, Text};

/// Notes that are kept at one time; more are counted, without their names.
const NOTES: usize = 256;

const FREE: u32 = 0;
const CHANGING: u32 = 1;
/// An exec is under way, or its image has no pager.
const LEFT: u32 = 2;
/// The process was another one: its image had no pager.
const GONE: u32 = 3;

#[derive(Debug)]
#[repr(C)]
struct Note {
    state: AtomicU32,
    pid: AtomicU32,
    name: Text<4>,
}

/// The notes. All bits zero is none.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Departures {
    unnamed: Counter,
    notes: [Note; NOTES],
}

/// A note that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure(usize);

impl Departures {
    /// A process is about to exec a program.
    pub fn leave(&self, pid: u32, path: &[u8]) -> Option<Departure> {
        // Whoever had this number before is gone.
        for note in self.of(pid) {
            let _ = change(note, LEFT, GONE);
        }
        let free = (0..NOTES).find(|&at| change(&self.notes[at], FREE, CHANGING));
        let Some(at) = free else {
            self.unnamed.add(1);
            return None;
        };
        let note = &self.notes[at];
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let valid = match std::str::from_utf8(name) {
            Ok(name) => name,
            Err(error) => std::str::from_utf8(&name[..error.valid_up_to()]).unwrap_or_default(),
        };
        note.name.set(valid);
        note.pid.store(pid, Ordering::Relaxed);
        note.state.store(LEFT, Ordering::Release);
        Some(Departure(at))
    }

    /// The exec failed.
    pub fn stayed(&self, departure: Option<Departure>) {
        match departure {
            Some(Departure(at)) => self.notes[at % NOTES].state.store(FREE, Ordering::Release),
            None => self.unnamed.take_one(),
        }
    }

    /// A process runs an image with a pager. If nothing is noted of it, it was one of those for
    /// which there was no room. (Or it was started by a program without a pager, and then one too
    /// few is counted.)
    pub fn arrived(&self, pid: u32) {
        let struck = (self.of(pid))
            .filter(|note| change(note, LEFT, FREE))
            .count();
        if struck == 0 {
            self.unnamed.take_one();
        }
    }

    /// Names of images without a pager and how often each was started, and how many more
    /// there were.
    pub fn escaped(&self) -> (BTreeMap<String, u64>, u64) {
        let mut names = BTreeMap::new();
        for note in &self.notes {
            if matches!(note.state.load(Ordering::Acquire), LEFT | GONE) {
                *names.entry(note.name.get()).or_insert(0) += 1;
            }
        }
        (names, self.unnamed.get())
    }

    fn of(&self, pid: u32) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(move |note| {
            note.state.load(Ordering::Acquire) == LEFT && note.pid.load(Ordering::Relaxed) == pid
        })
    }
}

fn change(note: &Note, from: u32, to: u32) -> bool {
    (note.state)
        .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn departures() -> Box<Departures> {
        // SAFETY: zero is one.
        unsafe { Box::new_zeroed().assume_init() }
    }

    #[test]
    fn who_does_not_arrive_has_escaped() {
        let departures = departures();
        departures.leave(10, b"/usr/bin/sort");
        departures.arrived(10);
        let failed = departures.leave(11, b"/usr/local/bin/busybox");
        departures.stayed(failed);
        departures.leave(11, b"/bin/busybox");
        departures.leave(12, b"busybox");
        departures.leave(13, b"\xff\xfe");
        let (names, more) = departures.escaped();
        assert_eq!(
            names,
            BTreeMap::from([("busybox".into(), 2), (String::new(), 1)])
        );
        assert_eq!(more, 0);
    }

    #[test]
    fn a_number_that_comes_again_is_another_process() {
        let departures = departures();
        departures.leave(10, b"/bin/busybox");
        departures.leave(10, b"/bin/sort");
        departures.arrived(10);
        assert_eq!(
            departures.escaped().0,
            BTreeMap::from([("busybox".into(), 1)])
        );
    }

    #[test]
    fn more_than_can_be_named_are_counted() {
        let departures = departures();
        for pid in 0..NOTES as u32 + 5 {
            departures.leave(pid, b"static");
        }
        let (names, more) = departures.escaped();
        assert_eq!((names["static"], more), (NOTES as u64, 5));
        // With no room for a note, too, it is seen who has a pager.
        for pid in 1000..1010 {
            departures.leave(pid, b"sort");
            departures.arrived(pid);
        }
        assert_eq!(departures.escaped().1, 5);
        // The first program of a run comes from nowhere.
        let departures = self::departures();
        departures.arrived(7);
        assert_eq!(departures.escaped(), (BTreeMap::new(), 0));
    }
}
