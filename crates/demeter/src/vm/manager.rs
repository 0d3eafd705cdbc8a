// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the agent writes and loads in the guest to set a manager up.

use demeter_agent::protocol::{self, Module, Write};

use super::damon;
use super::settings::{Settings, Thp};
use super::tmm::{Tmm, knob_path};

const DEMETER_DIR: &str = "/sys/kernel/mm/demeter";
/// Where the per-run archive puts the module.
pub const MODULE_PATH: &str = "/demeter/modules/demeter.ko";

/// `vm.min_free_kbytes` of every guest. With huge pages on, Linux reserves what
/// is right for machines with many gigabytes: 5 % of a small guest, so that the
/// last pages of a footprint of 7/8 of memory would fall below the watermarks
/// and go wherever there is room. Scaled down like all memory.
const MIN_FREE_KIB: u32 = 4096;

/// What the agent does to set the manager up.
pub fn manager(settings: &Settings) -> protocol::Manager {
    let tmm = settings.tmm;
    let mut before = vec![
        Write::new(
            "/sys/kernel/mm/transparent_hugepage/enabled",
            settings.thp.word(),
        ),
        Write::new("/proc/sys/vm/min_free_kbytes", MIN_FREE_KIB),
        Write::new(
            "/sys/kernel/mm/numa/demotion_enabled",
            if tmm.is_tpp() { "1" } else { "0" },
        ),
    ];
    if settings.thp == Thp::Never {
        // khugepaged would otherwise still collapse what madvise asked for.
        before.push(Write::new(
            "/sys/kernel/mm/transparent_hugepage/khugepaged/defrag",
            "0",
        ));
    }
    let mut manager = protocol::Manager {
        name: tmm.row().to_owned(),
        ..protocol::Manager::default()
    };
    if tmm.is_tpp() {
        for (name, value) in &settings.tpp_knobs {
            let Some(path) = knob_path(name) else {
                continue;
            };
            let write = Write::new(path, value);
            // Higher watermarks would already demote during first touch
            // and so change the placement that all rows start from.
            if name == "watermark_scale_factor" {
                manager.at_roi.push(write);
            } else {
                before.push(write);
            }
        }
        before.push(Write::new("/proc/sys/kernel/numa_balancing", "2"));
    }
    if tmm == Tmm::Demeter {
        manager.module = Some(Module {
            path: MODULE_PATH.to_owned(),
            params: String::new(),
        });
        let below = |name: &str| format!("{DEMETER_DIR}/{name}");
        before.push(Write::new("/proc/sys/kernel/numa_balancing", "0"));
        before.push(Write::new(below("sampler"), "vpmu"));
        for (name, value) in &settings.demeter_params {
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
    manager
}
