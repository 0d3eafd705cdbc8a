// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals while a managed program runs: it decides what they mean.
//!
//! The terminal sends SIGINT and SIGQUIT to the whole group, so the program has them
//! already and we leave it at that. What a process sends to us is passed on; what nobody
//! can pass on, SIGKILL, ends the program by SIGTERM: nobody waits for it any more.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};

use crate::interrupt;

static CHILD: AtomicI32 = AtomicI32::new(0);

const OF_TERMINALS: [Signal; 2] = [Signal::SIGINT, Signal::SIGQUIT];
const PASSED_ON: [Signal; 4] = [
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

extern "C" fn pass_on(signal: libc::c_int) {
    let child = CHILD.load(Ordering::Relaxed);
    if child > 0 {
        // SAFETY: `kill` may be called from handlers.
        unsafe { libc::kill(child, signal) };
    }
}

extern "C" fn pass_on_unless_of_terminal(
    signal: libc::c_int,
    information: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives valid information. It says 0 or less of what processes send.
    if unsafe { (*information).si_code } <= 0 {
        pass_on(signal);
    }
}

/// Starts the command with default signals and passes ours on to it.
///
/// While it starts, what is sent to us waits: before, it would end a start that nobody
/// wants any more; after, it belongs to the program. There is no moment between the two
/// in which a signal could be lost.
///
/// # Errors
/// Those of starting a program; `Interrupted` if we were told to stop before.
pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let mut held = SigSet::empty();
    for signal in PASSED_ON {
        held.add(signal);
    }
    let before = held.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let child = spawn_held(command, before);
    // What came meanwhile is passed on here.
    before.thread_set_mask()?;
    child
}

fn spawn_held(command: &mut Command, mask: SigSet) -> std::io::Result<Child> {
    for signal in PASSED_ON {
        // SAFETY: the handler only makes a call that handlers may make.
        unsafe { nix::sys::signal::signal(signal, SigHandler::Handler(pass_on)) }?;
    }
    if interrupt::raised() {
        return Err(std::io::ErrorKind::Interrupted.into());
    }
    let us = nix::unistd::getpid();
    // SAFETY: all that is called may be called between fork and exec.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            if nix::unistd::getppid() != us {
                // Too late to be told.
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            for signal in OF_TERMINALS.into_iter().chain(PASSED_ON) {
                nix::sys::signal::signal(signal, SigHandler::SigDfl)?;
            }
            Ok(mask.thread_set_mask()?)
        });
    }
    let child = command.spawn()?;
    CHILD.store(child.id() as i32, Ordering::Relaxed);
    let action = SigAction::new(
        SigHandler::SigAction(pass_on_unless_of_terminal),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in OF_TERMINALS {
        // SAFETY: the handler only makes a call that handlers may make.
        unsafe { nix::sys::signal::sigaction(signal, &action) }?;
    }
    Ok(child)
}
