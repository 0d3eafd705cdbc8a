// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the host and a guest of the testbed say to each other: the run
//! description, the records that come back, the magic NOP and byte sizes.

pub mod magic;
pub mod protocol;
pub mod roi;
pub mod size;
