// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One virtual machine: its device, and everybody who looks at it. The device
//! lives as long as a connection; wishes and the ledger live on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use demeter_balloon::device::Parameters;
use demeter_balloon::view::{LastView, Stage, TierView, VmView, tier_name, tier_node};
use demeter_balloon::wire::{Ack, PAGE_SHIFT, Request};
use demeter_balloon::{Device, Event, Reason, TargetError};
use tokio::sync::watch;
use vmm_sys_util::eventfd::EventFd;

use crate::ledger::{Entry, Ledger, What};
use crate::spec;
use crate::tiers::{self, Files, Handed};

struct State {
    device: Device,
    files: Files,
    problem: Option<String>,
    connected: bool,
    statistics_at: Option<Instant>,
    /// Tells the connection's worker that there is a request.
    wake: Option<Arc<EventFd>>,
}

/// One virtual machine.
pub struct Vm {
    /// As configured.
    pub spec: spec::Vm,
    /// What it was given.
    pub ledger: Ledger,
    parameters: Parameters,
    state: Mutex<State>,
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
            spec,
            ledger,
            parameters,
            state: Mutex::new(State {
                device,
                files: Files::default(),
                problem: None,
                connected: false,
                statistics_at: None,
                wake: None,
            }),
            changes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What a panicking thread left is a consistent device: each of its
        // calls changes it as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        state.files = Files::default();
        state.problem = None;
        state.connected = false;
        state.statistics_at = None;
        state.wake = None;
        drop(state);
        tracing::info!(vm = self.spec.name, "disconnected");
        self.ledger.add(Entry::now(What::Disconnected));
        self.changed();
    }

    /// The monitor's memory table.
    pub fn set_memory(&self, handed: &[Handed]) {
        let matched = tiers::matched(&self.spec.tiers, handed);
        let mut state = self.state();
        state.device.set_regions(matched.regions);
        state.files = matched.files;
        state.problem = matched.problem;
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
        let mut guard = self.state();
        let state = &mut *guard;
        let ack = state.device.report(node, bytes, &mut &state.files);
        self.after(guard);
        ack
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
        drop(state);
        if let Some(problem) = problem {
            tracing::warn!(vm = self.spec.name, "{problem}");
        }
        for event in events {
            self.tell(event, violations, hellos);
        }
        self.changed();
    }

    fn tell(&self, event: Event, violations: u64, hellos: u64) {
        let vm = self.spec.name.as_str();
        // A guest decides how often these happen; the log does not follow it.
        let told = |count: u64| count <= 8 || count.is_power_of_two();
        let of = |node: u16, what| Entry {
            tier: Some(tier_name(node)),
            ..Entry::now(what)
        };
        match event {
            Event::Hello { node, kept_pages } => {
                if told(hellos) {
                    tracing::info!(vm, node, kept_pages, "driver");
                }
                self.ledger.add(Entry {
                    balloon_bytes: Some(kept_pages << PAGE_SHIFT),
                    ..of(node, What::Driver)
                });
            }
            Event::Done {
                node,
                ended,
                held_pages,
            } => {
                tracing::info!(vm, node, held_pages, outcome = ?ended.outcome, "resized");
                self.ledger.add(Entry {
                    balloon_bytes: Some(held_pages << PAGE_SHIFT),
                    outcome: Some(ended.outcome),
                    ..of(node, What::Ended)
                });
            }
            Event::TakenBack { node, nr_pages } => {
                self.ledger.add(Entry {
                    size_bytes: Some(nr_pages << PAGE_SHIFT),
                    ..of(node, What::TakenBack)
                });
            }
            Event::Violation { reason } => {
                if told(violations) {
                    tracing::warn!(vm, reason = reason.name(), violations, "violation");
                }
            }
            Event::Disabled => {
                tracing::error!(vm, violations, "disabled until it is plugged in anew");
                self.ledger.add(Entry::now(What::Disabled));
            }
            Event::HostFailed { node, cause } => {
                tracing::error!(vm, node, "cannot punch: {cause}");
            }
            Event::Statistics => {}
        }
    }

    /// As the control interface shows it.
    pub fn view(&self) -> VmView {
        let state = self.state();
        let device = &state.device;
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
                    backing_bytes: state.files.allocated_bytes(device.regions(), node),
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
        let stage = if !state.connected {
            Stage::Waiting
        } else if device.is_disabled() {
            Stage::Disabled
        } else if driven {
            Stage::Driven
        } else {
            Stage::Connected
        };
        VmView {
            name: self.spec.name.clone(),
            stage,
            problem: state.problem.clone(),
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
        }
    }
}

fn wake(state: &State) {
    if let Some(wake) = &state.wake {
        // The only failure is a counter that is full, which wakes as well.
        let _ = wake.write(1);
    }
}
