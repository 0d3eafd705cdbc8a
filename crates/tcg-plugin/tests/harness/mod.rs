// SPDX-License-Identifier: GPL-2.0-or-later
//! Boots the test guest under the plugin. `tests/guest/init.c` says what it can do.

// Each test program uses its part of it.
#![allow(dead_code)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{env, fs, thread};

use demeter_machine::Preset;
use demeter_machine::bar::BAR_BYTES;
use demeter_machine::pmu::Kind;
use demeter_machine::series::{SeriesRow, Summary};
use serde_json::{Value, json};

/// What a device shows is a power of two.
const WINDOW_BYTES: u64 = 512 << 20;
// Two of these exceed the 512 MiB below which Linux turns huge pages off.
const NODE_BYTES: u64 = 320 << 20;
const TIMEOUT: &str = "600";

/// One guest and its files, which go when it does.
pub struct Guest {
    dir: PathBuf,
    vcpus: u32,
    /// The PMU that it finds.
    pub pmu: Kind,
    /// Its machine, and so what its slow memory is.
    pub preset: Preset,
    /// Its kernel, as the test bed names it.
    pub kernel: &'static str,
    /// A module in its root directory.
    pub module: Option<PathBuf>,
    /// Whether a device shows it the memory of its node 0.
    pub window: bool,
    /// What a register of the PMU costs, if not as the preset has it.
    pub pmu_msr_ns: Option<u64>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn testbed() -> Value {
    let cache = env::var_os("DEMETER_CACHE")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            base.unwrap_or_else(|| PathBuf::from(env::var_os("HOME").expect("HOME")).join(".cache"))
                .join("demeter")
        });
    let path = cache.join("testbed.json");
    let text = fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run testbed/setup.sh", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// The plugin of the profile this test was built in.
fn plugin() -> PathBuf {
    let deps = env::current_exe().unwrap().parent().unwrap().to_owned();
    [
        deps.join("libdemeter_tcg_plugin.so"),
        deps.with_file_name("libdemeter_tcg_plugin.so"),
    ]
    .into_iter()
    .find(|path| path.exists())
    .expect("libdemeter_tcg_plugin.so is not built")
}

/// What is booted, as `demeter vm run` does: the kernel decompressed where the cache has it so, which
/// the guest need not do then.
fn image(kernel: &Value) -> &str {
    let decompressed = kernel["vmlinux"].as_str();
    decompressed.unwrap_or_else(|| kernel["vmlinuz"].as_str().unwrap())
}

/// One "newc" member.
fn cpio(archive: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
    let header = format!(
        "070701{:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
        0,
        0,
        0,
        1,
        0,
        data.len(),
        0,
        0,
        device.0,
        device.1,
        name.len() + 1,
        0,
    );
    let pad = |archive: &mut Vec<u8>| archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(header.bytes());
    archive.extend(name.bytes());
    archive.push(0);
    pad(archive);
    archive.extend(data);
    pad(archive);
}

fn initrd(dir: &Path, module: Option<&Path>) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest/init.c");
    let init = dir.join("init");
    let status = Command::new("cc")
        .args(["-O2", "-static", "-pthread", "-o"])
        .arg(&init)
        .arg(source)
        .status()
        .expect("cc");
    assert!(status.success(), "the test guest does not compile");
    let mut archive = Vec::new();
    cpio(&mut archive, "dev", 0o040_755, (0, 0), &[]);
    cpio(&mut archive, "dev/console", 0o020_600, (5, 1), &[]);
    cpio(
        &mut archive,
        "init",
        0o100_755,
        (0, 0),
        &fs::read(init).unwrap(),
    );
    if let Some(module) = module {
        let bytes = fs::read(module)
            .unwrap_or_else(|error| panic!("{}: {error}; run `make modules`", module.display()));
        cpio(&mut archive, "demeter.ko", 0o100_644, (0, 0), &bytes);
    }
    cpio(&mut archive, "TRAILER!!!", 0, (0, 0), &[]);
    let path = dir.join("initrd.cpio");
    fs::write(&path, archive).unwrap();
    path
}

impl Guest {
    pub fn new(name: &str, vcpus: u32) -> Self {
        let root = if Path::new("/dev/shm").is_dir() {
            PathBuf::from("/dev/shm")
        } else {
            env::temp_dir()
        };
        let dir = root.join(format!("demeter-plugin-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self {
            dir,
            vcpus,
            pmu: Kind::Icelake,
            preset: Preset::Pmem,
            kernel: "6.12",
            module: None,
            window: false,
            pmu_msr_ns: None,
        }
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Boots and runs `tests`; `extra` replaces parts of the command line.
    pub fn boot(&self, tests: &str, icount: &str, plugin_argument: Option<&str>) -> Output {
        let testbed = testbed();
        let kernel = self.kernel_entry(&testbed);
        let mut config = json!({
            "bar": self.path("bar"),
            "nodes": [{"path": self.path("n0"), "size_bytes": NODE_BYTES},
                      {"path": self.path("n1"), "size_bytes": NODE_BYTES}],
            "series": self.path("series.jsonl"),
            "summary": self.path("summary.json"),
            "series_interval_ns": 10_000_000,
            "machine": {"preset": self.preset},
            "pmu": self.pmu,
        });
        if let Some(ns) = self.pmu_msr_ns {
            config["machine"]["pmu_msr_ns"] = ns.into();
        }
        fs::write(self.path("config.json"), config.to_string()).unwrap();
        let argument = plugin_argument.map_or_else(
            || format!("config={}", self.path("config.json")),
            str::to_owned,
        );
        let file = |id: &str, bytes: u64, name: &str| {
            format!(
                "memory-backend-file,id={id},size={bytes},share=on,mem-path={}",
                self.path(name)
            )
        };
        let strings = |value: &Value| -> Vec<String> {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|word| word.as_str().unwrap().to_owned())
                .collect()
        };
        let mut command = Command::new("timeout");
        command.arg(TIMEOUT).args(strings(&testbed["qemu"]["argv"]));
        for (name, value) in testbed["qemu"]["env"].as_object().unwrap() {
            command.env(name, value.as_str().unwrap());
        }
        command
            .args(["-machine", "q35,usb=off", "-accel", "tcg,thread=single", "-icount", icount])
            .args(["-cpu", &self.pmu.qemu_cpu(), "-seed", "42"])
            .args(["-smp", &self.vcpus.to_string()])
            .args(["-rtc", "base=2026-01-01,clock=vm", "-m", "640M", "-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-object", &file("m0", NODE_BYTES, "n0")])
            .args(["-numa", &format!("node,nodeid=0,cpus=0-{},memdev=m0", self.vcpus - 1)])
            .args(["-object", &file("m1", NODE_BYTES, "n1"), "-numa", "node,nodeid=1,memdev=m1"])
            .args(["-object", &file("bar", BAR_BYTES as u64, "bar"), "-device", "ivshmem-plain,memdev=bar"])
            .args(["-plugin", &format!("{},{argument}", plugin().display())])
            .args(["-serial", &format!("file:{}", self.path("console")), "-initrd"])
            .arg(initrd(&self.dir, self.module.as_deref()))
            .args(["-bios", "qboot.rom"])
            .args(["-kernel", image(kernel), "-append"])
            // The second line spares the guest what it would measure or test in vain while it
            // boots: most of its instructions, else. (`demeter vm run` says which and why.)
            .arg(format!(
                "console=ttyS0 quiet panic=-1 nokaslr norandmaps mitigations=off nopti nopcid no5lvl idle=halt nmi_watchdog=0 \
                 tsc_early_khz=1000000 no_timer_check cryptomgr.notests noreplace-smp initcall_blacklist=hpet_late_init,init_acpi_pm_clocksource,jent_mod_init,load_system_certificate_list,ftrace_check_for_weak_functions,trace_eval_init \
                 tsc=reliable clocksource=tsc random.trust_cpu=off numa_balancing=disable{} T={tests}",
                if self.vcpus == 1 { " noapictimer" } else { "" }
            ));
        if self.window {
            let memory = fs::File::create(self.path("n0")).unwrap();
            memory.set_len(WINDOW_BYTES).unwrap();
            command
                .args(["-object", &file("window", WINDOW_BYTES, "n0")])
                .args(["-device", "ivshmem-plain,memdev=window"]);
        }
        let output = command.output().expect("timeout(1)");
        let _ = fs::remove_file(self.path("n0"));
        let _ = fs::remove_file(self.path("n1"));
        output
    }

    fn kernel_entry<'a>(&self, testbed: &'a Value) -> &'a Value {
        let kernels = testbed["kernels"].as_array().unwrap();
        kernels
            .iter()
            .find(|kernel| kernel["name"] == self.kernel)
            .unwrap_or_else(|| panic!("no kernel {}", self.kernel))
    }

    /// Puts the demeter.ko of the guest's kernel into it.
    pub fn with_module(mut self) -> Self {
        let testbed = testbed();
        let release = self.kernel_entry(&testbed)["release"].as_str().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        self.module = Some(root.join("build/modules").join(release).join("demeter.ko"));
        self
    }

    pub fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("console")).unwrap_or_default())
            .replace('\r', "")
    }

    /// The guest's "RESULT name key=value …" lines.
    pub fn results(&self) -> HashMap<String, HashMap<String, u64>> {
        let console = self.console();
        assert!(
            console.contains("DONE"),
            "the guest did not finish:\n{console}"
        );
        console
            .lines()
            .filter_map(|line| line.strip_prefix("RESULT "))
            .map(|line| {
                let mut words = line.split_whitespace();
                let name = words.next().unwrap().to_owned();
                let values = words
                    .filter_map(|word| word.split_once('='))
                    .map(|(key, value)| (key.to_owned(), value.parse().unwrap()));
                (name, values.collect())
            })
            .collect()
    }

    pub fn summary(&self) -> Summary {
        serde_json::from_slice(&fs::read(self.path("summary.json")).unwrap()).unwrap()
    }

    pub fn series(&self) -> Vec<SeriesRow> {
        let text = fs::read_to_string(self.path("series.jsonl")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Fails unless `found` is `expected` within a share of `tolerance`.
pub fn near(what: &str, found: f64, expected: f64, tolerance: f64) {
    println!("{what}: {found:.4e}, expected {expected:.4e}");
    assert!(
        (found - expected).abs() <= tolerance * expected,
        "{what}: {found} is not within {tolerance} of {expected}"
    );
}

/// Ends the load, also when a test has failed under it.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Keeps the host busy while `run` runs.
pub fn under_load<T>(run: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let _ended = Ends(&stop);
        run()
    })
}
