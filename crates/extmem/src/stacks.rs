// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory in the arena that the kernel writes to at any time, without waiting for a page:
//! alternate signal stacks that it knows of, and what it keeps at the end of a thread's stack.
//!
//! Their pages stay in DRAM. Several threads' stacks may share a page, as an allocator places
//! them: it is let go when it lies in none of them.

/// A program with more of them than these may lose a page that two of them share.
const MOST: usize = 256;

/// First byte, and one past the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stack {
    start: usize,
    end: usize,
}

impl Stack {
    fn of(start: usize, bytes: usize) -> Self {
        Self {
            start,
            end: start.saturating_add(bytes),
        }
    }

    fn meets(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Those of all threads. Of one that has ended without a word it is not heard until its stack
/// is somebody else's, or its memory is gone.
#[derive(Debug)]
pub struct Stacks {
    known: [Stack; MOST],
    used: usize,
}

impl Default for Stacks {
    fn default() -> Self {
        Self {
            known: [Stack::default(); MOST],
            used: 0,
        }
    }
}

impl Stacks {
    fn all(&self) -> &[Stack] {
        &self.known[..self.used]
    }

    /// Somebody has this one now. Whether that is news, and there was room to note it.
    pub fn add(&mut self, start: usize, bytes: usize) -> bool {
        let stack = Stack::of(start, bytes);
        let is_new = self.used < MOST && !self.all().contains(&stack);
        if is_new {
            self.known[self.used] = stack;
            self.used += 1;
        }
        is_new
    }

    /// Nobody has this one any more.
    pub fn remove(&mut self, start: usize, bytes: usize) {
        let stack = Stack::of(start, bytes);
        self.drop_all(|known| known == stack);
    }

    /// This memory is gone.
    pub fn forget(&mut self, start: usize, bytes: usize) {
        let gone = Stack::of(start, bytes);
        self.drop_all(|known| known.meets(gone));
    }

    /// Whether some of this memory is somebody's stack.
    pub fn meet(&self, start: usize, bytes: usize) -> bool {
        let memory = Stack::of(start, bytes);
        self.all().iter().any(|stack| stack.meets(memory))
    }

    fn drop_all(&mut self, goes: impl Fn(Stack) -> bool) {
        let mut at = 0;
        while at < self.used {
            if goes(self.known[at]) {
                self.used -= 1;
                self.known[at] = self.known[self.used];
            } else {
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_somebodys_until_its_last_stack_is_gone() {
        let mut stacks = Stacks::default();
        assert!(stacks.add(0x1000, 0x1800) && stacks.add(0x2800, 0x1800));
        assert!(!stacks.add(0x1000, 0x1800));
        stacks.remove(0x1000, 0x1800);
        assert!(!stacks.meet(0x1000, 0x1000) && stacks.meet(0x2000, 0x1000));
        stacks.remove(0x2800, 0x1000);
        assert!(stacks.meet(0x3fff, 1) && !stacks.meet(0x4000, 0x1000));
        stacks.forget(0x3000, 0x1000);
        assert!(!stacks.meet(0, usize::MAX));
    }

    #[test]
    fn there_may_be_more_than_are_noted() {
        let mut stacks = Stacks::default();
        for at in 0..2 * MOST {
            assert_eq!(stacks.add(at * 0x1000, 0x1000), at < MOST);
        }
        stacks.remove(2 * MOST * 0x1000, 0x1000);
        stacks.forget(0, MOST / 2 * 0x1000);
        assert_eq!(stacks.used, MOST / 2);
    }
}
