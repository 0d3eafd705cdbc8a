// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nomad as published: `guest/peers/nomad/README.md` says what is faithful.

use demeter_agent::protocol::Write;

use super::tpp::tracking_knobs;
use super::{By, Knob, Place, Policy, hint_faults};

/// Nomad.
pub struct Nomad;

/// Its row.
pub static NOMAD: Nomad = Nomad;

impl Policy for Nomad {
    fn row(&self) -> &'static str {
        "nomad"
    }

    fn about(&self) -> &'static str {
        "Nomad as published: copies what is mapped, in the background, and keeps the old page as shadow"
    }

    fn by(&self) -> By {
        By::Module("demeter_nomad.ko")
    }

    fn knobs(&self) -> Vec<Knob> {
        let mut knobs = tracking_knobs();
        knobs.extend([
            Knob::new("look_back", "20", Place::Param),
            Knob::new("ring_size", "512", Place::Param),
            Knob::new("passes", "10", Place::Param),
            Knob::new("reclaim_pages", "10", Place::Param),
            // Of huge pages only, which are promoted as TPP does it.
            Knob::new("repeat_faults", "15", Place::Param),
            Knob::new("wake_ms", "10", Place::Param),
            // What the published worker does without room is not known: this is the faster way.
            Knob::new("wake_full", "1", Place::Param),
            Knob::new("stages", "0", Place::Param),
        ]);
        knobs
    }

    fn writes(&self) -> Vec<Write> {
        hint_faults()
    }
}
