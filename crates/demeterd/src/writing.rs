// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that writes ledgers and accounts, see [`crate::scribe`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use crate::accounts::Writer;
use crate::channel::{Channel, ChannelError};
use crate::ledger::{Entry, Ledger};
use crate::scribe::{Order, ScribeError};

fn text_of(fds: &mut Vec<OwnedFd>) -> io::Result<Vec<u8>> {
    let mut file = File::from(fds.pop().ok_or(io::ErrorKind::InvalidData)?);
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// The process: its standard input leads to the coordinator, and its answers go to its standard
/// output. It ends with the coordinator, when it has done what it was told.
pub fn process() -> ExitCode {
    // SAFETY: closes descriptors that this process has inherited and knows nothing of.
    unsafe { libc::close_range(3, u32::MAX, 0) };
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: no function is called. These mean the coordinator, who has things to be written
        // yet; service managers and terminals tell all of its processes.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
    // SAFETY: the number of the standard input; nobody else in this process uses it.
    let link = Channel::from_fd(unsafe { OwnedFd::from_raw_fd(0) });
    match write(&link, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("what writes ledgers and accounts ends: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(link: &Channel, answers: &mut impl Write) -> Result<(), ScribeError> {
    let Some((Order::Begin { directory }, _lock)) = link.receive::<Order>()? else {
        return Ok(());
    };
    let mut ledgers = BTreeMap::<String, Ledger>::new();
    let mut accounts = Writer::new(&directory);
    while let Some((order, mut fds)) = link.receive::<Order>()? {
        let is_done = match order {
            Order::Begin { .. } => continue,
            Order::Entry { vm, entry } => {
                let entry = match entry {
                    Some(entry) => serde_json::from_value(entry),
                    None => serde_json::from_slice(&text_of(&mut fds)?),
                };
                let entry: Entry = entry.map_err(ChannelError::from)?;
                match ledger(&mut ledgers, &directory, &vm) {
                    Ok(ledger) => ledger.add(entry),
                    Err(error) => tracing::error!(vm, "the ledger is not written: {error}"),
                }
                continue;
            }
            Order::Retire { vm } => match ledger(&mut ledgers, &directory, &vm) {
                Ok(ledger) => {
                    ledger.retire();
                    ledgers.remove(&vm);
                    true
                }
                Err(_) => false,
            },
            Order::Accounts { is_last } => accounts.write(&text_of(&mut fds)?, is_last),
            Order::Sync => true,
        };
        // Whoever asked may be gone.
        let _ = answers.write_all(if is_done { b"1" } else { b"0" });
        let _ = answers.flush();
    }
    Ok(())
}

fn ledger<'a>(
    ledgers: &'a mut BTreeMap<String, Ledger>,
    directory: &Path,
    vm: &str,
) -> io::Result<&'a mut Ledger> {
    use std::collections::btree_map::Entry::{Occupied, Vacant};
    Ok(match ledgers.entry(vm.to_owned()) {
        Occupied(ledger) => ledger.into_mut(),
        Vacant(place) => place.insert(Ledger::open(Some(directory), vm)?),
    })
}
