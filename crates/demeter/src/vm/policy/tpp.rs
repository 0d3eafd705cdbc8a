// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TPP as published: `guest/peers/tpp/README.md` says what is faithful. Two rows, as faults
//! that the published kernel takes do not happen on ours: without them and with each
//! charged; the truth lies between.

use demeter_agent::protocol::Write;

use super::{By, HINT_FAULT_KNOBS, Knob, Place, Policy, hint_faults};

/// TPP.
pub struct Tpp {
    row: &'static str,
    about: &'static str,
    repeat_ns: &'static str,
}

/// Faults that repeat while a page waits to be activated cost nothing.
pub static TPP: Tpp = Tpp {
    row: "tpp",
    about: "TPP as published: promotes what is on the active list at its hint fault; repeated faults free",
    repeat_ns: "0",
};

/// What one costs: the modelled exception (`exception_ns`, 317) and the kernel's path, which
/// `lab/experiments/peers.sh` prints for a hint fault, measuring and scans included.
const REPEAT_NS: &str = "1000";

/// Each is charged.
pub static TPP_CHARGED: Tpp = Tpp {
    row: "tpp-charged",
    about: "The same with each repeated fault charged",
    repeat_ns: REPEAT_NS,
};

/// What can be set of its tracking, for those that build on it too.
pub(super) fn tracking_knobs() -> Vec<Knob> {
    let mut knobs = vec![
        Knob::new("lru", "lists", Place::Lists),
        Knob::unset("thp", Place::HugePages),
    ];
    knobs.extend(HINT_FAULT_KNOBS);
    // The mark to which kswapd demotes is 2 % of FMEM; 333 is the artifacts' 10 %.
    knobs.push(Knob::new(
        "watermark_scale_factor",
        "67",
        Place::FmemShareAtRoi("/proc/sys/vm/watermark_scale_factor"),
    ));
    knobs
}

impl Policy for Tpp {
    fn row(&self) -> &'static str {
        self.row
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn by(&self) -> By {
        By::Module("demeter_tpp.ko")
    }

    fn knobs(&self) -> Vec<Knob> {
        let mut knobs = tracking_knobs();
        knobs.extend([
            Knob::new("repeat_faults", "15", Place::Param),
            Knob::new("repeat_ns", self.repeat_ns, Place::Param),
            Knob::new("wake_ms", "10", Place::Param),
            Knob::new("stages", "0", Place::Param),
        ]);
        knobs
    }

    fn writes(&self) -> Vec<Write> {
        hint_faults()
    }
}
