// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device: takes reports, keeps the ledgers, hands out requests.

use std::io;

use serde::{Deserialize, Serialize};

use crate::node::{Ended, Node};
use crate::reason::{Counters, Reason};
use crate::regions::{Piece, Regions};
use crate::statistics::Statistics;
use crate::wire::{
    Ack, Config, HELLO_RESYNC, INFLATED_RESYNC, MAX_NODES, NODE_STATISTICS_BYTES, OP_DEFLATE,
    OP_DONE, OP_HELLO, OP_INFLATED, OP_RESIZE, OP_STATISTICS, Outcome, RANGE_BYTES, REPORT_BYTES,
    Range, Report, Request, STATISTICS_BYTES, Status,
};

/// What the device needs from the host.
pub trait Backing {
    /// Drops what lies there: reads give zeros from now on, and the host has
    /// the memory back.
    ///
    /// # Errors
    /// Whatever the host says. The report is refused, its pages stay the guest's.
    fn punch(&mut self, piece: Piece) -> io::Result<()>;
}

/// What becomes of a report.
#[derive(Debug)]
pub enum Taken {
    /// This is its answer.
    Answered(Ack),
    /// It has one when its holes are punched.
    Punching(Punching),
}

/// A report whose pages are in the balloon already and still have their backing.
/// Punching takes long, so it is done without the device.
#[derive(Debug)]
#[must_use = "the guest waits for the answer of Device::end_report"]
pub struct Punching {
    report: Report,
    ranges: Vec<Range>,
    pieces: Vec<Piece>,
}

impl Punching {
    /// What to punch.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

/// Most ranges that a device may allow in a report. [DEV-2]
pub const MAX_RANGES: u32 = 65536;

/// Fixed for the life of a device.
#[derive(Debug, Clone, Copy)]
pub struct Parameters {
    /// Number of balloons, at most [`MAX_NODES`].
    pub nr_nodes: u16,
    /// Differs after every start of the device's owner.
    pub instance: u64,
    /// Period of the guest's statistics.
    pub statistics_interval_ms: u32,
    /// Most ranges in a report.
    pub max_ranges: u32,
    /// After so many violations nothing is taken any more.
    pub violation_limit: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            nr_nodes: 2,
            instance: 1,
            statistics_interval_ms: 1000,
            max_ranges: 4096,
            violation_limit: 64,
        }
    }
}

/// Something that the device's owner may want to tell or write down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// A driver is there, for this node.
    Hello {
        /// The node.
        node: u16,
        /// Pages of an earlier life, which it reports next.
        kept_pages: u64,
    },
    /// A request ended.
    Done {
        /// The node.
        node: u16,
        /// How.
        ended: Ended,
        /// Pages in the balloon now.
        held_pages: u64,
    },
    /// The guest took pages back on its own account.
    TakenBack {
        /// The node.
        node: u16,
        /// How many.
        nr_pages: u64,
    },
    /// New statistics.
    Statistics,
    /// The guest did wrong.
    Violation {
        /// How.
        reason: Reason,
    },
    /// It did so too often.
    Disabled,
    /// The host could not punch.
    HostFailed {
        /// The node.
        node: u16,
        /// The system's words.
        cause: String,
    },
}

/// Why a target is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No such node.
    #[error("node {node} where the device has {nr_nodes}")]
    Node {
        /// Asked for.
        node: u16,
        /// Present.
        nr_nodes: u16,
    },
    /// More than the node's memory.
    #[error("{asked_pages} pages where node {node} has {node_pages}")]
    Size {
        /// The node.
        node: u16,
        /// Asked for.
        asked_pages: u64,
        /// Present.
        node_pages: u64,
    },
    /// The guest lost its device.
    #[error("the device is disabled after repeated violations")]
    Disabled,
}

/// What happened on a node so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Reports that were taken.
    pub reports: u64,
    /// Ranges in them.
    pub ranges: u64,
    /// Pages that went into the balloon.
    pub inflated_pages: u64,
    /// Pages that came out.
    pub deflated_pages: u64,
    /// Holes that were punched.
    pub punches: u64,
    /// Reports whose `current_pages` was not ours.
    pub miscounted: u64,
    /// DONE for something that was not asked.
    pub stray_done: u64,
    /// HELLOs that were taken.
    pub hellos: u64,
}

/// One balloon, as its owner sees it.
#[derive(Debug, Clone, Copy)]
pub struct NodeView {
    /// Size of the node.
    pub node_pages: u64,
    /// In the balloon.
    pub held_pages: u64,
    /// Of those, pages whose backing is being dropped just now.
    pub punching_pages: u64,
    /// Wanted in the balloon.
    pub wish_pages: Option<u64>,
    /// The wish's number.
    pub ticket: u64,
    /// The newest ended request.
    pub last: Option<Ended>,
    /// A driver is there.
    pub has_driver: bool,
    /// A request is on its way.
    pub is_busy: bool,
    /// So far.
    pub traffic: Traffic,
}

/// The device.
#[derive(Debug)]
pub struct Device {
    parameters: Parameters,
    regions: Regions,
    nodes: Vec<Node>,
    traffic: Vec<Traffic>,
    violations: Counters,
    disabled: bool,
    next_id: u64,
    next_ticket: u64,
    statistics: Option<Statistics>,
    statistics_wanted: bool,
    events: Vec<Event>,
}

impl Device {
    /// A device without memory.
    #[must_use]
    pub fn new(mut parameters: Parameters) -> Self {
        parameters.nr_nodes = parameters.nr_nodes.clamp(1, MAX_NODES as u16);
        parameters.max_ranges = parameters.max_ranges.clamp(1, MAX_RANGES);
        let count = usize::from(parameters.nr_nodes);
        Self {
            parameters,
            regions: Regions::default(),
            nodes: (0..count).map(|_| Node::default()).collect(),
            traffic: vec![Traffic::default(); count],
            violations: Counters::default(),
            disabled: false,
            next_id: 1,
            next_ticket: 1,
            statistics: None,
            statistics_wanted: false,
            events: Vec::new(),
        }
    }

    /// The configuration space.
    #[must_use]
    pub fn config(&self) -> Config {
        Config {
            nr_nodes: self.parameters.nr_nodes,
            instance: self.parameters.instance,
            statistics_interval_ms: self.parameters.statistics_interval_ms,
            max_ranges: self.parameters.max_ranges,
        }
    }

    /// Longest report that can be right.
    #[must_use]
    pub fn max_report_bytes(&self) -> usize {
        REPORT_BYTES + self.parameters.max_ranges as usize * RANGE_BYTES
    }

    /// A new memory table. What was in the balloons stays there, if the memory
    /// is still there.
    pub fn set_regions(&mut self, regions: Regions) {
        self.nodes.iter_mut().for_each(Node::forget_away);
        self.go_on_with_regions(regions);
    }

    /// A further part of a memory table that comes in parts: a monitor that hands memory over
    /// piece by piece takes pieces out and puts the same memory in again, cut otherwise. What was
    /// in the balloons of memory that the parts before have taken out is there again when
    /// the memory is. Meanwhile it is in no balloon, and nothing is punched there.
    pub fn go_on_with_regions(&mut self, regions: Regions) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            node.keep_within(&regions, index as u16);
        }
        self.regions = regions;
    }

    /// The memory table.
    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Nothing is taken any more.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// How the guest did wrong so far.
    #[must_use]
    pub fn violations(&self) -> &Counters {
        &self.violations
    }

    /// The guest's newest words.
    #[must_use]
    pub fn latest_statistics(&self) -> Option<&Statistics> {
        self.statistics.as_ref()
    }

    /// One balloon.
    #[must_use]
    pub fn node(&self, node: u16) -> Option<NodeView> {
        let state = self.nodes.get(usize::from(node))?;
        Some(NodeView {
            node_pages: self.regions.node_pages(node),
            held_pages: state.held_pages(),
            punching_pages: state.punching_pages(),
            wish_pages: state.wish_pages(),
            ticket: state.ticket(),
            last: state.last(),
            has_driver: state.has_driver(),
            is_busy: state.is_busy(),
            traffic: self.traffic[usize::from(node)],
        })
    }

    /// Number of balloons.
    #[must_use]
    pub fn nr_nodes(&self) -> u16 {
        self.parameters.nr_nodes
    }

    /// The guest has reset the device: nobody is asked for anything before the next HELLO.
    pub fn reset(&mut self) {
        self.nodes.iter_mut().for_each(Node::reset);
    }

    /// Wishes a balloon of that size. The request is delivered once a driver is
    /// there, and again to every later driver. The number that [`NodeView::last`]
    /// shows, or has passed, when the request has ended.
    ///
    /// # Errors
    /// No such node, or it is smaller than that.
    pub fn set_target(&mut self, node: u16, target_pages: u64) -> Result<u64, TargetError> {
        let ticket = self.next_ticket;
        self.set_target_as(node, target_pages, ticket)?;
        Ok(ticket)
    }

    /// As [`Device::set_target`], with a number of the owner's. Numbers grow.
    ///
    /// # Errors
    /// As there.
    pub fn set_target_as(
        &mut self,
        node: u16,
        target_pages: u64,
        ticket: u64,
    ) -> Result<(), TargetError> {
        let nr_nodes = self.parameters.nr_nodes;
        let node_pages = self.regions.node_pages(node);
        let state = self
            .nodes
            .get_mut(usize::from(node))
            .ok_or(TargetError::Node { node, nr_nodes })?;
        if self.disabled {
            return Err(TargetError::Disabled);
        }
        // Before the memory table has come nothing is known to be too much.
        if node_pages > 0 && target_pages > node_pages {
            return Err(TargetError::Size {
                node,
                asked_pages: target_pages,
                node_pages,
            });
        }
        state.wish(target_pages, ticket);
        self.next_ticket = self.next_ticket.max(ticket.saturating_add(1));
        Ok(())
    }

    /// Asks for statistics.
    pub fn ask_statistics(&mut self) {
        self.statistics_wanted = true;
    }

    /// The next message for the request queue. It counts as delivered: ask only
    /// when there is a buffer for it.
    pub fn next_request(&mut self) -> Option<Request> {
        if self.disabled {
            return None;
        }
        // In the order of the wishes: one tier may need what another gets first.
        let oldest = (self.nodes.iter().enumerate())
            .filter_map(|(index, node)| Some((node.ticket(), index, node.deliverable()?)))
            .min();
        if let Some((_, index, wish_pages)) = oldest {
            let id = self.next_id;
            self.next_id += 1;
            // A wish may be older than the memory table.
            let target_pages = wish_pages.min(self.regions.node_pages(index as u16));
            self.nodes[index].deliver(id, target_pages);
            return Some(Request {
                id,
                op: OP_RESIZE,
                node: index as u16,
                target_pages,
            });
        }
        if std::mem::take(&mut self.statistics_wanted) {
            let id = self.next_id;
            self.next_id += 1;
            return Some(Request {
                id,
                op: OP_STATISTICS,
                node: 0,
                target_pages: 0,
            });
        }
        None
    }

    /// A message waits for a buffer.
    #[must_use]
    pub fn has_request(&self) -> bool {
        !self.disabled
            && (self.statistics_wanted || self.nodes.iter().any(|n| n.deliverable().is_some()))
    }

    /// Takes a report from `node`'s queue, `bytes` being the one copy that was
    /// made of it.
    pub fn report(&mut self, node: u16, bytes: &[u8], backing: &mut impl Backing) -> Ack {
        match self.begin_report(node, bytes) {
            Taken::Answered(ack) => ack,
            Taken::Punching(punching) => {
                let punched = (punching.pieces.iter()).try_for_each(|piece| backing.punch(*piece));
                self.end_report(punching, punched)
            }
        }
    }

    /// The part of [`Device::report`] before the holes are punched. Until
    /// [`Device::end_report`] the node takes no other report, and the memory table
    /// stays.
    pub fn begin_report(&mut self, node: u16, bytes: &[u8]) -> Taken {
        let refused = |status, bad_range| Taken::Answered(Ack { status, bad_range });
        if self.disabled {
            return refused(Status::Disabled, 0);
        }
        match self.try_report(node, bytes) {
            Ok(None) => refused(Status::Ok, 0),
            Ok(Some(punching)) => {
                self.nodes[usize::from(node)].set_punching(sum(&punching.ranges));
                Taken::Punching(punching)
            }
            Err((reason, index)) => {
                self.violate(reason);
                refused(reason.status(), u32::try_from(index).unwrap_or(u32::MAX))
            }
        }
    }

    /// The part of [`Device::report`] after that; `punched` is what the host said.
    pub fn end_report(&mut self, punching: Punching, punched: io::Result<()>) -> Ack {
        let Punching {
            report,
            ranges,
            pieces,
        } = punching;
        let index = usize::from(report.node);
        self.nodes[index].set_punching(0);
        let status = match punched {
            Ok(()) => {
                let traffic = &mut self.traffic[index];
                traffic.punches += pieces.len() as u64;
                traffic.inflated_pages += sum(&ranges);
                self.count(&report);
                Status::Ok
            }
            Err(cause) => {
                self.nodes[index].undo_inflate(&ranges);
                self.events.push(Event::HostFailed {
                    node: report.node,
                    cause: cause.to_string(),
                });
                Status::Host
            }
        };
        Ack {
            status,
            bad_range: 0,
        }
    }

    /// Answers a report that is too wrong to be looked at.
    pub fn refuse(&mut self, reason: Reason) -> Ack {
        let status = if self.disabled {
            Status::Disabled
        } else {
            self.violate(reason);
            reason.status()
        };
        Ack {
            status,
            bad_range: 0,
        }
    }

    /// Bytes of a message of the statistics queue.
    #[must_use]
    pub fn statistics_bytes(&self) -> usize {
        STATISTICS_BYTES + self.nodes.len() * NODE_STATISTICS_BYTES
    }

    /// The guest did something wrong that never became a report.
    pub fn violate(&mut self, reason: Reason) {
        self.violations.count(reason);
        if self.disabled {
            return;
        }
        self.events.push(Event::Violation { reason });
        if self.violations.total() >= self.parameters.violation_limit {
            self.disable();
        }
    }

    /// Takes nothing any more, for a reason of the host's.
    pub fn disable(&mut self) {
        if !self.disabled {
            self.disabled = true;
            self.events.push(Event::Disabled);
        }
    }

    /// Takes a message of the statistics queue.
    pub fn statistics(&mut self, bytes: &[u8]) {
        if self.disabled {
            return;
        }
        let node_pages: Vec<u64> = (0..self.parameters.nr_nodes)
            .map(|node| self.regions.node_pages(node))
            .collect();
        match Statistics::from_bytes(bytes, &node_pages) {
            Ok(statistics) => {
                self.statistics = Some(statistics);
                self.events.push(Event::Statistics);
            }
            Err(reason) => self.violate(reason),
        }
    }

    fn try_report(&mut self, node: u16, bytes: &[u8]) -> Result<Option<Punching>, (Reason, usize)> {
        // In the order of [DEV-10].
        let index = usize::from(node);
        let report = Report::from_bytes(bytes).ok_or((Reason::Length, 0))?;
        if !matches!(report.op, OP_HELLO | OP_INFLATED | OP_DEFLATE | OP_DONE) {
            return Err((Reason::Operation, 0));
        }
        // [DEV-12]: before anything is allocated for them.
        if report.nr_ranges > self.parameters.max_ranges {
            return Err((Reason::Count, 0));
        }
        let ranges = &bytes[REPORT_BYTES..];
        if ranges.len() != report.nr_ranges as usize * RANGE_BYTES {
            return Err((Reason::Length, 0));
        }
        check_fields(&report).map_err(at_first)?;
        if report.node != node || index >= self.nodes.len() {
            return Err((Reason::Node, 0));
        }
        if report.op != OP_HELLO && !self.nodes[index].has_driver() {
            return Err((Reason::NoHello, 0));
        }
        let ranges: Vec<Range> = ranges
            .chunks_exact(RANGE_BYTES)
            .filter_map(Range::from_bytes)
            .collect();
        match report.op {
            OP_HELLO => self.hello(node, &report).map_err(at_first)?,
            OP_INFLATED => return self.inflated(report, ranges).map(Some),
            OP_DEFLATE => self.deflate(node, &report, &ranges)?,
            _ => self.done(node, &report).map_err(at_first)?,
        }
        self.count(&report);
        Ok(None)
    }

    /// A report was taken.
    fn count(&mut self, report: &Report) {
        let index = usize::from(report.node);
        let traffic = &mut self.traffic[index];
        traffic.reports += 1;
        traffic.ranges += u64::from(report.nr_ranges);
        if report.op != OP_HELLO && report.current_pages != self.nodes[index].held_pages() {
            traffic.miscounted += 1;
        }
    }

    fn hello(&mut self, node: u16, report: &Report) -> Result<(), Reason> {
        let resync = report.flags & HELLO_RESYNC != 0;
        let kept = report.current_pages;
        if resync != (kept > 0) || kept > self.regions.node_pages(node) {
            return Err(Reason::Field);
        }
        let index = usize::from(node);
        self.nodes[index].hello(resync.then_some(kept));
        self.traffic[index].hellos += 1;
        self.events.push(Event::Hello {
            node,
            kept_pages: kept,
        });
        Ok(())
    }

    fn inflated(
        &mut self,
        report: Report,
        ranges: Vec<Range>,
    ) -> Result<Punching, (Reason, usize)> {
        let node = report.node;
        let resync = report.flags & INFLATED_RESYNC != 0;
        self.nodes[usize::from(node)].inflate(node, &ranges, resync, &self.regions)?;
        let pieces = self.merged_pieces(node, &ranges);
        Ok(Punching {
            report,
            ranges,
            pieces,
        })
    }

    /// What to punch, neighbours merged: small pages come in any order.
    fn merged_pieces(&self, node: u16, ranges: &[Range]) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = ranges
            .iter()
            .filter_map(|range| self.regions.pieces(node, *range).ok())
            .flatten()
            .collect();
        pieces.sort_unstable_by_key(|piece| (piece.backing, piece.offset_bytes));
        pieces.dedup_by(|next, last| {
            let adjoins = next.backing == last.backing
                && last.offset_bytes + last.length_bytes == next.offset_bytes;
            if adjoins {
                last.length_bytes += next.length_bytes;
            }
            adjoins
        });
        pieces
    }

    fn deflate(
        &mut self,
        node: u16,
        report: &Report,
        ranges: &[Range],
    ) -> Result<(), (Reason, usize)> {
        let index = usize::from(node);
        self.nodes[index].deflate(node, ranges, &self.regions)?;
        let nr_pages = sum(ranges);
        self.traffic[index].deflated_pages += nr_pages;
        if report.id == 0 {
            self.events.push(Event::TakenBack { node, nr_pages });
        }
        Ok(())
    }

    fn done(&mut self, node: u16, report: &Report) -> Result<(), Reason> {
        let outcome = Outcome::from_wire(report.result).ok_or(Reason::Field)?;
        let index = usize::from(node);
        match self.nodes[index].done(report.id, outcome) {
            Some(ended) => self.events.push(Event::Done {
                node,
                ended,
                held_pages: self.nodes[index].held_pages(),
            }),
            None => self.traffic[index].stray_done += 1,
        }
        Ok(())
    }
}

/// Flags, counts and results that go with the operation. [DRV-12]
fn check_fields(report: &Report) -> Result<(), Reason> {
    let known_flags = match report.op {
        OP_HELLO => HELLO_RESYNC,
        OP_INFLATED => INFLATED_RESYNC,
        _ => 0,
    };
    let carries_ranges = matches!(report.op, OP_INFLATED | OP_DEFLATE);
    let fits = report.flags & !known_flags == 0
        && carries_ranges == (report.nr_ranges > 0)
        && (report.op == OP_DONE || report.result == 0);
    if fits { Ok(()) } else { Err(Reason::Field) }
}

/// For what no range is to blame for.
fn at_first(reason: Reason) -> (Reason, usize) {
    (reason, 0)
}

fn sum(ranges: &[Range]) -> u64 {
    ranges.iter().map(|range| range.nr_pages).sum()
}
