// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: vCPUs in front of a shared last-level cache and two tiers.

use crate::cache::{Cache, LINE_BYTES};
use crate::config::MachineConfig;
use crate::filter::LineFilter;
use crate::hypervisor::{GuestMemory, Hypervisor};
use crate::layout::{MemoryLayout, Place};
use crate::placement::is_kernel;
use crate::series::{Counters, VcpuCounters};
use crate::sockets::Sockets;
use crate::stored::Stored;
use crate::stream::Streams;
use crate::tlb::{Level, Tlb};
use crate::walk::{Memory, WalkCaches, WalkCosts};
use crate::watch::{Fill, Followed, Watch};

/// The result of a page walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// The physical address.
    pub pa: u64,
    /// Whether the page is 2 MiB or larger.
    pub large: bool,
    /// Found by other means than a walk of the page table.
    pub fallback: bool,
    /// Physical addresses of the table entries read: PML4E, PDPTE, PDE, PTE.
    pub entries: [u64; 4],
    /// How many of them there are; none if found by other means.
    pub levels: u8,
}

/// What happens to a vCPU apart from accesses and invalidations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A fault, a trap or `int`.
    Exception,
    /// Anything from outside, NMIs and IPIs included.
    Interrupt,
    /// `pause`, by user or kernel code.
    Pause {
        /// Whether user code waits.
        user: bool,
    },
}

/// Costs of events and invalidations.
#[derive(Clone, Copy, Debug)]
struct EventCosts {
    exception_ps: u64,
    interrupt_ps: u64,
    pause_ps: u64,
    invlpg_ps: u64,
    full_flush_ps: u64,
    cr3_write_ps: u64,
}

impl EventCosts {
    const fn new(config: &MachineConfig) -> Self {
        Self {
            exception_ps: config.exception_ns * 1000,
            interrupt_ps: config.interrupt_ns * 1000,
            pause_ps: config.pause_ns * 1000,
            invlpg_ps: config.invlpg_ns * 1000,
            full_flush_ps: config.full_flush_ns * 1000,
            cr3_write_ps: config.cr3_write_ns * 1000,
        }
    }
}

/// Supplies page walks.
pub trait Walker {
    /// Translates `va` in the current address space; `None` for what is not memory.
    fn walk(&mut self, va: u64) -> Option<Translation>;

    /// Whether the access that needs the walk is a store; asked for a hypervisor only.
    fn store(&self) -> bool {
        false
    }

    /// Where the current address space's tables begin; asked for a hypervisor only.
    fn root(&self) -> u64 {
        0
    }
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
    /// The part of the cost that is the walk's.
    pub walk_ps: u64,
    /// A sequential stream had covered the fill: a prefetcher brought it.
    pub streamed: bool,
    /// Its page is of 2 MiB or larger.
    pub large: bool,
    /// Its line came from another socket.
    pub remote: bool,
}

/// Cost of a line from one tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierCost {
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

    /// Of FMEM and SMEM.
    pub(crate) fn both(config: &MachineConfig) -> [Self; 2] {
        [
            Self::new(
                config.fmem_latency_ps,
                config.fmem_bandwidth_bytes_per_s,
                config.stream_overlap,
            ),
            Self::new(
                config.smem_latency_ps,
                config.smem_bandwidth_bytes_per_s,
                config.stream_overlap,
            ),
        ]
    }

    pub(crate) const fn fill_ps(&self, streamed: bool) -> u64 {
        if streamed {
            self.stream_ps
        } else {
            self.random_ps
        }
    }
}

#[derive(Clone, Debug)]
struct Vcpu {
    filter: LineFilter,
    tlb: Tlb,
    l2: Cache<8>,
    streams: Streams,
    walks: WalkCaches,
    /// Whether the TLB may hold parts of the guest's larger pages.
    fractured: bool,
    /// For a hypervisor that wants to know of stores.
    stored: Option<Box<Stored>>,
    /// Outside the guest, until something is to be done.
    halted: bool,
    /// A flush was asked for since.
    owes_flush: bool,
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
    /// On top, from another socket.
    remote: TierCost,
    l2_hit_ps: u64,
    llc_hit_ps: u64,
    stlb_hit_ps: u64,
    walk: WalkCosts,
    events: EventCosts,
    /// Which memory is another socket's.
    pub sockets: Option<Sockets>,
    /// Decides which tier pages lie in, in place of the guest's two nodes.
    pub hypervisor: Option<Box<Hypervisor>>,
    /// Follows line fills by page.
    pub watch: Option<Watch>,
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
            walks: WalkCaches::new(config),
            fractured: false,
            stored: None,
            halted: false,
            owes_flush: false,
            counters: VcpuCounters::default(),
        };
        let [fmem, smem] = TierCost::both(config);
        Self {
            vcpus: vec![vcpu; vcpus],
            llc: Cache::new(config.llc_bytes),
            layout,
            fmem,
            smem,
            remote: TierCost {
                random_ps: config.remote_latency_ps,
                stream_ps: config.remote_latency_ps / config.stream_overlap.max(1),
            },
            l2_hit_ps: config.l2_hit_ps,
            llc_hit_ps: config.llc_hit_ps,
            stlb_hit_ps: config.stlb_hit_ps,
            walk: WalkCosts::new(config),
            events: EventCosts::new(config),
            sockets: None,
            hypervisor: None,
            watch: None,
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
        let number = vcpu;
        let vcpu = self.vcpus.get_mut(vcpu)?;
        let counters = &mut self.counters;
        let mut cost_ps = 0;
        let mut walked = false;
        let mut walk_ps = 0;
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
                } else {
                    counters.walk_4k += 1;
                }
                // The TLB's page is the smaller of the guest's and the host's.
                let whole = !self.walk.nested || self.walk.ept_2m;
                if let Some(hypervisor) = &mut self.hypervisor {
                    let (user_address, store) = (!is_kernel(va), walker.store());
                    cost_ps += hypervisor.walked(found.pa, user_address, store);
                    if hypervisor.follows_tables() && user_address {
                        let entries = &found.entries[..usize::from(found.levels).min(4)];
                        cost_ps += hypervisor.tables_read(walker.root(), va, entries, found.large);
                    }
                    if let (Some(stored), true) = (&mut vcpu.stored, store) {
                        stored.page(va, found.large && whole);
                    }
                }
                let mut memory = Memory {
                    costs: &self.walk,
                    l2: &mut vcpu.l2,
                    llc: &mut self.llc,
                    layout: &self.layout,
                    hypervisor: self.hypervisor.as_deref(),
                    counters,
                };
                walk_ps = vcpu.walks.walk(va, &found, &mut memory);
                counters.walk_ps += walk_ps;
                cost_ps += walk_ps;
                vcpu.fractured |= found.large && !whole;
                vcpu.tlb.insert(va, found.pa, found.large && whole);
                (found.pa, found.large)
            }
        };
        vcpu.filter.set_large(va, large);

        let mut streamed = false;
        let mut remote = false;
        let served = if vcpu.l2.access(pa) {
            counters.l2_hits += 1;
            cost_ps += self.l2_hit_ps;
            Served::L2
        } else if self.llc.access(pa) {
            counters.llc_hits += 1;
            cost_ps += self.llc_hit_ps;
            Served::Llc
        } else {
            streamed = vcpu.streams.miss(va);
            counters.stream_loads += u64::from(streamed);
            let mut found = self.layout.locate(pa);
            if let (Some(hypervisor), Place::Node { node, .. }) = (&self.hypervisor, &mut found) {
                *node = hypervisor.node(pa);
            }
            let mut place = found;
            if let (Some(watch), Place::Node { node, .. }) = (&mut self.watch, &mut place) {
                *node = watch.fill(Fill {
                    vcpu: number,
                    va,
                    pa,
                    node: *node,
                    dearer_ps: self
                        .smem
                        .fill_ps(streamed)
                        .saturating_sub(self.fmem.fill_ps(streamed)),
                });
            }
            if let (Some(sockets), Place::Node { node, offset }) = (&self.sockets, place) {
                // What is put in the other tier by decree is of the own socket.
                remote = place == found && sockets.is_remote(number, node, offset);
            }
            let (served, tier) = match place {
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
            cost_ps += tier.fill_ps(streamed);
            if remote {
                counters.remote_loads += 1;
                cost_ps += self.remote.fill_ps(streamed);
            }
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
            walk_ps,
            streamed,
            large,
            remote,
        })
    }

    /// A store, after it was looked up as an access, for a hypervisor that follows them; what
    /// it costs on top: hardware walks once more for an entry of the TLB that is not dirty yet.
    pub fn store(&mut self, vcpu: usize, va: u64, user: bool, walker: &mut impl Walker) -> u64 {
        let (Some(vcpu), Some(hypervisor)) = (self.vcpus.get_mut(vcpu), &mut self.hypervisor)
        else {
            return 0;
        };
        let stored = vcpu.stored.get_or_insert_default();
        let known_line = stored.lines.hit(va);
        let trapped = is_kernel(va) && hypervisor.traps_stores();
        if known_line && !trapped {
            return 0;
        }
        let found = vcpu.tlb.lookup(va);
        let Some((pa, large)) = found
            .map(|hit| (hit.pa, hit.large))
            .or_else(|| walker.walk(va).map(|walked| (walked.pa, false)))
        else {
            return 0;
        };
        stored.lines.set_large(va, large);
        if !known_line {
            hypervisor.count_store_line(pa);
        }
        let mut ps = 0;
        let clean = !stored.page(va, large);
        if clean || trapped {
            ps += hypervisor.stored(pa);
        }
        if clean && let Some(walked) = walker.walk(va) {
            let mut memory = Memory {
                costs: &self.walk,
                l2: &mut vcpu.l2,
                llc: &mut self.llc,
                layout: &self.layout,
                hypervisor: self.hypervisor.as_deref(),
                counters: &mut self.counters,
            };
            let walk_ps = vcpu.walks.walk(va, &walked, &mut memory);
            self.counters.walk_ps += walk_ps;
            ps += walk_ps;
        }
        vcpu.counters.charged_ps += ps;
        self.counters.charged_ps += ps;
        if !user {
            self.counters.kernel_charged_ps += ps;
        }
        ps
    }

    /// Has an access recorded, if they are.
    #[inline(always)]
    pub fn record(&mut self, vcpu: usize, va: u64, user_load: bool, access: &Access) {
        if let Some(watch) = &mut self.watch {
            let dearer = |tier: &TierCost| tier.fill_ps(access.streamed);
            watch.access(&Followed {
                vcpu,
                va,
                user_load,
                access: *access,
                dearer_ps: dearer(&self.smem).saturating_sub(dearer(&self.fmem)),
            });
        }
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

    /// Charges `vcpu` time for records that the PMU wrote.
    pub fn charge_records_ps(&mut self, vcpu: usize, ps: u64) {
        self.charge_ps(vcpu, ps);
        self.counters.pmu_record_ps += ps;
    }

    /// Charges the kernel on `vcpu` time that is not an access: what the PMU costs it.
    pub fn charge_kernel_ps(&mut self, vcpu: usize, ps: u64) {
        self.charge_ps(vcpu, ps);
        self.counters.kernel_charged_ps += ps;
    }

    fn charge_event(&mut self, vcpu: usize, ps: u64, user: bool) -> u64 {
        self.charge_ps(vcpu, ps);
        self.counters.event_ps += ps;
        if !user {
            self.counters.kernel_charged_ps += ps;
        }
        ps
    }

    /// Counts and charges an event; its cost in picoseconds.
    pub fn event(&mut self, vcpu: usize, event: Event) -> u64 {
        if vcpu >= self.vcpus.len() {
            return 0;
        }
        let (counter, ps, user) = match event {
            Event::Exception => (
                &mut self.counters.exceptions,
                self.events.exception_ps,
                false,
            ),
            Event::Interrupt => (
                &mut self.counters.interrupts,
                self.events.interrupt_ps,
                false,
            ),
            Event::Pause { user } => (&mut self.counters.pauses, self.events.pause_ps, user),
        };
        *counter += 1;
        self.charge_event(vcpu, ps, user)
    }

    /// INVLPG: one page, of whichever size it is; its cost in picoseconds.
    pub fn invalidate_page(&mut self, vcpu: usize, va: u64) -> u64 {
        let Some(own) = self.vcpus.get_mut(vcpu) else {
            return 0;
        };
        self.counters.tlb_single += 1;
        own.counters.tlb_single += 1;
        if own.fractured {
            // Which parts of the page are there is not known: all go (N. Amit et al.,
            // "Don't shoot down TLB shootdowns!", EuroSys 2020, found the same of Intel's).
            own.forget_all();
        } else {
            own.tlb.forget_page(va);
            own.filter.forget_page(va);
            own.walks.forget_guest();
            if let Some(stored) = &mut own.stored {
                stored.forget_page(va);
            }
        }
        self.charge_event(vcpu, self.events.invlpg_ps, false)
    }

    /// CR3 reloaded with its own value: how Linux without PCID flushes an address space.
    /// Its cost in picoseconds.
    pub fn flush_user(&mut self, vcpu: usize) -> u64 {
        let Some(own) = self.vcpus.get_mut(vcpu) else {
            return 0;
        };
        self.counters.tlb_full += 1;
        own.counters.tlb_full += 1;
        own.forget_user();
        self.charge_event(vcpu, self.events.cr3_write_ps, false)
    }

    /// CR4 or INVPCID: everything, global entries included; its cost in picoseconds.
    pub fn flush_all(&mut self, vcpu: usize) -> u64 {
        let Some(own) = self.vcpus.get_mut(vcpu) else {
            return 0;
        };
        self.counters.tlb_full += 1;
        own.counters.tlb_full += 1;
        own.forget_all();
        self.charge_event(vcpu, self.events.full_flush_ps, false)
    }

    /// CR3 loaded with another address space; without PCID that flushes as well.
    /// Its cost in picoseconds.
    pub fn switch_address_space(&mut self, vcpu: usize) -> u64 {
        let Some(own) = self.vcpus.get_mut(vcpu) else {
            return 0;
        };
        self.counters.cr3_writes += 1;
        own.counters.cr3_writes += 1;
        own.forget_user();
        self.charge_event(vcpu, self.events.cr3_write_ps, false)
    }

    /// The hypervisor's threads run up to `now_ns` of the guest's clock, and the flushes that
    /// they asked for are carried out on every vCPU that runs; what `vcpu`, which does, pays for
    /// the host's time and all of them for theirs, in picoseconds. A vCPU that has halted is not
    /// in the guest: nobody interrupts it or waits for it, and it flushes when it goes on.
    /// `slept`: no vCPU ran since the last time.
    #[cold]
    pub fn run_hypervisor(
        &mut self,
        vcpu: usize,
        now_ns: u64,
        slept: bool,
        memory: &dyn GuestMemory,
    ) -> u64 {
        let Some(hypervisor) = &mut self.hypervisor else {
            return 0;
        };
        let (mut ps, flushes) = if slept {
            hypervisor.run_asleep(now_ns, memory)
        } else {
            hypervisor.run(now_ns, memory)
        };
        if let Some(flushes) = flushes {
            for own in &mut self.vcpus {
                own.forget_all();
                own.walks.clear();
                if own.halted {
                    own.owes_flush = true;
                    continue;
                }
                own.counters.charged_ps += flushes.ps;
                self.counters.charged_ps += flushes.ps;
                hypervisor.flushed(flushes);
                ps += flushes.ps;
            }
        }
        let own_ps = ps - flushes.map_or(0, |flushes| flushes.ps * self.running());
        self.charge_ps(vcpu, own_ps);
        ps
    }

    /// vCPUs that have not halted.
    fn running(&self) -> u64 {
        self.vcpus.iter().filter(|own| !own.halted).count() as u64
    }

    /// `vcpu` has halted.
    pub fn halt(&mut self, vcpu: usize) {
        if let Some(own) = self.vcpus.get_mut(vcpu) {
            own.halted = true;
        }
    }

    /// `vcpu` goes on; what it pays for flushes asked for meanwhile, in picoseconds.
    pub fn wake(&mut self, vcpu: usize) -> u64 {
        let Some(own) = self.vcpus.get_mut(vcpu) else {
            return 0;
        };
        own.halted = false;
        let owes = std::mem::take(&mut own.owes_flush);
        let Some(hypervisor) = self.hypervisor.as_mut().filter(|_| owes) else {
            return 0;
        };
        let ps = hypervisor.flushed_on_entry();
        self.charge_ps(vcpu, ps);
        ps
    }

    /// Empties all caches and TLBs, when what they held may have changed unseen.
    pub fn reset_state(&mut self) {
        self.llc.clear();
        for vcpu in &mut self.vcpus {
            vcpu.forget_all();
            vcpu.owes_flush = false;
            vcpu.walks.clear();
            vcpu.l2.clear();
            vcpu.streams.clear();
        }
    }
}

impl Vcpu {
    fn forget_user(&mut self) {
        self.tlb.forget_user();
        self.filter.forget_user();
        self.walks.forget_guest();
        if let Some(stored) = &mut self.stored {
            stored.forget_all();
        }
    }

    fn forget_all(&mut self) {
        self.tlb.clear();
        self.filter.clear();
        self.walks.forget_guest();
        self.fractured = false;
        if let Some(stored) = &mut self.stored {
            stored.forget_all();
        }
    }
}
