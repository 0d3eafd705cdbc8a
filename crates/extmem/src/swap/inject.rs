// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Failures on request, so that every failure path has a test on real files.
//!
//! `DEMETER_EXTMEM_INJECT=read-eio@100,write-enospc@5000,read-short@1` makes every
//! read from the 100th on fail with EIO, and so forth. Counted are transfers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Direction;

/// The variable.
pub const VARIABLE: &str = "DEMETER_EXTMEM_INJECT";

/// What an injected failure looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The system refuses with this error number.
    Errno(i32),
    /// The transfer ends in the middle of its first slot.
    Short,
}

/// From which transfer on which failure happens; none by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Injection {
    read: Option<(u64, Failure)>,
    write: Option<(u64, Failure)>,
}

impl Injection {
    /// Reads [`VARIABLE`].
    pub fn from_env() -> Result<Self, InjectionError> {
        match std::env::var(VARIABLE) {
            Ok(text) => Self::parse(&text),
            Err(_) => Ok(Self::default()),
        }
    }

    /// `(read|write)-(eio|enospc|short)@N`, separated by commas.
    pub fn parse(text: &str) -> Result<Self, InjectionError> {
        let mut injection = Self::default();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let (what, from) = item.split_once('@').ok_or(InjectionError)?;
            let (direction, kind) = what.split_once('-').ok_or(InjectionError)?;
            let from = from.parse::<u64>().map_err(|_| InjectionError)?;
            let failure = match kind {
                "eio" => Failure::Errno(libc::EIO),
                "enospc" => Failure::Errno(libc::ENOSPC),
                "short" => Failure::Short,
                _ => return Err(InjectionError),
            };
            let place = match direction {
                "read" => &mut injection.read,
                "write" => &mut injection.write,
                _ => return Err(InjectionError),
            };
            *place = Some((from, failure));
        }
        Ok(injection)
    }
}

/// The text is not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{VARIABLE} is not understood; next: write it like read-eio@100,write-enospc@5000,read-short@1"
)]
pub struct InjectionError;

/// Counts transfers and says which of them fail.
#[derive(Debug, Default)]
pub struct Injector {
    plan: Injection,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Injector {
    /// Follows `plan`.
    pub fn new(plan: Injection) -> Self {
        Self {
            plan,
            ..Self::default()
        }
    }

    /// The failure of the next transfer, if it is to fail.
    pub fn next(&self, direction: Direction) -> Option<Failure> {
        let (plan, count) = match direction {
            Direction::Read => (self.plan.read, &self.reads),
            Direction::Write => (self.plan.write, &self.writes),
        };
        let (from, failure) = plan?;
        (count.fetch_add(1, Ordering::Relaxed) + 1 >= from).then_some(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fails_from_the_nth_on() {
        let injector = Injector::new(Injection::parse("read-eio@3,write-short@1").unwrap());
        let outcomes: Vec<_> = (0..4).map(|_| injector.next(Direction::Read)).collect();
        let eio = Some(Failure::Errno(libc::EIO));
        assert_eq!(outcomes, [None, None, eio, eio]);
        assert_eq!(injector.next(Direction::Write), Some(Failure::Short));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["eio", "read-eio", "read-eio@x", "read-foo@1", "seek-eio@1"] {
            assert!(Injection::parse(text).is_err(), "{text}");
        }
        assert!(Injection::parse("").is_ok());
    }
}
