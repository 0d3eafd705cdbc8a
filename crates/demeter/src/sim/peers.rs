// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Published managers of `demeter sim` that are modules of a guest's kernel. Of some, what they
//! decide is in `core/peers/`: those are played.

use demeter_simulator::{
    Costs, Error as Cause, Header, HememParams, Manager, MemtisParams, NimbleParams,
};

use super::Arguments;
use crate::error::Error;
use crate::vm::{Peer, THRESHOLD_NS};

/// Modules that are played.
#[derive(Clone, Copy)]
enum Module {
    Hemem,
    Memtis,
    Nimble,
}

impl Module {
    fn of(peer: Peer) -> Option<Self> {
        match peer.module()? {
            "demeter_hemem.ko" => Some(Self::Hemem),
            "demeter_memtis.ko" => Some(Self::Memtis),
            "demeter_nimble.ko" => Some(Self::Nimble),
            _ => None,
        }
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Hemem => HememParams::NAMES,
            Self::Memtis => MemtisParams::NAMES,
            Self::Nimble => NimbleParams::NAMES,
        }
    }
}

/// Whether a row's module is played.
pub fn are_played(peer: Peer) -> bool {
    Module::of(peer).is_some()
}

/// What can be told before a record is read.
pub fn check(arguments: &Arguments, peer: Peer) -> Result<(), Error> {
    if arguments.hosting.are_given(arguments.record.len()) {
        return Err(Error::Usage {
            cause: format!("{} is played for one guest by itself", peer.row()),
            next: "give one record, and leave --guests, --policy and --fmem-pool out".into(),
        });
    }
    if let Some((name, _)) = arguments.set.first() {
        return Err(Error::Usage {
            cause: format!(
                "--set {name}: {} has no parameters of demeter.ko",
                peer.row()
            ),
            next: format!("use --peer-set {}.NAME=VALUE", peer.row()),
        });
    }
    peer.knobs(&arguments.peer_set).map(|_| ())
}

/// What can be told once a record's header is read. These managers sample loads that miss the L3,
/// of either tier: with a higher threshold than the default's, those of FMEM may not be in the record.
pub fn check_record(peer: Peer, header: &Header) -> Result<(), Cause> {
    let samples = matches!(Module::of(peer), Some(Module::Hemem | Module::Memtis));
    if samples && header.threshold_ns > THRESHOLD_NS {
        return Err(Cause::Threshold {
            row: peer.row().to_owned(),
            recorded_ns: header.threshold_ns,
            most_ns: THRESHOLD_NS,
        });
    }
    Ok(())
}

/// A row's manager: with the row's values, then the user's, then the one that is swept.
pub fn manager(
    peer: Peer,
    set: &[(String, String)],
    swept: Option<(&str, &str)>,
    costs: Costs,
) -> Result<Manager, Cause> {
    let wrong = |name: &str, reason: String| Cause::Parameter {
        name: name.to_owned(),
        reason,
    };
    let module = Module::of(peer);
    let module = module.ok_or_else(|| wrong(peer.row(), "is not played".into()))?;
    let row = (peer.knobs(&[])).map_err(|error| wrong(peer.row(), error.to_string()))?;
    let base = (row.iter())
        .filter(|(name, _)| module.names().contains(&name.as_str()))
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let own = |name: &'_ str| {
        let (head, rest) = name.split_once('.')?;
        (head == peer.row()).then(|| rest.to_owned())
    };
    let mut values: Vec<(String, &str)> =
        base.map(|(name, value)| (name.to_owned(), value)).collect();
    values.extend((set.iter()).filter_map(|(name, value)| Some((own(name)?, value.as_str()))));
    values.extend(swept.map(|(name, value)| (own(name).unwrap_or_else(|| name.into()), value)));
    let (mut hemem, mut memtis, mut nimble) = Default::default();
    for (name, value) in &values {
        if matches!(name.as_str(), "lru" | "thp") {
            let reason = "is decided when accesses are recorded";
            return Err(wrong(name, reason.into()));
        }
        match module {
            Module::Hemem => HememParams::set(&mut hemem, name, value)?,
            Module::Memtis => MemtisParams::set(&mut memtis, name, value)?,
            Module::Nimble => NimbleParams::set(&mut nimble, name, value)?,
        }
    }
    Ok(match module {
        Module::Hemem => Manager::Hemem(hemem, costs),
        Module::Memtis => Manager::Memtis(memtis, costs),
        Module::Nimble => Manager::Nimble(nimble, costs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_machine::{MachineConfig, Preset};

    fn peer(row: &str) -> Peer {
        Peer::all().find(|peer| peer.row() == row).unwrap()
    }

    fn of(row: &str, set: &[(&str, &str)], swept: Option<(&str, &str)>) -> Result<Manager, Cause> {
        let set: Vec<_> = (set.iter())
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let costs = Costs::testbed(&MachineConfig::preset(Preset::Pmem));
        manager(peer(row), &set, swept, costs)
    }

    #[test]
    fn a_row_has_its_values_and_then_those_given() {
        let Ok(Manager::Hemem(paper, _)) = of("hemem-paper", &[], None) else {
            panic!("hemem-paper is played");
        };
        assert_eq!((paper.hot_reads, paper.cooling_pages), (8, 320));
        let set = [("memtis.quota_ms", "7"), ("hemem.period", "5")];
        let swept = Some(("memtis.split_batch", "3"));
        let Ok(Manager::Memtis(memtis, _)) = of("memtis", &set, swept) else {
            panic!("memtis is played");
        };
        assert_eq!((memtis.quota_ms, memtis.split_batch), (7, 3));
        assert_eq!(memtis.cooling_samples, 78_125);
        let Ok(Manager::Nimble(nimble, _)) = of("nimble", &[], Some(("period_ms", "9"))) else {
            panic!("nimble is played");
        };
        assert_eq!(nimble.period_ms, 9);
    }

    #[test]
    fn a_record_without_the_loads_of_fmem_is_refused() {
        let header = |threshold_ns| Header {
            command: Vec::new(),
            tier_bytes: [0; 2],
            node_bytes: [1 << 30; 2],
            huge_pages: true,
            window_ns: 1,
            threshold_ns,
            machine: MachineConfig::preset(Preset::Pmem),
        };
        for row in ["hemem", "memtis", "hemem-paper"] {
            check_record(peer(row), &header(0)).unwrap();
            check_record(peer(row), &header(THRESHOLD_NS)).unwrap();
            let cause = check_record(peer(row), &header(THRESHOLD_NS + 1)).unwrap_err();
            let path = "accesses.bin".into();
            let error = Error::Record { path, cause };
            assert!(error.to_string().contains(row), "{error}");
            assert!(error.next().contains("without --set"), "{error}");
        }
        // It samples nothing.
        check_record(peer("nimble"), &header(100)).unwrap();
    }

    #[test]
    fn what_changes_nothing_is_refused() {
        for (row, name, told) in [
            ("hemem", "hemem.store_period", "stores"),
            ("memtis", "memtis.thp", "recorded"),
            ("nimble", "nimble.batch", "nothing that is simulated"),
            ("nimble", "nimble.quota_ms", "these are: period_ms"),
        ] {
            let error = of(row, &[(name, "1")], None).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        assert!(of("tpp", &[], None).is_err());
    }
}
