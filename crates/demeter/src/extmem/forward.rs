// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals while a managed program runs: it decides what they mean.
//!
//! The terminal sends SIGINT and SIGQUIT to the whole group, so the program has them
//! already and we ignore them. What somebody sends to us alone is passed on.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, Ordering};

static CHILD: AtomicI32 = AtomicI32::new(0);

const IGNORED: [libc::c_int; 2] = [libc::SIGINT, libc::SIGQUIT];
const PASSED_ON: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

extern "C" fn pass_on(signal: libc::c_int) {
    let child = CHILD.load(Ordering::Relaxed);
    if child > 0 {
        // SAFETY: `kill` may be called from handlers.
        unsafe { libc::kill(child, signal) };
    }
}

/// Starts the command with default signals and passes ours on to it.
pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in IGNORED.into_iter().chain(PASSED_ON) {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    let child = command.spawn()?;
    CHILD.store(child.id() as i32, Ordering::Relaxed);
    for signal in IGNORED {
        // SAFETY: sets a disposition.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    for signal in PASSED_ON {
        // SAFETY: the handler only makes a call that handlers may make.
        unsafe { libc::signal(signal, pass_on as *const () as libc::sighandler_t) };
    }
    Ok(child)
}
