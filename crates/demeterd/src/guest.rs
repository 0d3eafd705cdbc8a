// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The worker's side of one virtual machine: its device, and what the coordinator is told
//! of it. The device lives as long as a connection; wishes live on.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use demeter_balloon::device::Parameters;
use demeter_balloon::regions::Piece;
use demeter_balloon::wire::{Ack, Request};
use demeter_balloon::{Counters, Device, Event, Reason, Taken};
use vmm_sys_util::eventfd::EventFd;

use crate::message::{Begin, Heard, MAX_HEARD, News, NodeNews, Wish, harmless};
use crate::quota::Quota;
use crate::tiers::{self, Files, Handed, Known};

/// What happens is told at most so often; whoever asks is answered at once.
const PAUSE: Duration = Duration::from_millis(2);
/// A memory table that comes later than so long after the last one is no part of it.
const PARTS: Duration = Duration::from_secs(1);
/// What is wrong when nobody says which memory is which tier.
const UNKNOWN: &str = "the coordinator does not say which memory is which tier";
/// What is wrong when a connection ended for a ring, until memory is handed over by the next one.
const REFUSED: &str = "a ring of its device cannot be where its guest says, or not that long, so \
                       that its connection was ended (of QEMU, vq_size is 256 at most): it keeps what it has, and nobody can ask \
                       for it; next: `demeter balloon replug`; where it comes again, distrust \
                       the driver or the guest";

struct State {
    device: Device,
    files: Arc<Files>,
    /// When the last memory table, or part of it, was taken over.
    tabled: Option<Instant>,
    quota: Quota,
    problem: Option<String>,
    /// The last connection ended for a ring that cannot be.
    refused: bool,
    /// How often that was, of all connections: a device does not outlive its own.
    refusals: Counters,
    connected: bool,
    wishes: Vec<Option<Wish>>,
    /// Tells the connection's thread that there is a request.
    wake: Option<Arc<EventFd>>,
    outbox: Outbox,
}

/// What the coordinator was not told yet.
#[derive(Default)]
struct Outbox {
    heard: Vec<Heard>,
    left_out: u64,
    statistics_count: u64,
    /// Something happened.
    dirty: bool,
    /// The newest question, and the newest that was answered.
    asked: u64,
    answered: u64,
    /// Other files than before.
    files: Option<Arc<Files>>,
    ended: bool,
}

impl Outbox {
    fn add(&mut self, heard: Heard) {
        self.dirty = true;
        if self.heard.len() < MAX_HEARD {
            self.heard.push(heard);
        } else {
            self.left_out += 1;
        }
    }
}

/// Asks the coordinator which memory is which tier; none: it does not say.
pub type Which = Box<dyn Fn() -> Option<Vec<Known>> + Send + Sync>;

/// One virtual machine, as its device sees it.
pub struct Guest {
    name: String,
    parameters: Parameters,
    state: Mutex<State>,
    /// There is something for the coordinator.
    told: Condvar,
    which: Which,
    /// Held while holes are punched, and for a new memory table: a hole never
    /// goes into memory that is not the guest's any more. Taken before `state`,
    /// which nobody holds that long.
    punching: Mutex<()>,
    /// Memory of this machine was gone when it was touched.
    lost: Arc<AtomicBool>,
}

impl Guest {
    /// Nobody connected.
    pub fn new(begin: Begin, which: Which) -> Self {
        let parameters = Parameters {
            nr_nodes: begin.nr_nodes,
            instance: begin.instance,
            statistics_interval_ms: begin.statistics_interval_ms,
            violation_limit: begin.violation_limit,
            ..Parameters::default()
        };
        Self {
            name: begin.name,
            parameters,
            state: Mutex::new(State {
                device: device(parameters, &begin.wishes),
                files: Arc::default(),
                tabled: None,
                quota: Quota::new(Instant::now()),
                problem: None,
                refused: false,
                refusals: Counters::default(),
                connected: false,
                wishes: begin.wishes,
                wake: None,
                outbox: Outbox::default(),
            }),
            told: Condvar::new(),
            which,
            punching: Mutex::new(()),
            lost: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What a panicking thread left is a consistent device: each of its
        // calls changes it as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of threads.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of balloons.
    pub fn nr_nodes(&self) -> usize {
        usize::from(self.parameters.nr_nodes)
    }

    /// A monitor is there.
    pub fn connected(&self, wake: Arc<EventFd>) {
        let mut state = self.state();
        state.connected = true;
        // The guest may have spoken before we could be woken.
        let _ = wake.write(1);
        state.wake = Some(wake);
        state.outbox.add(Heard::Connected);
        self.told.notify_all();
    }

    /// It is gone, and so is all that its guest said. Wishes stay.
    pub fn disconnected(&self) {
        let mut state = self.state();
        state.device = device(self.parameters, &state.wishes);
        self.lost.store(false, Ordering::Relaxed);
        state.files = Arc::default();
        state.tabled = None;
        state.problem = None;
        state.connected = false;
        state.wake = None;
        state.outbox.files = None;
        state.outbox.add(Heard::Disconnected);
        self.told.notify_all();
    }

    /// The connection has ended since the guest has set up a ring that cannot be. Its monitor will
    /// not come back by itself, so that is told until somebody brings it back.
    pub fn ring_refused(&self) {
        let reason = Reason::Ring;
        let mut state = self.state();
        state.refused = true;
        state.refusals.count(reason);
        let violation = Event::Violation { reason };
        state.outbox.add(Heard::Device(violation));
        self.told.notify_all();
    }

    /// The guest has reset its device, and drives it no more.
    pub fn reset(&self) {
        let mut state = self.state();
        state.device.reset();
        state.outbox.dirty = true;
        self.told.notify_all();
    }

    /// For people, of the connection.
    pub fn note(&self, text: String) {
        self.state().outbox.add(Heard::Note(harmless(&text)));
        self.told.notify_all();
    }

    /// The monitor's memory table. One that hands it over piece by piece takes out what it puts
    /// in again at once.
    pub fn set_memory(&self, handed: &[Handed]) {
        let came = Instant::now();
        let known = (self.which)();
        let mut matched = tiers::matched(known.as_deref().unwrap_or_default(), handed);
        if known.is_none() {
            matched.problem = Some(UNKNOWN.into());
        }
        let _punched = self.punching.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        let is_part = (state.tabled).is_some_and(|last| came.duration_since(last) < PARTS);
        if is_part {
            state.device.go_on_with_regions(matched.regions);
        } else {
            state.device.set_regions(matched.regions);
        }
        state.tabled = Some(Instant::now());
        state.files = Arc::new(matched.files);
        // Of many files it can be more than a message holds.
        state.problem = matched.problem.as_deref().map(harmless);
        state.refused = false;
        state.outbox.files = Some(state.files.clone());
        state.outbox.dirty = true;
        self.told.notify_all();
    }

    /// Configuration space.
    pub fn config_bytes(&self) -> [u8; 64] {
        self.state().device.config().to_bytes()
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
        guard.device.disable();
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

    /// The coordinator asks for statistics.
    pub fn ask_statistics(&self) {
        let mut state = self.state();
        state.device.ask_statistics();
        wake(&state);
    }

    /// The coordinator wishes a size, which it has checked.
    pub fn ask(&self, node: u16, wish: Wish) {
        let mut state = self.state();
        if let Some(known) = state.wishes.get_mut(usize::from(node)) {
            *known = Some(wish);
        }
        // It may have been disabled meanwhile: the coordinator will see that.
        let _ = (state.device).set_target_as(node, wish.balloon_pages, wish.ticket);
        wake(&state);
    }

    /// The coordinator wants news that are newer than this question.
    pub fn look(&self, number: u64) {
        let mut state = self.state();
        state.outbox.asked = state.outbox.asked.max(number);
        self.told.notify_all();
    }

    /// Files that could not be told of go with the next news, if there are no newer ones.
    pub fn keep(&self, files: Arc<Files>) {
        let mut state = self.state();
        // Those of a connection that has ended are nobody's.
        if state.outbox.files.is_none() && Arc::ptr_eq(&state.files, &files) {
            state.outbox.files = Some(files);
        }
    }

    /// [`Self::news`] has no more.
    pub fn end(&self) {
        self.state().outbox.ended = true;
        self.told.notify_all();
    }

    /// Waits for something to tell. Not before `last` was a while ago, unless somebody asks.
    pub fn news(&self, last: Instant) -> Option<(News, Option<Arc<Files>>)> {
        let mut state = self.state();
        loop {
            let outbox = &state.outbox;
            if outbox.ended {
                return None;
            }
            let early = (last + PAUSE).saturating_duration_since(Instant::now());
            if outbox.asked > outbox.answered || (outbox.dirty && early.is_zero()) {
                return Some(state.take(self.is_lost()));
            }
            state = if outbox.dirty {
                let woken = self.told.wait_timeout(state, early);
                woken.unwrap_or_else(PoisonError::into_inner).0
            } else {
                let woken = self.told.wait(state);
                woken.unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    /// The same, if there is something now; for tests and models.
    #[cfg(any(test, fuzzing))]
    pub fn take_news(&self) -> (News, Option<Arc<Files>>) {
        self.state().take(self.is_lost())
    }

    /// Tells what the device's last call brought.
    fn after(&self, mut state: MutexGuard<'_, State>) {
        let events = state.device.take_events();
        if events.is_empty() {
            return;
        }
        for event in events {
            if event == Event::Statistics {
                state.outbox.statistics_count += 1;
                state.outbox.dirty = true;
            } else {
                state.outbox.add(Heard::Device(event));
            }
        }
        if state.device.has_request() {
            wake(&state);
        }
        self.told.notify_all();
    }
}

impl State {
    fn take(&mut self, lost: bool) -> (News, Option<Arc<Files>>) {
        let nodes = (0..self.device.nr_nodes())
            .filter_map(|node| self.device.node(node))
            .map(|view| NodeNews {
                node_pages: view.node_pages,
                held_pages: view.held_pages,
                punching_pages: view.punching_pages,
                ticket: view.ticket,
                last: view.last,
                has_driver: view.has_driver,
                is_busy: view.is_busy,
                traffic: view.traffic,
            })
            .collect();
        let mut violations = self.device.violations().clone();
        violations.add(&self.refusals);
        let refused = self.refused.then_some(REFUSED);
        let outbox = &mut self.outbox;
        outbox.dirty = false;
        outbox.answered = outbox.asked;
        let news = News {
            look: outbox.answered,
            connected: self.connected,
            nodes,
            violations,
            disabled: self.device.is_disabled(),
            lost,
            problem: (self.problem.clone()).or_else(|| refused.map(str::to_owned)),
            statistics: self.device.latest_statistics().cloned(),
            statistics_count: outbox.statistics_count,
            held_back: self.quota.held_back(),
            heard: std::mem::take(&mut outbox.heard),
            left_out: std::mem::take(&mut outbox.left_out),
        };
        (news, outbox.files.take())
    }
}

fn device(parameters: Parameters, wishes: &[Option<Wish>]) -> Device {
    let mut device = Device::new(parameters);
    for (node, wish) in wishes.iter().enumerate() {
        if let Some(wish) = wish {
            // A tier that the machine has lost since then is no error.
            let _ = device.set_target_as(node as u16, wish.balloon_pages, wish.ticket);
        }
    }
    device
}

fn wake(state: &State) {
    if let Some(wake) = &state.wake {
        // The only failure is a counter that is full, which wakes as well.
        let _ = wake.write(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::driven;
    use demeter_balloon::wire::{OP_DEFLATE, OP_INFLATED, PAGE_SHIFT, Range, Report, Status};
    use std::sync::mpsc;

    fn inflated() -> Vec<u8> {
        report(OP_INFLATED, 0, 4)
    }

    fn report(op: u16, first_page: u64, nr_pages: u64) -> Vec<u8> {
        let report = Report {
            op,
            current_pages: 4,
            ..Report::default()
        };
        report.message(&[Range {
            gpa: first_page << PAGE_SHIFT,
            nr_pages,
        }])
    }

    #[test]
    fn nobody_waits_for_a_hole_but_its_guest_and_the_memory_table() {
        let directory = tempfile::tempdir().unwrap();
        let guest = driven(directory.path(), "a").guest;
        let (seen, sees) = mpsc::channel();
        let (changed, changes) = mpsc::channel();
        let ack = guest.report_by(0, &inflated(), |_, _| {
            let (other, seen) = (guest.clone(), seen.clone());
            thread_of(move || seen.send(other.take_news().0.connected).unwrap());
            sees.recv_timeout(Duration::from_secs(60))
                .expect("the news wait for the hole");
            let (other, changed) = (guest.clone(), changed.clone());
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

    #[test]
    fn a_table_that_comes_in_pieces_takes_nothing_out_of_the_balloon() {
        let directory = tempfile::tempdir().unwrap();
        let guest = driven(directory.path(), "a").guest;
        assert_eq!(
            guest.report(0, &report(OP_INFLATED, 0, 4)).status,
            Status::Ok
        );
        let memory = directory.path().join("a");
        let file = std::fs::File::options().read(true).write(true).open(memory);
        let file = Arc::new(file.unwrap());
        let piece = |first_page: u64, nr_pages: u64| Handed {
            gpa: first_page << PAGE_SHIFT,
            length_bytes: nr_pages << PAGE_SHIFT,
            file: file.clone(),
            offset_bytes: first_page << PAGE_SHIFT,
        };
        let held_pages = || guest.take_news().0.nodes[0].held_pages;
        guest.set_memory(&[]);
        assert_eq!(held_pages(), 0);
        guest.set_memory(&[piece(2, 14)]);
        assert_eq!(held_pages(), 2);
        guest.set_memory(&[piece(0, 2), piece(2, 14)]);
        assert_eq!(held_pages(), 4);
        assert_eq!(
            guest.report(0, &report(OP_DEFLATE, 0, 1)).status,
            Status::Ok
        );
        // What comes much later is other memory.
        guest.set_memory(&[]);
        guest.state().tabled = Instant::now().checked_sub(PARTS);
        guest.set_memory(&[piece(0, 16)]);
        assert_eq!(held_pages(), 0);
        assert!(!guest.state().device.is_disabled());
    }

    #[test]
    fn what_is_not_dropped_yet_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let guest = driven(directory.path(), "a").guest;
        let told = || {
            let node = guest.take_news().0.nodes[0];
            (node.held_pages, node.punching_pages)
        };
        for (whole, after) in [(false, (0, 0)), (true, (4, 0))] {
            guest.report_by(0, &inflated(), |_, _| {
                assert_eq!(told(), (4, 4));
                let full = io::Error::from(io::ErrorKind::StorageFull);
                if whole { Ok(()) } else { Err(full) }
            });
            assert_eq!(told(), after);
        }
    }

    fn thread_of(body: impl FnOnce() + Send + 'static) {
        std::thread::spawn(body);
    }

    #[test]
    fn a_hole_that_cannot_be_punched_leaves_the_balloon_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let pair = driven(directory.path(), "a");
        let balloon_bytes = || {
            pair.carry();
            pair.vm.view().tiers[0].balloon_bytes
        };
        let full = |_: &Files, _| Err(io::Error::from(io::ErrorKind::StorageFull));
        let ack = pair.guest.report_by(0, &inflated(), full);
        assert_eq!((ack.status, balloon_bytes()), (Status::Host, 0));
        let ack = pair.guest.report(0, &inflated());
        assert_eq!((ack.status, balloon_bytes()), (Status::Ok, 4 << PAGE_SHIFT));
    }

    #[test]
    fn what_happens_too_fast_is_told_in_few_words() {
        let directory = tempfile::tempdir().unwrap();
        let guest = driven(directory.path(), "a").guest;
        guest.take_news();
        for _ in 0..10 * MAX_HEARD {
            guest.note("again".to_owned());
        }
        let news = guest.take_news().0;
        assert_eq!(news.heard.len(), MAX_HEARD);
        assert_eq!(news.left_out, 9 * MAX_HEARD as u64);
        assert_eq!(guest.take_news().0.left_out, 0);
    }
}
