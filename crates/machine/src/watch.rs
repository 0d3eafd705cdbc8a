// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What follows line fills by page: recording, placement, heat, accesses. A machine without
//! it pays one comparison a fill; none of it costs guest time.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Access;
use crate::accesses::{Accessed, Accesses, AccessesConfig};
use crate::heat::{Heat, HeatConfig, HeatReport};
use crate::placement::{NameBy, Names, Placed, Placement, Recording, Tally, is_kernel};

/// What to follow, and in which files; see [`crate::placement`] and [`crate::heat`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WatchConfig {
    /// How pages are named.
    pub names: NameBy,
    /// Written: costs by page, a [`Recording`].
    pub record: Option<PathBuf>,
    /// Read: a [`Placement`] in place of the real one.
    pub place: Option<PathBuf>,
    /// Written: heat, a [`HeatReport`] as JSON.
    pub heat: Option<(PathBuf, HeatConfig)>,
    /// Written: accesses by page and time, a `demeter_recording` file.
    pub accesses: Option<(PathBuf, AccessesConfig)>,
}

impl WatchConfig {
    /// Whether there is nothing to follow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.record.is_none()
            && self.place.is_none()
            && self.heat.is_none()
            && self.accesses.is_none()
    }
}

/// A line fill from one of the nodes.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// vCPU.
    pub vcpu: usize,
    /// Virtual address.
    pub va: u64,
    /// Physical address.
    pub pa: u64,
    /// Node that the address lies in.
    pub node: usize,
    /// What the fill costs more from SMEM than from FMEM.
    pub dearer_ps: u64,
}

/// An access that the line filter did not serve.
#[derive(Clone, Copy, Debug)]
pub struct Followed {
    /// vCPU.
    pub vcpu: usize,
    /// Virtual address.
    pub va: u64,
    /// A load by user code.
    pub user_load: bool,
    /// What it came to.
    pub access: Access,
    /// What it costs more from SMEM than from FMEM if it is a fill.
    pub dearer_ps: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Watch {
    names: Names,
    tally: Option<Tally>,
    placed: Option<Placed>,
    heat: Option<Heat>,
    /// Recorded accesses.
    pub accesses: Option<Accesses>,
}

impl Watch {
    /// As configured, with the placement that was read.
    #[must_use]
    pub fn new(config: &WatchConfig, placement: Option<Placement>, vcpus: usize) -> Self {
        Self {
            names: Names::new(config.names, vcpus),
            tally: config.record.is_some().then(Tally::default),
            placed: placement.map(Placed::from),
            heat: config.heat.as_ref().map(|(_, heat)| Heat::new(heat)),
            accesses: (config.accesses.as_ref()).map(|(_, accesses)| Accesses::new(accesses)),
        }
    }

    /// `vcpu` uses the page tables at `root` from here on.
    pub fn address_space(&mut self, vcpu: usize, root: u64) {
        self.names.address_space(vcpu, root);
    }

    /// It is `now_ns` on the guest's clock.
    pub fn at(&mut self, now_ns: u64) {
        if let Some(heat) = &mut self.heat {
            heat.at(now_ns);
        }
        if let Some(accesses) = &mut self.accesses {
            accesses.at(now_ns);
        }
    }

    /// The model is switched off at `now_ns`.
    pub fn pause(&mut self, now_ns: u64) {
        if let Some(accesses) = &mut self.accesses {
            accesses.pause(now_ns);
        }
    }

    /// Ordinal of the address space of `vcpu`.
    #[must_use]
    pub fn space(&self, vcpu: usize) -> u64 {
        self.names.space(vcpu)
    }

    /// Follows an access.
    pub fn access(&mut self, followed: &Followed) {
        if let Some(accesses) = &mut self.accesses {
            accesses.access(&Accessed {
                space: self.names.space(followed.vcpu),
                va: followed.va,
                user_load: followed.user_load,
                access: followed.access,
                dearer_ps: followed.dearer_ps,
            });
        }
    }

    /// Follows a fill; the node that serves it.
    pub fn fill(&mut self, fill: Fill) -> usize {
        let kernel = is_kernel(fill.va);
        if !kernel && let Some(heat) = &mut self.heat {
            heat.fill(self.names.space(fill.vcpu), fill.va, fill.pa);
        }
        if self.tally.is_none() && self.placed.is_none() {
            return fill.node;
        }
        let key = self.names.key(fill.vcpu, fill.va, fill.pa);
        let node = match &mut self.placed {
            Some(placed) => placed.serving(key, kernel, fill.node),
            None => fill.node,
        };
        if let Some(tally) = &mut self.tally {
            tally.fill(key, kernel, node, fill.dearer_ps);
        }
        node
    }

    /// What has been recorded.
    #[must_use]
    pub fn recording(&self) -> Option<Recording> {
        self.tally.as_ref().map(Tally::recording)
    }

    /// The heat so far.
    #[must_use]
    pub fn heat(&self) -> Option<HeatReport> {
        self.heat.as_ref().map(Heat::report)
    }
}
