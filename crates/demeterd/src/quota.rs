// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often a guest may do what is right. Each limit is a bucket of tokens: what
//! a driver does in earnest fits into it, and one that repeats itself waits. The worker
//! holds its guest back; the coordinator, what a guest or a worker makes it write.

use std::time::{Duration, Instant};

use demeter_balloon::view::Churn;
use demeter_balloon::wire::{OP_DONE, OP_HELLO};

/// Messages: a driver that empties a tier page by page stays far below.
const MESSAGES: Rate = Rate {
    burst: 8192.0,
    per_s: 4000.0,
};
/// HELLO makes the daemon forget a balloon and ask anew; DONE is written down.
const HELLO_TOKENS: f64 = 64.0;
const DONE_TOKENS: f64 = 8.0;
/// Pages that the daemon's own writes and reads make the host allocate. Drivers
/// have some buffers that they never wrote to; they use them again and again.
const PAGES: Rate = Rate {
    burst: 1024.0,
    per_s: 1.0 / 60.0,
};
/// Lines of the log, and entries of the ledger, that a guest causes.
const LINES: Rate = Rate {
    burst: 64.0,
    per_s: 0.2,
};
const ENTRIES: Rate = Rate {
    burst: 256.0,
    per_s: 2.0,
};

/// Messages of a worker that nobody asked for: it holds itself back to a quarter of that.
const NEWS: Rate = Rate {
    burst: 2000.0,
    per_s: 2000.0,
};

#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: f64,
    per_s: f64,
}

/// Tokens that come with time.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            tokens: rate.burst,
            filled: now,
        }
    }

    fn tokens(&mut self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + since * self.rate.per_s).min(self.rate.burst);
        self.filled = now;
        self.tokens
    }

    fn take(&mut self, tokens: f64, now: Instant) -> bool {
        let there = self.tokens(now) >= tokens;
        if there {
            self.tokens -= tokens;
        }
        there
    }
}

/// What a guest can make its worker do.
#[derive(Debug)]
pub struct Quota {
    messages: Bucket,
    pages: Bucket,
    held_back: u64,
}

impl Quota {
    /// Full.
    pub fn new(now: Instant) -> Self {
        Self {
            messages: Bucket::new(MESSAGES, now),
            pages: Bucket::new(PAGES, now),
            held_back: 0,
        }
    }

    /// Messages that may be taken now, whatever they are; or how long to wait.
    pub fn messages(&mut self, now: Instant) -> Result<usize, Duration> {
        let tokens = self.messages.tokens(now);
        if tokens >= HELLO_TOKENS {
            return Ok((tokens / HELLO_TOKENS) as usize);
        }
        self.held_back = self.held_back.saturating_add(1);
        let missing = HELLO_TOKENS - tokens;
        Err(Duration::from_secs_f64(missing / self.messages.rate.per_s))
    }

    /// A message was taken.
    pub fn took(&mut self, op: u16) {
        self.messages.tokens -= match op {
            OP_HELLO => HELLO_TOKENS,
            OP_DONE => DONE_TOKENS,
            _ => 1.0,
        };
    }

    /// May the host be made to allocate that many pages?
    pub fn pages(&mut self, pages: u64, now: Instant) -> bool {
        pages == 0 || self.pages.take(pages as f64, now)
    }

    /// How often messages had to wait.
    pub fn held_back(&self) -> u64 {
        self.held_back
    }
}

/// What a guest, or its worker, can make the coordinator write.
#[derive(Debug)]
pub struct Telling {
    news: Bucket,
    lines: Bucket,
    entries: Bucket,
    churn: Churn,
    /// Entries left out since the last one that was written.
    left_out: u64,
}

impl Telling {
    /// Full.
    pub fn new(now: Instant) -> Self {
        Self {
            news: Bucket::new(NEWS, now),
            lines: Bucket::new(LINES, now),
            entries: Bucket::new(ENTRIES, now),
            churn: Churn::default(),
            left_out: 0,
        }
    }

    /// May a worker say something?
    pub fn news(&mut self, now: Instant) -> bool {
        self.news.take(1.0, now)
    }

    /// May a line go to the log?
    pub fn line(&mut self, now: Instant) -> bool {
        let may = self.lines.take(1.0, now);
        self.churn.untold += u64::from(!may);
        may
    }

    /// May an entry go to the ledger? How many did not since the last one.
    pub fn entry(&mut self, now: Instant) -> Option<u64> {
        if self.entries.take(1.0, now) {
            return Some(std::mem::take(&mut self.left_out));
        }
        self.leave_out(1);
        None
    }

    /// So many events found no place in the news.
    pub fn skip(&mut self, events: u64) {
        self.churn.untold = self.churn.untold.saturating_add(events);
        self.leave_out(events);
    }

    fn leave_out(&mut self, entries: u64) {
        self.churn.unwritten = self.churn.unwritten.saturating_add(entries);
        self.left_out = self.left_out.saturating_add(entries);
    }

    /// So far; `held_back` is the worker's count.
    pub fn churn(&self, held_back: u64) -> Churn {
        Churn {
            held_back,
            ..self.churn
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_balloon::wire::OP_INFLATED;

    #[test]
    fn a_driver_in_earnest_does_not_wait() {
        let now = Instant::now();
        let mut quota = Quota::new(now);
        // A gibibyte in reports of single huge pages, at once.
        for _ in 0..512 {
            assert!(quota.messages(now).is_ok());
            quota.took(OP_INFLATED);
        }
        assert_eq!(quota.held_back(), 0);
    }

    #[test]
    fn who_greets_in_circles_is_slowed_down_and_forgiven() {
        let mut now = Instant::now();
        let mut quota = Quota::new(now);
        let mut greetings = 0;
        let mut waited = Duration::ZERO;
        for _ in 0..1000 {
            match quota.messages(now) {
                Ok(_) => {
                    quota.took(OP_HELLO);
                    quota.took(OP_DONE);
                    greetings += 1;
                }
                Err(wait) => {
                    now += wait;
                    waited += wait;
                }
            }
        }
        let least = f64::from(greetings) * 72.0 - MESSAGES.burst - 72.0;
        assert!(waited.as_secs_f64() >= least / MESSAGES.per_s, "{waited:?}");
        assert!(quota.held_back() > 100);
        now += Duration::from_secs(10);
        assert_eq!(quota.messages(now), Ok(128));
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let now = Instant::now();
        let mut quota = Telling::new(now);
        let written = (0..1000).filter(|_| quota.entry(now).is_some()).count();
        assert_eq!(written, ENTRIES.burst as usize);
        assert_eq!(quota.churn(0).unwritten, 1000 - written as u64);
        let later = now + Duration::from_secs(1);
        assert_eq!(quota.entry(later), Some(1000 - written as u64));
        assert_eq!(quota.entry(later), Some(0));
    }

    #[test]
    fn pages_are_bounded_for_long() {
        let mut now = Instant::now();
        let mut quota = Quota::new(now);
        assert!(quota.pages(1024, now));
        assert!(quota.pages(0, now) && !quota.pages(1, now));
        now += Duration::from_secs(24 * 3600);
        assert!(!quota.pages(2048, now));
    }
}
