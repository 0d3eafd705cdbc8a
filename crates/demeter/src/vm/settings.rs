// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one guest is made of: the options of `vm run` and `vm compare`, and
//! the settings they become, which go into the manifest as they are.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::ValueEnum;
use demeter_agent::protocol::{Roi, Tier};
use demeter_agent::size;
use demeter_machine::HypervisorConfig;
use demeter_machine::config::{MachineConfig, Preset, StepConfig};
use demeter_machine::pmu::Kind;
use serde::{Serialize, Serializer};

use super::knobs::Knobs;
use super::sizing::{Balloon, Method};
use super::sockets::{self, Node, Socket};
use super::tmm::Tmm;
use super::watch::Watch;
use crate::error::Error;

/// Memory that SMEM's node is given beyond what COMMAND may use, for its map of
/// pages and what the kernel puts there (FMEM's share is `--kernel-reserve`).
/// What is left over is taken away before COMMAND starts, so that it only
/// needs to be large enough.
const SMEM_RESERVE_BYTES: u64 = 64 << 20;
pub const HUGE_BYTES: u64 = 2 << 20;

/// Options of the guest that all verbs share.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Fast memory that COMMAND can use
    #[arg(long, default_value = "128M", value_parser = size::parse, value_name = "SIZE")]
    pub fmem: u64,
    /// Slow memory that COMMAND can use
    #[arg(long, default_value = "512M", value_parser = size::parse, value_name = "SIZE")]
    pub smem: u64,
    /// Start the guest with more memory, and bring it to --fmem and --smem before COMMAND
    #[arg(long, value_enum, default_value_t = Method::None)]
    pub balloon: Method,
    /// Fast memory that a guest with a balloon is started with [default: twice --fmem]
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub boot_fmem: Option<u64>,
    /// Slow memory that a guest with a balloon is started with [default: twice --smem]
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub boot_smem: Option<u64>,
    /// Kind of slow memory: persistent memory (176.6 ns) or CXL (121.9 ns)
    #[arg(long, value_enum, default_value_t = Slow::Pmem)]
    pub slow: Slow,
    /// Guest kernel, as set up by the testbed
    #[arg(long, default_value = "6.12", value_name = "NAME")]
    pub kernel: String,
    /// Transparent huge pages (Debian's default is always)
    #[arg(long, value_enum, default_value_t = Thp::Always)]
    pub thp: Thp,
    /// The modelled CPU's sampling unit: icelake, skylake (Intel PEBS), zen4 (AMD IBS), none
    #[arg(long, default_value = "icelake", value_name = "CPU")]
    pub pmu: Kind,
    /// Virtual CPUs: they take turns, and modelled time is the sum over them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub vcpus: u32,
    /// Sockets: each has its share of the vCPUs, and a node of FMEM and of SMEM
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4))]
    pub sockets: u32,
    /// Limit for each guest, in seconds of the host
    #[arg(long, default_value_t = 900, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Exit statuses of COMMAND with which a run counts (128 + N: killed by signal N); others
    /// end a comparison. `vm run` exits with COMMAND's status either way
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0",
        value_name = "STATUS"
    )]
    pub ok_status: Vec<u8>,
    /// What is modelled and measured
    #[arg(long, value_enum, default_value_t = RoiChoice::Command)]
    pub roi: RoiChoice,
    /// Put a file of the host into the guest
    #[arg(long, value_name = "HOST:GUEST", value_parser = parse_copy)]
    pub copy: Vec<(PathBuf, String)>,
    /// Give the guest a folder of the host as /data, read-only, without using its memory
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Set a parameter of demeter.ko (see docs/abi), for example epoch_ms=100, or its sampler=touch
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub set: Vec<(String, String)>,
    /// Set a knob of nbt and nbt-default, for example hot_threshold_ms=200 or lru=lists
    #[arg(long = "nbt-set", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub nbt_set: Vec<(String, String)>,
    /// Set a knob of DAMON, for example sample_us=1000
    #[arg(long = "damon-set", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub damon_set: Vec<(String, String)>,
    /// Set a goal or a bound of damon-auto, for example fmem_free_bp=100
    #[arg(long = "damon-auto-set", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub damon_auto_set: Vec<(String, String)>,
    /// Set a knob of a published manager, for example tpp.watermark_scale_factor=333
    #[arg(long = "peer-set", value_name = "ROW.NAME=VALUE", value_parser = parse_pair)]
    pub peer_set: Vec<(String, String)>,
    /// Set a parameter of the modelled machine, for example llc_bytes=4194304
    #[arg(long = "machine", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub machine: Vec<(String, String)>,
    /// Add a variable to COMMAND's environment
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub env: Vec<(String, String)>,
    /// Modelled guest time between rows of the time series, in milliseconds
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub series_interval: u64,
    /// Memory for the guest kernel on node 0 beyond --fmem
    #[arg(long, default_value = "224M", value_parser = size::parse, value_name = "SIZE")]
    pub kernel_reserve: u64,
}

/// Kind of slow memory.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Slow {
    /// Persistent memory.
    Pmem,
    /// DRAM behind CXL.
    Cxl,
}

impl Slow {
    /// The machine with this slow memory: its latency and bandwidth are the kind's.
    pub fn put_into(self, machine: &mut MachineConfig) {
        let preset = match self {
            Self::Pmem => Preset::Pmem,
            Self::Cxl => Preset::Cxl,
        };
        let of = MachineConfig::preset(preset);
        machine.preset = preset;
        machine.smem_latency_ps = of.smem_latency_ps;
        machine.smem_bandwidth_bytes_per_s = of.smem_bandwidth_bytes_per_s;
    }
}

/// Transparent huge pages.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Thp {
    /// For all memory.
    Always,
    /// Where the program asks.
    Madvise,
    /// Not at all.
    Never,
}

impl Thp {
    /// As the kernel spells it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
        }
    }
}

/// What is measured.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoiChoice {
    /// All of COMMAND
    Command,
    /// What COMMAND marks itself with `demeter-workloads roi`
    #[value(name = "self")]
    Own,
    /// Nothing: QEMU without the model, for what the model costs the host
    Nothing,
}

/// Everything that decides a run's outcome.
#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    /// Memory manager.
    pub tmm: Tmm,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Added to its environment.
    pub env: BTreeMap<String, String>,
    /// Usable fast and slow memory.
    pub tier_bytes: [u64; 2],
    /// Sizes of the two nodes on boot.
    pub node_bytes: [u64; 2],
    /// What of both is each socket's; none where there is one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<Socket>,
    /// How they shrink before COMMAND.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balloon: Option<Balloon>,
    /// Kind of slow memory.
    pub slow: Slow,
    /// Guest kernel by name.
    pub kernel: String,
    /// Transparent huge pages.
    pub thp: Thp,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Sampling unit of the modelled CPU.
    pub pmu: Kind,
    /// Exit statuses with which a run counts.
    pub ok_statuses: Vec<u8>,
    /// What is measured.
    pub roi: Roi,
    /// Host seconds.
    pub timeout_s: u64,
    /// Guest time between rows.
    pub series_interval_ns: u64,
    /// The modelled machine.
    pub machine: MachineConfig,
    /// Parameters of demeter.ko in force (empty for other managers).
    pub demeter_params: BTreeMap<String, String>,
    /// Knobs of NUMA balancing in force (empty for other managers).
    pub nbt_knobs: Knobs,
    /// Knobs of DAMON in force (empty for other managers).
    pub damon_knobs: Knobs,
    /// Goals and bounds of DAMON that tunes itself (empty for other managers).
    pub damon_auto_knobs: Knobs,
    /// Knobs of a published manager in force (none for other managers).
    #[serde(skip_serializing_if = "Knobs::is_empty")]
    pub peer_knobs: Knobs,
    /// What places the guest's pages in its stead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<HypervisorConfig>,
    /// Its place among the guests of one hypervisor.
    #[serde(
        serialize_with = "place_in_pool",
        skip_serializing_if = "Option::is_none"
    )]
    pub pool: Option<StepConfig>,
    /// Host files put into the guest.
    pub copies: Vec<(PathBuf, String)>,
    /// Host folder that the guest sees as /data.
    pub data: Option<PathBuf>,
    /// What is followed by page.
    pub watch: Watch,
    /// QEMU's `-seed`.
    pub seed: u64,
}

/// Where the guests meet is not what a run is.
fn place_in_pool<S: Serializer>(pool: &Option<StepConfig>, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Place {
        index: usize,
        guests: usize,
        meeting_ns: u64,
    }
    let place = pool.as_ref().map(|pool| Place {
        index: pool.index,
        guests: pool.guests,
        meeting_ns: pool.window_ns,
    });
    place.serialize(to)
}

impl Options {
    /// The settings of one guest.
    pub fn settings(&self, tmm: Tmm, command: &[String]) -> Result<Settings, Error> {
        let too_small = |name: &str| Error::Usage {
            cause: format!("--{name} is below 16M a socket"),
            next: format!("give --{name} at least {}M", 16 * self.sockets),
        };
        sockets::check(self.sockets, self.vcpus, self.balloon, tmm)?;
        let least = (16 << 20) * u64::from(self.sockets);
        if self.fmem < least {
            return Err(too_small("fmem"));
        }
        if self.smem < least {
            return Err(too_small("smem"));
        }
        if self.fmem.saturating_add(self.smem) > 1 << 40 {
            return Err(Error::Usage {
                cause: "--fmem and --smem are above 1T together".into(),
                next: "ask for less memory".into(),
            });
        }
        if self.roi == RoiChoice::Nothing && tmm != Tmm::None {
            return Err(Error::Usage {
                cause: "--roi nothing is without the model, which memory managers need".into(),
                next: "leave --tmm at none with it".into(),
            });
        }
        let mut copies_bytes = 0;
        for (host, _) in &self.copy {
            copies_bytes += std::fs::metadata(host)
                .map_err(|cause| Error::file("read", host, cause))?
                .len();
        }
        let reserve = [
            // Files of the host are in memory twice while the guest starts.
            self.kernel_reserve.max(64 << 20) + 2 * copies_bytes,
            SMEM_RESERVE_BYTES + self.smem / 32,
        ];
        let tier_bytes = [self.fmem, self.smem];
        let balloon = Balloon::new(self.balloon, tier_bytes, [self.boot_fmem, self.boot_smem])?;
        let node = |at: usize| {
            let extra = balloon.as_ref().map_or(0, |b| b.boot_extra_bytes(at));
            (tier_bytes[at] + reserve[at] + extra).next_multiple_of(HUGE_BYTES)
        };
        let sockets = self.socket_list(reserve);
        let node_bytes = if sockets.is_empty() {
            [node(0), node(1)]
        } else {
            [0, 1].map(|tier: usize| sockets.iter().map(|socket| socket.node_bytes[tier]).sum())
        };
        let peer_knobs = tmm.peer_knobs(&self.peer_set)?;
        let hypervisor = tmm.hypervisor(&peer_knobs, self.fmem)?;
        if hypervisor.is_some() && balloon.is_some() {
            return Err(Error::Usage {
                cause: format!(
                    "--balloon knows tiers, and a guest under {} none",
                    tmm.row()
                ),
                next: "leave out --balloon".into(),
            });
        }
        let mut env: BTreeMap<String, String> = self.env.iter().cloned().collect();
        env.extend(tmm.env());
        Ok(Settings {
            tmm,
            command: command.to_vec(),
            env,
            tier_bytes,
            node_bytes,
            sockets,
            balloon,
            slow: self.slow,
            kernel: self.kernel.clone(),
            thp: self.thp,
            vcpus: self.vcpus,
            pmu: self.pmu,
            ok_statuses: self.ok_status.clone(),
            roi: match self.roi {
                RoiChoice::Command => Roi::Command,
                RoiChoice::Own => Roi::Own,
                RoiChoice::Nothing => Roi::Nothing,
            },
            timeout_s: self.timeout,
            series_interval_ns: self.series_interval * 1_000_000,
            machine: self.machine_config(tmm, hypervisor.as_ref())?,
            hypervisor,
            pool: None,
            demeter_params: tmm.demeter_params(&self.set),
            nbt_knobs: tmm.nbt_knobs(&self.nbt_set)?,
            damon_knobs: tmm.damon_knobs(&self.kernel, &self.damon_set)?,
            damon_auto_knobs: tmm.damon_auto_knobs(&self.damon_auto_set)?,
            peer_knobs,
            copies: self.copy.clone(),
            data: self.data.clone(),
            watch: Watch::default(),
            seed: 42,
        })
    }

    /// An even share of both tiers for each socket; none where there is one. What the
    /// kernel needs of FMEM it takes from the first.
    fn socket_list(&self, reserve: [u64; 2]) -> Vec<Socket> {
        if self.sockets < 2 {
            return Vec::new();
        }
        let share = |bytes: u64| bytes / u64::from(self.sockets) / 4096 * 4096;
        let tier_bytes = [share(self.fmem), share(self.smem)];
        (0..self.sockets)
            .map(|number| {
                let node = |tier: usize| {
                    let own = match (number, tier) {
                        (0, 0) => reserve[0],
                        _ => SMEM_RESERVE_BYTES + tier_bytes[tier] / 32,
                    };
                    (tier_bytes[tier] + own).next_multiple_of(HUGE_BYTES)
                };
                Socket {
                    tier_bytes,
                    node_bytes: [node(0), node(1)],
                }
            })
            .collect()
    }

    fn machine_config(
        &self,
        tmm: Tmm,
        hypervisor: Option<&HypervisorConfig>,
    ) -> Result<MachineConfig, Error> {
        let wrong = |cause: String| Error::Usage {
            cause: format!("--machine: {cause}"),
            next: "see crates/machine/src/config.rs for names and ranges".into(),
        };
        let mut fields = serde_json::Map::new();
        let preset = match self.slow {
            Slow::Pmem => "pmem",
            Slow::Cxl => "cxl",
        };
        fields.insert("preset".into(), preset.into());
        if let Some(hypervisor) = hypervisor {
            fields.insert("ept_2m".into(), u64::from(hypervisor.is_large()).into());
        }
        for (name, value) in &self.machine {
            let value: u64 = value
                .parse()
                .map_err(|_| wrong(format!("{name}={value} is not a whole number")))?;
            fields.insert(name.clone(), value.into());
        }
        let mut machine: MachineConfig =
            serde_json::from_value(fields.into()).map_err(|error| wrong(error.to_string()))?;
        if tmm == Tmm::Fast {
            machine.smem_latency_ps = machine.fmem_latency_ps;
            machine.smem_bandwidth_bytes_per_s = machine.fmem_bandwidth_bytes_per_s;
        }
        machine
            .validate()
            .and_then(|()| hypervisor.map_or(Ok(()), |of| of.fits(&machine)))
            .map_err(|error| wrong(error.to_string()))?;
        Ok(machine)
    }
}

impl Settings {
    /// The guest's nodes, by their numbers.
    pub fn nodes(&self) -> Vec<Node> {
        let one = [Socket {
            tier_bytes: self.tier_bytes,
            node_bytes: self.node_bytes,
        }];
        sockets::nodes(if self.sockets.is_empty() {
            &one
        } else {
            &self.sockets
        })
    }

    /// What COMMAND finds free on each node that the guest knows of.
    pub fn guest_tiers(&self) -> Vec<Tier> {
        if self.hypervisor.is_some() {
            return vec![Tier {
                node: 0,
                free_bytes: self.tier_bytes.iter().sum(),
            }];
        }
        let nodes = (0..).zip(self.nodes());
        nodes
            .map(|(node, of)| Tier {
                node,
                free_bytes: of.free_bytes,
            })
            .collect()
    }
}

/// A value of an option that is not of its form.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Of a pair.
    #[error("'{0}' is not NAME=VALUE")]
    Pair(String),
    /// Of a file to copy.
    #[error("'{0}' is not HOST:GUEST with an absolute path in the guest")]
    Copy(String),
}

/// `NAME=VALUE`.
pub fn parse_pair(text: &str) -> Result<(String, String), Malformed> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Malformed::Pair(text.to_owned())),
    }
}

fn parse_copy(text: &str) -> Result<(PathBuf, String), Malformed> {
    match text.rsplit_once(':') {
        Some((host, guest)) if !host.is_empty() && guest.starts_with('/') => {
            Ok((host.into(), guest.to_owned()))
        }
        _ => Err(Malformed::Copy(text.to_owned())),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// Options as given on a command line.
    pub fn options(line: &str) -> Options {
        Line::parse_from(std::iter::once("x").chain(line.split_whitespace())).options
    }

    #[test]
    fn slow_memory_of_another_kind_differs_in_latency_and_bandwidth() {
        let pmem = MachineConfig::preset(Preset::Pmem);
        let mut machine = pmem.clone();
        Slow::Cxl.put_into(&mut machine);
        assert_eq!(machine.smem_latency_ps, 121_900);
        assert!(machine.smem_bandwidth_bytes_per_s > pmem.smem_bandwidth_bytes_per_s);
        Slow::Pmem.put_into(&mut machine);
        assert_eq!(machine, pmem);
        // What was set by hand elsewhere stays.
        machine.llc_bytes *= 2;
        Slow::Cxl.put_into(&mut machine);
        assert_eq!(machine.llc_bytes, 2 * pmem.llc_bytes);
    }

    #[test]
    fn nodes_hold_tiers_and_reserve_in_huge_pages() {
        let settings = options("--fmem 100M --smem 301M")
            .settings(Tmm::None, &["true".into()])
            .unwrap();
        assert!(settings.node_bytes[0] >= (100 + 224) << 20);
        assert!(settings.node_bytes.iter().all(|b| b % HUGE_BYTES == 0));
    }

    #[test]
    fn fast_is_the_same_machine_with_equal_tiers() {
        let of = |tmm| options("").settings(tmm, &["true".into()]).unwrap();
        let (none, fast) = (of(Tmm::None), of(Tmm::Fast));
        assert_eq!(fast.machine.smem_latency_ps, 68_700);
        assert_eq!(none.machine.smem_latency_ps, 176_600);
        assert_eq!(none.node_bytes, fast.node_bytes);
    }

    #[test]
    fn refuses_what_cannot_work() {
        let try_line = |line: &str| options(line).settings(Tmm::None, &["true".into()]);
        assert!(try_line("--fmem 1M").is_err());
        let plain = options("--roi nothing");
        assert!(plain.settings(Tmm::Demeter, &["true".into()]).is_err());
        assert!(plain.settings(Tmm::None, &["true".into()]).is_ok());
        assert!(try_line("--machine llc_bytes=x").is_err());
        assert!(try_line("--machine no_such=1").is_err());
        assert!(try_line("--machine llc_bytes=3000000").is_err());
        let unknown = Line::try_parse_from(["x", "--pmu", "z80"]).err().unwrap();
        assert!(
            unknown.to_string().contains("next: use icelake"),
            "{unknown}"
        );
        assert!(parse_copy("a:b").is_err());
        assert!(parse_pair("=1").is_err());
        assert_eq!(parse_copy("a:b:/c").unwrap().0, PathBuf::from("a:b"));
    }
}
