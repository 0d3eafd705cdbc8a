// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policy of this process: loaded once, asked for every victim.
//!
//! Whatever a policy is, the pager stays correct: victims are only proposals, their
//! numbers are checked, and a policy that names nobody is overruled. Refault distances
//! are kept here, so that each policy has them.

mod error;
mod load;

use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use demeter_extmem_policy::abi;
pub use demeter_extmem_policy::abi::Arrival;
pub use error::PolicyError;

use demeter_extmem_policy::fetch_line;

use crate::lock::Lock;
use crate::page::PageIndex;
use crate::region::{PAGE_BYTES, Region, carved_bytes};
use load::Source;

/// Where a policy comes from and what it is for.
#[derive(Debug, Clone, Copy)]
pub struct PolicyOptions<'a> {
    /// `default`, `clock`, `fifo` or a path with a slash; options after a colon.
    pub spec: &'a str,
    /// Pages of the arena.
    pub pages: PageIndex,
    /// Pages that may be in DRAM.
    pub dram_pages: u32,
}

/// What the pager does for a policy. Both may be called under the policy's lock.
#[derive(Debug, Clone, Copy)]
pub struct Services {
    /// Passed to both.
    pub context: *mut c_void,
    /// Enqueue a prefetch: first page, pages, flags.
    pub prefetch: extern "C" fn(*mut c_void, u32, u32, u32),
    /// 1 in DRAM and evictable, 2 elsewhere, 0 neither.
    pub state: extern "C" fn(*mut c_void, u32) -> u32,
}

/// A policy at work.
#[derive(Debug)]
pub struct Policy {
    table: abi::Policy,
    name: String,
    /// What `start` returned, and where the search for victims of our own goes on.
    state: Lock<State>,
    host: &'static abi::Host,
    /// Evictions when a page left, by page; 0 for never.
    stamps: &'static [AtomicU32],
    evictions: AtomicU32,
    /// One bit for each [`BLOCK_PAGES`] of which one ever came: their tables are physical.
    known: &'static [AtomicU64],
    known_blocks: AtomicU64,
}

/// Pages whose tables become physical together, more or less.
const BLOCK_PAGES: usize = 512;

#[derive(Debug)]
struct State {
    policy: *mut c_void,
    hand: PageIndex,
}

// SAFETY: the pointer is only used under the lock; a policy may be called from any thread.
unsafe impl Send for State {}
// SAFETY: the table is constant, the host's context is for use from any thread.
unsafe impl Sync for Policy {}
// SAFETY: as above.
unsafe impl Send for Policy {}

impl Policy {
    /// Loads and starts a policy.
    pub fn load(options: &PolicyOptions<'_>, services: Services) -> Result<Self, PolicyError> {
        let (name, arguments) = match options.spec.split_once(':') {
            Some((name, arguments)) => (name, arguments),
            None => (options.spec, ""),
        };
        let Source { table, path } = load::find(name)?;
        let refused = || PolicyError::Options {
            path: path.clone(),
            options: arguments.to_owned(),
        };
        let arguments = CString::new(arguments).map_err(|_| refused())?;
        // A policy may keep both pointers.
        let arguments: &'static CStr = Box::leak(arguments.into_boxed_c_str());
        let host: &'static abi::Host = Box::leak(Box::new(abi::Host {
            abi: abi::ABI,
            size: size_of::<abi::Host>() as u32,
            arena_pages: options.pages,
            dram_pages: options.dram_pages,
            context: services.context,
            prefetch: Some(services.prefetch),
            state: Some(services.state),
        }));
        let (Some(memory_bytes), Some(start)) = (table.memory_bytes, table.start) else {
            // `load` made sure.
            return Err(PolicyError::Start { path });
        };
        // SAFETY: the contract's arguments.
        let bytes = unsafe { memory_bytes(host, arguments.as_ptr()) };
        if bytes == 0 {
            return Err(refused());
        }
        let pages = options.pages as usize;
        let blocks = pages.div_ceil(BLOCK_PAGES).div_ceil(64);
        let stamps_bytes = carved_bytes::<AtomicU32>(pages) + carved_bytes::<AtomicU64>(blocks);
        let region = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| bytes.checked_add(stamps_bytes + 2 * PAGE_BYTES))
            .and_then(|bytes| Region::map_anonymous(bytes).ok());
        let unmapped = || PolicyError::Memory {
            path: path.clone(),
            bytes,
        };
        let mut region = region.ok_or_else(unmapped)?;
        // SAFETY: zero is a stamp, a bit and a byte.
        let (stamps, known, memory) = unsafe {
            (
                region.carve::<AtomicU32>(pages),
                region.carve::<AtomicU64>(blocks),
                region.carve::<u8>(bytes as usize),
            )
        };
        let (Some(stamps), Some(known), Some(memory)) = (stamps, known, memory) else {
            return Err(unmapped());
        };
        // SAFETY: memory of the size asked for, and the contract's arguments.
        let policy = unsafe { start(memory.as_mut_ptr().cast(), host, arguments.as_ptr()) };
        if policy.is_null() {
            return Err(PolicyError::Start { path });
        }
        let name = if table.name.is_null() {
            path
        } else {
            // SAFETY: not null, so terminated.
            let name = unsafe { CStr::from_ptr(table.name) };
            name.to_string_lossy().into_owned()
        };
        Ok(Self {
            table,
            name,
            state: Lock::new(State { policy, hand: 0 }),
            host,
            stamps,
            evictions: AtomicU32::new(0),
            known,
            known_blocks: AtomicU64::new(0),
        })
    }

    /// Its name, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes that a page came. Returns pages of tables that became physical by that.
    fn note(&self, page: PageIndex) -> u64 {
        // Built-in policies link pages by nine bytes each, and note some bits of them; others
        // are taken for like.
        const BYTES_A_PAGE: usize = 10 + size_of::<u32>();
        const BYTES_A_BLOCK: u64 = (BLOCK_PAGES * BYTES_A_PAGE) as u64;
        let block = page as usize / BLOCK_PAGES;
        let bit = 1 << (block % 64);
        let Some(word) = self.known.get(block / 64) else {
            return 0;
        };
        if word.load(Ordering::Relaxed) & bit != 0
            || word.fetch_or(bit, Ordering::Relaxed) & bit != 0
        {
            return 0;
        }
        let before = self.known_blocks.fetch_add(1, Ordering::Relaxed);
        let pages = |blocks: u64| (blocks * BYTES_A_BLOCK).div_ceil(PAGE_BYTES as u64);
        pages(before + 1) - pages(before)
    }

    /// A managed mapping came.
    pub fn mapped(&self, first: PageIndex, pages: u32) {
        if let Some(mapped) = self.table.mapped {
            let state = self.state.lock();
            // SAFETY: the policy's own state, under its lock.
            unsafe { mapped(state.policy, first, pages) };
        }
    }

    /// A range went, or its content was given up.
    pub fn unmapped(&self, first: PageIndex, pages: u32) {
        {
            let state = self.state.lock();
            if let Some(unmapped) = self.table.unmapped {
                // SAFETY: as above.
                unsafe { unmapped(state.policy, first, pages) };
            }
        }
        let end = first.saturating_add(pages).min(self.stamps.len() as u32);
        for stamp in self
            .stamps
            .get(first as usize..end as usize)
            .unwrap_or_default()
        {
            // Reading an untouched table costs nothing, writing makes it physical.
            if stamp.load(Ordering::Relaxed) != 0 {
                stamp.store(0, Ordering::Relaxed);
            }
        }
    }

    /// A page will come in a moment: fetches what [`Self::arrived`] reads first.
    pub fn fetch(&self, page: PageIndex) {
        if let Some(stamp) = self.stamps.get(page as usize) {
            fetch_line(stamp);
        }
    }

    /// Pages came to DRAM. Fills in their distances. Returns pages of tables that became
    /// physical by that: those of memory that is mapped and never touched do not.
    pub fn arrived(&self, arrivals: &mut [Arrival]) -> u64 {
        let now = self.evictions.load(Ordering::Relaxed);
        let mut table_pages = 0;
        for arrival in arrivals.iter_mut() {
            table_pages += self.note(arrival.page);
            let stamp = self
                .stamps
                .get(arrival.page as usize)
                .map_or(0, |stamp| stamp.load(Ordering::Relaxed));
            arrival.distance = match stamp {
                0 => abi::NEVER,
                stamp => now.wrapping_sub(stamp),
            };
        }
        if let Some(arrived) = self.table.arrived {
            let state = self.state.lock();
            // SAFETY: the policy's own state, under its lock; `arrivals` has that many.
            unsafe { arrived(state.policy, arrivals.as_ptr(), arrivals.len() as u32) };
        }
        table_pages
    }

    /// Victims, at most as many as `out` takes. They are proposals: claim each.
    pub fn choose(&self, out: &mut [PageIndex]) -> usize {
        let mut state = self.state.lock();
        let named = match self.table.choose {
            // SAFETY: the policy's own state, under its lock; room for that many.
            Some(choose) => unsafe { choose(state.policy, out.as_mut_ptr(), out.len() as u32) },
            None => 0,
        };
        let mut kept = self.known(out, named);
        if kept == 0 {
            kept = self.overrule(&mut state, out);
        }
        kept
    }

    /// Of so many pages that a policy named, keeps those that there are. Returns how many.
    fn known(&self, out: &mut [PageIndex], named: u32) -> usize {
        let named = (named as usize).min(out.len());
        let mut kept = 0;
        for index in 0..named {
            if out[index] < self.host.arena_pages {
                out[kept] = out[index];
                kept += 1;
            }
        }
        kept
    }

    /// Pages that stay in DRAM for a while, at most as many as `out` takes.
    pub fn staying(&self, out: &mut [PageIndex]) -> usize {
        let Some(staying) = self.table.staying else {
            return 0;
        };
        let named = {
            let state = self.state.lock();
            // SAFETY: the policy's own state, under its lock; room for that many.
            unsafe { staying(state.policy, out.as_mut_ptr(), out.len() as u32) }
        };
        self.known(out, named)
    }

    /// Victims that could not be evicted just now.
    pub fn returned(&self, pages: &[PageIndex]) {
        if let Some(returned) = self.table.returned {
            let state = self.state.lock();
            // SAFETY: as above.
            unsafe { returned(state.policy, pages.as_ptr(), pages.len() as u32) };
        }
    }

    /// Pages left DRAM.
    pub fn evicted(&self, pages: &[PageIndex]) {
        let count = pages.len() as u32;
        let now = self.evictions.fetch_add(count, Ordering::Relaxed) + count;
        for &page in pages {
            if let Some(stamp) = self.stamps.get(page as usize) {
                // 0 means never.
                stamp.store(now.max(1), Ordering::Relaxed);
            }
        }
        if let Some(evicted) = self.table.evicted {
            let state = self.state.lock();
            // SAFETY: as above.
            unsafe { evicted(state.policy, pages.as_ptr(), count) };
        }
    }

    /// The program said something of a range: one of [`abi`]'s hints.
    pub fn hint(&self, first: PageIndex, pages: u32, hint: u32) {
        if let Some(tell) = self.table.hint {
            let state = self.state.lock();
            // SAFETY: as above.
            unsafe { tell(state.policy, first, pages, hint) };
        }
    }

    /// Pages that the victim cache should have now, at most half of DRAM.
    pub fn victim_cache_pages(&self) -> u32 {
        const DEFAULT_SHARE: u32 = 16;
        let wanted = match self.table.victim_cache_pages {
            Some(pages) => {
                let state = self.state.lock();
                // SAFETY: as above.
                unsafe { pages(state.policy) }
            }
            None => self.host.dram_pages / DEFAULT_SHARE,
        };
        wanted.min(self.host.dram_pages / 2)
    }

    /// A policy that names nobody: whoever is in DRAM, in turn.
    fn overrule(&self, state: &mut State, out: &mut [PageIndex]) -> usize {
        /// Pages looked at in one call.
        const STRIDE: u32 = 1 << 14;
        let Some(is_in) = self.host.state else {
            return 0;
        };
        let mut count = 0;
        for _ in 0..STRIDE.min(self.host.arena_pages) {
            let Some(place) = out.get_mut(count) else {
                break;
            };
            let page = state.hand;
            state.hand = if page + 1 < self.host.arena_pages {
                page + 1
            } else {
                0
            };
            if is_in(self.host.context, page) == 1 {
                *place = page;
                count += 1;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests;
