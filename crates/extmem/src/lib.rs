// SPDX-License-Identifier: Apache-2.0 OR MIT
//! User-space pager for unmodified programs.
//!
//! Preloaded into a program, it takes over the program's private anonymous memory, keeps
//! a bounded part of it in DRAM and the rest in a file or on a block device. See
//! `docs/extmem-internals.md` for the picture.

pub mod compressed;
pub mod lock;
pub mod policy;
pub mod region;
pub mod stream;
pub mod swap;
pub mod syscall;

pub use demeter_extmem_statistics as statistics;

mod advice;
mod background;
mod budget;
mod byte_lock;
mod clock;
mod config;
mod context;
mod copies;
mod crowd;
mod descriptor;
mod error;
mod evict;
mod extents;
mod fatal;
mod fault;
mod forecast;
mod futex;
mod gate;
mod hints;
mod interpose;
mod library;
mod mapping;
mod neighbours;
mod page;
mod pager;
mod pipes;
mod place;
mod places;
mod queue;
mod share;
mod signal;
mod signal_actions;
mod signal_frame;
mod signal_stacks;
mod stacks;
mod start;
mod stash;
mod stub;
mod together;
mod turns;
mod uffd;
mod valgrind;
mod victim;
mod withdraw;
mod worker;

pub use error::Error;
