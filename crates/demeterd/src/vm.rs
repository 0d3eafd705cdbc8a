// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One virtual machine: its device, and everybody who looks at it. The device
//! lives as long as a connection; wishes and the ledger live on.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use demeter_balloon::device::Parameters;
use demeter_balloon::regions::Piece;
use demeter_balloon::view::{LastView, Sizing, Stage, TierView, VmView, tier_name, tier_node};
use demeter_balloon::wire::{Ack, PAGE_SHIFT, Request};
use demeter_balloon::{Device, Event, Reason, Taken, TargetError};
use tokio::sync::watch;
use vmm_sys_util::eventfd::EventFd;

use crate::ledger::{Entry, Ledger, What};
use crate::quota::Quota;
use crate::spec;
use crate::tiers::{self, Files, Handed};

struct State {
    device: Device,
    files: Arc<Files>,
    quota: Quota,
    problem: Option<String>,
    connected: bool,
    statistics_at: Option<Instant>,
    sizing: Option<Sizing>,
    /// What the host has allocated for each tier, when it was last measured.
    backing_bytes: Vec<Option<u64>>,
    /// Somebody asks the system for that since then.
    measuring_since: Option<Instant>,
    /// Tells the connection's worker that there is a request.
    wake: Option<Arc<EventFd>>,
}

/// The system says within this what it has allocated, or it is not believed to.
pub const MEASURING_LIMIT: Duration = Duration::from_secs(1);
/// What is wrong then.
const UNMEASURED: &str = "the host does not say what it has allocated for this guest: a file of its memory does not answer";
/// What is wrong when memory went away.
const LOST: &str =
    "memory of this guest is gone: its monitor made a file shorter, or a page is broken";

impl State {
    fn is_unmeasured(&self) -> bool {
        (self.measuring_since).is_some_and(|since| since.elapsed() >= MEASURING_LIMIT)
    }
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
    /// Held while holes are punched, and for a new memory table: a hole never
    /// goes into memory that is not the guest's any more. Taken before `state`,
    /// which nobody holds that long.
    punching: Mutex<()>,
    /// Memory of this machine was gone when it was touched.
    lost: Arc<AtomicBool>,
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
        let mut device = Device::new(parameters);
        for (tier, balloon_bytes) in ledger.last_balloons() {
            if let Some(node) = tier_node(&tier) {
                // A tier that the machine has lost since then is no error.
                let _ = device.set_target(node, balloon_bytes >> PAGE_SHIFT);
            }
        }
        Self {
            share: Mutex::new(spec.share.clone()),
            spec,
            ledger,
            parameters,
            state: Mutex::new(State {
                device,
                files: Arc::default(),
                quota: Quota::new(Instant::now()),
                problem: None,
                connected: false,
                statistics_at: None,
                sizing: None,
                backing_bytes: Vec::new(),
                measuring_since: None,
                wake: None,
            }),
            punching: Mutex::new(()),
            lost: Arc::default(),
            changes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What a panicking thread left is a consistent device: each of its
        // calls changes it as a whole.
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

    /// A monitor is there.
    pub fn connected(&self, wake: Arc<EventFd>) {
        let mut state = self.state();
        state.connected = true;
        // The guest may have spoken before we could be woken.
        let _ = wake.write(1);
        state.wake = Some(wake);
        drop(state);
        tracing::info!(vm = self.spec.name, "connected");
        self.ledger.add(Entry::now(What::Connected));
        self.changed();
    }

    /// It is gone, and so is all that its guest said. Wishes stay.
    pub fn disconnected(&self) {
        let mut state = self.state();
        let mut device = Device::new(self.parameters);
        for node in 0..device.nr_nodes() {
            if let Some(pages) = state.device.node(node).and_then(|view| view.wish_pages) {
                let _ = device.set_target(node, pages);
            }
        }
        state.device = device;
        self.lost.store(false, Ordering::Relaxed);
        state.files = Arc::default();
        state.problem = None;
        state.connected = false;
        state.statistics_at = None;
        state.sizing = None;
        state.backing_bytes.clear();
        state.measuring_since = None;
        state.wake = None;
        drop(state);
        tracing::info!(vm = self.spec.name, "disconnected");
        self.ledger.add(Entry::now(What::Disconnected));
        self.changed();
    }

    /// The monitor's memory table.
    pub fn set_memory(&self, handed: &[Handed]) {
        let matched = tiers::matched(&self.spec.tiers, handed);
        let _punched = self.punching.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        state.device.set_regions(matched.regions);
        state.files = Arc::new(matched.files);
        state.backing_bytes.clear();
        state.measuring_since = None;
        state.problem = matched.problem;
    }

    /// Asks the system what it has allocated, for the next [`Self::view`]. It may have to
    /// wait for a file that somebody else's program serves: never on a thread that others need.
    pub fn measure(&self) {
        self.measure_by(Files::allocated_bytes);
    }

    /// As [`Self::measure`]; `ask` does it, and may take its time. Not while another thread
    /// is at it: whoever waited for that one may be gone, and it may never end.
    pub fn measure_by(&self, ask: impl Fn(&Files, u16) -> Option<u64>) {
        let mut state = self.state();
        if state.measuring_since.is_some() {
            return;
        }
        let since = Some(Instant::now());
        state.measuring_since = since;
        let files = state.files.clone();
        drop(state);
        let nodes = 0..self.parameters.nr_nodes;
        let backing_bytes = nodes.map(|node| ask(&files, node)).collect();
        let mut state = self.state();
        if Arc::ptr_eq(&files, &state.files) {
            state.backing_bytes = backing_bytes;
        }
        if state.measuring_since == since {
            state.measuring_since = None;
        }
    }

    /// Somebody has measured for too long, and nobody else should.
    pub fn is_unmeasured(&self) -> bool {
        self.state().is_unmeasured()
    }

    /// Configuration space.
    pub fn config_bytes(&self) -> [u8; 64] {
        self.state().device.config().to_bytes()
    }

    /// Period of the guest's statistics; 0: it speaks when it is asked.
    pub fn statistics_interval_ms(&self) -> u32 {
        self.parameters.statistics_interval_ms
    }

    /// Longest report that can be right.
    pub fn max_report_bytes(&self) -> usize {
        self.state().device.max_report_bytes()
    }

    /// Length of right statistics.
    pub fn statistics_bytes(&self) -> usize {
        self.state().device.statistics_bytes()
    }

    /// Takes a report.
    pub fn report(&self, node: u16, bytes: &[u8]) -> Ack {
        self.report_by(node, bytes, Files::punch)
    }

    /// As [`Self::report`]; `punch` does it, and may take its time.
    fn report_by(
        &self,
        node: u16,
        bytes: &[u8],
        punch: impl Fn(&Files, Piece) -> io::Result<()>,
    ) -> Ack {
        let _punching = self.punching.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = self.state();
        let ack = match guard.device.begin_report(node, bytes) {
            Taken::Answered(ack) => ack,
            Taken::Punching(punching) => {
                let files = guard.files.clone();
                drop(guard);
                let mut pieces = punching.pieces().iter();
                let punched = pieces.try_for_each(|piece| punch(&files, *piece));
                guard = self.state();
                guard.device.end_report(punching, punched)
            }
        };
        self.after(guard);
        ack
    }

    /// Messages that may be taken from the guest now; or how long to wait.
    pub fn messages_allowed(&self) -> Result<usize, Duration> {
        self.state().quota.messages(Instant::now())
    }

    /// A message was taken; `op` if it was a report.
    pub fn took(&self, op: Option<u16>) {
        self.state().quota.took(op.unwrap_or(0));
    }

    /// May messages of the guest make the host allocate so many pages more?
    pub fn may_touch(&self, pages: u64) -> bool {
        self.state().quota.pages(pages, Instant::now())
    }

    /// Where [`crate::lost`] notes memory that went away.
    pub fn lost(&self) -> &Arc<AtomicBool> {
        &self.lost
    }

    /// Memory went away: this guest is not served any more.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Tells that, once.
    pub fn give_up(&self) {
        let mut guard = self.state();
        if guard.device.is_disabled() {
            return;
        }
        guard.problem = Some(LOST.into());
        guard.device.disable();
        tracing::error!(vm = self.spec.name, "{LOST}");
        self.after(guard);
    }

    /// Answers a report that is too wrong to be copied.
    pub fn refuse(&self, reason: Reason) -> Ack {
        let mut guard = self.state();
        let ack = guard.device.refuse(reason);
        self.after(guard);
        ack
    }

    /// Takes statistics.
    pub fn statistics(&self, bytes: &[u8]) {
        let mut guard = self.state();
        guard.device.statistics(bytes);
        self.after(guard);
    }

    /// Notes a wrong-doing.
    pub fn violate(&self, reason: Reason) {
        let mut guard = self.state();
        guard.device.violate(reason);
        self.after(guard);
    }

    /// There is something for the request queue.
    pub fn has_request(&self) -> bool {
        self.state().device.has_request()
    }

    /// The next message for the request queue, which has a buffer for it.
    pub fn next_request(&self) -> Option<Request> {
        self.state().device.next_request()
    }

    /// Asks for statistics.
    pub fn ask_statistics(&self) {
        let mut state = self.state();
        state.device.ask_statistics();
        wake(&state);
    }

    /// Wishes a size. The number that the view's `ended_ticket` reaches when the
    /// guest has ended it.
    pub fn ask(&self, node: u16, size_bytes: u64, why: &str) -> Result<u64, TargetError> {
        let mut state = self.state();
        let view = state.device.node(node).ok_or(TargetError::Node {
            node,
            nr_nodes: state.device.nr_nodes(),
        })?;
        let size_pages = size_bytes.div_ceil(1 << PAGE_SHIFT);
        let balloon_pages = view
            .node_pages
            .checked_sub(size_pages)
            .ok_or(TargetError::Size {
                node,
                asked_pages: size_pages,
                node_pages: view.node_pages,
            })?;
        let ticket = state.device.set_target(node, balloon_pages)?;
        wake(&state);
        drop(state);
        self.ledger.add(Entry {
            tier: Some(tier_name(node)),
            size_bytes: Some(size_pages << PAGE_SHIFT),
            balloon_bytes: Some(balloon_pages << PAGE_SHIFT),
            why: Some(why.to_owned()),
            ..Entry::now(What::Asked)
        });
        self.changed();
        Ok(ticket)
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

    fn changed(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Tells what the device's last call brought.
    fn after(&self, mut state: MutexGuard<'_, State>) {
        let events = state.device.take_events();
        if events.is_empty() {
            return;
        }
        if events.contains(&Event::Statistics) {
            state.statistics_at = Some(Instant::now());
        }
        if state.device.has_request() {
            wake(&state);
        }
        let violations = state.device.violations().total();
        let hellos: u64 = (0..state.device.nr_nodes())
            .filter_map(|node| state.device.node(node))
            .map(|view| view.traffic.hellos)
            .sum();
        // Tables come region by region: only now is it whole.
        let greeted = events.iter().any(|e| matches!(e, Event::Hello { .. }));
        let problem = state.problem.clone().filter(|_| greeted && hellos < 8);
        let now = Instant::now();
        let told: Vec<Told> = (events.into_iter())
            .filter(|event| *event != Event::Statistics)
            .map(|event| Told {
                line: is_line(&event) && state.quota.line(now),
                entry: is_entry(&event).then(|| state.quota.entry(now)).flatten(),
                event,
            })
            .collect();
        drop(state);
        if let Some(problem) = problem {
            tracing::warn!(vm = self.spec.name, "{problem}");
        }
        for told in told {
            self.tell(told, violations);
        }
        self.changed();
    }

    /// A guest decides how often these happen; log and ledger do not follow it.
    fn tell(&self, told: Told, violations: u64) {
        let vm = self.spec.name.as_str();
        let Told { event, line, entry } = told;
        let write = |what, node: Option<u16>, fill: &dyn Fn(&mut Entry)| {
            if let Some(left_out) = entry {
                let mut entry = Entry {
                    tier: node.map(tier_name),
                    left_out,
                    ..Entry::now(what)
                };
                fill(&mut entry);
                self.ledger.add(entry);
            }
        };
        match event {
            Event::Hello { node, kept_pages } => {
                if line {
                    tracing::info!(vm, node, kept_pages, "driver");
                }
                write(What::Driver, Some(node), &|entry| {
                    entry.balloon_bytes = Some(kept_pages << PAGE_SHIFT);
                });
            }
            Event::Done {
                node,
                ended,
                held_pages,
            } => {
                if line {
                    tracing::info!(vm, node, held_pages, outcome = ?ended.outcome, "resized");
                }
                write(What::Ended, Some(node), &|entry| {
                    entry.balloon_bytes = Some(held_pages << PAGE_SHIFT);
                    entry.outcome = Some(ended.outcome);
                });
            }
            Event::TakenBack { node, nr_pages } => {
                write(What::TakenBack, Some(node), &|entry| {
                    entry.size_bytes = Some(nr_pages << PAGE_SHIFT);
                });
            }
            Event::Violation { reason } => {
                if line {
                    tracing::warn!(vm, reason = reason.name(), violations, "violation");
                }
            }
            Event::Disabled => {
                tracing::error!(vm, violations, "disabled until it is plugged in anew");
                self.ledger.add(Entry::now(What::Disabled));
            }
            Event::HostFailed { node, cause } => {
                if line {
                    tracing::error!(vm, node, "cannot punch: {cause}");
                }
            }
            Event::Statistics => {}
        }
    }

    /// As the control interface shows it; what is allocated as of [`Self::measure`].
    pub fn view(&self) -> VmView {
        let state = self.state();
        let device = &state.device;
        let unmeasured = state.is_unmeasured();
        let mut driven = true;
        let tiers: Vec<TierView> = (0..device.nr_nodes())
            .filter_map(|node| {
                let view = device.node(node)?;
                driven &= view.has_driver;
                let size = |pages: u64| view.node_pages.saturating_sub(pages) << PAGE_SHIFT;
                Some(TierView {
                    tier: tier_name(node),
                    node,
                    total_bytes: view.node_pages << PAGE_SHIFT,
                    balloon_bytes: view.held_pages << PAGE_SHIFT,
                    size_bytes: size(view.held_pages),
                    wanted_size_bytes: view.wish_pages.map(size),
                    backing_bytes: (state.backing_bytes.get(usize::from(node)).copied())
                        .flatten()
                        .filter(|_| !unmeasured),
                    busy: view.is_busy,
                    last: view.last.map(|ended| LastView {
                        outcome: ended.outcome,
                        asked_size_bytes: size(ended.target_pages),
                    }),
                    ticket: view.ticket,
                    ended_ticket: view.last.map_or(0, |ended| ended.ticket),
                    traffic: view.traffic,
                })
            })
            .collect();
        let lost = self.is_lost();
        let stage = if !state.connected {
            Stage::Waiting
        } else if device.is_disabled() || lost {
            Stage::Disabled
        } else if driven {
            Stage::Driven
        } else {
            Stage::Connected
        };
        VmView {
            name: self.spec.name.clone(),
            stage,
            problem: if lost {
                Some(LOST.into())
            } else {
                (state.problem.clone()).or_else(|| unmeasured.then(|| UNMEASURED.into()))
            },
            tiers,
            violations: device
                .violations()
                .met()
                .map(|(reason, count)| (reason.name().to_owned(), count))
                .collect::<BTreeMap<_, _>>(),
            statistics: device.latest_statistics().cloned(),
            statistics_age_ms: state
                .statistics_at
                .map(|at| at.elapsed().as_millis() as u64),
            churn: state.quota.churn(),
            sizing: state.sizing,
        }
    }
}

/// What the device told, and where it may be repeated.
struct Told {
    event: Event,
    line: bool,
    /// With the number of entries that were left out before.
    entry: Option<u64>,
}

/// Goes to the log because of the guest.
fn is_line(event: &Event) -> bool {
    !matches!(
        event,
        Event::TakenBack { .. } | Event::Statistics | Event::Disabled
    )
}

/// Goes to the ledger because of the guest.
fn is_entry(event: &Event) -> bool {
    matches!(
        event,
        Event::Hello { .. } | Event::Done { .. } | Event::TakenBack { .. }
    )
}

fn wake(state: &State) {
    if let Some(wake) = &state.wake {
        // The only failure is a counter that is full, which wakes as well.
        let _ = wake.write(1);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use demeter_balloon::wire::{OP_HELLO, OP_INFLATED, Range, Report, Status};
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::sync::mpsc;

    /// With 16 pages of FMEM, a driver, and a balloon of four that is asked for.
    pub fn driven(directory: &std::path::Path, name: &str) -> Arc<Vm> {
        let path = directory.join(name);
        let file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        file.set_len(16 << PAGE_SHIFT).unwrap();
        let line = format!("{name},socket=/s,fmem={}", path.display());
        let description = spec::Description::parse(&line).unwrap();
        let vm = Vm::new(
            description.finish(&BTreeMap::new()).unwrap(),
            Parameters::default(),
            Ledger::open(None, name).unwrap(),
            watch::channel(0).0,
        );
        vm.set_memory(&[Handed {
            gpa: 0,
            length_bytes: 16 << PAGE_SHIFT,
            file: Arc::new(file),
            offset_bytes: 0,
        }]);
        let hello = Report {
            op: OP_HELLO,
            ..Report::default()
        };
        assert_eq!(vm.report(0, &hello.message(&[])).status, Status::Ok);
        vm.ask(0, 12 << PAGE_SHIFT, "test").unwrap();
        vm.next_request().unwrap();
        Arc::new(vm)
    }

    fn inflated() -> Vec<u8> {
        let report = Report {
            op: OP_INFLATED,
            current_pages: 4,
            ..Report::default()
        };
        report.message(&[Range {
            gpa: 0,
            nr_pages: 4,
        }])
    }

    #[test]
    fn nobody_waits_for_a_hole_but_its_guest_and_the_memory_table() {
        let directory = tempfile::tempdir().unwrap();
        let vm = driven(directory.path(), "a");
        let (seen, sees) = mpsc::channel();
        let (changed, changes) = mpsc::channel();
        let ack = vm.report_by(0, &inflated(), |_, _| {
            let (other, seen) = (vm.clone(), seen.clone());
            thread_of(move || seen.send(other.view().name).unwrap());
            sees.recv_timeout(Duration::from_secs(60))
                .expect("the view waits for the hole");
            let (other, changed) = (vm.clone(), changed.clone());
            thread_of(move || {
                other.set_memory(&[]);
                changed.send(()).unwrap();
            });
            // A hole in memory that is the guest's no more would be the worse harm.
            let early = changes.recv_timeout(Duration::from_millis(50));
            assert!(early.is_err(), "the table changed under the hole");
            Ok(())
        });
        assert_eq!(ack.status, Status::Ok);
        changes.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    fn thread_of(body: impl FnOnce() + Send + 'static) {
        std::thread::spawn(body);
    }

    #[test]
    fn a_hole_that_cannot_be_punched_leaves_the_balloon_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let vm = driven(directory.path(), "a");
        let full = |_: &Files, _| Err(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(vm.report_by(0, &inflated(), full).status, Status::Host);
        assert_eq!(vm.view().tiers[0].balloon_bytes, 0);
        assert_eq!(vm.report(0, &inflated()).status, Status::Ok);
        assert_eq!(vm.view().tiers[0].balloon_bytes, 4 << PAGE_SHIFT);
    }
}
