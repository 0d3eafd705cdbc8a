// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ways in which a guest can be wrong.

use serde::{Deserialize, Serialize};

use crate::wire::Status;

/// Why something was not taken. Finer than [`Status`], which is all that the
/// guest is told: the operator sees what exactly was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub enum Reason {
    /// The message is shorter or longer than it says.
    Length,
    /// No such operation.
    Operation,
    /// A flag, result or count that the operation does not have.
    Field,
    /// More ranges than the configuration space allows.
    Count,
    /// The report is for another queue's node.
    Node,
    /// A range without pages.
    Empty,
    /// A range that does not start at a page.
    Unaligned,
    /// A range that ends beyond the address space.
    Wrapping,
    /// Not memory of this guest.
    Outside,
    /// Memory of another tier.
    Tier,
    /// Inflated, and it is in the balloon already.
    Twice,
    /// Deflated, and it is not in the balloon.
    NotInflated,
    /// More than was asked for.
    Budget,
    /// Something else came before HELLO.
    NoHello,
    /// A resync page although no resync is going on.
    NoResync,
    /// The descriptors of a message do not make one: loops, nesting, addresses
    /// outside guest memory, no place for the answer.
    Chain,
    /// The ring itself is broken.
    Ring,
    /// Statistics of a wrong length or for a wrong number of nodes.
    Statistics,
    /// Messages in memory that was never written, too often: each makes the host
    /// allocate a page.
    Untouched,
}

impl Reason {
    /// All of them, by index.
    pub const ALL: [Self; 19] = [
        Self::Length,
        Self::Operation,
        Self::Field,
        Self::Count,
        Self::Node,
        Self::Empty,
        Self::Unaligned,
        Self::Wrapping,
        Self::Outside,
        Self::Tier,
        Self::Twice,
        Self::NotInflated,
        Self::Budget,
        Self::NoHello,
        Self::NoResync,
        Self::Chain,
        Self::Ring,
        Self::Statistics,
        Self::Untouched,
    ];

    /// What the guest is told.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Self::Length
            | Self::Operation
            | Self::Field
            | Self::Count
            | Self::Chain
            | Self::Ring
            | Self::Statistics
            | Self::Untouched => Status::Malformed,
            Self::Node => Status::Node,
            Self::Empty | Self::Unaligned | Self::Wrapping | Self::Outside => Status::Range,
            Self::Tier => Status::Tier,
            Self::Twice | Self::NotInflated | Self::NoResync => Status::State,
            Self::Budget => Status::Budget,
            Self::NoHello => Status::Hello,
        }
    }

    /// For metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Operation => "operation",
            Self::Field => "field",
            Self::Count => "count",
            Self::Node => "node",
            Self::Empty => "empty",
            Self::Unaligned => "unaligned",
            Self::Wrapping => "wrapping",
            Self::Outside => "outside",
            Self::Tier => "tier",
            Self::Twice => "twice",
            Self::NotInflated => "not_inflated",
            Self::Budget => "budget",
            Self::NoHello => "no_hello",
            Self::NoResync => "no_resync",
            Self::Chain => "chain",
            Self::Ring => "ring",
            Self::Statistics => "statistics",
            Self::Untouched => "untouched",
        }
    }
}

/// How often each reason was met.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters([u64; Reason::ALL.len()]);

impl Counters {
    /// One more.
    pub fn count(&mut self, reason: Reason) {
        let counter = &mut self.0[reason as usize];
        *counter = counter.saturating_add(1);
    }

    /// So many more.
    pub fn add(&mut self, others: &Self) {
        for (counter, more) in self.0.iter_mut().zip(others.0) {
            *counter = counter.saturating_add(more);
        }
    }

    /// How often.
    #[must_use]
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// All together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Those that were met.
    pub fn met(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL
            .into_iter()
            .map(|reason| (reason, self.get(reason)))
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_in_the_order_of_the_indices() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[test]
    fn names_differ() {
        let mut names: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
    }
}
