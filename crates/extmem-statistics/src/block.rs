// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one process says about itself.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::history::{History, Sample};

/// A number that only grows.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Takes one back, if there is one.
    pub fn take_one(&self) {
        let _ = (self.0).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| {
            sum.checked_sub(1)
        });
    }

    /// Replaces the sum by one that is kept elsewhere.
    pub fn set(&self, sum: u64) {
        self.0.store(sum, Ordering::Relaxed);
    }

    /// The sum.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// The value now.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The last value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! numbers {
    ($(#[$outer:meta])* $group:ident of $kind:ident { $($(#[doc = $doc:literal])* $name:ident,)* }) => {
        $(#[$outer])*
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct $group {
            $($(#[doc = $doc])* pub $name: $kind,)*
        }

        impl $group {
            /// Every number with its name, in order.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, &$kind)> {
                [$((stringify!($name), &self.$name),)*].into_iter()
            }
        }
    };
}

numbers! {
    /// Sums since the process started.
    Counters of Counter {
        /// Pages touched for the first time.
        first_touches,
        /// Faults served from the swap store.
        faults_swap,
        /// Faults served from the compressed tier.
        faults_compressed,
        /// Faults served from the victim cache.
        faults_victim_cache,
        /// Faults on pages known to be zero.
        faults_zero,
        /// First writes to clean pages.
        faults_write_protect,
        /// Faults that found the page on its way in or out and waited.
        faults_waited,
        /// Pages asked for ahead of use.
        prefetch_issued_pages,
        /// Pages dropped without a write.
        evicted_clean_pages,
        /// Pages written out.
        evicted_dirty_pages,
        /// Pages moved to the compressed tier.
        evicted_compressed_pages,
        /// Pages that a faulting thread had to evict itself.
        evictions_inline_pages,
        /// Read transfers.
        reads,
        /// Bytes read.
        read_bytes,
        /// Write transfers.
        writes,
        /// Bytes written.
        write_bytes,
        /// Transfers that failed.
        io_errors,
        /// Pages offered to the compressed tier.
        compress_attempts,
        /// Of these, refused.
        compress_rejected,
        /// Pages taken out of the compressed tier.
        decompressions,
        /// Objects of the compressed tier freed since their pages stay in DRAM.
        objects_given_up,
        /// System calls that touched managed memory.
        syscalls_trapped,
        /// Of these, made again after bringing pages in.
        syscalls_reissued,
        /// Requests for memory refused since swap cannot hold more.
        enomem,
        /// Time in the fault path, waiting included, in ns.
        fault_ns,
        /// CPU time of background eviction in ns.
        evict_cpu_ns,
        /// CPU time of background prefetch in ns.
        prefetch_cpu_ns,
    }
}

numbers! {
    /// Values now.
    Gauges of Gauge {
        /// Memory under management.
        managed_bytes,
        /// Of it in DRAM.
        resident_bytes,
        /// DRAM of the compressed tier.
        compressed_bytes,
        /// DRAM of the victim cache.
        victim_cache_bytes,
        /// DRAM of the pager's own tables and buffers.
        metadata_bytes,
        /// Swap in use.
        swap_used_bytes,
    }
}

/// Files, devices and directories that a process swaps to at most.
pub const MOST_SWAP_PLACES: usize = 8;

/// One of them, when a process starts.
#[derive(Debug, Clone, Copy, Default)]
pub struct AboutSwap<'a> {
    /// Its path.
    pub path: &'a str,
    /// Device and inode: files without a name in one directory are different ones.
    pub file: [u64; 2],
    /// What of it may be used; 0: there is none.
    pub size_bytes: u64,
}

/// One of them.
#[derive(Debug)]
#[repr(C)]
pub struct SwapUse {
    pub(crate) path: Text<16>,
    pub(crate) file: [AtomicU64; 2],
    pub(crate) size_bytes: AtomicU64,
    /// In use by this process and those that share its slots, its relatives by fork.
    pub used_bytes: Gauge,
}

impl SwapUse {
    fn begin(&self, about: &AboutSwap<'_>) {
        self.path.set_end(about.path);
        for (word, value) in self.file.iter().zip(about.file) {
            word.store(value, Ordering::Relaxed);
        }
        self.used_bytes.set(0);
        self.size_bytes.store(about.size_bytes, Ordering::Relaxed);
    }
}

/// What is known of a process when it starts.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// Name of the program.
    pub command: &'a str,
    /// Name of the policy.
    pub policy: &'a str,
    /// "inline" or "handler".
    pub mode: &'a str,
    /// "io_uring" or "plain".
    pub engine: &'a str,
    /// DRAM it may use.
    pub dram_bytes: u64,
    /// Swap it may use.
    pub swap_bytes: u64,
    /// Where, in the order in which it is filled.
    pub swap: [AboutSwap<'a>; MOST_SWAP_PLACES],
}

/// Text of at most `N` bytes, readable while it is written.
#[derive(Debug)]
#[repr(C)]
pub struct Text<const N: usize>([AtomicU64; N]);

impl<const N: usize> Text<N> {
    /// Keeps what fits, up to a whole character.
    pub fn set(&self, text: &str) {
        let mut end = text.len().min(N * 8);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.store(text[..end].bytes());
    }

    /// Keeps what fits, from a whole character on: of a path the end says more.
    pub fn set_end(&self, text: &str) {
        const LEFT_OUT: &str = "...";
        if text.len() <= N * 8 {
            return self.set(text);
        }
        let mut start = text.len() - (N * 8 - LEFT_OUT.len());
        while !text.is_char_boundary(start) {
            start += 1;
        }
        self.store(LEFT_OUT.bytes().chain(text[start..].bytes()));
    }

    fn store(&self, mut bytes: impl Iterator<Item = u8>) {
        for word in &self.0 {
            let word_bytes = std::array::from_fn(|_| bytes.next().unwrap_or(0));
            word.store(u64::from_ne_bytes(word_bytes), Ordering::Relaxed);
        }
    }

    /// The text, fit for a terminal whatever is in the file.
    pub fn get(&self) -> String {
        let mut bytes = Vec::with_capacity(N * 8);
        for word in &self.0 {
            bytes.extend(word.load(Ordering::Relaxed).to_ne_bytes());
        }
        let end = bytes
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end])
            .chars()
            .map(|character| {
                if character.is_control() {
                    '?'
                } else {
                    character
                }
            })
            .collect()
    }
}

/// Nobody's.
pub(crate) const FREE: u32 = 0;
/// Being taken or given up.
pub(crate) const CHANGING: u32 = 1;
/// Of a process that runs.
pub(crate) const LIVE: u32 = 2;
/// Of a process that ended in order.
pub(crate) const ENDED: u32 = 3;
/// Of a process that is about to exec, or has: its next image has another block, or none.
pub(crate) const LEFT: u32 = 4;

/// One process. All bits zero is a free block.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Block {
    pub(crate) state: AtomicU32,
    pub(crate) pid: AtomicU32,
    /// CLOCK_MONOTONIC.
    pub(crate) start_ns: AtomicU64,
    /// That of the process that it and its relatives by fork come from.
    pub(crate) family_start_ns: AtomicU64,
    /// CLOCK_MONOTONIC of the last sample.
    pub(crate) updated_ns: AtomicU64,
    pub(crate) command: Text<8>,
    pub(crate) policy: Text<8>,
    pub(crate) mode: Text<2>,
    pub(crate) engine: Text<2>,
    pub(crate) dram_bytes: AtomicU64,
    pub(crate) swap_bytes: AtomicU64,
    /// Sums.
    pub counters: Counters,
    /// Values now.
    pub gauges: Gauges,
    /// Where it swaps to, in the order in which that is filled.
    pub swap: [SwapUse; MOST_SWAP_PLACES],
    /// Values over time.
    pub history: History,
}

impl Block {
    /// Fills a block that was taken.
    pub(crate) fn begin(&self, pid: u32, now_ns: u64, about: &About<'_>) {
        self.counters.each().for_each(|(_, counter)| counter.set(0));
        self.gauges.each().for_each(|(_, gauge)| gauge.set(0));
        self.history.clear();
        for (place, about) in self.swap.iter().zip(&about.swap) {
            place.begin(about);
        }
        self.pid.store(pid, Ordering::Relaxed);
        self.start_ns.store(now_ns, Ordering::Relaxed);
        self.family_start_ns.store(now_ns, Ordering::Relaxed);
        self.updated_ns.store(now_ns, Ordering::Relaxed);
        self.dram_bytes.store(about.dram_bytes, Ordering::Relaxed);
        self.swap_bytes.store(about.swap_bytes, Ordering::Relaxed);
        self.command.set(about.command);
        self.policy.set(about.policy);
        self.mode.set(about.mode);
        self.engine.set(about.engine);
        self.state.store(LIVE, Ordering::Release);
    }

    /// From one state to another, if it is in that one and this process' own.
    pub(crate) fn change(&self, pid: u32, from: u32, to: u32) {
        if self.pid.load(Ordering::Relaxed) == pid {
            let relaxed = Ordering::Relaxed;
            let _ = (self.state).compare_exchange(from, to, Ordering::AcqRel, relaxed);
        }
    }

    /// For a child of a fork: it holds what its parent holds, which looked last.
    pub(crate) fn inherit(&self, parent: &Self) {
        for ((_, gauge), (_, of_parent)) in self.gauges.each().zip(parent.gauges.each()) {
            gauge.set(of_parent.get());
        }
        for (place, of_parent) in self.swap.iter().zip(&parent.swap) {
            place.used_bytes.set(of_parent.used_bytes.get());
        }
        let looked_ns = parent.updated_ns.load(Ordering::Relaxed);
        self.updated_ns.store(looked_ns, Ordering::Relaxed);
    }

    /// Adds another block's sums.
    pub(crate) fn absorb(&self, other: &Self) {
        for ((_, sum), (_, more)) in self.counters.each().zip(other.counters.each()) {
            sum.add(more.get());
        }
    }

    /// Takes the gauges into the history.
    pub fn sample(&self, now_ns: u64) {
        self.updated_ns.store(now_ns, Ordering::Relaxed);
        let (counters, gauges) = (&self.counters, &self.gauges);
        self.history.push(&Sample {
            time_ns: now_ns.saturating_sub(self.start_ns.load(Ordering::Relaxed)),
            resident_bytes: gauges.resident_bytes.get(),
            compressed_bytes: gauges.compressed_bytes.get(),
            faults_swap: counters.faults_swap.get(),
            io_bytes: (counters.read_bytes.get()).wrapping_add(counters.write_bytes.get()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_a_character_and_cleaned() {
        let text = Text::<1>([AtomicU64::new(0)]);
        text.set("abcdefgé");
        assert_eq!(text.get(), "abcdefg");
        text.set("a\x1b[2J");
        assert_eq!(text.get(), "a?[2J");
        text.set("");
        assert_eq!(text.get(), "");
        text.set_end("abcdefgh");
        assert_eq!(text.get(), "abcdefgh");
        text.set_end("/abc/déabcd");
        assert_eq!(text.get(), "...abcd");
        text.set_end("/abc/dé");
        assert_eq!(text.get(), "/abc/dé");
    }
}
