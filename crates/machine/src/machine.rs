// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: vCPUs in front of a shared last-level cache and two tiers.

use crate::cache::{Cache, LINE_BYTES};
use crate::config::MachineConfig;
use crate::filter::LineFilter;
use crate::layout::{MemoryLayout, Place};
use crate::series::{Counters, VcpuCounters};
use crate::stream::Streams;
use crate::tlb::{Level, Tlb};

/// The result of a page walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The physical address.
    pub pa: u64,
    /// Whether the page is 2 MiB or larger.
    pub large: bool,
    /// Found by other means than a walk of the page table.
    pub fallback: bool,
}

/// Supplies page walks.
pub trait Walker {
    /// Translates `va` in the current address space; `None` for what is not memory.
    fn walk(&mut self, va: u64) -> Option<Translation>;
}

/// What served a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The private cache.
    L2,
    /// The last-level cache.
    Llc,
    /// FMEM.
    Fmem,
    /// SMEM.
    Smem,
    /// Memory outside both nodes.
    Other,
}

/// What an access that passed the line filter needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its whole cost, charged to the counters already.
    pub latency_ps: u64,
    /// Its physical address.
    pub pa: u64,
    /// Where its line came from.
    pub served: Served,
    /// Whether the address needed a page walk.
    pub walked: bool,
}

/// Cost of a line from one tier.
#[derive(Clone, Copy, Debug)]
struct TierCost {
    random_ps: u64,
    stream_ps: u64,
}

impl TierCost {
    fn new(latency_ps: u64, bandwidth_bytes_per_s: u64, overlap: u64) -> Self {
        const PS_PER_S: u64 = 1_000_000_000_000;
        let transfer_ps = LINE_BYTES * PS_PER_S / bandwidth_bytes_per_s.max(1);
        Self {
            random_ps: latency_ps.max(transfer_ps),
            stream_ps: transfer_ps.max(latency_ps / overlap.max(1)),
        }
    }
}

#[derive(Clone, Debug)]
struct Vcpu {
    filter: LineFilter,
    tlb: Tlb,
    l2: Cache<8>,
    streams: Streams,
    counters: VcpuCounters,
}

/// The modelled machine. Every method that takes a `vcpu` ignores one it does not have.
#[derive(Clone, Debug)]
pub struct Machine {
    vcpus: Vec<Vcpu>,
    llc: Cache<16>,
    layout: MemoryLayout,
    fmem: TierCost,
    smem: TierCost,
    l2_hit_ps: u64,
    llc_hit_ps: u64,
    stlb_hit_ps: u64,
    walk_4k_ps: u64,
    walk_2m_ps: u64,
    /// What happened so far. `insn`, `kernel_insn` and the PEBS counters are the caller's.
    pub counters: Counters,
}

impl Machine {
    /// A machine with empty caches. `config` should have passed [`MachineConfig::validate`].
    #[must_use]
    pub fn new(config: &MachineConfig, layout: MemoryLayout, vcpus: usize) -> Self {
        let vcpu = Vcpu {
            filter: LineFilter::default(),
            tlb: Tlb::default(),
            l2: Cache::new(config.l2_bytes),
            streams: Streams::default(),
            counters: VcpuCounters::default(),
        };
        Self {
            vcpus: vec![vcpu; vcpus],
            llc: Cache::new(config.llc_bytes),
            layout,
            fmem: TierCost::new(
                config.fmem_latency_ps,
                config.fmem_bandwidth_bytes_per_s,
                config.stream_overlap,
            ),
            smem: TierCost::new(
                config.smem_latency_ps,
                config.smem_bandwidth_bytes_per_s,
                config.stream_overlap,
            ),
            l2_hit_ps: config.l2_hit_ps,
            llc_hit_ps: config.llc_hit_ps,
            stlb_hit_ps: config.stlb_hit_ps,
            walk_4k_ps: config.walk_4k_ps,
            walk_2m_ps: config.walk_2m_ps,
            counters: Counters::default(),
        }
    }

    /// Whether the line filter serves the access: then it costs nothing more.
    ///
    /// A miss puts the line in, so it must be followed by [`Machine::access`].
    #[inline(always)]
    pub fn filtered(&mut self, vcpu: usize, va: u64) -> bool {
        match self.vcpus.get_mut(vcpu) {
            Some(vcpu) => vcpu.filter.hit(va),
            None => true,
        }
    }

    /// An access the line filter did not serve, by user or kernel code.
    ///
    /// Charges it and returns what it needed; `None` if it was not to memory.
    // Inlined into its one caller: returned through memory, the result is written in
    // small pieces and read in large ones, which stalls for longer than a look-up takes.
    #[inline(always)]
    pub fn access(
        &mut self,
        vcpu: usize,
        va: u64,
        user: bool,
        walker: &mut impl Walker,
    ) -> Option<Access> {
        let vcpu = self.vcpus.get_mut(vcpu)?;
        let counters = &mut self.counters;
        let mut cost_ps = 0;
        let mut walked = false;
        let (pa, large) = match vcpu.tlb.lookup(va) {
            Some(hit) => {
                if hit.level == Level::Stlb {
                    counters.stlb_hits += 1;
                    cost_ps += self.stlb_hit_ps;
                }
                (hit.pa, hit.large)
            }
            None => {
                let found = walker.walk(va)?;
                walked = true;
                counters.walk_fallback += u64::from(found.fallback);
                if found.large {
                    counters.walk_2m += 1;
                    cost_ps += self.walk_2m_ps;
                } else {
                    counters.walk_4k += 1;
                    cost_ps += self.walk_4k_ps;
                }
                vcpu.tlb.insert(va, found.pa, found.large);
                (found.pa, found.large)
            }
        };
        vcpu.filter.set_large(va, large);

        let served = if vcpu.l2.access(pa) {
            counters.l2_hits += 1;
            cost_ps += self.l2_hit_ps;
            Served::L2
        } else if self.llc.access(pa) {
            counters.llc_hits += 1;
            cost_ps += self.llc_hit_ps;
            Served::Llc
        } else {
            let streamed = vcpu.streams.miss(va);
            counters.stream_loads += u64::from(streamed);
            let (served, tier) = match self.layout.locate(pa) {
                Place::Node { node: 0, .. } => {
                    counters.fmem_loads += 1;
                    counters.fmem_loads_user += u64::from(user);
                    (Served::Fmem, &self.fmem)
                }
                Place::Node { .. } => {
                    counters.smem_loads += 1;
                    counters.smem_loads_user += u64::from(user);
                    (Served::Smem, &self.smem)
                }
                Place::Outside => {
                    counters.other_loads += 1;
                    (Served::Other, &self.fmem)
                }
            };
            cost_ps += if streamed {
                tier.stream_ps
            } else {
                tier.random_ps
            };
            served
        };
        vcpu.counters.charged_ps += cost_ps;
        counters.charged_ps += cost_ps;
        if !user {
            counters.kernel_charged_ps += cost_ps;
        }
        Some(Access {
            latency_ps: cost_ps,
            pa,
            served,
            walked,
        })
    }

    /// Charges user code on `vcpu` time that is not an access: the cost of a sample.
    pub fn charge_ps(&mut self, vcpu: usize, ps: u64) {
        if let Some(vcpu) = self.vcpus.get_mut(vcpu) {
            vcpu.counters.charged_ps += ps;
            self.counters.charged_ps += ps;
        }
    }

    /// What happened on `vcpu` so far; its instructions and PEBS counters are the caller's.
    #[must_use]
    pub fn vcpu_counters(&self, vcpu: usize) -> VcpuCounters {
        self.vcpus
            .get(vcpu)
            .map_or_else(VcpuCounters::default, |vcpu| vcpu.counters)
    }

    /// INVLPG: one page, of whichever size it is.
    pub fn invalidate_page(&mut self, vcpu: usize, va: u64) {
        if let Some(vcpu) = self.vcpus.get_mut(vcpu) {
            self.counters.tlb_single += 1;
            vcpu.counters.tlb_single += 1;
            vcpu.tlb.forget_page(va);
            vcpu.filter.forget_page(va);
        }
    }

    /// CR3 reloaded with its own value: how Linux without PCID flushes an address space.
    pub fn flush_user(&mut self, vcpu: usize) {
        if let Some(vcpu) = self.vcpus.get_mut(vcpu) {
            self.counters.tlb_full += 1;
            vcpu.counters.tlb_full += 1;
            vcpu.forget_user();
        }
    }

    /// CR4 or INVPCID: everything, global entries included.
    pub fn flush_all(&mut self, vcpu: usize) {
        if let Some(vcpu) = self.vcpus.get_mut(vcpu) {
            self.counters.tlb_full += 1;
            vcpu.counters.tlb_full += 1;
            vcpu.tlb.clear();
            vcpu.filter.clear();
        }
    }

    /// CR3 loaded with another address space; without PCID that flushes as well.
    pub fn switch_address_space(&mut self, vcpu: usize) {
        if let Some(vcpu) = self.vcpus.get_mut(vcpu) {
            self.counters.cr3_writes += 1;
            vcpu.counters.cr3_writes += 1;
            vcpu.forget_user();
        }
    }

    /// Empties all caches and TLBs, when what they held may have changed unseen.
    pub fn reset_state(&mut self) {
        self.llc.clear();
        for vcpu in &mut self.vcpus {
            vcpu.tlb.clear();
            vcpu.filter.clear();
            vcpu.l2.clear();
            vcpu.streams.clear();
        }
    }
}

impl Vcpu {
    fn forget_user(&mut self) {
        self.tlb.forget_user();
        self.filter.forget_user();
    }
}
