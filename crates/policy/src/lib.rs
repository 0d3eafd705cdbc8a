// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who gets how much FMEM. A policy is a pure function of what is known about
//! the guests; it keeps no state, so that it can be tested by its results and
//! replaced at any moment. Sizes are 4 KiB pages.
//!
//! Every policy keeps these, whatever the input: the sizes together are at most
//! the pool; no guest has more than its ceiling; and none has less than its
//! floor, unless the floors together exceed the pool, in which case they are
//! cut in proportion.

mod account;
mod changes;
mod fixed;
mod guaranteed;
mod memory;
mod pressure;
mod proportional;
mod shares;
mod working_set;

pub use account::Account;
pub use changes::{DEAD_BAND, FINE_BAND, Held, changes, differs};
pub use memory::{Entitled, MOST_SAMPLES_PER_S, Memory, News, held_pages};
pub use shares::{Claim, divide};
pub use working_set::{Probe, Told, useful_pages};

use std::sync::Arc;

use demeter_balloon::view::PolicyView;

/// Why nobody can decide so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// None of that name.
    #[error("no policy '{0}'")]
    Unknown(String),
    /// Too often or too seldom.
    #[error("an interval of {0} ms")]
    Interval(u64),
    /// No FMEM to divide.
    #[error("policy '{0}' has no FMEM to divide")]
    Pool(String),
}

impl PolicyError {
    /// What to do.
    pub fn next(&self) -> String {
        match self {
            Self::Unknown(_) => format!("choose from: {}", NAMES.join(", ")),
            Self::Interval(_) => "choose 10 to 3600000 ms".into(),
            Self::Pool(_) => "give --fmem-pool, or fmem_pool_bytes".into(),
        }
    }
}

/// Can it decide?
pub fn check(wish: &PolicyView) -> Result<(), PolicyError> {
    let policy = by_name(&wish.name).ok_or_else(|| PolicyError::Unknown(wish.name.clone()))?;
    if !(10..=3_600_000).contains(&wish.interval_ms) {
        return Err(PolicyError::Interval(wish.interval_ms));
    }
    if policy.is_some() && wish.fmem_pool_bytes == 0 {
        return Err(PolicyError::Pool(wish.name.clone()));
    }
    Ok(())
}

/// No policy here: the control interface is told sizes.
pub const EXTERNAL: &str = "external";
/// All names.
pub const NAMES: [&str; 6] = [
    EXTERNAL,
    "static",
    "proportional",
    "guaranteed",
    "pressure",
    "working-set",
];

/// What a policy knows of a guest.
#[derive(Debug, Clone, PartialEq)]
pub struct Guest {
    /// FMEM that it has now.
    pub size_pages: u64,
    /// Least and most that it may have, and its weight.
    pub claim: Claim,
    /// What was configured for `static`.
    pub fixed_pages: Option<u64>,
    /// Its hot set, if a memory manager tells: what FMEM would be used for.
    pub hot_pages: Option<u64>,
    /// FMEM that it has and does not use.
    pub free_pages: u64,
    /// Sampled accesses a second to any tier, smoothed.
    pub access_rate: f64,
    /// Share of accesses that went to SMEM, of a thousand.
    pub slow_permille: Option<u32>,
    /// Share of time in which a task waited for memory, of a thousand.
    pub stall_permille: Option<u32>,
    /// Decisions since its size was last changed.
    pub steady_rounds: u32,
    /// It may be given more than its share because of what it says.
    pub may_borrow: bool,
    /// Memory that it should have and that FMEM could hold, where the policy sizes that.
    pub memory_pages: Option<u64>,
    /// What it uses of all its memory and that FMEM could hold, with a reserve, where that is known.
    pub used_pages: Option<u64>,
}

/// What a policy knows.
#[derive(Debug, Clone, PartialEq)]
pub struct Fleet {
    /// FMEM to divide.
    pub pool_pages: u64,
    /// Those who get it.
    pub guests: Vec<Guest>,
}

impl Fleet {
    /// What everybody may have, whatever it says.
    pub fn claims(&self) -> Vec<Claim> {
        self.guests.iter().map(|guest| guest.claim).collect()
    }
}

/// Divides FMEM.
pub trait Policy: Send + Sync {
    /// Its name in the interfaces.
    fn name(&self) -> &'static str;
    /// The size of every guest, in the fleet's order.
    fn sizes(&self, fleet: &Fleet) -> Vec<u64>;
    /// Does it go by what guests say, so that they pay for it?
    fn believes(&self) -> bool {
        false
    }
    /// Does a guest's [`Probe`] decide its memory as a whole?
    fn sizes_memory(&self) -> bool {
        false
    }
}

/// The policy of that name. Some(None): external. None: there is none.
pub fn by_name(name: &str) -> Option<Option<Arc<dyn Policy>>> {
    Some(match name {
        EXTERNAL => None,
        "static" => Some(Arc::new(fixed::Static)),
        "proportional" => Some(Arc::new(proportional::Proportional)),
        "guaranteed" => Some(Arc::new(guaranteed::Guaranteed)),
        "pressure" => Some(Arc::new(pressure::Pressure)),
        "working-set" => Some(Arc::new(working_set::WorkingSet)),
        _ => return None,
    })
}

#[cfg(test)]
mod liars;
#[cfg(test)]
mod tests;
