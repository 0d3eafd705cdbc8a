// SPDX-License-Identifier: GPL-2.0-or-later
//! Accessed bits in a guest's own page table follow the modelled TLB, not QEMU's: at
//! every level, for each vCPU. `tests/guest/bits.h` reads and clears them.

mod harness;

use demeter_machine::series::{RowKind, SeriesRow};
use harness::Guest;

const PAGES: u64 = 64;
const UPPER_LEVELS: u64 = 3;
const ROUNDS: usize = 8;

/// Modelled walks between each mark and the report that follows it, in order.
fn walks(rows: &[SeriesRow]) -> Vec<u64> {
    let of = |row: &SeriesRow| row.counters.walk_4k + row.counters.walk_2m;
    let rows: Vec<_> = (rows.iter())
        .filter(|row| [RowKind::Mark, RowKind::Progress].contains(&row.kind))
        .collect();
    rows.chunks_exact(2)
        .map(|pair| {
            let kinds = [pair[0].kind, pair[1].kind];
            assert_eq!(kinds, [RowKind::Mark, RowKind::Progress]);
            of(pair[1]) - of(pair[0])
        })
        .collect()
}

fn check(guest: &Guest, vcpus: usize) {
    let results = guest.results();
    let walks = walks(&guest.series());
    assert_eq!(walks.len(), vcpus * ROUNDS);
    for (vcpu, walks) in walks.chunks_exact(ROUNDS).enumerate() {
        for (round, walks) in walks.iter().enumerate() {
            let name = format!("levels{vcpu}-{round}");
            let result = &results[&name];
            println!("{name}: {walks} walks: {result:?}");
            assert_eq!(result["cleared"], 0, "{name}");
            // What the kernel has driven out meanwhile is marked, and no more.
            assert!(result["kept"] <= *walks, "{name}");
            if *walks == 0 {
                assert_eq!(result["kept_tables"], 0, "{name}");
            }
            assert_eq!(result["evicted"], PAGES, "{name}");
            assert_eq!(result["evicted_tables"], UPPER_LEVELS, "{name}");
        }
        // Otherwise nothing was shown.
        assert!(walks.contains(&0), "vCPU {vcpu}: {walks:?}");
    }
}

#[test]
#[ignore = "boots two guests; needs the test bed"]
fn accessed_bits_follow_the_modelled_tlb_at_every_level_on_each_vcpu() {
    for vcpus in [1, 2] {
        let mut guest = Guest::new(&format!("bits{vcpus}"), vcpus);
        guest.window = true;
        let output = guest.boot("l", "shift=0,sleep=off", None);
        assert!(output.status.success(), "{output:?}\n{}", guest.console());
        check(&guest, vcpus as usize);
        if vcpus == 2 {
            let elsewhere = &guest.results()["elsewhere"];
            assert_eq!(
                (elsewhere["pages"], elsewhere["tables"]),
                (PAGES, UPPER_LEVELS),
                "what is in the TLB of vCPU 0 is not in that of vCPU 1"
            );
        }
    }
}
