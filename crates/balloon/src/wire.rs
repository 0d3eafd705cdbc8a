// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The wire format, `uapi/virtio_demeter.h` in Rust. Everything is little
//! endian, whatever the host; nothing is transmuted. A test compiles the C
//! header and compares sizes, offsets and constants.

/// Virtio device id: "memory balloon", reserved and driven by nobody.
pub const DEVICE_ID: u32 = 13;
/// First word of the configuration space.
pub const MAGIC: u32 = 0x4c42_4d44;
/// Version of the interface.
pub const VERSION: u16 = 1;
/// A page is 4 KiB, whatever the guest's own page size is.
pub const PAGE_SHIFT: u32 = 12;
/// Most nodes of a device.
pub const MAX_NODES: usize = 4;

/// Queue from the device to the driver.
pub const QUEUE_REQUEST: usize = 0;
/// Queue with the driver's statistics.
pub const QUEUE_STATISTICS: usize = 1;
/// Report queue of node 0; node n is this plus n.
pub const QUEUE_REPORT: usize = 2;

/// Bytes of the configuration space.
pub const CONFIG_BYTES: usize = 64;
/// Bytes of a request.
pub const REQUEST_BYTES: usize = 32;
/// Bytes of a report before its ranges.
pub const REPORT_BYTES: usize = 32;
/// Bytes of a range.
pub const RANGE_BYTES: usize = 16;
/// Bytes of an acknowledgement.
pub const ACK_BYTES: usize = 8;
/// Bytes of statistics before the records of the nodes.
pub const STATISTICS_BYTES: usize = 112;
/// Bytes of a node's record.
pub const NODE_STATISTICS_BYTES: usize = 64;

/// Bring a balloon to a size.
pub const OP_RESIZE: u16 = 1;
/// Push statistics now.
pub const OP_STATISTICS: u16 = 2;

/// First message of a report queue.
pub const OP_HELLO: u16 = 1;
/// The driver holds these pages.
pub const OP_INFLATED: u16 = 2;
/// The driver wants these back.
pub const OP_DEFLATE: u16 = 3;
/// A request has ended.
pub const OP_DONE: u16 = 4;

/// HELLO: pages of an earlier device are reported next.
pub const HELLO_RESYNC: u32 = 1;
/// INFLATED: one of those pages.
pub const INFLATED_RESYNC: u32 = 1;

/// Statistics: a memory manager feeds `hot_*` and the samples.
pub const VALID_TMM: u32 = 1;
/// Statistics: pressure stall times are known.
pub const VALID_PSI: u32 = 2;

/// Why a request ended where it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// At the target.
    Reached,
    /// The guest needs the rest itself.
    Floor,
    /// A newer request took over.
    Superseded,
    /// The guest ran out of memory and took pages back.
    Oom,
    /// No such node, unknown operation.
    Refused,
}

impl Outcome {
    /// The outcome of that number.
    #[must_use]
    pub fn from_wire(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Reached,
            1 => Self::Floor,
            2 => Self::Superseded,
            3 => Self::Oom,
            4 => Self::Refused,
            _ => return None,
        })
    }
}

/// What the device says of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// Taken.
    Ok = 0,
    /// Length, operation, count, flags or reserved fields.
    Malformed = 1,
    /// Not this queue's node.
    Node = 2,
    /// Unaligned, empty, wrapping, outside guest memory.
    Range = 3,
    /// Memory of another tier.
    Tier = 4,
    /// Inflated twice, or deflated without inflation.
    State = 5,
    /// More than was asked for.
    Budget = 6,
    /// The host could not.
    Host = 7,
    /// Nothing is taken any more.
    Disabled = 8,
    /// No HELLO yet.
    Hello = 9,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The configuration space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Number of balloons.
    pub nr_nodes: u16,
    /// Differs after every start of the device's owner.
    pub instance: u64,
    /// Period of statistics; 0: on events and on request only.
    pub statistics_interval_ms: u32,
    /// Most ranges in a report.
    pub max_ranges: u32,
}

impl Config {
    /// As the driver reads it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; CONFIG_BYTES] {
        let mut bytes = [0; CONFIG_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.nr_nodes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.instance.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.statistics_interval_ms.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.max_ranges.to_le_bytes());
        bytes
    }
}

/// A message of the request queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Returned in DONE.
    pub id: u64,
    /// [`OP_RESIZE`] or [`OP_STATISTICS`].
    pub op: u16,
    /// Node of a RESIZE.
    pub node: u16,
    /// Pages that the balloon shall hold.
    pub target_pages: u64,
}

impl Request {
    /// As the driver reads it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.op.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.node.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.target_pages.to_le_bytes());
        bytes
    }

    /// What a driver gets.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            id: u64_at(bytes, 0)?,
            op: u16_at(bytes, 8)?,
            node: u16_at(bytes, 10)?,
            target_pages: u64_at(bytes, 16)?,
        })
    }
}

/// The fixed part of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Of the request that is executed; 0: on the guest's own account.
    pub id: u64,
    /// One of the `OP_` constants of reports.
    pub op: u16,
    /// The node.
    pub node: u16,
    /// By operation.
    pub flags: u32,
    /// Number of ranges that follow.
    pub nr_ranges: u32,
    /// DONE only.
    pub result: u32,
    /// Of the node, after this report.
    pub current_pages: u64,
}

impl Report {
    /// None: too short.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            id: u64_at(bytes, 0)?,
            op: u16_at(bytes, 8)?,
            node: u16_at(bytes, 10)?,
            flags: u32_at(bytes, 12)?,
            nr_ranges: u32_at(bytes, 16)?,
            result: u32_at(bytes, 20)?,
            current_pages: u64_at(bytes, 24)?,
        })
    }

    /// A whole message, as a driver writes it; for tests and models of drivers.
    #[must_use]
    pub fn message(mut self, ranges: &[Range]) -> Vec<u8> {
        self.nr_ranges = u32::try_from(ranges.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(REPORT_BYTES + ranges.len() * RANGE_BYTES);
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.op.to_le_bytes());
        bytes.extend(self.node.to_le_bytes());
        bytes.extend(self.flags.to_le_bytes());
        bytes.extend(self.nr_ranges.to_le_bytes());
        bytes.extend(self.result.to_le_bytes());
        bytes.extend(self.current_pages.to_le_bytes());
        for range in ranges {
            bytes.extend(range.gpa.to_le_bytes());
            bytes.extend(range.nr_pages.to_le_bytes());
        }
        bytes
    }
}

/// Neighbouring pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Guest physical address in bytes.
    pub gpa: u64,
    /// Number of 4 KiB pages.
    pub nr_pages: u64,
}

impl Range {
    /// None: too short.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            gpa: u64_at(bytes, 0)?,
            nr_pages: u64_at(bytes, 8)?,
        })
    }
}

/// The device's answer to a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Taken, or why not.
    pub status: Status,
    /// Index of the range that failed, or 0.
    pub bad_range: u32,
}

impl Ack {
    /// As the driver reads it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ACK_BYTES] {
        let mut bytes = [0; ACK_BYTES];
        bytes[0..4].copy_from_slice(&(self.status as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.bad_range.to_le_bytes());
        bytes
    }
}

/// Numbers of a record, one after the other.
pub(crate) struct Words<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Words<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let value = u64_at(self.bytes, self.at)?;
        self.at += 8;
        Some(value)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let value = u32_at(self.bytes, self.at)?;
        self.at += 4;
        Some(value)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        let value = u16_at(self.bytes, self.at)?;
        self.at += 2;
        Some(value)
    }
}
