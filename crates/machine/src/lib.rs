// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A deterministic model of a tiered-memory machine.

pub mod config;
pub mod series;
