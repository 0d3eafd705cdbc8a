// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the agent writes and loads in the guest to set a manager up.

use demeter_agent::protocol::{self, Module, Write};
use demeter_machine::pmu::Kind;

use super::settings::{Settings, Thp};
use super::tmm::Tmm;
use super::writes::{LRU_GEN, THP_ENABLED, lru_word, module_path, of_fmem};
use super::{damon, damon_auto};
use crate::error::Error;
use crate::testbed::Kernel;

const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";
const NUMA_DEBUG: &str = "/sys/kernel/debug/sched/numa_balancing";
const DEMETER_DIR: &str = "/sys/kernel/mm/demeter";
/// Its file that is no parameter and may be set like one.
const SAMPLER: &str = "sampler";
/// The oldest kernel tried that makes memory tiers of nodes without CPUs by what
/// firmware says of them (HMAT).
const NODES_ARE_TIERS: (u32, u32) = (6, 12);

/// `vm.min_free_kbytes` of every guest. With huge pages on, Linux reserves what
/// is right for machines with many gigabytes: 5 % of a small guest, so that the
/// last pages of a footprint of 7/8 of memory would fall below the watermarks
/// and go wherever there is room. Scaled down like all memory, and written after
/// huge pages are switched on, which sets it anew each time.
const MIN_FREE_KIB: u32 = 4096;

/// Refuses a kernel on which the manager could do nothing, before a guest is
/// started.
pub fn supported(tmm: Tmm, kernel: &Kernel) -> Result<(), Error> {
    match tmm {
        Tmm::Damon => damon::supported(kernel),
        Tmm::DamonAuto => damon_auto::supported(kernel),
        Tmm::Peer(peer) => peer.supported(kernel),
        Tmm::Nbt | Tmm::NbtDefault if kernel.version() < Some(NODES_ARE_TIERS) => {
            Err(Error::Usage {
                cause: format!(
                    "kernel {} takes both nodes for one tier and moves nothing",
                    kernel.release
                ),
                next: "use --kernel 6.12 or newer for --tmm nbt".into(),
            })
        }
        _ => Ok(()),
    }
}

/// Which sampler the guest is to use: what was asked for, else the one of its PMU. Never
/// `auto`, which takes page faults where a kernel refuses the PMU: that is to be told.
fn sampler(settings: &Settings) -> &str {
    let of_the_pmu = match settings.pmu {
        Kind::Icelake | Kind::Skylake => "pebs",
        Kind::Zen4 => "ibs",
        Kind::None => "touch",
    };
    (settings.demeter_params.get(SAMPLER)).map_or(of_the_pmu, String::as_str)
}

/// What the agent does to set the manager up.
pub fn manager(settings: &Settings) -> protocol::Manager {
    let tmm = settings.tmm;
    let mut before = vec![
        Write::new(THP_ENABLED, settings.thp.word()),
        Write::new(
            "/sys/kernel/mm/numa/demotion_enabled",
            if tmm.is_nbt() { "1" } else { "0" },
        ),
    ];
    let thp_knob = (settings.nbt_knobs.get("thp")).or_else(|| settings.peer_knobs.get("thp"));
    let thp = thp_knob.map_or(settings.thp.word(), String::as_str);
    if thp == Thp::Never.word() {
        // khugepaged would otherwise still collapse what madvise asked for.
        before.push(Write::new(
            "/sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
            "0",
        ));
    }
    let mut manager = protocol::Manager {
        // The guest of a placement must not differ from the recorded one.
        name: match tmm.ideal_order() {
            Some(_) => Tmm::None.row().to_owned(),
            None => tmm.row().to_owned(),
        },
        ..protocol::Manager::default()
    };
    if tmm.is_nbt() {
        nbt(&mut manager, &mut before, settings);
    }
    if tmm == Tmm::Demeter {
        manager.module = Some(Module {
            path: module_path("demeter.ko"),
            params: String::new(),
        });
        let below = |name: &str| format!("{DEMETER_DIR}/{name}");
        before.push(Write::new("/proc/sys/kernel/numa_balancing", "0"));
        before.push(Write::new(below(SAMPLER), sampler(settings)));
        let params = settings.demeter_params.iter();
        for (name, value) in params.filter(|(name, _)| *name != SAMPLER) {
            before.push(Write::new(below(&format!("params/{name}")), value));
        }
        before.push(Write::new(
            below("targets/cgroup"),
            protocol::COMMAND_CGROUP_NAME,
        ));
        before.push(Write::new(below("enabled"), "1"));
        manager.report_dir = Some(DEMETER_DIR.to_owned());
    }
    manager.before = before;
    if tmm == Tmm::Damon {
        damon::set_up(&mut manager, &settings.damon_knobs, settings.node_bytes);
    }
    if tmm == Tmm::DamonAuto {
        let knobs = &settings.damon_auto_knobs;
        damon_auto::set_up(&mut manager, knobs, settings.node_bytes);
    }
    if let Tmm::Peer(peer) = tmm {
        let fmem = (settings.tier_bytes[0], settings.node_bytes[0]);
        peer.set_up(&mut manager, &settings.peer_knobs, fmem);
    }
    let last = (manager.before.iter()).rposition(|write| write.path == THP_ENABLED);
    manager.before.insert(
        last.map_or(0, |at| at + 1),
        Write::new(MIN_FREE, MIN_FREE_KIB),
    );
    manager
}

/// NUMA balancing between tiers: its knobs, then it is switched on.
fn nbt(manager: &mut protocol::Manager, before: &mut Vec<Write>, settings: &Settings) {
    for (name, value) in &settings.nbt_knobs {
        let write = match name.as_str() {
            "lru" => Write::new(LRU_GEN, lru_word(value)),
            "thp" => Write::new(THP_ENABLED, value),
            "watermark_scale_factor" => {
                // Higher watermarks would already demote during first touch
                // and so change the placement that all rows start from.
                let path = format!("/proc/sys/vm/{name}");
                let factor = of_fmem(value, settings.tier_bytes[0], settings.node_bytes[0]);
                manager.at_roi.push(Write::new(path, factor));
                continue;
            }
            "promote_rate_limit_MBps" => {
                Write::new(format!("/proc/sys/kernel/numa_balancing_{name}"), value)
            }
            _ => Write::new(format!("{NUMA_DEBUG}/{name}"), value),
        };
        before.push(write);
    }
    before.push(Write::new("/proc/sys/kernel/numa_balancing", "2"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::settings::tests::options;

    fn value<'a>(writes: &'a [Write], path: &str) -> Option<&'a str> {
        let last = writes.iter().rev().find(|write| write.path == path);
        last.map(|write| write.value.as_str())
    }

    #[test]
    fn every_manager_has_the_same_reserve() {
        for (line, tmm) in [
            ("", Tmm::None),
            ("--nbt-set thp=always", Tmm::Nbt),
            ("--damon-set thp=always", Tmm::Damon),
            ("--damon-auto-set thp=always", Tmm::DamonAuto),
            ("", Tmm::Demeter),
        ] {
            let settings = options(line).settings(tmm, &["true".into()]).unwrap();
            let before = manager(&settings).before;
            let last = |path| before.iter().rposition(|write| write.path == path);
            assert!(last(MIN_FREE) > last(THP_ENABLED), "{line}");
            assert_eq!(value(&before, MIN_FREE), Some("4096"));
        }
    }

    #[test]
    fn demeter_samples_with_the_pmu_of_the_guest_and_nothing_else() {
        for (line, sampler) in [
            ("", "pebs"),
            ("--pmu skylake", "pebs"),
            ("--pmu zen4", "ibs"),
            ("--pmu none", "touch"),
            ("--set sampler=touch", "touch"),
            ("--pmu none --set sampler=auto", "auto"),
        ] {
            let settings = options(line).settings(Tmm::Demeter, &["true".into()]);
            let before = manager(&settings.unwrap()).before;
            let path = |name: &str| format!("{DEMETER_DIR}/{name}");
            assert_eq!(value(&before, &path(SAMPLER)), Some(sampler), "{line}");
            assert_eq!(value(&before, &path("params/sampler")), None);
            assert_eq!(value(&before, &path("params/epoch_ms")), Some("50"));
        }
    }

    #[test]
    fn nbt_sets_lists_and_pages() {
        let of = |line: &str, tmm| manager(&options(line).settings(tmm, &["true".into()]).unwrap());
        // A quarter of the node is FMEM.
        let line = "--nbt-set lru=lists --nbt-set thp=never --nbt-set watermark_scale_factor=400 \
                    --fmem 64M --kernel-reserve 192M";
        let set = of(line, Tmm::Nbt);
        assert_eq!(value(&set.before, LRU_GEN), Some("n"));
        assert_eq!(value(&set.before, THP_ENABLED), Some("never"));
        assert_eq!(
            value(&set.at_roi, "/proc/sys/vm/watermark_scale_factor"),
            Some("100")
        );
        // Stock means stock: what is not asked for is not written.
        let stock = of("", Tmm::NbtDefault);
        assert_eq!(value(&stock.before, LRU_GEN), None);
        assert!(stock.at_roi.is_empty());
        assert!(
            !stock
                .before
                .iter()
                .any(|write| write.path.starts_with(NUMA_DEBUG))
        );
        assert_eq!(
            value(&stock.before, "/proc/sys/kernel/numa_balancing"),
            Some("2")
        );
    }
}
