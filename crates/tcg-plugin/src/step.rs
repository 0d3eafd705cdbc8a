// SPDX-License-Identifier: GPL-2.0-or-later
//! Keeps the modelled clocks of several guests in step.
//!
//! Guests of one experiment run side by side, each as fast as the host models
//! it: one that idles would be through its hour before another has worked for a
//! minute. So each publishes in a shared file for how long it has been modelled,
//! and one that is ahead of another by more than a window waits. Waiting takes
//! no guest time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use demeter_machine::config::{STEP_ENDED, StepConfig};

use crate::Failure;
use crate::NEXT_FILES;
use crate::ram::Mapping;

/// How often a guest that waits looks again.
const POLL: Duration = Duration::from_micros(100);
/// A guest looks at the others so many times in a window.
const LOOKS: u64 = 8;

/// One guest's place among the others.
pub struct Step {
    clocks: Mapping,
    config: StepConfig,
    /// The guest clock when modelling began.
    began_ns: Option<u64>,
    next_ns: u64,
}

impl Step {
    /// Maps the file.
    pub fn new(config: StepConfig) -> Result<Self, Failure> {
        let path = config.path.display().to_string();
        let clocks =
            Mapping::shared(&config.path, config.guests * size_of::<u64>()).map_err(|error| {
                Failure::new(
                    format!("cannot map the clocks `{path}`: {error}"),
                    NEXT_FILES,
                )
            })?;
        Ok(Self {
            clocks,
            config,
            began_ns: None,
            next_ns: u64::MAX,
        })
    }

    /// 0: not begun; the time modelled and 1 more; or the end.
    fn clock(&self, index: usize) -> Option<&AtomicU64> {
        let clock = self.clocks.at::<u64>(index * size_of::<u64>())?;
        // SAFETY: inside the mapping, aligned, never unmapped; everybody uses it atomically.
        Some(unsafe { AtomicU64::from_ptr(clock) })
    }

    fn publish(&self, value: u64) {
        if let Some(clock) = self.clock(self.config.index) {
            clock.store(value, Ordering::Relaxed);
        }
    }

    /// Waits until no other guest is behind `least`.
    fn wait(&self, least: u64) {
        let behind = |index: usize| {
            index != self.config.index
                && self
                    .clock(index)
                    .is_some_and(|clock| clock.load(Ordering::Relaxed) < least)
        };
        while (0..self.config.guests).any(behind) {
            std::thread::sleep(POLL);
        }
    }

    /// Modelling begins: for all guests together.
    pub fn begin(&mut self, now_ns: u64) {
        self.next_ns = now_ns;
        if self.began_ns.is_none() {
            self.began_ns = Some(now_ns);
            self.publish(1);
            self.wait(1);
        }
    }

    /// True when it is time for [`Self::keep`].
    #[inline(always)]
    pub const fn due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Says how far this guest is, and waits for the others.
    pub fn keep(&mut self, now_ns: u64) {
        let modelled = now_ns.saturating_sub(self.began_ns.unwrap_or(now_ns)) + 1;
        self.next_ns = now_ns + self.config.window_ns / LOOKS;
        self.publish(modelled);
        self.wait(modelled.saturating_sub(self.config.window_ns));
    }

    /// Modelling ended: nobody waits for this guest any more.
    pub fn end(&mut self) {
        self.next_ns = u64::MAX;
        self.publish(STEP_ENDED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn config(path: &std::path::Path, index: usize) -> StepConfig {
        StepConfig {
            path: path.to_owned(),
            index,
            guests: 2,
            window_ns: 1000,
        }
    }

    #[test]
    fn one_that_is_ahead_waits() {
        let path = std::env::temp_dir().join(format!("demeter-step-{}", std::process::id()));
        let Ok(mut slow) = Step::new(config(&path, 1)) else {
            panic!("no clocks");
        };
        let (said, heard) = channel();
        let fast_config = config(&path, 0);
        let fast = std::thread::spawn(move || {
            let Ok(mut fast) = Step::new(fast_config) else {
                return;
            };
            assert!(!fast.due(u64::MAX - 1));
            // Clocks of guests differ when modelling begins; time since then counts.
            fast.begin(70_000);
            let _ = said.send("began");
            assert!(fast.due(70_000));
            fast.keep(71_000);
            let _ = said.send("within the window");
            fast.keep(72_000);
            let _ = said.send("after the slow one");
            fast.keep(99_000);
            let _ = said.send("after its end");
        });
        let short = Duration::from_millis(30);
        assert!(heard.recv_timeout(short).is_err());
        slow.begin(5_000);
        assert_eq!(heard.recv(), Ok("began"));
        assert_eq!(heard.recv(), Ok("within the window"));
        assert!(heard.recv_timeout(short).is_err());
        slow.keep(6_000);
        assert_eq!(heard.recv(), Ok("after the slow one"));
        assert!(heard.recv_timeout(short).is_err());
        slow.end();
        assert_eq!(heard.recv(), Ok("after its end"));
        assert!(fast.join().is_ok());
        let _ = std::fs::remove_file(&path);
    }
}
