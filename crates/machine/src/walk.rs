// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a page walk costs: loads that go through the modelled caches.
//!
//! ```text
//! guest table   PML4E → PDPTE → PDE → PTE → page
//!                  what a paging-structure cache holds is skipped
//! each guest-physical address on the way, and the page's own:
//!               nested TLB, or else the host's table (EPT): PDE, or PDE → PTE
//! ```
//!
//! A paging-structure cache gives the *host*-physical address of the next table
//! (SDM vol. 3, 28.3.1: combined mappings), so the first load after a hit needs no
//! translation by the host. The host's tables lie in FMEM, at addresses the guest
//! does not have, and compete for the caches like any other line; their two upper
//! levels, of which an entry covers 1 GiB and more, are taken to be cached always.

use crate::cache::Cache;
use crate::config::MachineConfig;
use crate::hypervisor::Hypervisor;
use crate::layout::{MemoryLayout, Place};
use crate::machine::Translation;
use crate::series::Counters;

/// Addresses of the host's tables, above any guest memory of less than 252 GiB and
/// below the 256 GiB up to which cache tags are exact.
const EPT_PTE: u64 = 0x3f_0000_0000;
const EPT_PDE: u64 = 0x3f_c000_0000;
/// Entries that have an address of their own: 1.5 TiB in 4 KiB pages, 256 TiB in larger ones.
const EPT_PTES: u64 = (EPT_PDE - EPT_PTE) / 8;
const EPT_PDES: u64 = 1 << 27;
const WAYS: usize = 4;

/// A small 4-way cache of keys, replaced round robin.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    sets: Vec<[u64; WAYS]>,
    next: Vec<u8>,
    mask: u64,
}

impl Keys {
    pub(crate) fn new(entries: u64) -> Self {
        let sets = usize::try_from(entries).unwrap_or(WAYS) / WAYS;
        let sets = sets.max(1).next_power_of_two();
        Self {
            sets: vec![[0; WAYS]; sets],
            next: vec![0; sets],
            mask: sets as u64 - 1,
        }
    }

    /// Whether `key` is in; if not it is put in.
    #[inline]
    pub(crate) fn access(&mut self, key: u64) -> bool {
        let index = (key & self.mask) as usize;
        let set = &mut self.sets[index];
        // 0 marks an empty way.
        let tag = key + 1;
        if set.contains(&tag) {
            return true;
        }
        let next = &mut self.next[index];
        set[*next as usize % WAYS] = tag;
        *next = next.wrapping_add(1);
        false
    }

    pub(crate) fn forget(&mut self, key: u64) {
        let set = &mut self.sets[(key & self.mask) as usize];
        for tag in set.iter_mut().filter(|tag| **tag == key + 1) {
            *tag = 0;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.sets.fill([0; WAYS]);
        self.next.fill(0);
    }
}

/// Parameters of walks, from the machine's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalkCosts {
    start_ps: u64,
    pub(crate) nested: bool,
    pub(crate) ept_2m: bool,
    l2_hit_ps: u64,
    llc_hit_ps: u64,
    fmem_ps: u64,
    smem_ps: u64,
}

impl WalkCosts {
    pub(crate) const fn new(config: &MachineConfig) -> Self {
        Self {
            start_ps: config.walk_start_ps,
            nested: config.nested != 0,
            ept_2m: config.ept_2m != 0,
            l2_hit_ps: config.l2_hit_ps,
            llc_hit_ps: config.llc_hit_ps,
            fmem_ps: config.fmem_latency_ps,
            smem_ps: config.smem_latency_ps,
        }
    }
}

/// Where a walk's loads go.
pub(crate) struct Memory<'a> {
    pub(crate) costs: &'a WalkCosts,
    pub(crate) l2: &'a mut Cache<8>,
    pub(crate) llc: &'a mut Cache<16>,
    pub(crate) layout: &'a MemoryLayout,
    pub(crate) hypervisor: Option<&'a Hypervisor>,
    pub(crate) counters: &'a mut Counters,
}

impl Memory<'_> {
    #[inline]
    fn load(&mut self, pa: u64) -> u64 {
        self.counters.walk_loads += 1;
        if self.l2.access(pa) {
            return self.costs.l2_hit_ps;
        }
        if self.llc.access(pa) {
            return self.costs.llc_hit_ps;
        }
        let mut place = self.layout.locate(pa);
        if let (Some(hypervisor), Place::Node { node, .. }) = (self.hypervisor, &mut place) {
            *node = hypervisor.node(pa);
        }
        if let Place::Node { node: 1, .. } = place {
            self.counters.walk_smem_loads += 1;
            self.costs.smem_ps
        } else {
            self.counters.walk_fmem_loads += 1;
            self.costs.fmem_ps
        }
    }
}

/// What one vCPU keeps of walks done.
#[derive(Clone, Debug)]
pub(crate) struct WalkCaches {
    pml4e: Keys,
    pdpte: Keys,
    pde: Keys,
    nested_tlb: Keys,
    ept_pde: Keys,
}

impl WalkCaches {
    pub(crate) fn new(config: &MachineConfig) -> Self {
        Self {
            pml4e: Keys::new(config.pml4e_cache_entries),
            pdpte: Keys::new(config.pdpte_cache_entries),
            pde: Keys::new(config.pde_cache_entries),
            nested_tlb: Keys::new(config.nested_tlb_entries),
            // The same array of the walker serves both dimensions in size.
            ept_pde: Keys::new(config.pde_cache_entries),
        }
    }

    /// The cost of the walk that found `found` for `va`, in picoseconds.
    pub(crate) fn walk(&mut self, va: u64, found: &Translation, memory: &mut Memory) -> u64 {
        let entries = &found.entries[..usize::from(found.levels).min(4)];
        let skipped = match entries.len() {
            4 if self.pde.access(va >> 21) => 3,
            3.. if self.pdpte.access(va >> 30) => 2,
            _ if self.pml4e.access(va >> 39) => 1,
            _ => 0,
        };
        let mut ps = memory.costs.start_ps;
        for (level, &entry) in entries.iter().enumerate().skip(skipped) {
            if level > skipped || skipped == 0 {
                ps += self.host_walk(entry, memory);
            }
            ps += memory.load(entry);
        }
        ps + self.host_walk(found.pa, memory)
    }

    /// The cost of translating a guest-physical address; nothing without a hypervisor.
    #[inline]
    fn host_walk(&mut self, gpa: u64, memory: &mut Memory) -> u64 {
        if !memory.costs.nested {
            return 0;
        }
        let pde = EPT_PDE + (gpa >> 21) % EPT_PDES * 8;
        if memory.costs.ept_2m {
            if self.nested_tlb.access(gpa >> 21) {
                return 0;
            }
            return memory.load(pde);
        }
        if self.nested_tlb.access(gpa >> 12) {
            return 0;
        }
        let mut ps = 0;
        if !self.ept_pde.access(gpa >> 21) {
            ps += memory.load(pde);
        }
        ps + memory.load(EPT_PTE + (gpa >> 12) % EPT_PTES * 8)
    }

    /// Forgets what CR3, INVLPG and INVPCID make it forget: all of the guest's tables,
    /// whatever the page (SDM vol. 3, 4.10.4.1), and nothing of the host's.
    #[inline]
    pub(crate) fn forget_guest(&mut self) {
        self.pml4e.clear();
        self.pdpte.clear();
        self.pde.clear();
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.forget_guest();
        self.nested_tlb.clear();
        self.ept_pde.clear();
    }
}
