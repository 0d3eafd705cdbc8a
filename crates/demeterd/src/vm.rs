// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One virtual machine as the coordinator sees it: what is wished, what its worker tells,
//! and the ledger. Its device is the worker's, see [`crate::guest`].

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use demeter_balloon::device::Parameters;
use demeter_balloon::view::{
    AccountView, Confinement, LastView, Sizing, Stage, TierView, VmView, WorkerView, tier_name,
    tier_node,
};
use demeter_balloon::wire::PAGE_SHIFT;
use demeter_balloon::{Event, TargetError};
use tokio::sync::watch;

use crate::channel::{Channel, ChannelError};
use crate::ledger::{Entry, Ledger, What};
use crate::message::{Begin, Heard, News, NewsError, NodeNews, Order, Wish, Word, harmless};
use crate::quota::Telling;
use crate::spec;
use crate::tiers::{self, Allocated, Files, Known, MAX_SLOTS, Which};

use tell::{Told, is_entry, is_line};

mod tell;
#[cfg(test)]
mod tests;

/// What was allocated for a tier while it lay in these files.
struct Measured {
    which: Arc<Which>,
    allocated: Allocated,
}

struct State {
    /// To the worker, while there is one.
    link: Option<Arc<Channel>>,
    /// Its newest words.
    news: News,
    wishes: Vec<Option<Wish>>,
    next_ticket: u64,
    files: Arc<Files>,
    /// What the worker was last told of the tiers.
    known: Arc<Vec<Known>>,
    telling: Telling,
    statistics_at: Option<Instant>,
    sizing: Option<Sizing>,
    account: Option<AccountView>,
    /// What the host has allocated for each tier, when it was last measured. A monitor may hand
    /// the same files over again at any time, and a guest may make it do so: that hides nothing
    /// of what was seen.
    backing: Vec<Option<Measured>>,
    /// Somebody asks the system for that since then, by [`Asker`].
    measuring_since: [Option<Instant>; 2],
    /// The newest question to the worker.
    look: u64,
    /// When that was asked.
    looked: Instant,
    /// It was not answered in time, since then.
    mute_since: Option<Instant>,
    /// Why its device could not be put in anew, until it is in.
    not_plugged: Option<String>,
    /// Why it is not served, or not as it was configured anew.
    unserved: Option<String>,
    /// Nobody waits for the worker any more.
    is_given_up: bool,
    worker: WorkerView,
}

/// The system says within this what it has allocated, or it is not believed to; and the
/// worker how its guest is.
pub const MEASURING_LIMIT: Duration = Duration::from_secs(1);
/// A worker that does not answer for so long is ended.
const MUTE_LIMIT: Duration = Duration::from_secs(30);
/// What is wrong then.
const UNMEASURED: &str = "the host does not say what it has allocated for this guest: a file of its memory does not answer";
const MUTE: &str = "the worker of this guest does not answer";
/// What is wrong when memory went away.
const LOST: &str =
    "memory of this guest is gone: its monitor made a file shorter, or a page is broken";

/// Who asks what the host has allocated. Neither waits for the other, nor for its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// The control interface and metrics.
    Views,
    /// The policy.
    Decisions,
}

impl State {
    fn is_unmeasured(&self) -> bool {
        let is_late = |since: Instant| since.elapsed() >= MEASURING_LIMIT;
        self.measuring_since.into_iter().flatten().any(is_late)
    }

    fn is_in(&self, node: u16, which: &Arc<Which>) -> bool {
        self.files.which(node).is_some_and(|now| now.is(which))
    }

    fn set_backing(&mut self, node: u16, measured: Option<Measured>) {
        let at = usize::from(node);
        if self.backing.len() <= at {
            self.backing.resize_with(at + 1, || None);
        }
        self.backing[at] = measured;
    }

    fn backing(&self, node: u16) -> Option<Allocated> {
        let measured = self.backing.get(usize::from(node))?.as_ref()?;
        (self.is_in(node, &measured.which)).then_some(measured.allocated)
    }

    fn node(&self, node: u16) -> NodeNews {
        let known = self.news.nodes.get(usize::from(node));
        known.copied().unwrap_or_default()
    }

    fn wish(&self, node: u16) -> Option<Wish> {
        self.wishes.get(usize::from(node)).copied().flatten()
    }

    /// Forgets all that the guest said. Wishes stay.
    fn forget(&mut self, news: News) {
        self.news = news;
        self.files = Arc::default();
        self.statistics_at = None;
        self.sizing = None;
        self.backing.clear();
    }

    /// Tells the worker, if there is one. One that does not read what it is told is ended.
    fn order(&mut self, order: &Order) {
        if let Some(link) = self.link.take_if(|link| link.send_now(order, &[]).is_err()) {
            link.end();
        }
    }
}

/// Why a worker is not listened to any more.
#[derive(Debug, thiserror::Error)]
pub enum WordError {
    /// Not a message.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// What cannot be.
    #[error(transparent)]
    News(#[from] NewsError),
    /// Faster than it should.
    #[error("it talks too much")]
    Flood,
    /// More descriptors than a machine can have.
    #[error("its descriptors make no sense")]
    Files,
    /// Out of turn.
    #[error("it is ready twice")]
    Twice,
    /// It says why itself.
    #[error("{0}")]
    Failed(String),
    /// It is there, and nothing comes.
    #[error("it did not answer for {MUTE_LIMIT:?}")]
    Mute,
}

/// One virtual machine.
pub struct Vm {
    /// As configured; see [`Self::share`] for what it is entitled to.
    pub spec: spec::Vm,
    /// What it was given.
    pub ledger: Ledger,
    parameters: Parameters,
    share: Mutex<spec::Share>,
    state: Mutex<State>,
    /// News came.
    heard: Condvar,
    /// Deaths of workers after which nobody has plugged in anew yet.
    pub replugs: AtomicU32,
    /// Counts changes of any machine of the fleet.
    changes: watch::Sender<u64>,
}

impl Vm {
    /// Nobody connected. Sizes that an earlier daemon asked for are wished anew.
    pub fn new(
        spec: spec::Vm,
        mut parameters: Parameters,
        ledger: Ledger,
        changes: watch::Sender<u64>,
    ) -> Self {
        parameters.nr_nodes = spec.tiers.len() as u16;
        let mut wishes = vec![None; spec.tiers.len()];
        let mut next_ticket = 1;
        for (tier, balloon_bytes) in ledger.last_balloons() {
            // A tier that the machine has lost since then is no error.
            let node = tier_node(&tier).map_or(usize::MAX, usize::from);
            if let Some(wish) = wishes.get_mut(node) {
                *wish = Some(Wish {
                    balloon_pages: balloon_bytes >> PAGE_SHIFT,
                    ticket: next_ticket,
                });
                next_ticket += 1;
            }
        }
        let news = nothing(wishes.len());
        Self {
            share: Mutex::new(spec.share.clone()),
            spec,
            ledger,
            parameters,
            state: Mutex::new(State {
                link: None,
                news,
                wishes,
                next_ticket,
                files: Arc::default(),
                known: Arc::default(),
                telling: Telling::new(Instant::now()),
                statistics_at: None,
                sizing: None,
                account: None,
                backing: Vec::new(),
                measuring_since: [None; 2],
                look: 0,
                looked: Instant::now(),
                mute_since: None,
                not_plugged: None,
                unserved: None,
                is_given_up: false,
                worker: WorkerView::default(),
            }),
            heard: Condvar::new(),
            replugs: AtomicU32::new(0),
            changes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What a panicking thread left is consistent: changes are made as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it is entitled to now.
    pub fn share(&self) -> spec::Share {
        let share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
        share.clone()
    }

    /// What it is entitled to from now on.
    pub fn set_share(&self, share: spec::Share) {
        *self.share.lock().unwrap_or_else(PoisonError::into_inner) = share;
    }

    /// Has it the socket and the memory that are described there?
    pub fn is_at(&self, spec: &spec::Vm) -> bool {
        let mut now = self.spec.clone();
        now.share = spec.share.clone();
        now == *spec
    }

    /// A monitor is connected.
    pub fn is_connected(&self) -> bool {
        self.state().news.connected
    }

    /// Tell a new worker by `tell` what it has to know. Only then `link` leads to it: nobody can ask
    /// it anything before.
    pub fn begin<T>(
        &self,
        link: Arc<Channel>,
        pid: Option<u32>,
        uid: Option<u32>,
        tell: impl FnOnce(Begin) -> T,
    ) -> T {
        let mut state = self.state();
        state.mute_since = None;
        state.is_given_up = false;
        state.worker.pid = pid;
        state.worker.confinement = None;
        let told = tell(Begin {
            name: self.spec.name.clone(),
            nr_nodes: self.parameters.nr_nodes,
            instance: self.parameters.instance,
            statistics_interval_ms: self.parameters.statistics_interval_ms,
            violation_limit: self.parameters.violation_limit,
            uid,
            wishes: state.wishes.clone(),
        });
        state.link = Some(link);
        told
    }

    /// The worker is gone, and with it the monitor's connection. `why`: it should not be.
    pub fn worker_gone(&self, why: Option<&str>) {
        let why = why.map(harmless);
        let now = Instant::now();
        let mut state = self.state();
        let was_connected = state.news.connected;
        state.link = None;
        state.mute_since = None;
        state.forget(nothing(self.spec.tiers.len()));
        state.worker.pid = None;
        state.worker.confinement = None;
        let is_line = why.is_some() && state.telling.line(now);
        let died = why.as_ref().and_then(|why| {
            state.worker.deaths += 1;
            state.worker.last_death = Some(why.clone());
            state.telling.entry(now)
        });
        let cut = was_connected.then(|| state.telling.entry(now)).flatten();
        let deaths = state.worker.deaths;
        drop(state);
        self.heard.notify_all();
        let vm = self.spec.name.as_str();
        if let (true, Some(why)) = (is_line, &why) {
            tracing::error!(vm, deaths, "its worker died: {why}");
        }
        if let Some(left_out) = died {
            self.ledger.add(Entry {
                why,
                left_out,
                ..Entry::now(What::WorkerDied)
            });
        }
        if let Some(left_out) = cut {
            self.ledger.add(Entry {
                left_out,
                ..Entry::now(What::Disconnected)
            });
        }
        self.changed();
    }

    /// Nobody serves it, and that is not its worker's doing.
    pub fn set_problem(&self, problem: &str) {
        self.state().news.problem = Some(harmless(problem));
        self.changed();
    }

    /// It is not served, or not as it should be; none: it is.
    pub fn set_unserved(&self, why: Option<&str>) {
        let why = why.map(harmless);
        let before = std::mem::replace(&mut self.state().unserved, why.clone());
        if before != why {
            self.changed();
        }
    }

    /// Its device could not be put in anew.
    pub fn set_not_plugged(&self, why: &str) {
        self.state().not_plugged = Some(harmless(why));
        self.changed();
    }

    /// Takes what the worker says.
    pub fn hear(&self, word: Word, fds: Vec<OwnedFd>) -> Result<(), WordError> {
        let carries = matches!(word, Word::Files { .. });
        if carries == fds.is_empty() {
            return Err(WordError::Files);
        }
        if let Word::News(news) = &word
            && news.look > self.state().look
        {
            return Err(NewsError::Bound("a question").into());
        }
        let answers = matches!(&word, Word::News(news) if news.look > self.state().news.look);
        if !answers && !self.state().telling.news(Instant::now()) {
            return Err(WordError::Flood);
        }
        match word {
            Word::Ready(confinement) => self.ready(confinement),
            Word::Which => {
                let known = tiers::look(&self.spec.tiers);
                let mut state = self.state();
                state.known = Arc::new(known.clone());
                state.order(&Order::Known(known));
                Ok(())
            }
            Word::Files { nodes, first } => self.hear_files(&nodes, first, fds),
            Word::News(news) => {
                let news = news.check(self.spec.tiers.len())?;
                self.hear_news(news);
                Ok(())
            }
            Word::Failed(cause) => Err(WordError::Failed(harmless(&cause))),
        }
    }

    fn ready(&self, mut confinement: Confinement) -> Result<(), WordError> {
        confinement.missing.truncate(8);
        for missing in &mut confinement.missing {
            *missing = harmless(missing);
        }
        let mut state = self.state();
        if state.worker.confinement.is_some() {
            return Err(WordError::Twice);
        }
        // A thread has none.
        if state.worker.pid.is_some() {
            state.worker.confinement = Some(confinement);
        }
        drop(state);
        self.changed();
        Ok(())
    }

    /// Files of guest memory. Of tiers that are named by files, only those count.
    fn hear_files(&self, nodes: &[u16], first: bool, fds: Vec<OwnedFd>) -> Result<(), WordError> {
        let state = self.state();
        let (known, before) = (state.known.clone(), state.files.clone());
        drop(state);
        let mut of_tiers = if first {
            Vec::new()
        } else {
            before.tiers().to_vec()
        };
        of_tiers.resize_with(self.spec.tiers.len(), Vec::new);
        if nodes.len() != fds.len() {
            return Err(WordError::Files);
        }
        let mut seen: HashSet<_> = (of_tiers.iter().enumerate())
            .flat_map(|(node, files)| files.iter().map(move |file| (node, file)))
            .filter_map(|(node, file)| Some((node, tiers::known_identity(file)?)))
            .collect();
        for (node, fd) in nodes.iter().zip(fds) {
            let node = usize::from(*node);
            let files = of_tiers.get_mut(node).ok_or(WordError::Files)?;
            let file = File::from(fd);
            // Once each, however often it is sent: they are kept open.
            let is_new = tiers::known_identity(&file).is_none_or(|file| seen.insert((node, file)));
            if known.get(node).is_some_and(|known| known.may_be(&file)) && is_new {
                files.push(Arc::new(file));
            }
        }
        if of_tiers.iter().map(Vec::len).sum::<usize>() > MAX_SLOTS {
            return Err(WordError::Files);
        }
        let files = Arc::new(Files::of_tiers(of_tiers));
        self.state().files = files;
        Ok(())
    }

    fn hear_news(&self, mut news: News) {
        let heard = std::mem::take(&mut news.heard);
        let is_change = !heard.is_empty() || news.left_out > 0;
        let now = Instant::now();
        let mut state = self.state();
        if heard.contains(&Heard::Disconnected) {
            state.forget(nothing(self.spec.tiers.len()));
        }
        state.telling.skip(news.left_out);
        let has_statistics = news.statistics_count != state.news.statistics_count;
        if has_statistics && news.statistics.is_some() {
            state.statistics_at = Some(now);
        }
        let violations = news.violations.total();
        let hellos = (news.nodes.iter()).fold(0_u64, |sum, n| sum.saturating_add(n.traffic.hellos));
        // Tables come region by region: only with a driver is it whole.
        let greeted = heard
            .iter()
            .any(|heard| matches!(heard, Heard::Device(Event::Hello { .. })));
        let problem =
            (news.problem.clone()).filter(|_| greeted && hellos < 8 && state.telling.line(now));
        let lost = news.lost && !state.news.lost && state.telling.line(now);
        // A question that it has not heard of yet stays open.
        state.news = news;
        if state.news.connected {
            state.not_plugged = None;
        }
        if state.news.look >= state.look {
            state.mute_since = None;
        }
        let told: Vec<Told> = (heard.into_iter())
            .map(|event| Told {
                line: is_line(&event) && state.telling.line(now),
                entry: is_entry(&event).then(|| state.telling.entry(now)).flatten(),
                event,
            })
            .collect();
        drop(state);
        self.heard.notify_all();
        if let Some(problem) = problem {
            tracing::warn!(vm = self.spec.name, "{problem}");
        }
        if lost {
            tracing::error!(vm = self.spec.name, "{LOST}");
        }
        for told in told {
            self.tell(told, violations);
        }
        if is_change || has_statistics {
            self.changed();
        }
    }

    /// Asks the worker how its guest is; [`Self::wait_look`] waits for the answer. One that
    /// has not answered for long is ended.
    pub fn look(&self) {
        let mut state = self.state();
        match state.mute_since {
            None if state.link.is_some() => {
                state.look += 1;
                state.looked = Instant::now();
                let number = state.look;
                state.order(&Order::Look(number));
            }
            Some(since) if since.elapsed() >= MUTE_LIMIT => {
                if let Some(link) = state.link.take() {
                    state.is_given_up = true;
                    link.end();
                }
            }
            _ => {}
        }
    }

    /// Waits for the worker's answer to the newest question, a second from when it was asked:
    /// all machines' seconds pass at the same time. Not twice for one that does not answer.
    pub fn wait_look(&self) {
        let mut state = self.state();
        let (number, looked) = (state.look, state.looked);
        while state.link.is_some() && state.mute_since.is_none() && state.news.look < number {
            let left = MEASURING_LIMIT.saturating_sub(looked.elapsed());
            if left.is_zero() {
                state.mute_since = Some(Instant::now());
                break;
            }
            let woken = self.heard.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Why the worker says nothing more, if that is our doing.
    pub fn heard_all(&self) -> Result<(), WordError> {
        if self.state().is_given_up {
            return Err(WordError::Mute);
        }
        Ok(())
    }

    /// Asks the system what it has allocated, for the next [`Self::view`]. It may have to wait
    /// for a file that somebody else's program serves: never on a thread that others need.
    pub fn measure(&self, asker: Asker) {
        self.measure_by(asker, Files::allocated);
    }

    /// As [`Self::measure`]; `ask` does it, and may take its time. Not while another thread
    /// is at it for the same: whoever waited for that one may be gone, and it may never end.
    pub fn measure_by(&self, asker: Asker, ask: impl Fn(&Files, u16) -> Option<Allocated>) {
        let mut state = self.state();
        let place = asker as usize;
        if state.measuring_since[place].is_some() {
            return;
        }
        state.measuring_since[place] = Some(Instant::now());
        let files = state.files.clone();
        drop(state);
        let nodes = 0..self.parameters.nr_nodes;
        let backing: Vec<_> = nodes.map(|node| (node, ask(&files, node))).collect();
        let mut state = self.state();
        for (node, allocated) in backing {
            if let Some(which) = files.which(node).filter(|which| state.is_in(node, which)) {
                let which = which.clone();
                let measured = allocated.map(|allocated| Measured { which, allocated });
                state.set_backing(node, measured);
            }
        }
        // Nobody else says so: whatever a worker says, there is one thread.
        state.measuring_since[place] = None;
    }

    /// Somebody has measured for too long, and nobody else should.
    pub fn is_unmeasured(&self) -> bool {
        self.state().is_unmeasured()
    }

    /// Period of the guest's statistics; 0: it speaks when it is asked.
    pub fn statistics_interval_ms(&self) -> u32 {
        self.parameters.statistics_interval_ms
    }

    /// Asks for statistics.
    pub fn ask_statistics(&self) {
        self.state().order(&Order::Statistics);
    }

    /// Wishes a size. The number that the view's `ended_ticket` reaches when the
    /// guest has ended it.
    pub fn ask(&self, node: u16, size_bytes: u64, why: &str) -> Result<u64, TargetError> {
        let mut state = self.state();
        if usize::from(node) >= state.wishes.len() {
            return Err(TargetError::Node {
                node,
                nr_nodes: self.parameters.nr_nodes,
            });
        }
        let node_pages = state.node(node).node_pages;
        let size_pages = size_bytes.div_ceil(1 << PAGE_SHIFT);
        let balloon_pages = node_pages
            .checked_sub(size_pages)
            .ok_or(TargetError::Size {
                node,
                asked_pages: size_pages,
                node_pages,
            })?;
        if state.news.disabled {
            return Err(TargetError::Disabled);
        }
        let wish = Wish {
            balloon_pages,
            ticket: state.next_ticket,
        };
        state.next_ticket += 1;
        state.wishes[usize::from(node)] = Some(wish);
        state.order(&Order::Target { node, wish });
        // Of two the one that is told last is written last: it is asked for after a restart.
        self.ledger.add(Entry {
            tier: Some(tier_name(node)),
            size_bytes: Some(size_pages << PAGE_SHIFT),
            balloon_bytes: Some(balloon_pages << PAGE_SHIFT),
            why: Some(why.to_owned()),
            ..Entry::now(What::Asked)
        });
        drop(state);
        self.changed();
        Ok(wish.ticket)
    }

    /// What the policy makes of it, for whoever looks.
    pub fn set_sizing(&self, sizing: Option<Sizing>) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.sizing, sizing);
        drop(state);
        if before != sizing {
            self.changed();
        }
    }

    /// What it may have beyond its share, for whoever looks. That its credit grows or shrinks
    /// is no change of its own: it does at each decision.
    pub fn set_account(&self, account: Option<AccountView>) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.account, account);
        drop(state);
        if !same_account(before, account) {
            self.changed();
        }
    }

    fn changed(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// As the control interface shows it; what is allocated as of [`Self::measure`].
    pub fn view(&self) -> VmView {
        let state = self.state();
        let news = &state.news;
        let unmeasured = state.is_unmeasured();
        let tiers: Vec<TierView> = (0..self.parameters.nr_nodes)
            .map(|node| {
                let now = state.node(node);
                let wish = state.wish(node);
                let size = |pages: u64| now.node_pages.saturating_sub(pages) << PAGE_SHIFT;
                let ticket = wish.map_or(0, |wish| wish.ticket);
                let backing = state.backing(node).filter(|_| !unmeasured);
                TierView {
                    tier: tier_name(node),
                    node,
                    total_bytes: now.node_pages << PAGE_SHIFT,
                    balloon_bytes: now.held_pages << PAGE_SHIFT,
                    size_bytes: size(now.held_pages),
                    wanted_size_bytes: wish.map(|wish| size(wish.balloon_pages)),
                    backing_bytes: backing.map(|backing| backing.bytes),
                    kept_bytes: backing.and_then(|backing| kept_bytes(&now, backing)),
                    // A wish that the worker does not know yet is on its way, too.
                    busy: now.is_busy || now.ticket < ticket,
                    last: now.last.map(|ended| LastView {
                        outcome: ended.outcome,
                        asked_size_bytes: size(ended.target_pages),
                    }),
                    ticket,
                    ended_ticket: now.last.map_or(0, |ended| ended.ticket.min(ticket)),
                    traffic: now.traffic,
                }
            })
            .collect();
        let stage = if !news.connected {
            Stage::Waiting
        } else if news.disabled || news.lost {
            Stage::Disabled
        } else if news.nodes.iter().all(|node| node.has_driver) {
            Stage::Driven
        } else {
            Stage::Connected
        };
        let problem = if news.lost {
            Some(LOST.into())
        } else if state.mute_since.is_some() {
            Some(MUTE.into())
        } else {
            let told = [&news.problem, &state.unserved, &state.not_plugged];
            let told: Vec<&str> = told.into_iter().flatten().map(String::as_str).collect();
            let told = (!told.is_empty()).then(|| told.join("; "));
            told.or_else(|| unmeasured.then(|| UNMEASURED.into()))
        };
        VmView {
            name: self.spec.name.clone(),
            stage,
            problem,
            tiers,
            violations: (news.violations.met())
                .map(|(reason, count)| (reason.name().to_owned(), count))
                .collect::<BTreeMap<_, _>>(),
            statistics: news.statistics.clone(),
            statistics_age_ms: state
                .statistics_at
                .map(|at| at.elapsed().as_millis() as u64),
            churn: state.telling.churn(news.held_back),
            sizing: state.sizing,
            account: state.account,
            worker: state.worker.clone(),
        }
    }
}

/// Of what is in the balloon and was dropped, what the host has allocated again at least. What
/// lies in the same files and is no memory of the tier may be allocated, too.
fn kept_bytes(node: &NodeNews, backing: Allocated) -> Option<u64> {
    let outside_bytes = (backing.length_bytes?).checked_sub(node.node_pages << PAGE_SHIFT)?;
    let dropped_pages = node.held_pages.saturating_sub(node.punching_pages);
    let own_pages = node.node_pages.saturating_sub(dropped_pages);
    let own_bytes = (own_pages << PAGE_SHIFT).saturating_add(outside_bytes);
    Some(backing.bytes.saturating_sub(own_bytes))
}

/// Nothing but credit has passed.
pub fn same_account(old: Option<AccountView>, new: Option<AccountView>) -> bool {
    let known = |account: Option<AccountView>| {
        account.map(|account| AccountView {
            credit_ms: 0,
            ..account
        })
    };
    known(old) == known(new)
}

/// Of a guest that has said nothing.
fn nothing(nr_nodes: usize) -> News {
    News {
        nodes: vec![NodeNews::default(); nr_nodes],
        ..News::default()
    }
}
