// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Between the program and the kernel: a seccomp filter traps the system calls that
//! concern the pager, and the SIGSYS handler does what the program asked for.
//!
//! Symbols are not interposed. The C library's own calls (its allocator's `mmap` and
//! `brk`, the signal masks of `posix_spawn`) never go through symbols, but all go
//! through the kernel's door.

pub mod arguments;
pub mod descriptors;
pub mod dispatch;
pub mod ending;
pub mod exec;
pub mod filter;
pub mod memory;
mod pointers;
pub mod process;
mod program;
pub mod randomisation;
pub mod signals;
pub mod transfer;
