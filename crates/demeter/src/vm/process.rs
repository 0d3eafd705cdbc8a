// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program of the host that a run needs, such as QEMU: in a process group of
//! its own, gone when dropped.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::Error;

const POLL: Duration = Duration::from_millis(20);
/// What ends by itself when told so does it within this.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the module.
pub struct Process {
    child: Child,
    reaped: bool,
}

impl Process {
    /// Starts it; what it prints goes to `log`.
    pub fn start(mut command: Command, log: &Path) -> Result<Self, Error> {
        let output = File::create(log).map_err(|cause| Error::file("create", log, cause))?;
        let output_too = output
            .try_clone()
            .map_err(|cause| Error::file("create", log, cause))?;
        command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(output_too)
            .process_group(0);
        // SAFETY: prctl between fork and exec is async-signal-safe. It ends
        // the program even where this process is killed outright.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().map_err(|cause| Error::Testbed {
            cause: format!("cannot start {}: {cause}", command.get_program().display()),
        })?;
        Ok(Self {
            child,
            reaped: false,
        })
    }

    /// Its status, if it has ended.
    pub fn poll(&mut self) -> std::io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        self.reaped |= status.is_some();
        Ok(status)
    }
}

impl Process {
    /// CPU time that it has used, in seconds; of all its threads.
    pub fn cpu_s(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // After the name, which may hold anything: state is field 3, times are 14 and 15.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks: u64 = (fields.split_whitespace().skip(11).take(2))
            .map(|field| field.parse::<u64>().unwrap_or(0))
            .sum();
        let per_s = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
        Some(ticks as f64 / per_s as f64)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        let group = Pid::from_raw(self.child.id() as i32);
        let _ = killpg(group, Signal::SIGTERM);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(POLL);
        }
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}
