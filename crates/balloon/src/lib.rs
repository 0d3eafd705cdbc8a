// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device side of virtio-demeter-balloon: one balloon per memory tier of a
//! guest, in one device. `docs/spec/virtio-demeter-balloon.md` is the contract.
//!
//! This crate takes bytes that a guest wrote and says what becomes of them. It
//! knows no sockets, no queues and no files: the caller copies a report out of
//! guest memory once, hands it to [`Device::report`], and writes the returned
//! [`wire::Ack`] back. What the device needs from the host is one trait,
//! [`Backing`].
//!
//! Everything that comes from the guest is hostile until validated. A report is
//! taken whole or not at all; each way to be wrong has its own [`Reason`] and is
//! counted; after too many of them the device takes nothing any more.
//! Memory use is bounded by the guest's own memory: one bit a page that is in a
//! balloon, and a fixed amount beside it.

pub mod device;
mod name;
pub mod node;
pub mod pages;
pub mod reason;
pub mod regions;
pub mod statistics;
pub mod view;
pub mod wire;

pub use device::{Backing, Device, Event, NodeView, Parameters, Punching, Taken, TargetError};
pub use name::is_name;
pub use reason::{Counters, Reason};
pub use regions::{Region, RegionError, Regions};
pub use statistics::{NodeStatistics, Statistics};
