// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All virtual machines of this daemon, and how they are steered. Machines come
//! from the configuration and from the control interface, and go while others are
//! served.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use demeter_balloon::Parameters;
use demeter_balloon::view::{PolicyClock, PolicyView, VmView};
use tokio::sync::{Notify, watch};

use crate::accounts::Accounts;
use crate::args::Settings;
use crate::error::Error;
use crate::history::History;
use crate::keeper::{self, Keeper, Keeping, Listener};
use crate::ledger::Ledger;
use crate::measuring::Measuring;
use crate::policy::{self, Policy, PolicyError};
use crate::refusals::Refusals;
use crate::silent::Silent;
use crate::sockets::Access;
use crate::spec::{self, Description, Entitlement, SpecError};
use crate::state::{ANSWER_LIMIT, State};
use crate::store::{Changes, Chosen, Store};
use crate::vm::{Asker, Vm};

mod waiting;

/// What is divided, and by whom.
pub struct Steering {
    /// None: an external one, through the control interface.
    pub policy: Option<Arc<dyn Policy>>,
    /// FMEM of the host.
    pub fmem_pool_bytes: u64,
    /// Period of decisions.
    pub interval_ms: u64,
    /// Whose milliseconds these are.
    pub clock: PolicyClock,
    /// Counts what whoever steers has said.
    pub generation: u64,
    /// How often a policy has decided.
    pub decisions: u64,
    /// How long that took, with the requests, together.
    pub deciding: Duration,
}

/// Why the fleet stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// It is described wrongly, or name or socket are taken.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Nobody of that name.
    #[error("no machine '{name}'")]
    Unknown {
        /// Asked for.
        name: String,
        /// There are these.
        known: Vec<String>,
    },
    /// It would come back with the next start.
    #[error("machine '{0}' is in the configuration")]
    Configured(String),
    /// It cannot be listened for.
    #[error(transparent)]
    Start(Error),
    /// It would be forgotten.
    #[error("cannot remember it: {0}")]
    Store(#[from] io::Error),
    /// Who would come in the place of others could not be served.
    #[error(transparent)]
    Silent(#[from] Silent),
}

impl FleetError {
    /// The disk under the state directory does not answer.
    pub fn is_silence(&self) -> bool {
        match self {
            Self::Store(cause) => Silent::is(cause),
            Self::Start(error) => error.is_silence(),
            Self::Silent(_) => true,
            _ => false,
        }
    }
}

impl From<Error> for FleetError {
    fn from(error: Error) -> Self {
        match error {
            Error::Spec(error) => Self::Spec(error),
            error => Self::Start(error),
        }
    }
}

struct Member {
    vm: Arc<Vm>,
    /// None: it cannot be served yet, and its problem says why.
    keeper: Option<Keeper>,
    /// That is since the disk has not answered: its ledger could not be read.
    waits_for_disk: bool,
    /// As the control interface gave it; none: of the configuration.
    added: Option<Description>,
}

/// All of it. Locks are taken in the order of the fields.
pub struct Fleet {
    /// What the guests had.
    pub history: History,
    /// What they may have beyond their shares, for the next start.
    pub accounts: Arc<Accounts>,
    /// Which calls of others were refused.
    pub refusals: Arc<Refusals>,
    /// What the next start shall know; held over every change of the fleet.
    stored: Mutex<Stored>,
    members: RwLock<BTreeMap<String, Member>>,
    /// How often those who wait were tried again.
    tries: AtomicUsize,
    steering: Mutex<Steering>,
    /// Tells the one who decides that something was said.
    steered: Notify,
    changes: watch::Sender<u64>,
    access: Access,
    state: Option<Arc<State>>,
    parameters: Parameters,
    keeping: Keeping,
    measuring: Measuring,
    /// The same for decisions.
    measuring_to_decide: Measuring,
}

struct Stored {
    store: Option<(Store, Arc<State>)>,
    changes: Changes,
    configured: PolicyView,
    classes: BTreeMap<String, Entitlement>,
}

impl Stored {
    /// Remembers, or changes nothing.
    fn change(&mut self, body: impl FnOnce(&mut Changes)) -> io::Result<()> {
        let mut changes = self.changes.clone();
        body(&mut changes);
        if let Some((store, state)) = &self.store {
            let (theirs, wanted) = (store.clone(), changes.clone());
            let write = move |is_wanted: &dyn Fn() -> bool| theirs.write(&wanted, is_wanted);
            match state.files.call(ANSWER_LIMIT, write) {
                Ok(written) => written?,
                Err(silent) => {
                    if silent.may_be_done {
                        take_back(store, state, &self.changes);
                    }
                    return Err(silent.into());
                }
            }
        }
        self.changes = changes;
        Ok(())
    }

    /// A choice that was given up does not come back when what was configured then is configured
    /// again. Who starts does not wait for the disk.
    fn forget_given_up(&mut self) {
        if !self.changes.forget_given_up(&self.configured) {
            return;
        }
        let Some((store, state)) = self.store.clone() else {
            return;
        };
        let changes = self.changes.clone();
        state.files.push(move || {
            if let Err(error) = store.write(&changes, &|| true) {
                tracing::error!(
                    "a policy that was chosen before the configuration had another one may come \
                     back with it: {error}; next: make room in the state directory and ask for \
                     any other change"
                );
            }
        });
    }
}

/// What was refused may be written yet: what is true is, after it.
fn take_back(store: &Store, state: &State, changes: &Changes) {
    let (store, changes) = (store.clone(), changes.clone());
    state.files.push(move || {
        if let Err(error) = store.write(&changes, &|| true) {
            tracing::error!(
                "what was refused since the disk did not answer may be there after a restart: \
                 {error}; next: make room in the state directory and ask for any other change"
            );
        }
    });
}

impl Fleet {
    /// As configured, and as the control interface left it.
    pub fn start(settings: Settings, state: Option<Arc<State>>) -> Result<Self, Error> {
        let directory = state.as_ref().map(|state| state.directory());
        let stored = match directory {
            Some(directory) => Store::new(directory).read()?,
            None => Changes::default(),
        };
        let policy = stored.policy(&settings.policy);
        let fleet = Self {
            accounts: Arc::new(Accounts::open(directory, policy.clock)),
            history: History::new(settings.parameters.instance, settings.history_interval),
            refusals: Arc::default(),
            members: RwLock::default(),
            tries: AtomicUsize::new(0),
            steering: Mutex::new(Steering {
                policy: policy::by_name(&policy.name).flatten(),
                fmem_pool_bytes: policy.fmem_pool_bytes,
                interval_ms: policy.interval_ms,
                clock: policy.clock,
                generation: 0,
                decisions: 0,
                deciding: Duration::ZERO,
            }),
            steered: Notify::new(),
            changes: watch::channel(0).0,
            access: settings.access,
            parameters: settings.parameters,
            keeping: settings.keeping,
            measuring: Measuring::new(Asker::Views),
            measuring_to_decide: Measuring::new(Asker::Decisions),
            stored: Mutex::new(Stored {
                store: (state.clone()).map(|state| (Store::new(state.directory()), state)),
                changes: stored.clone(),
                configured: settings.policy,
                classes: settings.classes.clone(),
            }),
            state,
        };
        let mut first = None;
        for spec in settings.vms {
            match fleet.begin(spec.clone(), None) {
                Ok(_) => {}
                Err(error) if error.is_silence() => fleet.let_wait(spec, None, &error),
                // The others shall be served even so.
                Err(error) if waiting::is_of_its_socket(&error) => {
                    fleet.let_wait(spec, None, &error);
                    first.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        for description in stored.vms {
            fleet.begin_added(description, &settings.classes);
        }
        // Whoever starts a daemon that could serve nobody is told so at once.
        if let Some(error) = first
            && !fleet.may_serve_anybody()
        {
            return Err(error);
        }
        fleet.stored().forget_given_up();
        Ok(fleet)
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one more machine, or one that has waited.
    fn begin(&self, spec: spec::Vm, added: Option<Description>) -> Result<Arc<Vm>, Error> {
        self.check(&spec)?;
        // A monitor that gets through waits until it is served, and its guest with it: that shall
        // not be for a disk. Nor is an inherited socket used up for nothing.
        let ledger = self.open_ledger(&spec)?;
        let listener = keeper::listen(&spec, self.access)?;
        self.begin_with(ledger, listener, spec, added)
    }

    fn open_ledger(&self, spec: &spec::Vm) -> Result<Ledger, Error> {
        Ledger::open(self.state.clone(), &spec.name).map_err(|cause| {
            let state = self.state.as_ref();
            let directory = state.map_or(Path::new(""), |state| state.directory());
            let action = match Silent::is(&cause) {
                true => "read a ledger in",
                false => "write a ledger in",
            };
            Error::file(action, directory, cause)
        })
    }

    /// Nobody who is served has its name or socket.
    fn check(&self, spec: &spec::Vm) -> Result<(), SpecError> {
        // Who waits has no socket, and its name may be of the very machine that begins now.
        self.check_beside(spec, |member| member.keeper.is_some())
    }

    /// None of those members has its name or socket.
    fn check_beside(
        &self,
        spec: &spec::Vm,
        counts: impl Fn(&Member) -> bool,
    ) -> Result<(), SpecError> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        (members.values().filter(|member| counts(member)))
            .try_for_each(|member| spec::check_fleet([&member.vm.spec, spec]))
    }

    /// The same on a socket that is there.
    fn begin_on(
        &self,
        listener: Listener,
        spec: spec::Vm,
        added: Option<Description>,
    ) -> Result<Arc<Vm>, Error> {
        self.begin_with(self.open_ledger(&spec)?, listener, spec, added)
    }

    fn begin_with(
        &self,
        ledger: Ledger,
        listener: Listener,
        spec: spec::Vm,
        added: Option<Description>,
    ) -> Result<Arc<Vm>, Error> {
        let name = spec.name.clone();
        let vm = Arc::new(Vm::new(spec, self.parameters, ledger, self.changes.clone()));
        let keeper = keeper::start(vm.clone(), listener, self.access, self.keeping)?;
        let member = Member {
            vm: vm.clone(),
            keeper: Some(keeper),
            waits_for_disk: false,
            added,
        };
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.insert(name, member);
        Ok(vm)
    }

    /// Serves it no more, and tells as whom it was served. Its guest keeps what it has.
    fn end(&self, name: &str) -> Option<Arc<Vm>> {
        let member = self.take(name)?;
        if let Some(keeper) = member.keeper {
            keeper.stop();
        }
        self.changed();
        Some(member.vm)
    }

    fn take(&self, name: &str) -> Option<Member> {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.remove(name)
    }

    fn changed(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// One more machine, from now on and after a restart.
    pub fn add(&self, description: Description) -> Result<Arc<Vm>, FleetError> {
        let mut stored = self.stored();
        let spec = description.clone().finish(&stored.classes)?;
        // One that waits is there, too.
        if self.vm(&spec.name).is_ok() {
            return Err(SpecError::NameTwice(spec.name).into());
        }
        self.check_waiting(&spec)?;
        // One that cannot be served leaves nothing behind, nor a ledger.
        self.check(&spec)?;
        let listener = keeper::listen(&spec, self.access)?;
        let vm = self.begin_on(listener, spec, Some(description.clone()))?;
        let kept = stored.change(|changes| {
            changes.vms.retain(|vm| vm.name != description.name);
            changes.vms.push(description);
        });
        if let Err(error) = kept {
            // What it was asked for meanwhile is nothing to the next one of its name.
            vm.ledger.abandon();
            self.end(&vm.spec.name);
            return Err(error.into());
        }
        self.changed();
        tracing::info!(vm = vm.spec.name, "added");
        Ok(vm)
    }

    /// One less.
    pub fn remove(&self, name: &str) -> Result<(), FleetError> {
        let mut stored = self.stored();
        let added = {
            let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
            members.get(name).map(|member| member.added.is_some())
        };
        let is_stored = stored.changes.vms.iter().any(|vm| vm.name == name);
        match added {
            // It was added, and is described in a way that cannot even be shown.
            None if is_stored => {}
            None => return Err(self.unknown(name)),
            Some(false) => return Err(FleetError::Configured(name.to_owned())),
            Some(true) => {}
        }
        stored.change(|changes| changes.vms.retain(|vm| vm.name != name))?;
        let member = self.take(name);
        // Before others come, one of whom may have a socket of its own there.
        if let Some(keeper) = member.as_ref().and_then(|member| member.keeper.as_ref()) {
            keeper.remove_file();
        }
        match &member {
            Some(member) if member.keeper.is_some() => member.vm.ledger.retire(),
            // Who waits has none open: what was there of it goes as well.
            _ => {
                if let Ok(ledger) = Ledger::open(self.state.clone(), name) {
                    ledger.retire();
                }
            }
        }
        // Its guest may take its time: others come and go meanwhile.
        drop(stored);
        if let Some(keeper) = member.and_then(|member| member.keeper) {
            keeper.stop();
        }
        self.changed();
        tracing::info!(vm = name, "removed");
        Ok(())
    }

    /// Takes over a configuration that was read anew: machines that are not in it
    /// any more go, new ones come, entitlements change; what is as before is not
    /// touched. Machines of the control interface stay.
    pub fn reload(&self, settings: Settings) -> Result<(), FleetError> {
        let mut stored = self.stored();
        let fresh: BTreeMap<String, spec::Vm> = (settings.vms.into_iter())
            .map(|vm| (vm.name.clone(), vm))
            .collect();
        let (mut gone, mut same) = (Vec::new(), Vec::new());
        {
            let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
            for (name, member) in members.iter() {
                if member.added.is_some() {
                    continue;
                }
                match fresh.get(name) {
                    Some(spec) if member.keeper.is_some() && member.vm.is_at(spec) => {
                        same.push((member.vm.clone(), spec.share.clone()));
                    }
                    _ => gone.push(name.clone()),
                }
            }
        }
        // Nobody is taken away whose successor could not be served.
        if let Some(state) = self.state.as_ref().filter(|_| !gone.is_empty()) {
            let directory = state.directory().to_owned();
            let look = move |_: &dyn Fn() -> bool| std::fs::read_dir(directory).map(drop);
            state.reads.call(ANSWER_LIMIT, look)??;
        }
        // Nor is a choice given up that would come back.
        if stored.changes.clone().forget_given_up(&settings.policy) {
            stored.change(|changes| {
                changes.forget_given_up(&settings.policy);
            })?;
        }
        for (vm, share) in &same {
            vm.set_share(share.clone());
            vm.set_unserved(None);
        }
        let (mut listeners, failed_moves) = self.make_room(&gone, &fresh);
        gone.retain(|name| !failed_moves.contains_key(name));
        let ended: Vec<_> = gone.iter().filter_map(|name| self.end(name)).collect();
        ended.iter().for_each(|vm| vm.ledger.retry_at_last());
        if let Some(state) = self.state.as_ref().filter(|_| !gone.is_empty()) {
            let written = state.ledgers.wait(state.ledgers.last(), ANSWER_LIMIT);
            let why = match &written {
                Err(silent) => silent.to_string(),
                Ok(()) => "the last ones are not written".to_owned(),
            };
            let is_replaced = |vm: &&Arc<Vm>| fresh.contains_key(&vm.spec.name);
            for vm in ended.iter().filter(is_replaced) {
                if written.is_err() || vm.ledger.is_behind() {
                    let name = &vm.spec.name;
                    tracing::error!(
                        "who comes in the place of {name} may begin with older sizes: {why}"
                    );
                }
            }
        }
        let mut failed = None;
        for (name, spec) in fresh {
            if same.iter().any(|(vm, _)| vm.spec.name == name) || failed_moves.contains_key(&name) {
                continue;
            }
            let begun = match listeners.remove(&name) {
                Some(listener) => self.begin_on(listener, spec.clone(), None),
                None => self.begin(spec.clone(), None),
            };
            if let Err(error) = begun {
                self.let_wait(spec, None, &error);
                failed.get_or_insert(error);
            }
        }
        failed = failed.or(failed_moves.into_values().next());
        self.entitle_added(&settings.classes);
        for description in &stored.changes.vms {
            if !self.is_served(&description.name) {
                self.begin_added(description.clone(), &settings.classes);
            }
        }
        stored.classes = settings.classes;
        if stored.configured != settings.policy {
            stored.configured = settings.policy.clone();
            self.steer(&settings.policy);
        }
        self.changed();
        tracing::info!("configuration read anew");
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Who decides from now on, and after a restart.
    pub fn set_policy(&self, wish: &PolicyView) -> Result<(), SetPolicyError> {
        policy::check(wish)?;
        let mut stored = self.stored();
        let chosen = Chosen {
            policy: wish.clone(),
            instead_of: stored.configured.clone(),
        };
        stored.change(|changes| changes.policy = Some(chosen))?;
        self.steer(wish);
        Ok(())
    }

    fn steer(&self, wish: &PolicyView) {
        self.with_steering(|steering| {
            steering.policy = policy::by_name(&wish.name).flatten();
            steering.fmem_pool_bytes = wish.fmem_pool_bytes;
            steering.interval_ms = wish.interval_ms;
            steering.clock = wish.clock;
            steering.generation += 1;
        });
        self.steered.notify_one();
        let listens = ["guaranteed", "pressure", "working-set"].contains(&wish.name.as_str());
        for vm in self.vms().iter().filter(|_| listens) {
            if vm.share().fmem_ceiling_bytes.is_none() {
                tracing::warn!(
                    vm = vm.spec.name,
                    "has no fmem-ceiling, and '{}' goes by what guests say",
                    wish.name
                );
            }
            if wish.name == "working-set" && vm.share().memory_bytes.is_none() {
                tracing::warn!(
                    vm = vm.spec.name,
                    "has no memory=, and 'working-set' may give it all that its machine was \
                     started with"
                );
            }
        }
        tracing::info!(policy = wish.name, "policy");
    }

    /// Until whoever steers says something, or has since this was last waited for.
    pub async fn steered(&self) {
        self.steered.notified().await;
    }

    /// All machines by name.
    pub fn vms(&self) -> Vec<Arc<Vm>> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.values().map(|member| member.vm.clone()).collect()
    }

    /// The machine of that name.
    pub fn vm(&self, name: &str) -> Result<Arc<Vm>, FleetError> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let found = members.get(name).map(|member| member.vm.clone());
        drop(members);
        found.ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> FleetError {
        FleetError::Unknown {
            name: name.to_owned(),
            known: (self.vms().iter()).map(|vm| vm.spec.name.clone()).collect(),
        }
    }

    /// As the control interface shows them, with what is allocated now.
    pub async fn views(&self) -> Vec<VmView> {
        let vms = self.vms();
        self.measuring.measure(&vms).await;
        vms.iter().map(|vm| vm.view()).collect()
    }

    /// As [`Self::views`], each with its machine: for a decision.
    pub async fn seen(&self) -> Vec<(Arc<Vm>, VmView)> {
        let vms = self.vms();
        self.measuring_to_decide.measure(&vms).await;
        (vms.into_iter())
            .map(|vm| {
                let view = vm.view();
                (vm, view)
            })
            .collect()
    }

    /// As [`Self::views`], of one.
    pub async fn view_of(&self, vm: &Arc<Vm>) -> VmView {
        self.measuring.measure(std::slice::from_ref(vm)).await;
        vm.view()
    }

    /// Records for ever what the guests have.
    pub async fn record(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(self.history.interval);
        // A host that was asleep has no points of that time.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.history.record(&self.seen().await);
        }
    }

    /// Has accounts written when it is time. Nobody waits for the disk, nor do many of them where
    /// it does not answer.
    pub fn keep_accounts(&self) {
        if let Some(state) = &self.state
            && state.silent_for() < ANSWER_LIMIT
            && self.accounts.is_due(Instant::now())
        {
            let accounts = self.accounts.clone();
            state.files.push(move || accounts.write());
        }
    }

    /// Has ledgers that a full disk did not take written again when it is time.
    pub fn keep_ledgers(&self) {
        if self.disk_silent_for() < ANSWER_LIMIT {
            let now = Instant::now();
            self.vms().iter().for_each(|vm| vm.ledger.retry(now));
        }
    }

    /// Entries of all ledgers that are to be written and are not.
    pub fn unwritten_entries(&self) -> u64 {
        let vms = self.vms();
        vms.iter().map(|vm| vm.ledger.unwritten() as u64).sum()
    }

    /// The last ones, and all that waits for the disk: so long. What is not written is told.
    pub fn keep_all(&self, limit: Duration) {
        let Some(state) = &self.state else {
            return;
        };
        let accounts = self.accounts.clone();
        let end = Instant::now() + limit;
        let ledgers = state.ledgers.last();
        let files = state.files.push(move || accounts.write_at_stop());
        let kept = state.files.wait(files, limit);
        let left = || end.saturating_duration_since(Instant::now());
        let are_written = state.ledgers.wait(ledgers, left());
        let vms = self.vms();
        // Whoever makes room restarts the daemon next.
        vms.iter().for_each(|vm| vm.ledger.retry_at_last());
        if are_written.is_ok() && vms.iter().any(|vm| vm.ledger.is_behind()) {
            // Guests go on.
            let _ = state.ledgers.wait(state.ledgers.last(), left());
        }
        let behind = vms.iter().filter(|vm| vm.ledger.is_behind());
        let names: Vec<&str> = behind.map(|vm| vm.spec.name.as_str()).collect();
        let mut lost = Vec::new();
        if kept.is_err() {
            lost.push("accounts of guests".to_owned());
        }
        if !names.is_empty() {
            lost.push(format!("the last sizes of {}", names.join(", ")));
        }
        if lost.is_empty() && are_written.is_err() {
            lost.push("who was removed".to_owned());
        }
        if lost.is_empty() {
            return;
        }
        let why = match kept.and(are_written) {
            Err(Silent { .. }) => "the disk under the state directory does not answer",
            Ok(()) => "as told above",
        };
        tracing::error!(
            "not written ({why}): {}; the next start goes back to those of before; next: look \
             after {} and its disk",
            lost.join(", "),
            state.directory().display()
        );
    }

    /// How long the disk under the state directory has not answered.
    pub fn disk_silent_for(&self) -> Duration {
        let state = self.state.as_ref();
        state.map_or(Duration::ZERO, |state| state.silent_for())
    }

    /// Counts changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Runs `body` on the steering.
    pub fn with_steering<T>(&self, body: impl FnOnce(&mut Steering) -> T) -> T {
        let mut steering = self.steering.lock().unwrap_or_else(PoisonError::into_inner);
        body(&mut steering)
    }

    /// Who decides.
    pub fn policy_view(&self) -> PolicyView {
        self.with_steering(|steering| PolicyView {
            name: steering
                .policy
                .as_ref()
                .map_or(policy::EXTERNAL, |policy| policy.name())
                .to_owned(),
            fmem_pool_bytes: steering.fmem_pool_bytes,
            interval_ms: steering.interval_ms,
            clock: steering.clock,
        })
    }
}

/// Why the policy stays.
#[derive(Debug, thiserror::Error)]
pub enum SetPolicyError {
    /// It cannot decide.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// It would be forgotten.
    #[error("cannot remember it: {0}")]
    Store(#[from] io::Error),
}

#[cfg(test)]
mod tests;
