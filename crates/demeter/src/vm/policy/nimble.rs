// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nimble: `guest/peers/nimble/README.md` says what is faithful.

use demeter_agent::protocol::Write;

use super::{By, Knob, Place, Policy, linux_moves_nothing};

/// Nimble.
pub struct Nimble;

/// Its row.
pub static NIMBLE: Nimble = Nimble;

impl Policy for Nimble {
    fn row(&self) -> &'static str {
        "nimble"
    }

    fn about(&self) -> &'static str {
        "Nimble as published: page lists by accessed bits at a fixed pace, huge pages by exchange"
    }

    fn by(&self) -> By {
        By::Module("demeter_nimble.ko")
    }

    fn knobs(&self) -> Vec<Knob> {
        vec![
            Knob::new("lru", "lists", Place::Lists),
            Knob::unset("thp", Place::HugePages),
            // 5 s, a tenth.
            Knob::new("period_ms", "500", Place::Param),
            Knob::new("scan_permille", "500", Place::Param),
            Knob::new("batch", "8", Place::Param),
            Knob::new("exchange", "1", Place::Param),
        ]
    }

    fn writes(&self) -> Vec<Write> {
        linux_moves_nothing()
    }
}
