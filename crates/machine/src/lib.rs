// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A deterministic model of a tiered-memory machine.
//!
//! The model turns a stream of memory accesses into time. Of QEMU it knows
//! only the `-cpu` that its units fit (`pmu::Kind::qemu_cpu`): whoever sees the accesses (the plugin, a simulator) calls
//! [`Machine::access`] and the invalidation methods, and supplies page walks
//! through [`Walker`]. An access passes, in this order, through
//!
//! ```text
//! line filter (VA, L1)  →  DTLB → STLB → page walk  →  L2 → LLC  →  FMEM | SMEM
//!      hit: free            hit: free, 2.1 ns, loads      4.2, 20 ns    68.7 | 121.9–176.6 ns
//! ```
//!
//! and the costs of what it needed are added up: the core of the model blocks
//! on a miss. Out-of-order overlap is modelled only where it dominates, in
//! sequential streams ([`stream`]): copying and zeroing pages would otherwise
//! be charged as random misses. A walk's loads go through the same caches and tiers
//! (`walk.rs`). Exceptions, interrupts, `pause`, invalidations and writes of CR3 cost
//! what [`config::MachineConfig`] says ([`Machine::event`]).
//!
//! Where a hypervisor places the guest's pages, its own table says which tier serves a
//! line ([`hypervisor`]).
//!
//! Line filter, TLBs, L2 and stream detector are each vCPU's own, the LLC is
//! shared. What is left out: instruction fetches, write-backs of dirty lines, the
//! second line of an access that straddles two, and between vCPUs coherence (a
//! store does not take the line from another's L2) and contention.
//! [`config::MachineConfig`] says where each figure comes from; figures that
//! come out of this model are modelled, not measured.

pub mod accesses;
pub mod bar;
pub mod cache;
pub mod config;
pub mod digest;
pub mod filter;
pub mod heat;
pub mod hypervisor;
pub mod layout;
pub mod machine;
pub mod placement;
pub mod pmu;
pub mod series;
pub mod sockets;
mod stored;
pub mod stream;
pub mod tasks;
pub mod tlb;
mod walk;
pub mod watch;

pub use config::{ConfigError, MachineConfig, PluginConfig, Preset};
pub use hypervisor::{Hypervisor, HypervisorConfig, HypervisorCounters};
pub use layout::{MemoryLayout, Place};
pub use machine::{Access, Event, Machine, Served, Translation, Walker};
pub use sockets::Sockets;
