// SPDX-License-Identifier: Apache-2.0 OR MIT
//! After a restart of the daemon, monitors have devices whose daemon is gone. Where
//! a monitor takes commands (`qmp`), its device is put in anew without anybody's
//! help.

use std::io;
use std::sync::Arc;
use std::thread;

use demeter_qmp::{Place, Plug, Qmp, QmpError};

use crate::spec::Socket;
use crate::vm::Vm;

/// Looks once, in a thread of its own: a monitor may keep us waiting.
pub fn look_after(vm: Arc<Vm>) {
    let Some(path) = vm.spec.qmp.clone() else {
        return;
    };
    let name = vm.spec.name.clone();
    let looked =
        thread::Builder::new()
            .name(format!("qmp {name}"))
            .spawn(move || match Qmp::connect(&path, || false) {
                // Not started yet: it will connect by itself.
                Err(QmpError::Connect { cause, .. }) if is_absent(&cause) => {
                    tracing::info!(vm = vm.spec.name, "no monitor takes commands: {cause}");
                }
                Err(error) => tell(&vm, &error),
                Ok(mut qmp) => match mend(&vm, &mut qmp) {
                    Ok(true) => tracing::info!(vm = vm.spec.name, "plugged in anew"),
                    Ok(false) => {}
                    Err(error) => tell(&vm, &error),
                },
            });
    if let Err(error) = looked {
        tracing::error!(vm = name, "cannot start a thread: {error}");
    }
}

fn is_absent(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn tell(vm: &Vm, error: &QmpError) {
    let next = error.next();
    tracing::error!(
        vm = vm.spec.name,
        "not plugged in anew: {error}; next: {next}"
    );
}

/// Puts the device in anew if it is cut off.
fn mend(vm: &Vm, qmp: &mut Qmp) -> Result<bool, QmpError> {
    let place = Place {
        socket: match &vm.spec.socket {
            Socket::Path(path) => Some(path.to_string_lossy().into_owned()),
            Socket::Descriptor(_) => None,
        },
        ..Place::default()
    };
    let plug = match Plug::look(qmp, &place) {
        Ok(plug) => plug,
        // Somebody has taken it out and will put it in.
        Err(QmpError::Missing { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    if !plug.is_in || !plug.is_cut {
        return Ok(false);
    }
    plug.take_out(qmp)?;
    plug.put_in(qmp)?;
    Ok(true)
}
