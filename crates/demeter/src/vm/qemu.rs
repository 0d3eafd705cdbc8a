// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU's arguments: the guest machine, in one place.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use demeter_agent::protocol::Roi;

use super::settings::Settings;
use super::sizing::Balloon;
use super::sockets::{self, Node};

/// Files that a guest is made of.
pub struct Files {
    /// Memory of FMEM and SMEM.
    pub nodes: [PathBuf; 2],
    /// The model's BAR.
    pub bar: PathBuf,
    /// Kernel image.
    pub kernel: PathBuf,
    /// Base archive and per-run archive, one after the other.
    pub initrd: PathBuf,
    /// Images of read-only persistent memory and their sizes: the root file
    /// system first.
    pub images: Vec<(PathBuf, u64)>,
    /// More arguments: the balloon's.
    pub balloon: Vec<OsString>,
    /// The plugin.
    pub plugin: PathBuf,
    /// Its configuration.
    pub plugin_config: PathBuf,
    /// First serial port.
    pub console: PathBuf,
    /// Second serial port.
    pub output: PathBuf,
    /// Third serial port.
    pub records: PathBuf,
}

/// Size of the model's BAR.
pub const BAR_BYTES: u64 = demeter_machine::bar::BAR_BYTES as u64;

/// Firmware that does only what a kernel needs: SeaBIOS looks for disks, keyboards
/// and option ROMs first, a second of the host's time.
const FIRMWARE: &str = "qboot.rom";

/// What a kernel would busy itself with on every boot, to learn what is known here or
/// to find what no guest uses. The TSC counts the nanoseconds of the guest clock.
/// Waiting for the timer to tick spins; `hpet_late_init` reads the HPET until it knows
/// its rate for `/dev/hpet`, `init_acpi_pm_clocksource` compares a clock that is never
/// chosen, and `jent_mod_init` tests a source of randomness. Ciphers test themselves
/// before they are used, which they are not. Certificates are loaded to check signatures
/// of modules, 13 ms of the guest's time each, and the modules under test have none.
/// Sixty thousand functions are looked up by name to see which of them a linker left out,
/// and every trace event's format is rewritten for readers of its text. With one vCPU, the
/// locks in the kernel's text would be taken out, each a page of code to translate anew: an
/// eighth of a short guest's time.
const NO_NEED_TO_ASK: &str = " tsc_early_khz=1000000 no_timer_check cryptomgr.notests \
    noreplace-smp initcall_blacklist=hpet_late_init,init_acpi_pm_clocksource,jent_mod_init,\
    load_system_certificate_list,ftrace_check_for_weak_functions,trace_eval_init";

/// What makes two runs of the same input identical: no randomness, no
/// addresses, no clock but the model's. Since 6.17 Linux has a DAMON of its own for
/// statistics: it clears accessed bits that managers read, and no other may run
/// beside it.
///
/// The watchdog would take a counter of the PMU for itself, which the distribution does in
/// a guest that has one, and count down to an overflow that never comes.
const KERNEL_COMMAND_LINE: &str = "console=ttyS0 panic=-1 nokaslr norandmaps mitigations=off \
    nmi_watchdog=0 nopti nopcid no5lvl idle=halt tsc=reliable clocksource=tsc random.trust_cpu=off \
    numa_balancing=disable swiotlb=noforce \
    8250.nr_uarts=4 damon_stat.enabled=N";

/// With one vCPU the HPET ticks as well as the local APIC's timer, whose
/// calibration is a busy wait of 0.1 s of guest time (0.2 s by the guest's HPET, which runs ahead).
const ONE_VCPU: &str = " noapictimer";

/// Memory of a device is taken into use, and so that it can go again.
const PLUGGED: &str = " memhp_default_state=online_movable";

/// A guest whose hypervisor places pages: whatever firmware says, all memory is one node.
const ONE_NODE: &str = " numa=off";

/// Arguments after QEMU's own program name.
pub fn arguments(settings: &Settings, files: &Files) -> Vec<OsString> {
    let [fmem, smem] = settings.node_bytes;
    let ram_mib = (fmem + smem) >> 20;
    // Persistent memory is a memory device: it needs address space above RAM.
    let devices = settings
        .balloon
        .as_ref()
        .map_or([0; 2], Balloon::device_bytes);
    let images_mib: u64 = (files.images.iter())
        .map(|(_, bytes)| bytes.next_multiple_of(1 << 30) >> 20)
        .sum();
    let mut list = Arguments::default();
    list.two("-machine", "q35,usb=off,hmat=on");
    list.two("-accel", "tcg,thread=single");
    list.two("-icount", "shift=0,sleep=off");
    list.two("-cpu", settings.pmu.qemu_cpu());
    let sockets = settings.sockets.len().max(1) as u32;
    list.two("-smp", processors(settings.vcpus, sockets));
    list.two(
        "-m",
        format!(
            "{ram_mib}M,slots={},maxmem={}M",
            files.images.len() + devices.iter().filter(|&&bytes| bytes > 0).count(),
            ram_mib + images_mib + 2048 + (devices.iter().sum::<u64>() >> 20)
        ),
    );
    list.two("-seed", settings.seed.to_string());
    list.two("-rtc", "base=2026-01-01,clock=vm");
    for option in ["-nodefaults", "-no-reboot", "-no-user-config"] {
        list.one(option);
    }
    list.two("-display", "none");
    list.two("-monitor", "none");

    let nodes = settings.nodes();
    for (number, node) in nodes.iter().enumerate() {
        let bytes = node.bytes;
        let offset = match node.offset {
            0 => String::new(),
            offset => format!("offset={offset},"),
        };
        list.two(
            "-object",
            with_path(
                // Aligned for huge pages of the host.
                format!(
                    "memory-backend-file,id=m{number},size={bytes},align=2M,share=on,{offset}mem-path="
                ),
                &files.nodes[node.tier],
            ),
        );
    }
    numa(&mut list, settings, &nodes);

    list.two(
        "-object",
        with_path(
            format!("memory-backend-file,id=bar,size={BAR_BYTES},share=on,mem-path="),
            &files.bar,
        ),
    );
    list.two("-device", "ivshmem-plain,memdev=bar");
    // Before the images: Linux wants memory devices at multiples of its blocks.
    list.0.extend(files.balloon.iter().cloned());
    // A mapping of a file opened read-only: the guest mounts it read-only, and
    // several guests share one copy in the host's cache.
    for (index, (path, bytes)) in files.images.iter().enumerate() {
        list.two(
            "-object",
            with_path(
                format!(
                    "memory-backend-file,id=i{index},size={bytes},share=off,readonly=on,rom=off,mem-path="
                ),
                path,
            ),
        );
        list.two(
            "-device",
            format!("virtio-pmem-pci,memdev=i{index},id=image{index}"),
        );
    }

    for (id, path) in [
        ("console", &files.console),
        ("output", &files.output),
        ("records", &files.records),
    ] {
        list.two("-chardev", with_path(format!("file,id={id},path="), path));
        list.two("-serial", format!("chardev:{id}"));
    }

    if settings.roi != Roi::Nothing {
        let mut plugin = with_path(String::new(), &files.plugin);
        plugin.push(with_path(",config=".to_owned(), &files.plugin_config));
        list.two("-plugin", plugin);
    }

    list.two("-bios", FIRMWARE);
    list.two("-kernel", files.kernel.as_os_str());
    list.two("-initrd", files.initrd.as_os_str());
    let one_vcpu = if settings.vcpus == 1 { ONE_VCPU } else { "" };
    let plugged = if devices == [0; 2] { "" } else { PLUGGED };
    let one_node = match settings.hypervisor {
        Some(_) => ONE_NODE,
        None => "",
    };
    list.two(
        "-append",
        format!("{KERNEL_COMMAND_LINE}{NO_NEED_TO_ASK}{one_vcpu}{plugged}{one_node}"),
    );
    list.0
}

/// vCPUs, the same number for each socket.
fn processors(vcpus: u32, sockets: u32) -> String {
    match sockets {
        1 => vcpus.to_string(),
        _ => format!("{vcpus},sockets={sockets},cores={}", vcpus / sockets),
    }
}

/// Which vCPUs and which memory a node has, and what firmware says of them.
fn numa(list: &mut Arguments, settings: &Settings, nodes: &[Node]) {
    let sockets = (nodes.len() / 2) as u32;
    let each = settings.vcpus / sockets;
    for (number, node) in nodes.iter().enumerate() {
        let cpus = match node.tier {
            0 => format!(
                "cpus={}-{},",
                node.socket * each,
                (node.socket + 1) * each - 1
            ),
            _ => String::new(),
        };
        list.two(
            "-numa",
            format!(
                "node,nodeid={number},{cpus}memdev=m{number},initiator={}",
                node.socket
            ),
        );
    }
    if sockets == 1 {
        list.two("-numa", "dist,src=0,dst=1,val=20");
    } else {
        for (src, one) in nodes.iter().enumerate() {
            for (dst, other) in nodes.iter().enumerate().skip(src + 1) {
                let val = sockets::distance(one, other);
                list.two("-numa", format!("dist,src={src},dst={dst},val={val}"));
            }
        }
    }
    let tiers = tiers(settings);
    let remote_ns = settings.machine.remote_latency_ps.div_ceil(1000);
    for initiator in 0..sockets {
        for (target, node) in nodes.iter().enumerate() {
            let (latency_ns, bandwidth) = tiers[node.tier];
            let latency_ns = match node.socket == initiator {
                true => latency_ns,
                false => latency_ns + remote_ns,
            };
            let lb = format!("hmat-lb,initiator={initiator},target={target},hierarchy=memory");
            list.two(
                "-numa",
                format!("{lb},data-type=access-latency,latency={latency_ns}"),
            );
            list.two(
                "-numa",
                format!("{lb},data-type=access-bandwidth,bandwidth={bandwidth}"),
            );
        }
    }
}

/// Latency (ns) and bandwidth per tier as firmware would tell them, rounded:
/// Linux makes two memory tiers of them. The `fast` machine tells the same, so
/// that its kernel does the same; only the model differs (docs/model.md).
fn tiers(settings: &Settings) -> [(u64, &'static str); 2] {
    let slow = match settings.slow {
        super::settings::Slow::Pmem => (177, "5G"),
        super::settings::Slow::Cxl => (122, "10G"),
    };
    [(69, "20G"), slow]
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn one(&mut self, option: &str) {
        self.0.push(option.into());
    }

    fn two(&mut self, option: &str, value: impl Into<OsString>) {
        self.0.push(option.into());
        self.0.push(value.into());
    }
}

/// Appends a path with QEMU's escape: a comma is doubled.
pub fn with_path(prefix: String, path: &Path) -> OsString {
    let mut text = OsString::from(prefix);
    match path.to_str() {
        Some(plain) => text.push(plain.replace(',', ",,")),
        None => text.push(path),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_are_doubled() {
        assert_eq!(
            with_path("x=".into(), Path::new("/a,b")),
            OsString::from("x=/a,,b")
        );
    }
}
