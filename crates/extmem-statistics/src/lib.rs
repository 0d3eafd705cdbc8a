// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Statistics that managed programs share with whoever watches them.
//!
//! One file, mapped by every process of a run and by `demeter extmem top`. Each
//! process has a [`Block`] of atomic counters, gauges and a short history; what it
//! wrote is there whatever ends it. The pager writes from signal handlers: after
//! [`Statistics::open`] nothing allocates, locks or makes a system call.
//!
//! This is a crate of its own because the pager's library takes over `mmap` and
//! its kin in whatever links it, which a watcher must not.

mod block;
mod board;
mod departures;
mod history;
mod log;
mod summary;

pub use block::{
    About, AboutSwap, Block, Counter, Counters, Gauge, Gauges, MOST_SWAP_PLACES, SwapUse,
};
pub use board::{Board, BoardError, Place, Statistics, now_ns};
pub use departures::{Departure, Departures};
pub use history::{History, Sample};
pub use log::{Event, Log};
pub use summary::{FdWriter, Process, Summary, SwapPlace, write_line};
