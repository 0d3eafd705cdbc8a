// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What strangers send, from any bytes: a hostile guest's rings and messages, a monitor's
//! memory table, files and words of configuration, requests to the control interface.
//! Each body says what must hold whatever was sent; `fuzz/` runs them guided by coverage,
//! and the unit tests run the seeds and every input that once broke something.

pub mod configuration;
pub mod control;
pub mod rings;
pub mod tiers;

/// Bytes that become numbers; zeros when they are used up.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        first
    }

    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from(self.byte()) | u16::from(self.byte()) << 8
    }

    fn long(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let given = self.bytes(8);
        bytes[..given.len()].copy_from_slice(given);
        u64::from_le_bytes(bytes)
    }

    /// Mostly small, sometimes near the ends of the number line.
    fn number(&mut self) -> u64 {
        let word = self.word();
        match word >> 13 {
            0..=5 => u64::from(word & 0x1fff),
            6 => u64::MAX - u64::from(word & 0xff),
            _ => self.long(),
        }
    }
}

/// A directory and files for all inputs of this process.
fn directory() -> tempfile::TempDir {
    let shm = std::path::Path::new("/dev/shm");
    let made = if shm.is_dir() {
        tempfile::tempdir_in(shm)
    } else {
        tempfile::tempdir()
    };
    made.expect("a directory for memory files")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// All seeds of a target, in the order of their names.
    fn each_seed(target: &str, run: impl Fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
        let mut paths: Vec<_> = std::fs::read_dir(folder.join(target))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        assert!(!paths.is_empty(), "no seeds of {target}");
        for path in paths {
            println!("{}", path.display());
            run(&std::fs::read(&path).unwrap());
        }
    }

    #[test]
    fn seeds_of_rings_reach_the_device() {
        let reached = std::cell::Cell::new(0);
        each_seed("rings", |bytes| {
            reached.set(reached.get() + super::rings::run(bytes));
        });
        // Else nothing was shown: pages must have gone into a balloon, through a ring.
        assert!(reached.get() > 0);
    }

    #[test]
    fn seeds_of_tiers() {
        let fit = std::cell::Cell::new(0);
        each_seed("tiers", |bytes| {
            fit.set(fit.get() + u64::from(super::tiers::run(bytes)));
        });
        assert!(fit.get() > 0);
    }

    #[test]
    fn seeds_of_configuration() {
        let right = std::cell::Cell::new(0);
        each_seed("configuration", |bytes| {
            right.set(right.get() + u64::from(super::configuration::run(bytes)));
        });
        assert!(right.get() > 0);
    }

    #[test]
    fn seeds_of_control() {
        let answered = std::cell::Cell::new(0);
        each_seed("control", |bytes| {
            answered.set(answered.get() + super::control::run(bytes));
        });
        assert!(answered.get() > 0);
    }
}
