// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs COMMAND as a child in its own cgroup, its output on the second serial
//! port, and reaps whatever else dies meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{PipeReader, Read, Write as _};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use demeter_agent::protocol::{COMMAND_CGROUP, CopyIn, GUEST_DIR, Record, Roi, Run};
use demeter_agent::roi;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::clock;
use crate::error::Error;
use crate::report;

const OUTPUT_PORT: &str = "/dev/ttyS1";

/// Makes the files that the host sent along appear where COMMAND expects them,
/// as links: they exist once in memory, outside the small overlay.
pub fn place_copies(copies: &[CopyIn]) -> Result<(), Error> {
    for copy in copies {
        let from = format!("{GUEST_DIR}/copy/{}", copy.name);
        if let Some(parent) = Path::new(&copy.to).parent() {
            fs::create_dir_all(parent).map_err(|cause| Error::file(parent, cause))?;
        }
        let _ = fs::remove_file(&copy.to);
        std::os::unix::fs::symlink(&from, &copy.to)
            .map_err(|cause| Error::file(&copy.to, cause))?;
    }
    Ok(())
}

/// Runs COMMAND to its end.
pub fn run(run: &Run) -> Record {
    let (reader, writer) = match std::io::pipe() {
        Ok(pipe) => pipe,
        Err(cause) => return not_started(&cause),
    };
    let Ok(writer_too) = writer.try_clone() else {
        return not_started(&std::io::Error::last_os_error());
    };
    // Closing our end tells the pump that COMMAND is gone.
    let Ok((done_seen, done)) = std::io::pipe() else {
        return not_started(&std::io::Error::last_os_error());
    };
    let pump = start_pump(reader, done_seen);

    let mut command = Command::new(&run.command[0]);
    command
        .args(&run.command[1..])
        .env_clear()
        .env(
            "PATH",
            "/demeter/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .env("TERM", "dumb")
        .envs(&run.env)
        .current_dir(if Path::new("/root").is_dir() {
            "/root"
        } else {
            "/"
        })
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(writer_too);
    let membership = OpenOptions::new()
        .write(true)
        .open(format!("{COMMAND_CGROUP}/cgroup.procs"))
        .ok();
    // SAFETY: between fork and exec only setsid and write on an open
    // descriptor are called; both are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::setsid();
            if let Some(procs) = &membership {
                libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1);
            }
            Ok(())
        });
    }

    let start_ns = clock::now_ns();
    if run.roi == Roi::Command {
        for (path, cause) in roi::begin() {
            eprintln!("demeter-agent: cannot write to {path}: {cause}");
        }
    }
    let spawned = command.spawn();
    // Our ends of the pipe must go, or the pump never sees its end.
    drop(command);
    let outcome = match spawned {
        Err(cause) => not_started(&cause),
        Ok(child) => wait_for(Pid::from_raw(child.id() as i32), start_ns),
    };
    // Also for a COMMAND that switched modelling on and died before off.
    roi::end();
    drop(done);
    let _ = pump.join();
    outcome
}

fn not_started(cause: &std::io::Error) -> Record {
    let status = if cause.kind() == std::io::ErrorKind::NotFound {
        127
    } else {
        126
    };
    Record::NotStarted {
        cause: cause.to_string(),
        status,
    }
}

/// Reaps every child until COMMAND itself is gone.
fn wait_for(command: Pid, start_ns: u64) -> Record {
    loop {
        let (status, signal) = match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, status)) if pid == command => (Some(status), None),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                (None, Some(signal as i32))
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => continue,
            // Cannot happen while COMMAND is our child.
            Err(_) => (None, None),
        };
        return Record::Exit {
            status,
            signal,
            guest_ns: clock::now_ns().saturating_sub(start_ns),
        };
    }
}

/// Copies COMMAND's output to the serial port. Ends when all writers are gone,
/// or, where COMMAND left a daemon behind, when the pipe is empty.
fn start_pump(mut reader: PipeReader, done: PipeReader) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut port: Option<File> = report::open_port(OUTPUT_PORT);
        let mut buffer = [0_u8; 4096];
        loop {
            let mut fds = [
                PollFd::new(reader.as_fd(), PollFlags::POLLIN),
                PollFd::new(done.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(nix::errno::Errno::EINTR) => continue,
                Err(_) => break,
                Ok(_) if fds[0].any() != Some(true) => break,
                Ok(_) => {}
            }
            match reader.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(bytes) => {
                    if let Some(port) = &mut port {
                        let _ = port.write_all(&buffer[..bytes]);
                    }
                }
            }
        }
        if let Some(port) = &port {
            let _ = nix::sys::termios::tcdrain(port);
        }
    })
}
