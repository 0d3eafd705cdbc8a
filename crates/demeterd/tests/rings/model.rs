// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A model of a monitor with a guest: two memory files, rings in the first one,
//! written by hand.
#![allow(dead_code, reason = "each test that includes it uses a part")]

#[path = "daemon.rs"]
mod daemon;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use demeter_balloon::wire::{
    OP_HELLO, QUEUE_REPORT, QUEUE_REQUEST, QUEUE_STATISTICS, REQUEST_BYTES, Range, Report,
};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

#[allow(unused_imports, reason = "each test that includes it uses a part")]
pub use daemon::{Daemon, directory, keys_of, make_memory, program};

use daemon::bounded;

/// Descriptor flags.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub const NODE_BYTES: u64 = 4 << 20;
/// FMEM begins at zero, SMEM after a hole.
const BEGINS: [u64; 2] = [0, 1 << 30];
/// Where the model says that it has mapped guest memory.
const MAPPED: u64 = 1 << 44;
const SIZE: u16 = 64;
/// Version 1, protocol features, indirect descriptors.
const RING_FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 28;
/// Of each queue's part of the first 64 KiB chunks of FMEM.
const QUEUE_BYTES: u64 = 64 << 10;
const AVAILABLE: u64 = 4096;
const USED: u64 = 8192;
const BUFFERS: u64 = 16384;
pub const LIMIT: Duration = Duration::from_secs(20);

/// Of a connection that may be cut at any time.
pub type Done<T> = Result<T, Box<dyn std::error::Error>>;

fn mark_of(page: u64) -> [u8; 8] {
    (page | 0xa5 << 56).to_le_bytes()
}

/// A descriptor of a ring.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    pub addr: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

struct Queue {
    kick: EventFd,
    call: EventFd,
    available: u16,
    used: u16,
}

/// A monitor and its guest.
pub struct Guest {
    name: String,
    memory: [File; 2],
    frontend: Frontend,
    queues: Vec<Queue>,
}

impl Guest {
    /// Its driver greets for both tiers.
    pub fn greet(&mut self) {
        for node in 0..2 {
            let hello = Report {
                op: OP_HELLO,
                node,
                ..Report::default()
            };
            assert_eq!(self.report(usize::from(node), hello, &[]), Some(0));
        }
    }

    pub fn connect(daemon: &Daemon, name: &str) -> Self {
        let memory = ["fmem", "smem"].map(|node| daemon.path(&format!("{name}.{node}")));
        let guest = Self::at(name, &daemon.path(&format!("{name}.sock")), &memory);
        // The daemon notes the connection right after it has taken it.
        let began = Instant::now();
        while daemon.view(name)["stage"] == "waiting" {
            assert!(began.elapsed() < LIMIT);
        }
        guest
    }

    /// Of a daemon that somebody else started.
    pub fn at(name: &str, socket: &Path, memory: &[PathBuf; 2]) -> Self {
        Self::try_at(name, socket, memory).unwrap()
    }

    /// As [`Self::at`]; whoever serves it may end meanwhile.
    fn try_at(name: &str, socket: &Path, memory: &[PathBuf; 2]) -> Done<Self> {
        let open = |path: &PathBuf| {
            let mut options = File::options();
            options.read(true).write(true).open(path).unwrap()
        };
        let memory = memory.each_ref().map(open);
        let count = QUEUE_REPORT + 2;
        let stream = bounded(socket)?;
        let mut frontend = Frontend::from_stream(stream, count as u64);
        frontend.set_owner()?;
        let features = frontend.get_features()?;
        // [DEV-1]
        assert_eq!(features & 0xff_ffff, 0);
        assert_eq!(features & RING_FEATURES, RING_FEATURES);
        frontend.set_features(RING_FEATURES)?;
        let wanted = VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::RESET_DEVICE;
        let offered = frontend.get_protocol_features()?;
        assert!(offered.contains(wanted));
        frontend.set_protocol_features(wanted)?;
        let regions: Vec<VhostUserMemoryRegionInfo> = (0..2)
            .map(|node| VhostUserMemoryRegionInfo {
                guest_phys_addr: BEGINS[node],
                memory_size: NODE_BYTES,
                userspace_addr: MAPPED + BEGINS[node],
                mmap_offset: 0,
                mmap_handle: memory[node].as_raw_fd(),
            })
            .collect();
        frontend.set_mem_table(&regions)?;
        let mut guest = Self {
            name: name.to_owned(),
            memory,
            frontend,
            queues: Vec::new(),
        };
        for queue in 0..count {
            guest.queues.push(Queue {
                kick: EventFd::new(libc::EFD_NONBLOCK).unwrap(),
                call: EventFd::new(libc::EFD_NONBLOCK).unwrap(),
                available: 0,
                used: 0,
            });
            guest.try_start_queue(queue)?;
        }
        guest.offer_request();
        Ok(guest)
    }

    /// A new connection in the place of this one, if whoever is there lives for long enough.
    pub fn try_reconnect(&mut self, daemon: &Daemon) -> Done<()> {
        let memory = ["fmem", "smem"].map(|node| daemon.path(&format!("{}.{node}", self.name)));
        let socket = daemon.path(&format!("{}.sock", self.name));
        *self = Self::try_at(&self.name, &socket, &memory)?;
        Ok(())
    }

    pub fn reconnect(self, daemon: &Daemon) -> Self {
        let name = self.name.clone();
        drop(self);
        Self::connect(daemon, &name)
    }

    fn start_queue(&mut self, queue: usize) {
        self.try_start_queue(queue).unwrap();
    }

    fn try_start_queue(&mut self, queue: usize) -> vhost::Result<()> {
        let base = queue as u64 * QUEUE_BYTES;
        self.write(base, &vec![0; QUEUE_BYTES as usize]);
        self.start_queue_at(queue, SIZE, base, base + AVAILABLE)
    }

    /// With its table and what is available there.
    fn start_queue_at(
        &mut self,
        queue: usize,
        size: u16,
        table: u64,
        available: u64,
    ) -> vhost::Result<()> {
        let base = queue as u64 * QUEUE_BYTES;
        let state = &mut self.queues[queue];
        state.available = 0;
        state.used = 0;
        let config = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: MAPPED + table,
            used_ring_addr: MAPPED + base + USED,
            avail_ring_addr: MAPPED + available,
            log_addr: None,
        };
        let frontend = &mut self.frontend;
        frontend.set_vring_num(queue, size)?;
        frontend.set_vring_addr(queue, &config)?;
        frontend.set_vring_base(queue, 0)?;
        frontend.set_vring_call(queue, &state.call)?;
        frontend.set_vring_kick(queue, &state.kick)?;
        frontend.set_vring_enable(queue, true)
    }

    /// A ring whose list of available buffers ends with guest memory after three, with four of
    /// them in it.
    pub fn cut_available(&mut self, queue: usize) {
        self.stop(queue);
        let base = queue as u64 * QUEUE_BYTES;
        self.write(base, &vec![0; QUEUE_BYTES as usize]);
        let available = NODE_BYTES - 10;
        self.write(available, &[0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        // Of no power of two: whoever takes sizes as they come knows better.
        self.start_queue_at(queue, 3, base, available).unwrap();
        self.queues[queue].kick.write(1).unwrap();
    }

    /// A ring of that size whose table is so far from where it may be; whoever serves it hangs up.
    pub fn start_wrong(&mut self, node: usize, size: u16, offset: u64) {
        let queue = QUEUE_REPORT + node;
        self.stop(queue);
        let base = queue as u64 * QUEUE_BYTES;
        self.write(base, &vec![0; QUEUE_BYTES as usize]);
        let _ = self.start_queue_at(queue, size, base + offset, base + AVAILABLE);
    }

    /// As a monitor does when the driver resets the device.
    pub fn restart_queue(&mut self, node: usize) {
        let queue = QUEUE_REPORT + node;
        self.frontend.set_vring_enable(queue, false).unwrap();
        self.frontend.get_vring_base(queue).unwrap();
        self.start_queue(queue);
    }

    /// A machine that is reset, or a driver that is loaded anew, up to its first word: queues are
    /// stopped, the device is reset, queues start with a buffer for a request.
    pub fn reset(&mut self) {
        for queue in 0..self.queues.len() {
            self.frontend.set_vring_enable(queue, false).unwrap();
            self.frontend.get_vring_base(queue).unwrap();
        }
        self.frontend.reset_device().unwrap();
        self.frontend.set_features(RING_FEATURES).unwrap();
        for queue in 0..self.queues.len() {
            self.start_queue(queue);
        }
        self.offer_request();
    }

    /// Requests that came since the queue was started.
    pub fn requests_given(&self) -> u16 {
        let base = QUEUE_REQUEST as u64 * QUEUE_BYTES + USED;
        u16::from_le_bytes(self.read(base + 2))
    }

    /// Stops the queue of requests, whose memory is the guest's again, and fills that.
    pub fn stop_requests(&mut self) {
        self.stop(QUEUE_REQUEST);
    }

    fn stop(&mut self, queue: usize) {
        self.frontend.set_vring_enable(queue, false).unwrap();
        self.frontend.get_vring_base(queue).unwrap();
        let base = queue as u64 * QUEUE_BYTES;
        self.write(base, &vec![0xa5; QUEUE_BYTES as usize]);
    }

    /// Whether that is as it was left.
    pub fn requests_are_untouched(&self) -> bool {
        self.is_untouched(QUEUE_REQUEST)
    }

    fn is_untouched(&self, queue: usize) -> bool {
        let bytes: [u8; QUEUE_BYTES as usize] = self.read(queue as u64 * QUEUE_BYTES);
        bytes.iter().all(|&byte| byte == 0xa5)
    }

    /// As a driver that starts it anew.
    pub fn start_requests(&mut self) {
        self.start_queue(QUEUE_REQUEST);
        self.offer_request();
    }

    /// Guest memory of FMEM, where all rings lie.
    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory[0].write_all_at(bytes, at).unwrap();
    }

    fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory[0].read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    pub fn config(&mut self, offset: u32, size: u32) -> Vec<u8> {
        let flags = VhostUserConfigFlags::empty();
        let (_, bytes) = self
            .frontend
            .get_config(offset, size, flags, &vec![0; size as usize])
            .unwrap();
        bytes
    }

    pub fn pages(&self, _node: usize) -> u64 {
        NODE_BYTES >> 12
    }

    pub fn first_page(&self, node: usize) -> u64 {
        BEGINS[node] >> 12
    }

    /// Makes the host allocate what lies above the rings.
    pub fn fill(&self, node: usize) {
        let rings = self.queues.len() as u64 * QUEUE_BYTES;
        let bytes = vec![0xa5; (NODE_BYTES - rings) as usize];
        self.memory[node].write_all_at(&bytes, rings).unwrap();
        self.memory[node].sync_all().unwrap();
    }

    /// Uses a page above the rings.
    pub fn touch(&self, node: usize, page: u64) {
        self.memory[node].write_all_at(&[0xa5], page << 12).unwrap();
    }

    /// As a monitor that makes a file of guest memory shorter.
    pub fn truncate(&self, node: usize, bytes: u64) {
        self.memory[node].set_len(bytes).unwrap();
    }

    /// Rings the bell of that node's queue.
    pub fn ring(&self, node: usize) {
        self.queues[QUEUE_REPORT + node].kick.write(1).unwrap();
    }

    pub fn allocated_pages(&self, node: usize) -> u64 {
        self.memory[node].metadata().unwrap().blocks() / 8
    }

    /// A buffer of that node's report queue.
    pub fn buffer(&self, node: usize) -> u64 {
        (QUEUE_REPORT + node) as u64 * QUEUE_BYTES + BUFFERS
    }

    fn offer(&mut self, queue: usize, chain: &[Descriptor]) {
        let base = queue as u64 * QUEUE_BYTES;
        for (index, descriptor) in chain.iter().enumerate() {
            self.write(base + 16 * index as u64, &descriptor.bytes());
        }
        let slot = u64::from(self.queues[queue].available % SIZE);
        self.write(base + AVAILABLE + 4 + 2 * slot, &0_u16.to_le_bytes());
        self.advance(queue, 1);
    }

    fn advance(&mut self, queue: usize, by: u16) {
        let state = &mut self.queues[queue];
        state.available = state.available.wrapping_add(by);
        let index = state.available.to_le_bytes();
        self.write(queue as u64 * QUEUE_BYTES + AVAILABLE + 2, &index);
        self.queues[queue].kick.write(1).unwrap();
    }

    /// Descriptors as they are, the first one being the head.
    pub fn offer_chain(&mut self, node: usize, chain: &[Descriptor]) {
        self.offer(QUEUE_REPORT + node, chain);
    }

    /// Says that there is more than the ring can hold.
    pub fn jump_available(&mut self, node: usize, by: u16) {
        self.advance(QUEUE_REPORT + node, by);
    }

    /// Length of the next used buffer.
    pub fn wait_used(&mut self, node: usize) -> Option<u32> {
        self.wait_queue(QUEUE_REPORT + node)
    }

    fn wait_queue(&mut self, queue: usize) -> Option<u32> {
        let base = queue as u64 * QUEUE_BYTES + USED;
        let began = Instant::now();
        while u16::from_le_bytes(self.read(base + 2)) == self.queues[queue].used {
            if began.elapsed() > LIMIT || self.is_cut() {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let slot = u64::from(self.queues[queue].used % SIZE);
        self.queues[queue].used = self.queues[queue].used.wrapping_add(1);
        Some(u32::from_le_bytes(self.read(base + 4 + 8 * slot + 4)))
    }

    /// Whoever served this device is gone.
    pub fn is_cut(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.frontend.as_raw_fd(),
            events: 0,
            revents: 0,
        };
        // SAFETY: one structure, which lives until the end.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready > 0
    }

    /// As [`Self::report`]; none if nobody answers any more.
    pub fn try_report(&mut self, node: usize, report: Report, ranges: &[Range]) -> Option<u32> {
        let message = report.message(ranges);
        let answer = self.buffer(node) + message.len() as u64;
        self.write(answer, &[0xff; 8]);
        self.write(self.buffer(node), &message);
        let chain = self.chain_of(node, message.len(), answer);
        self.offer_chain(node, &chain);
        self.wait_used(node)?;
        Some(u32::from_le_bytes(self.read(answer)))
    }

    /// Uses a page above the rings for something of its own.
    pub fn mark(&self, node: usize, page: u64) {
        let bytes = mark_of(page).repeat(512);
        self.memory[node].write_all_at(&bytes, page << 12).unwrap();
    }

    /// That is still there.
    pub fn is_marked(&self, node: usize, page: u64) -> bool {
        let mut bytes = [0; 4096];
        self.memory[node]
            .read_exact_at(&mut bytes, page << 12)
            .unwrap();
        bytes.chunks(8).all(|word| word == mark_of(page))
    }

    fn send(&mut self, node: usize, message: &[u8]) -> u32 {
        let answer = self.buffer(node) + message.len() as u64;
        self.write(answer, &[0xff; 8]);
        self.send_for(node, message, answer)
    }

    /// Sends the same report so often, without waiting in between.
    pub fn flood(&mut self, node: usize, report: Report, count: u16) {
        let queue = QUEUE_REPORT + node;
        let mut left = count;
        while left > 0 {
            // Slots of the ring may all name the first chain.
            let many = left.min(SIZE);
            let base = queue as u64 * QUEUE_BYTES;
            for slot in 0..many {
                let slot = u64::from(self.queues[queue].available.wrapping_add(slot) % SIZE);
                self.write(base + AVAILABLE + 4 + 2 * slot, &0_u16.to_le_bytes());
            }
            let message = report.message(&[]);
            let buffer = self.buffer(node);
            self.write(buffer, &message);
            let chain = self.chain_of(node, message.len(), buffer + message.len() as u64);
            for (index, descriptor) in chain.iter().enumerate() {
                self.write(base + 16 * index as u64, &descriptor.bytes());
            }
            self.advance(queue, many);
            for _ in 0..many {
                self.wait_used(node).expect("no answer");
            }
            left -= many;
        }
    }

    /// Sends a report with the answer's buffer at that guest physical address.
    /// Length of the answer.
    pub fn report_for(&mut self, node: usize, report: Report, answer: u64) -> u32 {
        self.send_for(node, &report.message(&[]), answer)
    }

    fn send_for(&mut self, node: usize, message: &[u8], answer: u64) -> u32 {
        self.write(self.buffer(node), message);
        let chain = self.chain_of(node, message.len(), answer);
        self.offer_chain(node, &chain);
        self.wait_used(node).expect("no answer")
    }

    fn chain_of(&self, node: usize, length: usize, answer: u64) -> [Descriptor; 2] {
        [
            Descriptor {
                addr: self.buffer(node),
                len: length as u32,
                flags: NEXT,
                next: 1,
            },
            Descriptor {
                addr: answer,
                len: 8,
                flags: WRITE,
                next: 0,
            },
        ]
    }

    /// Offers so many reports at once, in a queue that was just started, and waits until the
    /// first one is answered.
    pub fn burst(&mut self, node: usize, messages: &[Vec<u8>]) {
        let queue = QUEUE_REPORT + node;
        let base = queue as u64 * QUEUE_BYTES;
        for (at, message) in messages.iter().enumerate() {
            let place = self.buffer(node) + 256 * at as u64;
            self.write(place, message);
            let [mut says, mut answer] = self.chain_of(node, message.len(), place + 200);
            (says.addr, says.next) = (place, 2 * at as u16 + 1);
            answer.next = 0;
            self.write(base + 32 * at as u64, &says.bytes());
            self.write(base + 32 * at as u64 + 16, &answer.bytes());
            let slot = u64::from(self.queues[queue].available.wrapping_add(at as u16) % SIZE);
            let head = (2 * at as u16).to_le_bytes();
            self.write(base + AVAILABLE + 4 + 2 * slot, &head);
        }
        self.advance(queue, messages.len() as u16);
        let began = Instant::now();
        while self.read::<2>(base + USED + 2) == [0; 2] {
            assert!(began.elapsed() < LIMIT, "no answer");
        }
    }

    /// Stops a report queue, whose memory is the guest's again, and fills that.
    pub fn stop_queue(&mut self, node: usize) {
        self.stop(QUEUE_REPORT + node);
    }

    /// Whether that is as it was left.
    pub fn queue_is_untouched(&self, node: usize) -> bool {
        self.is_untouched(QUEUE_REPORT + node)
    }

    /// As a driver that starts it anew.
    pub fn start_reports(&mut self, node: usize) {
        self.start_queue(QUEUE_REPORT + node);
    }

    /// Status of the answer; None if nothing was written.
    pub fn report(&mut self, node: usize, report: Report, ranges: &[Range]) -> Option<u32> {
        let message = report.message(ranges);
        let written = self.send(node, &message);
        let answer = self.buffer(node) + message.len() as u64;
        (written > 0).then(|| u32::from_le_bytes(self.read(answer)))
    }

    pub fn report_length(&mut self, node: usize, report: Report) -> u32 {
        self.send(node, &report.message(&[]))
    }

    fn offer_request(&mut self) {
        let descriptor = Descriptor {
            addr: QUEUE_REQUEST as u64 * QUEUE_BYTES + BUFFERS,
            len: REQUEST_BYTES as u32,
            flags: WRITE,
            next: 0,
        };
        self.offer(QUEUE_REQUEST, &[descriptor]);
    }

    /// Where its queues stand: used and available buffers, and as the guest knows them.
    pub fn rings(&self) -> String {
        let state = |(at, queue): (usize, &Queue)| {
            let base = at as u64 * QUEUE_BYTES;
            let used = u16::from_le_bytes(self.read(base + USED + 2));
            let available = u16::from_le_bytes(self.read(base + AVAILABLE + 2));
            format!(
                "queue {at}: used {used} ({}), available {available} ({})",
                queue.used, queue.available
            )
        };
        let states: Vec<String> = self.queues.iter().enumerate().map(state).collect();
        states.join("; ")
    }

    /// A request, if one is there.
    pub fn poll_request(&mut self) -> Option<[u8; REQUEST_BYTES]> {
        let base = QUEUE_REQUEST as u64 * QUEUE_BYTES + USED;
        let used = u16::from_le_bytes(self.read(base + 2));
        (used != self.queues[QUEUE_REQUEST].used).then(|| self.next_request())
    }

    /// Sends statistics and waits until they were read.
    pub fn statistics(&mut self, bytes: &[u8]) {
        self.send_statistics(bytes);
        self.wait_statistics();
    }

    /// Statistics were read.
    pub fn wait_statistics(&mut self) {
        self.wait_queue(QUEUE_STATISTICS).expect("not read");
    }

    /// Sends statistics.
    pub fn send_statistics(&mut self, bytes: &[u8]) {
        let buffer = QUEUE_STATISTICS as u64 * QUEUE_BYTES + BUFFERS;
        self.write(buffer, bytes);
        let descriptor = Descriptor {
            addr: buffer,
            len: bytes.len() as u32,
            flags: 0,
            next: 0,
        };
        self.offer(QUEUE_STATISTICS, &[descriptor]);
    }

    pub fn next_request(&mut self) -> [u8; REQUEST_BYTES] {
        let length = self.wait_queue(QUEUE_REQUEST).expect("no request");
        assert_eq!(length, REQUEST_BYTES as u32);
        let bytes = self.read(QUEUE_REQUEST as u64 * QUEUE_BYTES + BUFFERS);
        self.offer_request();
        bytes
    }

    /// An indirect table that names itself.
    pub fn nested_indirect(&self, node: usize) -> Vec<Descriptor> {
        let table = self.buffer(node) + 4096;
        let descriptor = Descriptor {
            addr: table,
            len: 16,
            flags: INDIRECT,
            next: 0,
        };
        self.write(table, &descriptor.bytes());
        vec![descriptor]
    }

    /// A table of the greatest length, in a circle.
    pub fn indirect_loop(&self, node: usize) -> Vec<Descriptor> {
        let table = 2 << 20;
        let buffer = self.buffer(node);
        let bytes: Vec<u8> = (0..u16::MAX)
            .flat_map(|index| {
                let descriptor = Descriptor {
                    addr: buffer,
                    len: 4096,
                    flags: NEXT,
                    next: (index + 1) % u16::MAX,
                };
                descriptor.bytes()
            })
            .collect();
        self.write(table, &bytes);
        vec![Descriptor {
            addr: table,
            len: bytes.len() as u32,
            flags: INDIRECT,
            next: 0,
        }]
    }
}
