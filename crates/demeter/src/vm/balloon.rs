// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's side of a guest's balloon while the guest runs: the devices that
//! QEMU is given, the daemon behind them, and the requests that bring the guest
//! to its sizes before COMMAND.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use demeter_agent::protocol::Record;
use demeter_balloon::view::{PolicyView, SizeWish, Stage, VmView, tier_name};
use demeter_machine::config::StepConfig;
use serde::Serialize;
use serde_json::json;

use super::process::Process;
use super::qemu;
use super::sizing::{Balloon, Method};
use super::step;
use super::tail::Tail;
use super::workplace::{RamDir, ResultsDir, to_json};
use crate::balloon::client::Client;
use crate::balloon::qmp;
use crate::error::{Advice, Error};
use crate::testbed;

const MIB: u64 = 1 << 20;
/// Period of the guest's statistics, in its own time: a tenth of demeterd's
/// default, as the guests' epochs are.
const STATISTICS_MS: &str = "100";
/// The daemon is ready, or has ended, within this.
const START: Duration = Duration::from_secs(10);
/// How often the daemon is asked what the guest has.
const LOOK: Duration = Duration::from_millis(500);

/// A guest's place at a daemon.
pub struct Seat {
    /// Its name there.
    pub name: String,
    /// Where QEMU connects.
    pub socket: PathBuf,
    /// Its memory.
    pub nodes: [PathBuf; 2],
    /// More keys of the daemon's `--vm`, each with a comma before it.
    pub keys: String,
    /// The daemon's control interface.
    pub control: PathBuf,
    /// Told when the guest is measured, where others wait for that.
    pub together: Option<Arc<Together>>,
    /// That was told.
    pub told: AtomicBool,
    /// Its clock's place among those of the others.
    pub step: Option<StepConfig>,
}

impl Seat {
    /// The guest is measured; the last one lets the policy begin.
    fn measured(&self) -> Result<(), Error> {
        if let Some(together) = &self.together
            && !self.told.swap(true, Ordering::SeqCst)
            && together.waiting.fetch_sub(1, Ordering::SeqCst) == 1
        {
            let client = Client::new(&self.control)?;
            let _: PolicyView = client.put("/v1/policy", &together.policy)?;
        }
        Ok(())
    }

    /// The guest is gone, in whatever way: nobody waits for its clock any more, nor for it
    /// to be measured.
    pub fn leave(&self) {
        // With the last guest the daemon may be gone, too.
        let _ = self.measured();
        if let Some(step) = &self.step {
            step::leave(step);
        }
    }
}

/// Guests of one daemon, whose policy begins when all are measured.
pub struct Together {
    /// Those that are not yet.
    pub waiting: AtomicU64,
    /// What begins then.
    pub policy: PolicyView,
}

/// The host's side of one guest's balloon, and its files.
pub struct Host {
    balloon: Balloon,
    node_bytes: [u64; 2],
    device_files: Vec<PathBuf>,
    qmp: PathBuf,
    daemon: Option<Daemon>,
    guest: Option<Guest>,
    /// Of the guest's records, the line that is not complete yet.
    pending: Vec<u8>,
    asked: bool,
    resized: bool,
    /// Is anything measured?
    is_modelled: bool,
    begun: bool,
    /// COMMAND has ended.
    ended: bool,
}

/// `demeterd` for the guests of this command.
pub struct Daemon {
    process: Process,
    log: PathBuf,
}

/// The daemon of a run does not do its work.
#[derive(Debug, thiserror::Error)]
enum DaemonError {
    #[error("demeterd: {0}")]
    Problem(String),
    #[error("demeterd {how}, its last words: {last}")]
    Dead { how: String, last: String },
}

impl Advice for DaemonError {
    fn next(&self) -> String {
        let next = match self {
            Self::Problem(_) => "report it, with the run's balloon.log",
            Self::Dead { .. } => "read balloon.log of the run, then run again",
        };
        next.into()
    }
}

/// A guest as its daemon sees it.
struct Guest {
    seat: Arc<Seat>,
    client: Client,
    looked: Instant,
    view: Option<VmView>,
    fmem: Option<Sizes>,
}

/// FMEM of a guest from when it had the size asked for.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Sizes {
    /// Least.
    pub least_bytes: u64,
    /// Most.
    pub most_bytes: u64,
    /// At the end.
    pub last_bytes: u64,
}

/// `balloon.json`.
#[derive(Serialize)]
struct Report {
    method: Method,
    taken_bytes: [u64; 2],
    /// Sizes of FMEM while COMMAND ran, as far as they were looked at.
    fmem: Option<Sizes>,
    /// What the daemon saw last, COMMAND's end or a little before.
    guest: Option<VmView>,
    /// What the guest was given, when and why, as the daemon remembers it.
    ledger: serde_json::Value,
}

impl Host {
    /// Makes what QEMU will connect to.
    pub fn start(
        balloon: &Balloon,
        node_bytes: [u64; 2],
        nodes: &[PathBuf; 2],
        seat: Option<&Arc<Seat>>,
        ram: &RamDir,
        results: &ResultsDir,
    ) -> Result<Self, Error> {
        let mut device_files = Vec::new();
        for (node, bytes) in balloon.device_bytes().into_iter().enumerate() {
            if bytes > 0 {
                device_files.push(ram.file(&format!("device{node}"), bytes)?);
            }
        }
        let mut host = Self {
            balloon: balloon.clone(),
            node_bytes,
            device_files,
            qmp: ram.join("qmp"),
            daemon: None,
            guest: None,
            pending: Vec::new(),
            asked: false,
            resized: false,
            is_modelled: true,
            begun: false,
            ended: false,
        };
        if balloon.method != Method::Demeter {
            return Ok(host);
        }
        let seat = match seat {
            Some(seat) => seat.clone(),
            None => {
                let seat = Arc::new(Seat {
                    name: "guest".into(),
                    socket: ram.join("balloon"),
                    nodes: nodes.clone(),
                    keys: String::new(),
                    control: ram.join("control"),
                    together: None,
                    told: AtomicBool::new(false),
                    step: None,
                });
                let log = results.join("balloon.log");
                host.daemon = Some(Daemon::start(std::slice::from_ref(&seat), &log)?);
                seat
            }
        };
        host.guest = Some(Guest {
            client: Client::new(&seat.control)?,
            seat,
            looked: Instant::now(),
            view: None,
            fmem: None,
        });
        Ok(host)
    }

    /// QEMU's arguments.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let mut two = |option: &str, prefix: String, path: Option<&Path>| {
            words.push(option.into());
            words.push(path.map_or(prefix.clone().into(), |path| qemu::with_path(prefix, path)));
        };
        if let Some(guest) = &self.guest {
            two(
                "-chardev",
                "socket,id=balloon-socket,path=".into(),
                Some(&guest.seat.socket),
            );
            two(
                "-device",
                "vhost-user-test-device-pci,id=balloon0,chardev=balloon-socket,virtio-id=13,\
                 num_vqs=4,vq_size=256,config_size=64"
                    .into(),
                None,
            );
            return words;
        }
        two("-qmp", "unix:".into(), Some(&self.qmp));
        if let Some(last) = words.last_mut() {
            last.push(",server=on,wait=off");
        }
        let mut two = |option: &str, value: String| {
            words.extend([option.into(), value.into()]);
        };
        if self.balloon.method == Method::Virtio {
            two("-device", "virtio-balloon-pci,id=balloon0".into());
            return words;
        }
        let mut files = self.device_files.iter();
        for (node, bytes) in self.balloon.device_bytes().into_iter().enumerate() {
            let Some(file) = (bytes > 0).then(|| files.next()).flatten() else {
                continue;
            };
            words.push("-object".into());
            words.push(qemu::with_path(
                format!("memory-backend-file,id=d{node},size={bytes},share=on,mem-path="),
                file,
            ));
            words.push("-device".into());
            words.push(
                format!(
                    "virtio-mem-pci,id=device{node},memdev=d{node},node={node},requested-size={bytes}"
                )
                .into(),
            );
        }
        words
    }

    /// Why the daemon ended, if it has, or does in a moment.
    pub fn daemon_error(&mut self) -> Option<Error> {
        let daemon = self.daemon.as_mut()?;
        std::thread::sleep(LOOK);
        daemon.check().err()
    }

    /// Nothing will be measured: what begins with that begins with COMMAND.
    pub fn without_model(&mut self) {
        self.is_modelled = false;
    }

    /// What is measured begins: not before may a policy change what COMMAND was promised.
    pub fn begin(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.begun, true)
            && let Some(guest) = &self.guest
        {
            guest.seat.measured()?;
        }
        Ok(())
    }

    /// Called again and again while the guest runs, with what it reported since.
    pub fn tick(&mut self, records: &mut Tail) -> Result<(), Error> {
        self.pending.extend(records.more());
        let end = (self.pending.iter().rposition(|&byte| byte == b'\n')).map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.pending.drain(..end).collect();
        for line in lines.split(|&byte| byte == b'\n') {
            match serde_json::from_slice::<Record>(line.trim_ascii()) {
                Ok(Record::Resizable) => self.asked = true,
                Ok(Record::Resized { .. }) => self.resized = true,
                Ok(Record::Start) if !self.is_modelled => self.begin()?,
                Ok(Record::Exit { .. } | Record::NotStarted { .. }) => self.ended = true,
                _ => {}
            }
        }
        if let Some(daemon) = &mut self.daemon {
            daemon.check()?;
        }
        let served = self.serve();
        // If the daemon ended just now, that is the cause, not what it led to.
        if let (Err(_), Some(daemon)) = (&served, &mut self.daemon) {
            std::thread::sleep(LOOK);
            daemon.check()?;
        }
        served
    }

    fn serve(&mut self) -> Result<(), Error> {
        // A guest whose COMMAND has ended has no hot pages: it is looked at for what is not known.
        let resized = self.resized;
        if let Some(guest) = &mut self.guest
            && !(self.ended && guest.is_known(resized))
        {
            guest.look(resized)?;
        }
        if self.asked && self.ask()? {
            self.asked = false;
        }
        Ok(())
    }

    /// Takes the memory; false if that must be tried again.
    fn ask(&mut self) -> Result<bool, Error> {
        if let Some(guest) = &self.guest {
            return guest.ask(self.node_bytes, self.balloon.taken_bytes);
        }
        let mut qmp = qmp::connect(&self.qmp)?;
        if self.balloon.method == Method::Virtio {
            let value =
                self.node_bytes.iter().sum::<u64>() - self.balloon.taken_bytes.iter().sum::<u64>();
            qmp.execute("balloon", &json!({ "value": value }))?;
            return Ok(true);
        }
        for (node, bytes) in self.balloon.device_bytes().into_iter().enumerate() {
            if bytes > 0 {
                let path = format!("/machine/peripheral/device{node}");
                let arguments = json!({"path": path, "property": "requested-size", "value": 0});
                qmp.execute("qom-set", &arguments)?;
            }
        }
        Ok(true)
    }

    /// Ends the daemon; leaves a report in the results. What FMEM was.
    pub fn finish(self, results: &ResultsDir) -> Result<Option<Sizes>, Error> {
        let alone = (self.guest.as_ref()).is_some_and(|guest| guest.seat.together.is_none());
        let fmem = self.guest.as_ref().and_then(|guest| guest.fmem);
        let ledger = (self.guest.as_ref()).and_then(|guest| guest.ledger().ok());
        let report = Report {
            method: self.balloon.method,
            taken_bytes: self.balloon.taken_bytes,
            fmem,
            guest: self.guest.and_then(|guest| guest.view),
            ledger: ledger.unwrap_or_default(),
        };
        if let Some(view) = report.guest.as_ref().filter(|_| self.resized && alone) {
            for (tier, taken) in view.tiers.iter().zip(self.balloon.taken_bytes) {
                if tier.balloon_bytes != taken {
                    eprintln!(
                        "demeter: warning: {}'s balloon ended with {} MiB where {} MiB were asked for",
                        tier.tier,
                        tier.balloon_bytes / MIB,
                        taken / MIB
                    );
                }
            }
        }
        results.write("balloon.json", &to_json(&report)?)?;
        Ok(fmem)
    }
}

impl Daemon {
    /// Starts it for these guests, which have one control interface in common.
    pub fn start(seats: &[Arc<Seat>], log: &Path) -> Result<Self, Error> {
        let mut command = Command::new(testbed::daemon()?);
        command.args(["--statistics-ms", STATISTICS_MS]);
        for seat in seats {
            let mut vm = OsString::from(format!("{},socket=", seat.name));
            vm.push(&seat.socket);
            for (tier, path) in ["fmem", "smem"].iter().zip(&seat.nodes) {
                vm.push(format!(",{tier}="));
                vm.push(path);
            }
            vm.push(&seat.keys);
            command.arg("--vm").arg(vm);
        }
        if let Some(seat) = seats.first() {
            command.arg("--control").arg(&seat.control);
        }
        let mut daemon = Self {
            process: Process::start(command, log)?,
            log: log.to_path_buf(),
        };
        let deadline = Instant::now() + START;
        let ready = |seat: &Arc<Seat>| seat.socket.exists() && seat.control.exists();
        while !seats.iter().all(ready) {
            daemon.check()?;
            if Instant::now() > deadline {
                return Err(dead("is not ready", log));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(daemon)
    }

    /// Fails if it has ended.
    fn check(&mut self) -> Result<(), Error> {
        match self.process.poll() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(dead(&format!("ended ({status})"), &self.log)),
            Err(cause) => Err(dead(&format!("was lost ({cause})"), &self.log)),
        }
    }
}

impl Guest {
    fn path(&self) -> String {
        format!("/v1/vms/{}", self.seat.name)
    }

    /// Whether it was looked at while it could be driven, and its memory was as asked for.
    fn is_known(&self, resized: bool) -> bool {
        let driven = (self.view.as_ref()).is_some_and(|view| view.stage == Stage::Driven);
        driven && (self.fmem.is_some() || !resized)
    }

    /// Notes what the guest has.
    fn look(&mut self, resized: bool) -> Result<(), Error> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        let view: VmView = self.client.get(&self.path())?;
        // A guest that has ended says nothing any more.
        if view.stage != Stage::Driven {
            self.view.get_or_insert(view);
            return Ok(());
        }
        if let Some(bytes) = (view.tiers.first())
            .map(|tier| tier.size_bytes)
            .filter(|_| resized)
        {
            let before = self.fmem.unwrap_or(Sizes {
                least_bytes: bytes,
                most_bytes: bytes,
                last_bytes: bytes,
            });
            self.fmem = Some(Sizes {
                least_bytes: before.least_bytes.min(bytes),
                most_bytes: before.most_bytes.max(bytes),
                last_bytes: bytes,
            });
        }
        self.view = Some(view);
        Ok(())
    }

    fn ask(&self, node_bytes: [u64; 2], taken_bytes: [u64; 2]) -> Result<bool, Error> {
        let view: VmView = self.client.get(&self.path())?;
        if let Some(problem) = view.problem {
            return Err(DaemonError::Problem(problem).into());
        }
        if view.stage != Stage::Driven {
            return Ok(false);
        }
        for node in 0..2 {
            let wish = SizeWish {
                size_bytes: node_bytes[node] - taken_bytes[node],
                why: Some("demeter vm".into()),
                wait_ms: 0,
            };
            let path = format!("{}/tiers/{}", self.path(), tier_name(node as u16));
            let _: VmView = self.client.put(&path, &wish)?;
        }
        Ok(true)
    }

    fn ledger(&self) -> Result<serde_json::Value, Error> {
        self.client.get(&format!("{}/ledger", self.path()))
    }
}

fn dead(how: &str, log: &Path) -> Error {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().last().unwrap_or("nothing");
    let (how, last) = (how.to_owned(), last.to_owned());
    DaemonError::Dead { how, last }.into()
}
