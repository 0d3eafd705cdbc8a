// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What demeter.ko shows in `/sys/kernel/mm/demeter`, read whole and typed.
//!
//! [`module::Module::read`] makes one [`state::State`] of it, which everything
//! else is made from: tables, JSON, metrics, a live view, here or over a socket.

pub mod error;
pub mod groups;
pub mod heat;
pub mod ledger;
pub mod metrics;
pub mod module;
mod record;
pub mod state;

pub use error::Error;
pub use module::Module;
pub use state::State;
