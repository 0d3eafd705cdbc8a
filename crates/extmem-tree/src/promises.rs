// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is promised of the space that file systems have free.
//!
//! A swap file takes its space as it is used. Several of them on one file system see the same
//! space free, so what one was promised is not there for the next.

/// Bytes by file system (`st_dev`), or by what else has an end.
#[derive(Debug, Default)]
pub struct Promises(Vec<(u64, u64)>);

impl Promises {
    /// What the cgroup of this process leaves: no device has that number.
    pub(crate) const CGROUP: u64 = u64::MAX;

    /// What is promised on a file system.
    pub fn on(&self, device: u64) -> u64 {
        let all = self.0.iter().filter(|one| one.0 == device);
        all.fold(0, |sum, one| sum.saturating_add(one.1))
    }

    /// Promises more.
    pub fn add(&mut self, device: u64, bytes: u64) {
        self.0.push((device, bytes));
    }
}
