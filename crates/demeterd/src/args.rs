// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Command line and configuration file. The options that every vhost-user
//! backend program has (`--socket-path`, `--fd`, `--print-capabilities`) serve
//! one machine; `--vm` and the file serve many.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use demeter_balloon::Parameters;
use demeter_balloon::view::{PolicyClock, PolicyView};
use serde::Deserialize;

use crate::address::{self, AddressError};
use crate::error::Error;
use crate::keeper::{Isolation, Keeping, YOUNG};
use crate::policy;
use crate::sockets::Access;
use crate::spec::{Description, Entitlement, Size, Socket, SpecError, Vm, check_fleet};

/// Where the control interface is if nobody says.
const CONTROL: &str = "/run/demeter/demeterd.sock";

/// Host daemon of the double balloon: vhost-user backends, policies, control
/// interface.
#[derive(Debug, Clone, Parser)]
#[command(name = "demeterd", version)]
pub struct Arguments {
    /// Says what this backend can do, as JSON, and ends
    #[arg(long)]
    pub print_capabilities: bool,
    /// What the daemon starts for each guest; of no use by hand
    #[arg(long, hide = true)]
    pub worker: bool,
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
    /// class weight fmem-floor fmem-ceiling fmem-size memory vcpus qmp
    #[arg(long = "vm", value_name = "NAME,KEY=VALUE…")]
    vms: Vec<String>,
    /// A configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Control interface [default: /run/demeter/demeterd.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Mode of the machines' sockets, in octal [default: 0600, with a group 0660]
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<String>,
    /// Group of the machines' sockets, by name or number: that of the monitors
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// Directory of the ledgers and of what the control interface changed; without
    /// one nothing survives a restart
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Metrics on TCP too, for Prometheus: ADDRESS:PORT; no password, no encryption
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// A page for people: ADDRESS:PORT, or the path of a socket; takes --web-token-file
    #[arg(long, value_name = "WHERE")]
    web_listen: Option<String>,
    /// File of the word that admits to the page; nobody else may read it
    #[arg(long, value_name = "FILE")]
    web_token_file: Option<PathBuf>,
    /// Period of the points that curves are drawn of [default: 5000]
    #[arg(long, value_name = "MS")]
    history_ms: Option<u64>,
    /// external, static, proportional, guaranteed, pressure or working-set
    /// [default: external]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// FMEM that the policy divides
    #[arg(long, value_name = "SIZE", value_parser = demeter_size::parse)]
    fmem_pool: Option<u64>,
    /// Period of the policy's decisions [default: 1000]
    #[arg(long, value_name = "MS")]
    interval_ms: Option<u64>,
    /// Period of the guests' statistics [default: 1000]
    #[arg(long, value_name = "MS")]
    statistics_ms: Option<u32>,
    /// A guest that did wrong so often is listened to no more [default: 64]
    #[arg(long, value_name = "N")]
    violation_limit: Option<u64>,
    /// What serves a guest's device: a confined process of its own, or threads of the
    /// daemon, for debugging [default: process]
    #[arg(long, value_name = "WHAT", value_enum)]
    isolation: Option<Isolation>,
    /// A worker that lived for so long is followed by another one at once; for tests that
    /// end many
    #[arg(long, value_name = "MS", hide = true)]
    worker_young_ms: Option<u64>,
}

/// The file, all of it optional but the machines' sockets and tiers.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    control: Option<PathBuf>,
    socket_mode: Option<String>,
    socket_group: Option<String>,
    state_dir: Option<PathBuf>,
    statistics_ms: Option<u32>,
    violation_limit: Option<u64>,
    history_ms: Option<u64>,
    isolation: Option<Isolation>,
    policy: FilePolicy,
    metrics: FileMetrics,
    web: FileWeb,
    /// Defaults of a service class, with a machine's keys.
    class: BTreeMap<String, Entitlement>,
    vm: Vec<Description>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct FilePolicy {
    name: Option<String>,
    fmem_pool: Option<Size>,
    interval_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct FileMetrics {
    listen: Option<SocketAddr>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct FileWeb {
    listen: Option<String>,
    token_file: Option<PathBuf>,
    socket_mode: Option<String>,
    socket_group: Option<String>,
}

impl File {
    fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        toml::from_str(text).map_err(|error| wrong_file(path, text, &error))
    }
}

/// Arguments that name that file and nothing else.
#[cfg(any(test, fuzzing))]
pub fn with_config(path: &Path) -> Arguments {
    Arguments::parse_from(["demeterd".as_ref(), "--config".as_ref(), path.as_os_str()])
}

/// All that a file with that text says.
#[cfg(any(test, fuzzing))]
pub fn settings_of(path: &Path, text: &str) -> Result<Settings, Error> {
    with_config(path).settings_beside(File::parse(path, text)?)
}

/// All that the daemon is told.
#[derive(Debug)]
pub struct Settings {
    /// Machines.
    pub vms: Vec<Vm>,
    /// Service classes.
    pub classes: BTreeMap<String, Entitlement>,
    /// Control interface.
    pub control: PathBuf,
    /// Metrics on TCP.
    pub metrics_listen: Option<SocketAddr>,
    /// The page.
    pub web: Option<address::Settings>,
    /// From point to point of the curves.
    pub history_interval: Duration,
    /// Of the machines' sockets.
    pub access: Access,
    /// Ledgers and changes.
    pub state_dir: Option<PathBuf>,
    /// Who decides.
    pub policy: PolicyView,
    /// For the devices.
    pub parameters: Parameters,
    /// What serves them.
    pub keeping: Keeping,
}

/// `--print-capabilities`, as vhost-user backend programs answer it.
pub fn capabilities() -> String {
    r#"{"type": "balloon", "features": []}"#.to_owned()
}

impl Arguments {
    /// Arguments win over the file, which is read anew.
    pub fn settings(&self) -> Result<Settings, Error> {
        let file = match &self.config {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|cause| Error::file("read", path, cause))?;
                File::parse(path, &text)?
            }
            None => File::default(),
        };
        self.settings_beside(file)
    }

    fn settings_beside(&self, file: File) -> Result<Settings, Error> {
        let mut vms = Vec::new();
        for description in file.vm {
            vms.push(description.finish(&file.class)?);
        }
        for line in &self.vms {
            vms.push(Description::parse(line)?.finish(&file.class)?);
        }
        let single = match (&self.socket_path, self.fd) {
            (Some(path), _) => Some(Socket::Path(path.clone())),
            (None, Some(fd)) => Some(Socket::Descriptor(fd)),
            (None, None) => None,
        };
        match single {
            Some(socket) => vms.push(self.single_vm(socket)?),
            None if !self.tiers.is_empty() => {
                return Err(Error::usage("--tier without --socket-path or --fd"));
            }
            None => {}
        }
        let state_dir = self.state_dir.clone().or(file.state_dir);
        // Others can come later, if there is a place to remember them.
        if vms.is_empty() && state_dir.is_none() && self.config.is_none() {
            return Err(Error::usage(
                "no machine: --socket-path, --fd, --vm, --config or --state-dir",
            ));
        }
        check_fleet(&vms)?;
        let fmem_pool = self.fmem_pool.or(file.policy.fmem_pool.map(|size| size.0));
        let policy = PolicyView {
            name: (self.policy.clone().or(file.policy.name))
                .unwrap_or_else(|| policy::EXTERNAL.into()),
            fmem_pool_bytes: fmem_pool.unwrap_or(0),
            interval_ms: (self.interval_ms.or(file.policy.interval_ms)).unwrap_or(1000),
            clock: PolicyClock::Host,
        };
        policy::check(&policy)?;
        let mode = self.socket_mode.clone().or(file.socket_mode);
        let group = self.socket_group.clone().or(file.socket_group);
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
            classes: file.class,
            control: (self.control.clone().or(file.control)).unwrap_or_else(|| CONTROL.into()),
            metrics_listen: self.metrics_listen.or(file.metrics.listen),
            web: self.web(file.web)?,
            history_interval: history_interval(self.history_ms.or(file.history_ms))?,
            access: Access::parse(mode.as_deref(), group.as_deref())?,
            state_dir,
            policy,
            parameters,
            keeping: Keeping {
                isolation: self.isolation.or(file.isolation).unwrap_or_default(),
                young: self.worker_young_ms.map_or(YOUNG, Duration::from_millis),
            },
        })
    }

    /// Nobody is served a page without a token.
    fn web(&self, file: FileWeb) -> Result<Option<address::Settings>, Error> {
        let token_file = self.web_token_file.clone().or(file.token_file);
        let (listen, token_file) = match (self.web_listen.clone().or(file.listen), token_file) {
            (None, _) => return Ok(None),
            (Some(_), None) => {
                return Err(Error::usage("a page without a token: --web-token-file"));
            }
            (Some(listen), Some(token_file)) => (listen, token_file),
        };
        let address = (listen.parse()).map_err(|error: AddressError| Error::Usage {
            cause: error.to_string(),
            next: "write for example 127.0.0.1:9465, or /run/demeter/web.sock".into(),
        })?;
        Ok(Some(address::Settings {
            address,
            token_file,
            access: Access::parse(file.socket_mode.as_deref(), file.socket_group.as_deref())?,
        }))
    }

    fn single_vm(&self, socket: Socket) -> Result<Vm, Error> {
        let mut pairs = Vec::new();
        for tier in &self.tiers {
            let (key, value) =
                (tier.split_once('=')).ok_or_else(|| SpecError::Word(tier.clone()))?;
            if demeter_balloon::view::tier_node(key).is_none() {
                return Err(Error::usage(format!(
                    "--tier '{key}' is no tier: fmem, smem"
                )));
            }
            pairs.push((key, value));
        }
        let description = Description::from_pairs(self.name.clone(), &pairs)?;
        Ok(description.finish_at(Some(socket), &BTreeMap::new())?)
    }
}

fn wrong_file(path: &Path, text: &str, error: &toml::de::Error) -> Error {
    let line = error
        .span()
        .map_or(0, |span| text[..span.start].matches('\n').count() + 1);
    let words = error.message().replace('\n', " ");
    Error::Usage {
        cause: format!("{}: line {line}: {words}", path.display()),
        next: "see the configuration file in docs/balloon-operation.md".into(),
    }
}

fn history_interval(ms: Option<u64>) -> Result<Duration, Error> {
    let ms = ms.unwrap_or(5000);
    if !(100..=3_600_000).contains(&ms) {
        return Err(Error::Usage {
            cause: format!("a history of a point each {ms} ms"),
            next: "choose 100 to 3600000 ms".into(),
        });
    }
    Ok(Duration::from_millis(ms))
}

/// Differs from start to start.
fn instance() -> u64 {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    nanos ^ (u64::from(std::process::id()) << 48)
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
        assert_eq!(settings.policy.name, "external");
        assert_eq!(settings.metrics_listen, None);
        assert!(settings.web.is_none());
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
            "demeterd --vm a,socket=/s,fmem=/f --socket-mode rw",
            "demeterd --vm a,socket=/s,fmem=/f --web-listen 127.0.0.1:1",
            "demeterd --vm a,socket=/s,fmem=/f --web-listen here --web-token-file /t",
            "demeterd --vm a,socket=/s,fmem=/f --history-ms 1",
            "demeterd --vm a,socket=/s,fmem=/f --socket-group no-such-group",
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
            [metrics]
            listen = "[::1]:9464"
            [web]
            listen = "/run/web"
            token-file = "/t"
            socket-mode = "0660"
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
        assert_eq!(settings.policy.fmem_pool_bytes, 2 << 30);
        assert_eq!(settings.metrics_listen, "[::1]:9464".parse().ok());
        let web = settings.web.unwrap();
        assert_eq!(web.address, address::Address::Unix("/run/web".into()));
        assert_eq!(web.access.mode, 0o660);
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
            "[[vm]]\nname='a'\nsocket='/s'\nfmem='/f'\nfmem-floor='2 apples'",
            "[class.tin]\nweight=-1",
            "[metrics]\nlisten='9464'",
            "[metrics]\nlisten='example.org:9464'",
        ] {
            assert!(with_file(text).is_err(), "{text}");
        }
    }
}
