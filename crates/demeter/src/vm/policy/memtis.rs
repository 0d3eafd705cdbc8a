// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memtis as published: `guest/peers/memtis/README.md` says what is faithful. Two rows: with
//! counts of samples and pages as much smaller as the guest is, and as published.

use demeter_agent::protocol::Write;

use super::{By, Knob, Place, Policy, linux_moves_nothing};

/// Memtis.
pub struct Memtis {
    row: &'static str,
    about: &'static str,
    scaled: [(&'static str, &'static str); 6],
}

/// Counts of samples and pages are 25.6 times smaller (16 GiB : 640 MiB), periods of control 10.
pub static MEMTIS: Memtis = Memtis {
    row: "memtis",
    about: "Memtis as published, its counts and periods scaled to the guest's size",
    scaled: [
        ("quota_ms", "1500"),
        ("adaptation_samples", "3906"),
        ("cooling_samples", "78125"),
        ("kmigrated_ms", "50"),
        ("direct_pages", "500"),
        ("split_batch", "2"),
    ],
};

/// As published: in a short run it hardly ever cools.
pub static MEMTIS_UNSCALED: Memtis = Memtis {
    row: "memtis-unscaled",
    about: "The same with the published counts and periods",
    scaled: [
        ("quota_ms", "15000"),
        ("adaptation_samples", "100000"),
        ("cooling_samples", "2000000"),
        ("kmigrated_ms", "500"),
        ("direct_pages", "12800"),
        ("split_batch", "50"),
    ],
};

impl Policy for Memtis {
    fn row(&self) -> &'static str {
        self.row
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn by(&self) -> By {
        By::Module("demeter_memtis.ko")
    }

    fn knobs(&self) -> Vec<Knob> {
        let mut knobs = vec![
            Knob::new("lru", "lists", Place::Lists),
            Knob::unset("thp", Place::HugePages),
            Knob::new("poll_us", "2000", Place::Param),
            Knob::new("quota_permille", "30", Place::Param),
            Knob::new("split", "1", Place::Param),
            // SMEM's latency less FMEM's, of FMEM's: persistent memory's. CXL's is 774.
            Knob::new("gap_permille", "1570", Place::Param),
        ];
        knobs.extend(
            self.scaled
                .map(|(name, value)| Knob::new(name, value, Place::Param)),
        );
        knobs
    }

    fn writes(&self) -> Vec<Write> {
        linux_moves_nothing()
    }
}
