// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Byte sizes as people write them: `128M`, `4KiB`, `1.5G`, `4096`.

pub use demeter_size::{SizeError, format, parse};
