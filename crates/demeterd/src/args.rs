// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Command line and configuration file. The options that every vhost-user
//! backend program has (`--socket-path`, `--fd`, `--print-capabilities`) serve
//! one machine; `--vm` and the file serve many.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Parser;
use demeter_balloon::Parameters;
use serde::Deserialize;

use crate::error::Error;
use crate::policy;
use crate::size;
use crate::spec::{Draft, Socket, Vm, check_fleet};

/// Where the control interface is if nobody says.
const CONTROL: &str = "/run/demeter/demeterd.sock";

/// Host daemon of the double balloon: vhost-user backends, policies, control
/// interface.
#[derive(Debug, Parser)]
#[command(name = "demeterd", version)]
pub struct Arguments {
    /// Says what this backend can do, as JSON, and ends
    #[arg(long)]
    pub print_capabilities: bool,
    /// One machine: listen there for its monitor
    #[arg(long, value_name = "PATH", conflicts_with = "fd")]
    socket_path: Option<PathBuf>,
    /// One machine: a listening Unix socket, inherited
    #[arg(long, value_name = "N")]
    fd: Option<i32>,
    /// One machine: its name
    #[arg(long, value_name = "NAME", default_value = "vm")]
    name: String,
    /// One machine: fmem=FILE or fmem=gpa:BEGIN-END+…, the same for smem; again
    /// for a tier of several files
    #[arg(long = "tier", value_name = "TIER=MEMORY")]
    tiers: Vec<String>,
    /// A machine: NAME,socket=PATH,fmem=FILE[,smem=FILE][,KEY=VALUE…]; keys:
    /// class weight fmem-floor fmem-ceiling fmem-size memory
    #[arg(long = "vm", value_name = "NAME,KEY=VALUE…")]
    vms: Vec<String>,
    /// A configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Control interface [default: /run/demeter/demeterd.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Directory of the ledgers; sizes survive a restart only with one
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// external, static, proportional, guaranteed or pressure [default: external]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// FMEM that the policy divides
    #[arg(long, value_name = "SIZE")]
    fmem_pool: Option<String>,
    /// Period of the policy's decisions [default: 1000]
    #[arg(long, value_name = "MS")]
    interval_ms: Option<u64>,
    /// Period of the guests' statistics [default: 1000]
    #[arg(long, value_name = "MS")]
    statistics_ms: Option<u32>,
    /// A guest that did wrong so often is listened to no more [default: 64]
    #[arg(long, value_name = "N")]
    violation_limit: Option<u64>,
}

/// The file, all of it optional but the machines' sockets and tiers.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    control: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    statistics_ms: Option<u32>,
    violation_limit: Option<u64>,
    #[serde(default)]
    policy: FilePolicy,
    /// Defaults of a service class, with a machine's keys.
    #[serde(default)]
    class: BTreeMap<String, BTreeMap<String, toml::Value>>,
    #[serde(default)]
    vm: Vec<BTreeMap<String, toml::Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FilePolicy {
    name: Option<String>,
    fmem_pool: Option<String>,
    interval_ms: Option<u64>,
}

/// All that the daemon is told.
#[derive(Debug)]
pub struct Settings {
    /// Machines.
    pub vms: Vec<Vm>,
    /// Control interface.
    pub control: PathBuf,
    /// Ledgers.
    pub state_dir: Option<PathBuf>,
    /// Name of the policy.
    pub policy: String,
    /// What it divides.
    pub fmem_pool_bytes: u64,
    /// Its period.
    pub interval_ms: u64,
    /// For the devices.
    pub parameters: Parameters,
}

/// `--print-capabilities`, as vhost-user backend programs answer it.
pub fn capabilities() -> String {
    r#"{"type": "balloon", "features": []}"#.to_owned()
}

impl Arguments {
    /// Arguments win over the file.
    pub fn settings(self) -> Result<Settings, Error> {
        let file = match &self.config {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|cause| Error::file("read", path, cause))?;
                parse_file(&text).map_err(|cause| Error::Usage {
                    cause: format!("{}: {cause}", path.display()),
                    next: "see the configuration file in docs/balloon.md".into(),
                })?
            }
            None => File::default(),
        };
        let mut vms = Vec::new();
        for table in &file.vm {
            vms.push(file_vm(table, &file.class).map_err(Error::usage)?);
        }
        for line in &self.vms {
            vms.push(Vm::parse(line).map_err(|cause| Error::usage(format!("--vm: {cause}")))?);
        }
        let single = match (self.socket_path, self.fd) {
            (Some(path), _) => Some(Socket::Path(path)),
            (None, Some(fd)) => Some(Socket::Descriptor(fd)),
            (None, None) => None,
        };
        match single {
            Some(socket) => {
                let vm = single_vm(self.name, socket, &self.tiers);
                vms.push(vm.map_err(Error::usage)?);
            }
            None if !self.tiers.is_empty() => {
                return Err(Error::usage("--tier without --socket-path or --fd"));
            }
            None => {}
        }
        if vms.is_empty() {
            return Err(Error::usage(
                "no machine: --socket-path, --fd, --vm or --config",
            ));
        }
        check_fleet(&vms)?;
        let policy = (self.policy.or(file.policy.name)).unwrap_or_else(|| policy::EXTERNAL.into());
        if !policy::NAMES.contains(&policy.as_str()) {
            return Err(Error::usage(format!(
                "no policy '{policy}'; there are {}",
                policy::NAMES.join(", ")
            )));
        }
        let pool = self.fmem_pool.or(file.policy.fmem_pool);
        let fmem_pool_bytes = match &pool {
            Some(text) => size::parse(text).map_err(Error::usage)?,
            None if policy == policy::EXTERNAL => 0,
            None => {
                return Err(Error::usage(format!(
                    "policy '{policy}' needs --fmem-pool to divide"
                )));
            }
        };
        let interval_ms = self.interval_ms.or(file.policy.interval_ms).unwrap_or(1000);
        if !(10..=3_600_000).contains(&interval_ms) {
            return Err(Error::usage("--interval-ms takes 10 to 3600000"));
        }
        let defaults = Parameters::default();
        let parameters = Parameters {
            instance: instance(),
            statistics_interval_ms: (self.statistics_ms.or(file.statistics_ms))
                .unwrap_or(defaults.statistics_interval_ms),
            violation_limit: (self.violation_limit.or(file.violation_limit))
                .unwrap_or(defaults.violation_limit)
                .max(1),
            ..defaults
        };
        Ok(Settings {
            vms,
            control: (self.control.or(file.control)).unwrap_or_else(|| CONTROL.into()),
            state_dir: self.state_dir.or(file.state_dir),
            policy,
            fmem_pool_bytes,
            interval_ms,
            parameters,
        })
    }
}

/// Differs from start to start.
fn instance() -> u64 {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    nanos ^ (u64::from(std::process::id()) << 48)
}

fn single_vm(name: String, socket: Socket, tiers: &[String]) -> Result<Vm, String> {
    let mut draft = Draft::new(name);
    draft.socket(socket);
    for tier in tiers {
        let (key, value) = tier
            .split_once('=')
            .ok_or_else(|| format!("--tier '{tier}' is not TIER=MEMORY"))?;
        if demeter_balloon::view::tier_node(key).is_none() {
            return Err(format!("--tier '{key}' is neither fmem nor smem"));
        }
        draft.set(key, value)?;
    }
    draft.finish()
}

fn parse_file(text: &str) -> Result<File, String> {
    toml::from_str(text).map_err(|error| {
        let line = error
            .span()
            .map_or(0, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line}: {}", error.message().replace('\n', " "))
    })
}

fn file_vm(
    table: &BTreeMap<String, toml::Value>,
    classes: &BTreeMap<String, BTreeMap<String, toml::Value>>,
) -> Result<Vm, String> {
    let word = |value: &toml::Value| match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        other => Err(format!(
            "a {} where text or a number belongs",
            other.type_str()
        )),
    };
    let name = table.get("name").ok_or("a machine without name")?;
    let mut draft = Draft::new(word(name)?);
    if let Some(class) = table.get("class") {
        let class = word(class)?;
        let defaults = classes
            .get(&class)
            .ok_or_else(|| format!("no class '{class}' in the file"))?;
        for (key, value) in defaults {
            if ![
                "weight",
                "fmem-floor",
                "fmem-ceiling",
                "fmem-size",
                "memory",
            ]
            .contains(&key.as_str())
            {
                return Err(format!("class '{class}' cannot have '{key}'"));
            }
            draft.set(key, &word(value)?)?;
        }
    }
    for (key, value) in table.iter().filter(|(key, _)| *key != "name") {
        match value {
            toml::Value::Array(values) => {
                for value in values {
                    draft.set(key, &word(value)?)?;
                }
            }
            value => draft.set(key, &word(value)?)?,
        }
    }
    draft.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Tier;
    use clap::CommandFactory;
    use std::io::Write;

    fn settings(line: &str) -> Result<Settings, Error> {
        Arguments::try_parse_from(line.split(' '))
            .map_err(|error| Error::usage(error.to_string()))?
            .settings()
    }

    fn with_file(text: &str) -> Result<Settings, Error> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        settings(&format!("demeterd --config {}", file.path().display()))
    }

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn capabilities_are_json_of_a_known_type() {
        let value: serde_json::Value = serde_json::from_str(&capabilities()).unwrap();
        assert_eq!(value["type"], "balloon");
    }

    #[test]
    fn one_machine_by_the_conventional_options() {
        let settings =
            settings("demeterd --socket-path /s --tier fmem=/f --tier smem=/m --violation-limit 3")
                .unwrap();
        assert_eq!(settings.vms.len(), 1);
        assert_eq!(settings.vms[0].name, "vm");
        assert_eq!(settings.parameters.violation_limit, 3);
        assert_eq!(settings.policy, "external");
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            "demeterd",
            "demeterd --socket-path /s",
            "demeterd --socket-path /s --fd 3 --tier fmem=/f",
            "demeterd --tier fmem=/f",
            "demeterd --socket-path /s --tier slow=/f",
            "demeterd --socket-path /s --tier weight=3 --tier fmem=/f",
            "demeterd --vm a,socket=/s,fmem=/f --vm a,socket=/t,fmem=/g",
            "demeterd --vm a,socket=/s,fmem=/f --policy generous --fmem-pool 1G",
            "demeterd --vm a,socket=/s,fmem=/f --policy static",
            "demeterd --vm a,socket=/s,fmem=/f --interval-ms 1",
            "demeterd --config /nonexistent",
        ] {
            assert!(settings(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_file_with_classes() {
        let settings = with_file(
            r#"
            [policy]
            name = "guaranteed"
            fmem-pool = "2G"
            [class.gold]
            weight = 300
            fmem-floor = "512M"
            [[vm]]
            name = "a"
            class = "gold"
            socket = "/a"
            fmem = "/fa"
            fmem-floor = "256M"
            [[vm]]
            name = "b"
            class = "gold"
            socket = "/b"
            fmem = ["/fb", "/fc"]
            "#,
        )
        .unwrap();
        assert_eq!(settings.fmem_pool_bytes, 2 << 30);
        assert_eq!(settings.vms[0].share.weight, 300);
        assert_eq!(settings.vms[0].share.fmem_floor_bytes, 256 << 20);
        let two = Tier::Files(vec!["/fb".into(), "/fc".into()]);
        assert_eq!(settings.vms[1].tiers, [two]);
        assert_eq!(settings.vms[1].share.fmem_floor_bytes, 512 << 20);
    }

    #[test]
    fn wrong_files_are_refused() {
        for text in [
            "nonsense",
            "colour = 1",
            "[[vm]]\nsocket='/s'",
            "[[vm]]\nname='a'\nsocket='/s'\nfmem='/f'\nclass='tin'",
            "[class.tin]\nsocket='/s'\n[[vm]]\nname='a'\nsocket='/s'\nfmem='/f'\nclass='tin'",
            "[[vm]]\nname='a'\nsocket='/s'\nfmem=1.5",
        ] {
            assert!(with_file(text).is_err(), "{text}");
        }
    }
}
