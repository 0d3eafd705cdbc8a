// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The row of docs/peers.md's example, `guest/peers/example/`.

use demeter_agent::protocol::Write;

use super::{By, HINT_FAULT_KNOBS, Knob, Place, Policy, hint_faults};

/// The example.
pub struct Example;

/// Its row.
pub static EXAMPLE: Example = Example;

impl Policy for Example {
    fn row(&self) -> &'static str {
        "example"
    }

    fn about(&self) -> &'static str {
        "The example of docs/peers.md: promotes a page of SMEM at its second hint fault"
    }

    fn by(&self) -> By {
        By::Module("demeter_example.ko")
    }

    fn knobs(&self) -> Vec<Knob> {
        let mut knobs = vec![
            Knob::new("lru", "lists", Place::Lists),
            Knob::unset("thp", Place::HugePages),
            Knob::new("faults_to_promote", "2", Place::Param),
        ];
        knobs.extend(HINT_FAULT_KNOBS);
        knobs
    }

    fn writes(&self) -> Vec<Write> {
        hint_faults()
    }
}
