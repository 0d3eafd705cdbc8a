// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HeMem: `guest/peers/hemem/README.md` says what is faithful. Two rows: with the thresholds of
//! its published code, and with those of its paper.

use demeter_agent::protocol::Write;

use super::{By, Knob, Place, Policy, linux_moves_nothing};

/// HeMem.
pub struct Hemem {
    row: &'static str,
    about: &'static str,
    variant: [(&'static str, &'static str); 3],
}

/// As a published fork of its code has them.
pub static HEMEM: Hemem = Hemem {
    row: "hemem",
    about: "HeMem with the thresholds of its published code, its sizes scaled to the guest's",
    variant: [
        ("hot_reads", "4"),
        ("cooling_samples", "10"),
        ("writes_first", "0"),
    ],
};

/// As its paper has them.
pub static HEMEM_PAPER: Hemem = Hemem {
    row: "hemem-paper",
    about: "The same with its paper's thresholds at its fork's sampling, what is written first",
    variant: [
        ("hot_reads", "8"),
        ("cooling_samples", "18"),
        ("writes_first", "1"),
    ],
};

impl Policy for Hemem {
    fn row(&self) -> &'static str {
        self.row
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn by(&self) -> By {
        By::Module("demeter_hemem.ko")
    }

    fn knobs(&self) -> Vec<Knob> {
        let mut knobs = vec![
            Knob::new("lru", "lists", Place::Lists),
            Knob::unset("thp", Place::HugePages),
            // The code's; 10007 is its alternative.
            Knob::new("period", "19997", Place::Param),
            Knob::new("store_period", "19997", Place::Param),
            Knob::new("hot_writes", "4", Place::Param),
            // 8192 and 1 GiB, a 25.6th and what such a guest has.
            Knob::new("cooling_pages", "320", Place::Param),
            Knob::new("least_mapping_bytes", "33554432", Place::Param),
            Knob::new("poll_ms", "10", Place::Param),
            Knob::new("policy_ms", "10", Place::Param),
            // 10 GiB: never in effect.
            Knob::new("round_pages", "2621440", Place::Param),
        ];
        knobs.extend(
            self.variant
                .map(|(name, value)| Knob::new(name, value, Place::Param)),
        );
        knobs
    }

    fn writes(&self) -> Vec<Write> {
        linux_moves_nothing()
    }
}
