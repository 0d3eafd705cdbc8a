// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machines that cannot be served, or not where they should be: they are there even so, say
//! why, and are tried again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{Fleet, Member};
use crate::error::Error;
use crate::keeper::{self, Listener};
use crate::ledger::Ledger;
use crate::replug;
use crate::sockets::SocketError;
use crate::spec::{self, Description, Entitlement, Socket, SpecError};
use crate::vm::Vm;

/// Who waits is tried again so often.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// It may be mended while we serve others.
pub(super) fn is_of_its_socket(error: &Error) -> bool {
    // Not a descriptor: its number may be another file's by then.
    matches!(error, Error::Socket(error) if !matches!(error, SocketError::NotListening(_)))
}

/// Nobody listens on its socket, and there is a place for it. Whoever listens is not asked again
/// and again: each time a worker of that daemon would be busy with us, and not with its guest. A
/// reload asks.
fn may_come(spec: &spec::Vm) -> bool {
    match &spec.socket {
        Socket::Path(path) => !path.exists() && has_directory(path),
        Socket::Descriptor(_) => false,
    }
}

fn has_directory(path: &Path) -> bool {
    // Of a bare name it is empty, and is where we are.
    (path.parent()).is_none_or(|parent| parent.as_os_str().is_empty() || parent.is_dir())
}

/// What the view says of it.
fn unserved(error: &Error) -> String {
    let then = match error.is_silence() {
        true => "it is tried again",
        false => "then POST /v1/reload",
    };
    format!("cannot be served: {error}; next: {}, {then}", error.next())
}

/// One socket by two names is one socket.
fn is_same(a: &Socket, b: &Socket) -> bool {
    let file = |socket: &Socket| match socket {
        Socket::Path(path) => fs::metadata(path).ok().map(|file| (file.dev(), file.ino())),
        Socket::Descriptor(_) => None,
    };
    a == b || file(a).is_some_and(|one| file(b) == Some(one))
}

/// It stays as it was, and says so.
fn stays(vm: &Vm, spec: &spec::Vm, error: &Error) {
    tracing::error!(
        vm = spec.name,
        "stays as it was: {error}; next: {}",
        error.next()
    );
    let words = unserved(error);
    vm.set_unserved(Some(&format!(
        "it is served as before it was configured anew: {words}"
    )));
    vm.set_share(spec.share.clone());
}

/// What it was added with cannot be any more: its class is gone, or contradicts it.
fn keeps_its_share(vm: &Vm, error: &SpecError) {
    let words = format!(
        "it is entitled to what it was before the configuration was read anew, and a restart \
         would not serve it: {error}; next: mend its class in the file, then POST /v1/reload"
    );
    tracing::error!(vm = vm.spec.name, "{words}");
    vm.set_unserved(Some(&words));
}

impl Fleet {
    /// Classes say also what those who were added and are served are entitled to.
    pub(super) fn entitle_added(&self, classes: &BTreeMap<String, Entitlement>) {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        for member in members.values().filter(|member| member.keeper.is_some()) {
            let Some(added) = &member.added else {
                continue;
            };
            match added.clone().finish(classes) {
                Ok(spec) => {
                    member.vm.set_share(spec.share);
                    member.vm.set_unserved(None);
                }
                Err(error) => keeps_its_share(&member.vm, &error),
            }
        }
    }

    /// It serves somebody, or will when the disk answers.
    pub(super) fn may_serve_anybody(&self) -> bool {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        (members.values()).any(|member| member.keeper.is_some() || member.waits_for_disk)
    }

    /// The disk is still at what somebody has wanted to read, and whoever asks would wait.
    fn is_disk_busy(&self) -> bool {
        let state = self.state.as_ref();
        state.is_some_and(|state| !state.reads.silent_for().is_zero())
    }

    /// Somebody keeps a worker for it.
    pub fn is_served(&self, name: &str) -> bool {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members
            .get(name)
            .is_some_and(|member| member.keeper.is_some())
    }

    /// Nobody who waits has its socket: he was there first.
    pub(super) fn check_waiting(&self, spec: &spec::Vm) -> Result<(), SpecError> {
        self.check_beside(spec, |member| {
            member.keeper.is_none() && member.vm.spec.name != spec.name
        })
    }

    /// Serves one that was added earlier, or has it wait.
    pub(super) fn begin_added(
        &self,
        description: Description,
        classes: &BTreeMap<String, Entitlement>,
    ) {
        let name = description.name.clone();
        let is_configured = {
            let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
            (members.get(&name)).is_some_and(|member| member.added.is_none())
        };
        if is_configured {
            tracing::error!(
                vm = name,
                "was added earlier, and the configuration has one of its name, which is taken; \
                 next: take it out of the file, then POST /v1/reload"
            );
            return;
        }
        let spec = match description.clone().finish(classes) {
            Ok(spec) => spec,
            Err(error) => {
                // The rest of it can be shown.
                match description.clone().without_class().finish(classes) {
                    Ok(spec) => self.let_wait(spec, Some(description), &error.into()),
                    Err(_) => tracing::error!(
                        vm = name,
                        "was added earlier and cannot be served: {error}; next: remove it, or \
                         mend the configuration and reload"
                    ),
                }
                return;
            }
        };
        let begun = (self.check_waiting(&spec).map_err(Error::from))
            .and_then(|()| self.begin(spec.clone(), Some(description.clone())));
        if let Err(error) = begun {
            self.let_wait(spec, Some(description), &error);
        }
    }

    /// One that cannot be served is there even so: it says why, can be removed, and is tried
    /// again by [`Self::try_again`] and with each reload.
    pub(super) fn let_wait(&self, spec: spec::Vm, added: Option<Description>, error: &Error) {
        let name = spec.name.clone();
        tracing::error!(
            vm = name,
            "cannot be served: {error}; next: {}",
            error.next()
        );
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        let is_there = |member: &Member| {
            member.keeper.is_some() || (member.added.is_none() && added.is_some())
        };
        if members.get(&name).is_some_and(is_there) {
            return;
        }
        let Ok(ledger) = Ledger::open(None, &name) else {
            return;
        };
        let vm = Vm::new(spec, self.parameters, ledger, self.changes.clone());
        vm.set_unserved(Some(&unserved(error)));
        let member = Member {
            vm: Arc::new(vm),
            keeper: None,
            waits_for_disk: error.is_silence(),
            added,
        };
        members.insert(name, member);
    }

    /// Serves who could not be served before and can be now.
    pub fn try_again(&self) -> Vec<Arc<Vm>> {
        let stored = self.stored();
        let is_disk_busy = self.is_disk_busy();
        let may_be_served = |member: &&Member| {
            if member.waits_for_disk {
                !is_disk_busy
            } else {
                may_come(&member.vm.spec)
            }
        };
        let mut waiting: Vec<_> = {
            let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
            (members.values())
                .filter(|member| member.keeper.is_none())
                .filter(may_be_served)
                .map(|member| {
                    let spec = member.vm.spec.clone();
                    (spec, member.added.clone(), member.waits_for_disk)
                })
                .collect()
        };
        // Another one first each time: what of the disk never answers would hide all others.
        if !waiting.is_empty() {
            let first = self.tries.fetch_add(1, Ordering::Relaxed) % waiting.len();
            waiting.rotate_left(first);
        }
        let mut served = Vec::new();
        for (spec, added, waits_for_disk) in waiting {
            let spec = match &added {
                Some(added) => match added.clone().finish(&stored.classes) {
                    Ok(spec) => spec,
                    Err(_) => continue,
                },
                None => spec,
            };
            let name = spec.name.clone();
            let begun = if waits_for_disk {
                self.begin(spec, added)
            } else {
                // Its ledger need not be read as long as there is no socket.
                (self.check(&spec).map_err(Error::from))
                    .and_then(|()| keeper::listen(&spec, self.access))
                    .and_then(|listener| self.begin_on(listener, spec, added))
            };
            match begun {
                Ok(vm) => {
                    tracing::info!(vm = name, "can be served now");
                    served.push(vm);
                }
                // It stays as it is; why may be something else by now.
                Err(error) => {
                    self.waits_on(&name, &error);
                    // Who is asked next would not wait for it, and be said to be silent, too.
                    if error.is_silence() {
                        break;
                    }
                }
            }
        }
        drop(stored);
        if !served.is_empty() {
            self.changed();
        }
        served
    }

    fn waits_on(&self, name: &str, error: &Error) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(member) = members.get_mut(name) {
            member.waits_for_disk = error.is_silence();
            member.vm.set_unserved(Some(&unserved(error)));
        }
    }

    /// For ever, from time to time: who waits, and what a full disk did not take.
    pub async fn keep_trying(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TRY_AGAIN);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let fleet = self.clone();
            self.keep_ledgers();
            let tried = tokio::task::spawn_blocking(move || fleet.try_again()).await;
            for vm in tried.into_iter().flatten() {
                replug::look_after(vm);
            }
        }
    }

    /// Makes the new sockets of those that move before they are let go: who could not be served
    /// there stays where it is, and says so.
    pub(super) fn make_room(
        &self,
        gone: &[String],
        fresh: &BTreeMap<String, spec::Vm>,
    ) -> (BTreeMap<String, Listener>, BTreeMap<String, Error>) {
        let (mut listeners, mut failed) = (BTreeMap::new(), BTreeMap::new());
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let moving: Vec<_> = (gone.iter())
            .filter_map(|name| Some((name, members.get(name)?, fresh.get(name)?)))
            .filter(|(_, member, _)| member.keeper.is_some())
            .collect();
        // One that stays where it is keeps whom it is in the way of: so until nobody is added.
        loop {
            let before = failed.len();
            for (name, member, spec) in &moving {
                if listeners.contains_key(*name) || failed.contains_key(*name) {
                    continue;
                }
                let has_it = |other: &&Member| {
                    other.keeper.is_some() && is_same(&other.vm.spec.socket, &spec.socket)
                };
                let listener = match members.values().find(has_it) {
                    // It can only be made when that one has ended.
                    Some(other)
                        if gone.contains(&other.vm.spec.name)
                            && !failed.contains_key(&other.vm.spec.name) =>
                    {
                        continue;
                    }
                    Some(_) => Err(SpecError::SocketTwice((*name).clone()).into()),
                    None => keeper::listen(spec, self.access),
                };
                match listener {
                    Ok(listener) => {
                        listeners.insert((*name).clone(), listener);
                    }
                    Err(error) => {
                        stays(&member.vm, spec, &error);
                        failed.insert((*name).clone(), error);
                    }
                }
            }
            if failed.len() == before {
                break;
            }
        }
        drop(members);
        (listeners, failed)
    }
}
