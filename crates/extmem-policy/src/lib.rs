// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies of the user-space pager: which page leaves DRAM next.
//!
//! [`abi`] is `demeter_extmem_policy.h` in Rust. [`Algorithm`] is the same as a trait,
//! and [`export!`] makes a loadable policy of it; the built-in ones go through the same
//! table. [`Lists`] are what most of them keep their books with.
//!
//! Callbacks run in signal handlers: nothing here allocates, locks or panics on input.

pub mod abi;
mod ahead;
mod algorithm;
mod clock;
mod default;
mod fifo;
mod lists;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod page_set;
mod trial;
mod victim_size;
mod walk;

pub use ahead::fetch_line;
pub use algorithm::{Algorithm, Host, Memory, table};
pub use clock::Clock;
pub use default::Default2Q;
pub use fifo::Fifo;
pub use lists::{ListId, Lists};
pub use page_set::PageSet;
pub use trial::{HotTrial, Was};
pub use victim_size::VictimSize;
pub use walk::KeptWalk;

/// Pages of an aligned block: those of one block that are named together can leave together,
/// at the price of one.
pub const BLOCK_PAGES: u32 = 64;

/// The table of a built-in policy.
pub fn built_in(name: &str) -> Option<&'static abi::Policy> {
    match name {
        "default" => Some(const { &table::<Default2Q>() }),
        "clock" => Some(const { &table::<Clock>() }),
        "fifo" => Some(const { &table::<Fifo>() }),
        _ => None,
    }
}

/// Names of the built-in policies.
pub const BUILT_IN: [&str; 3] = ["default", "clock", "fifo"];

/// Makes the entry point of a loadable policy from an [`Algorithm`].
#[macro_export]
macro_rules! export {
    ($algorithm:ty) => {
        /// Entry point of the policy.
        // SAFETY: no other object of this name is in a policy.
        #[unsafe(no_mangle)]
        pub extern "C" fn demeter_extmem_policy(host_abi: u32) -> *const $crate::abi::Policy {
            const TABLE: &$crate::abi::Policy = &$crate::table::<$algorithm>();
            if host_abi == $crate::abi::ABI {
                TABLE
            } else {
                ::core::ptr::null()
            }
        }
    };
}
