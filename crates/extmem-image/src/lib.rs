// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which programs can be managed by a library that is preloaded into them, by their files.
//!
//! The runner asks before it starts a program, the pager before a managed program becomes
//! another: in the middle of an exec, where nothing may be allocated.

mod elf;
mod notes;
mod tool;

pub use elf::{Image, Interpreter, inspect};
pub use notes::are_of_go;
pub use tool::Tool;

/// Scripts may name scripts; the kernel follows this many.
pub const SCRIPT_DEPTH: usize = 5;
