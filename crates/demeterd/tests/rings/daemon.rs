// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real daemon in a directory of its own, as tests start, ask, kill and measure it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{LIMIT, NODE_BYTES};

/// A daemon in a directory of its own.
pub struct Daemon {
    directory: tempfile::TempDir,
    words: Vec<String>,
    child: Child,
}

impl Daemon {
    pub fn start(names: &[&str], options: &[&str]) -> Self {
        Self::with_keys(names, "", options)
    }

    /// `keys` are added to those of every machine.
    pub fn with_keys(names: &[&str], keys: &str, options: &[&str]) -> Self {
        let directory = directory();
        let mut words = Vec::new();
        for name in names {
            make_memory(directory.path(), name);
            words.push("--vm".into());
            words.push(format!(
                "{name},{}{keys}",
                keys_of(directory.path(), name)
                    .map(|(key, path)| format!("{key}={path}"))
                    .join(",")
            ));
        }
        words.extend(options.iter().map(|&word| word.to_owned()));
        Self::in_directory(directory, words)
    }

    /// With these options beside the control interface's and the state's.
    pub fn in_directory(directory: tempfile::TempDir, options: Vec<String>) -> Self {
        let at = |name: &str| directory.path().join(name).display().to_string();
        let mut words = vec!["--control".to_owned(), at("control")];
        if !options.iter().any(|word| word == "--state-dir") {
            words.extend(["--state-dir".to_owned(), at("state")]);
        }
        words.extend(options);
        let child = spawn(&words, directory.path());
        let daemon = Self {
            directory,
            words,
            child,
        };
        daemon.wait_ready();
        daemon
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Memory for one more machine, and its description in JSON.
    pub fn prepare(&self, name: &str) -> serde_json::Value {
        make_memory(self.directory.path(), name);
        let mut description = serde_json::json!({"name": name});
        for (key, path) in keys_of(self.directory.path(), name) {
            description[key] = path.into();
        }
        description
    }

    /// Sends a signal.
    pub fn signal(&self, number: libc::c_int) {
        // SAFETY: to a child that nobody has waited for.
        let status = unsafe { libc::kill(self.child.id() as libc::pid_t, number) };
        assert_eq!(status, 0);
    }

    fn wait_ready(&self) {
        let began = Instant::now();
        // It listens there first; once it answers, the machines' sockets are there too. One
        // that was killed may have left a child that does not run yet, and shuts the socket
        // on whoever connected when it does.
        while !matches!(self.try_status("GET /v1/vms", ""), Ok((200, _))) {
            assert!(began.elapsed() < LIMIT, "the daemon does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// No thread of it serves anybody any more: one that a disk holds may be there yet.
    pub fn has_ended(&self) -> bool {
        let path = format!("/proc/{}/task", self.child.id());
        let Ok(threads) = std::fs::read_dir(path) else {
            return true;
        };
        (threads.flatten()).all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            let (_, state) = stat.rsplit_once(") ").unwrap_or_default();
            !state.starts_with(['R', 'S'])
        })
    }

    /// Until all of it has ended.
    pub fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    /// Ends it as a service manager does.
    pub fn stop(&mut self) {
        self.signal(libc::SIGTERM);
        self.child.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.child = spawn(&self.words, self.directory.path());
        self.wait_ready();
    }

    pub fn call(&self, request: &str, body: &str) -> serde_json::Value {
        serde_json::from_str(&self.answer(request, body)).unwrap()
    }

    fn answer(&self, request: &str, body: &str) -> String {
        let (status, answer) = self.status(request, body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Status and body of a call.
    pub fn status(&self, request: &str, body: &str) -> (u16, String) {
        self.try_status(request, body).unwrap()
    }

    fn try_status(&self, request: &str, body: &str) -> std::io::Result<(u16, String)> {
        let mut stream = bounded(&self.path("control"))?;
        write!(
            stream,
            "{request} HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ok((status, body.to_owned()))
    }

    /// A counter without labels of its metrics.
    pub fn counter(&self, name: &str) -> u64 {
        self.seconds(name) as u64
    }

    /// The same with a fraction.
    pub fn seconds(&self, name: &str) -> f64 {
        let text = self.answer("GET /metrics", "");
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap().trim().parse().unwrap()
    }

    /// Processor time that it has used.
    pub fn cpu_s(&self) -> f64 {
        // SAFETY: asks for a number.
        let per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        let of = |path: PathBuf| -> f64 {
            let stat = std::fs::read_to_string(path).unwrap();
            // After the name, which may have blanks: utime and stime are 14 and 15.
            let words: Vec<&str> = stat
                .rsplit(')')
                .next()
                .unwrap()
                .split_whitespace()
                .collect();
            let ticks = |at: usize| words[at - 3].parse::<f64>().unwrap();
            (ticks(14) + ticks(15)) / per_s
        };
        self.procs("stat").into_iter().map(of).sum()
    }

    pub fn view(&self, vm: &str) -> serde_json::Value {
        self.call(&format!("GET /v1/vms/{vm}"), "")
    }

    pub fn ask(&self, vm: &str, tier: &str, size_bytes: u64) {
        let body = format!("{{\"size_bytes\": {size_bytes}}}");
        self.call(&format!("PUT /v1/vms/{vm}/tiers/{tier}"), &body);
    }

    pub fn violations(&self, vm: &str) -> u64 {
        let view = self.view(vm);
        let counts = view["violations"].as_object().unwrap();
        counts.values().filter_map(serde_json::Value::as_u64).sum()
    }

    /// A file of each of its processes: the coordinator's, and those of workers, which it
    /// waits for.
    fn procs(&self, name: &str) -> Vec<PathBuf> {
        let began = Instant::now();
        let workers = loop {
            let vms = self.call("GET /v1/vms", "");
            let confined = |vm: &&serde_json::Value| !vm["worker"]["confinement"].is_null();
            let vms = vms.as_array().unwrap();
            if vms.iter().filter(confined).count() == vms.len() {
                let pid = |vm: &serde_json::Value| vm["worker"]["pid"].as_u64();
                break vms.iter().filter_map(pid).collect::<Vec<_>>();
            }
            assert!(began.elapsed() < LIMIT, "workers do not start");
            std::thread::sleep(Duration::from_millis(10));
        };
        ([u64::from(self.child.id())].into_iter().chain(workers))
            .map(|pid| Path::new("/proc").join(pid.to_string()).join(name))
            .collect()
    }

    /// Their own memory, without what they map of guests.
    pub fn rss_kib(&self) -> u64 {
        let of = |path: PathBuf| -> u64 {
            let status = std::fs::read_to_string(path).unwrap();
            let line = status
                .lines()
                .find(|line| line.starts_with("RssAnon"))
                .unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        self.procs("status").into_iter().map(of).sum()
    }

    pub fn open_files(&self) -> usize {
        // Of workers nobody but root may see that.
        let count = |path| Some(std::fs::read_dir(path).ok()?.count());
        self.procs("fd").into_iter().filter_map(count).sum()
    }

    /// Processes that it has started and that have not ended: also a worker of this moment, which
    /// has not said a word.
    pub fn started(&self) -> Vec<u32> {
        let numbers = (std::fs::read_dir("/proc").unwrap().flatten())
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers
            .filter(|pid: &u32| {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                let (_, rest) = stat.rsplit_once(") ").unwrap_or_default();
                let mut words = rest.split(' ');
                let runs = words.next().is_some_and(|state| !"ZX".contains(state));
                runs && words.next().and_then(|parent| parent.parse().ok()) == Some(self.child.id())
            })
            .collect()
    }

    /// The process that serves that machine's device.
    pub fn worker(&self, vm: &str) -> Option<u32> {
        let pid = self.view(vm)["worker"]["pid"].as_u64()?;
        u32::try_from(pid).ok()
    }
}

/// A connection on which a daemon that does not answer is a failure, not a wait.
pub fn bounded(path: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// A directory in memory, where guest memory lies: what the machine's disk is busy
/// with is no concern of these tests.
pub fn directory() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        tempfile::tempdir_in(shm).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// Memory of both tiers, if it is not there: somebody may use it.
pub fn make_memory(directory: &Path, name: &str) {
    for node in ["fmem", "smem"] {
        let path = directory.join(format!("{name}.{node}"));
        if !path.exists() {
            let file = File::create(path).unwrap();
            file.set_len(NODE_BYTES).unwrap();
        }
    }
}

/// Of a machine with that memory.
pub fn keys_of(directory: &Path, name: &str) -> [(&'static str, String); 3] {
    let at = |what: &str| {
        directory
            .join(format!("{name}.{what}"))
            .display()
            .to_string()
    };
    [
        ("socket", at("sock")),
        ("fmem", at("fmem")),
        ("smem", at("smem")),
    ]
}

/// The daemon that was built, or the one that DEMETERD names: an older one shall
/// fail where a mistake was mended.
pub fn program() -> std::ffi::OsString {
    std::env::var_os("DEMETERD").unwrap_or_else(|| env!("CARGO_BIN_EXE_demeterd").into())
}

/// What it logs is in `log` of that directory.
fn spawn(words: &[String], directory: &Path) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(directory.join("log"));
    Command::new(program())
        .args(words)
        .stdin(Stdio::null())
        .stderr(log.unwrap())
        .spawn()
        .unwrap()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
