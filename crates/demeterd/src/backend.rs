// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The vhost-user side of one connection: queues in, messages out. What a
//! message means is the device's business.
//!
//! One worker thread serves all queues of a machine. It never returns an error,
//! since that would end it; it handles a bounded number of buffers before it
//! looks at other events, so that no guest can keep it from ending.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use demeter_balloon::Reason;
use demeter_balloon::wire::{
    ACK_BYTES, CONFIG_BYTES, QUEUE_REPORT, QUEUE_REQUEST, QUEUE_STATISTICS, REQUEST_BYTES, Report,
};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackend, VringRwLock};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{QueueT, Reader, Writer};
use vm_memory::{
    Address, Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend,
    GuestMemoryMmap, GuestMemoryRegion,
};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::timerfd::TimerFd;

use crate::guest::Guest;
use crate::lost;
use crate::ring::{Chain, answer, next_chain, running};
use crate::tiers::Handed;
use crate::untouched::{untouched_in, untouched_pages};

/// Of a ring's table, and of an indirect one.
const DESCRIPTOR_BYTES: u64 = 16;
/// Longest indirect table that is followed, in descriptors: a message has two.
const MAX_INDIRECT: u64 = 64;
/// Largest ring.
const QUEUE_SIZE: usize = 256;
/// Buffers of one queue that are handled before the next event is looked at.
const BATCH: usize = 256;
/// VHOST_USER_F_PROTOCOL_FEATURES, part of the transport.
const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Guest memory.
pub type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// One connection.
pub struct Backend {
    guest: Arc<Guest>,
    queues: usize,
    memory: Memory,
    wake: Arc<EventFd>,
    /// Queues that are left unfinished, by bit.
    unfinished: AtomicU64,
    /// Rings when a guest that was too fast is listened to again.
    timer: Mutex<TimerFd>,
    timer_fd: RawFd,
    timer_runs: AtomicBool,
    /// Queues whose rings make no sense, by bit.
    broken: AtomicU64,
    /// Held by the thread of the rings from when it takes a buffer until that is answered: who
    /// stops a ring, or resets the device, waits for it. From then on the memory is the guest's.
    /// True: the device was reset, and that thread has not looked at a ring since.
    serving: Mutex<bool>,
    /// Kept for closing: the event loop lends it only.
    exit_fd: Mutex<Option<RawFd>>,
    /// The monitor has said nothing yet, see [`Self::silence`].
    silence: Mutex<Option<Sender<()>>>,
}

impl Backend {
    /// For one connection of that machine.
    pub fn new(guest: Arc<Guest>, memory: Memory) -> io::Result<Self> {
        let timer = TimerFd::new()?;
        Ok(Self {
            timer_fd: timer.as_raw_fd(),
            timer: Mutex::new(timer),
            timer_runs: AtomicBool::new(false),
            queues: QUEUE_REPORT + guest.nr_nodes(),
            guest,
            memory,
            wake: Arc::new(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?),
            unfinished: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            serving: Mutex::new(false),
            exit_fd: Mutex::new(None),
            silence: Mutex::new(None),
        })
    }

    /// Closed with the monitor's first question, or by [`Self::end_silence`].
    pub fn silence(&self) -> Receiver<()> {
        let (sender, receiver) = channel();
        *self.silence.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// It has spoken, or is gone.
    pub fn end_silence(&self) {
        let mut silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
        *silence = None;
    }

    /// Tells the worker that there is something to do.
    pub fn wake(&self) -> Arc<EventFd> {
        self.wake.clone()
    }

    /// The event's number for [`Self::wake`].
    pub fn wake_event(&self) -> u64 {
        self.queues as u64 + 1
    }

    /// Descriptor and event's number of the timer.
    pub fn timer_event(&self) -> (RawFd, u64) {
        (self.timer_fd, self.queues as u64 + 2)
    }

    /// Leaves a queue alone for a while.
    fn hold(&self, queue: usize, wait: Duration) {
        self.unfinished.fetch_or(1 << queue, Ordering::Relaxed);
        if !self.timer_runs.swap(true, Ordering::Relaxed) {
            let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
            // Never zero, which would be never.
            if timer
                .reset(wait.max(Duration::from_micros(1)), None)
                .is_err()
            {
                self.timer_runs.store(false, Ordering::Relaxed);
                let _ = self.wake.write(1);
            }
        }
    }

    /// The descriptor that the event loop left open.
    pub fn take_exit_fd(&self) -> Option<RawFd> {
        self.exit_fd
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn is_broken(&self, queue: usize) -> bool {
        self.guest.is_lost() || self.broken.load(Ordering::Relaxed) & (1 << queue) != 0
    }

    /// To take one buffer and answer it. A reset that came before counts first: what is seen from
    /// here on is the new driver's, which has not greeted yet.
    fn serving(&self) -> MutexGuard<'_, bool> {
        let mut reset = self.lock();
        if std::mem::take(&mut *reset) {
            self.guest.reset();
        }
        reset
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands buffers to `handle` until there are none; it says how many bytes it
    /// wrote into each.
    fn drain(
        &self,
        queue: usize,
        vring: &VringRwLock,
        mut handle: impl FnMut(&GuestMemoryMmap, Chain) -> u32,
    ) {
        let memory = self.memory.memory();
        let mut left = BATCH;
        while !self.is_broken(queue) {
            if running(vring, |state| state.disable_notification()).is_none() {
                return;
            }
            if let Err(wait) = self.guest.messages_allowed() {
                return self.hold(queue, wait);
            }
            let serving = self.serving();
            let found = running(vring, |state| {
                let table = state.get_queue().desc_table();
                next_chain(state, &memory).map(|chain| (table, chain))
            });
            match found {
                Some(Ok((table, Some(chain)))) => {
                    let head = chain.head_index();
                    let written = match self.may_walk(&memory, table, head) {
                        Ok(()) => handle(&memory, chain),
                        Err(reason) => {
                            self.guest.took(None);
                            self.guest.violate(reason);
                            0
                        }
                    };
                    answer(vring, head, written);
                }
                // A guest whose index goes to and fro has something new each time: that ends
                // like buffers do.
                Some(Ok((_, None))) => {
                    let more = running(vring, |state| state.enable_notification());
                    if !matches!(more, Some(Ok(true))) {
                        return;
                    }
                }
                // A guest that resets meanwhile is not a broken one.
                None | Some(Err(virtio_queue::Error::QueueNotReady)) => return,
                Some(Err(_)) => {
                    self.broken.fetch_or(1 << queue, Ordering::Relaxed);
                    self.guest.violate(Reason::Ring);
                    return;
                }
            }
            drop(serving);
            left -= 1;
            if left == 0 {
                self.unfinished.fetch_or(1 << queue, Ordering::Relaxed);
                let _ = self.wake.write(1);
                return;
            }
        }
    }

    /// Whether the chain at `head` may be walked: that reads its indirect table, which may
    /// be long, and in memory that nobody has touched.
    fn may_walk(&self, memory: &GuestMemoryMmap, table: u64, head: u16) -> Result<(), Reason> {
        let Some(at) = table.checked_add(u64::from(head) * DESCRIPTOR_BYTES) else {
            return Err(Reason::Chain);
        };
        // What cannot be read, the walk refuses by itself.
        let Ok(first) = memory.read_obj::<Descriptor>(GuestAddress(at)) else {
            return Ok(());
        };
        if !first.refers_to_indirect_table() {
            return Ok(());
        }
        let bytes = u64::from(first.len());
        if bytes > MAX_INDIRECT * DESCRIPTOR_BYTES {
            return Err(Reason::Chain);
        }
        if !self
            .guest
            .may_touch(untouched_in(memory, first.addr(), bytes))
        {
            return Err(Reason::Untouched);
        }
        Ok(())
    }

    fn take_report(&self, node: u16, memory: &GuestMemoryMmap, chain: Chain) -> u32 {
        let (mut reader, mut writer) = match ends(memory, chain.clone()) {
            Some((reader, writer)) if writer.available_bytes() >= ACK_BYTES => (reader, writer),
            _ => {
                self.guest.took(None);
                self.guest.violate(Reason::Chain);
                return 0;
            }
        };
        let length = reader.available_bytes();
        let read_bytes = if length > self.guest.max_report_bytes() {
            0
        } else {
            length
        };
        if !self
            .guest
            .may_touch(untouched_pages(memory, chain, read_bytes, ACK_BYTES))
        {
            self.guest.took(None);
            self.guest.violate(Reason::Untouched);
            return 0;
        }
        let mut op = None;
        let ack = if length > self.guest.max_report_bytes() {
            self.guest.refuse(Reason::Length)
        } else {
            // The one copy that is judged and executed. [DEV-9]
            let mut bytes = vec![0; length];
            match reader.read_exact(&mut bytes) {
                Ok(()) => {
                    op = Report::from_bytes(&bytes).map(|report| report.op);
                    self.guest.report(node, &bytes)
                }
                Err(_) => self.guest.refuse(Reason::Chain),
            }
        };
        self.guest.took(op);
        match writer.write_all(&ack.to_bytes()) {
            Ok(()) => ACK_BYTES as u32,
            Err(_) => 0,
        }
    }

    fn take_statistics(&self, memory: &GuestMemoryMmap, chain: Chain) {
        self.guest.took(None);
        let length = self.guest.statistics_bytes();
        let mut bytes = vec![0; length];
        let Some((mut reader, _)) = ends(memory, chain.clone()) else {
            return self.guest.violate(Reason::Chain);
        };
        if reader.available_bytes() == length
            && !self
                .guest
                .may_touch(untouched_pages(memory, chain, length, 0))
        {
            return self.guest.violate(Reason::Untouched);
        }
        if reader.available_bytes() != length || reader.read_exact(&mut bytes).is_err() {
            return self.guest.violate(Reason::Statistics);
        }
        self.guest.statistics(&bytes);
    }

    /// Fills buffers of the request queue as long as there are requests.
    fn give_requests(&self, vring: &VringRwLock) {
        let memory = self.memory.memory();
        for _ in 0..BATCH {
            if self.is_broken(QUEUE_REQUEST) {
                break;
            }
            let serving = self.serving();
            let found = running(vring, |state| {
                let table = state.get_queue().desc_table();
                // A buffer that is taken is given back, so not without something to say.
                if !self.guest.has_request() {
                    return Ok((table, None));
                }
                next_chain(state, &memory).map(|chain| (table, chain))
            });
            let (table, chain) = match found {
                Some(Ok((table, Some(chain)))) => (table, chain),
                None | Some(Ok(_) | Err(virtio_queue::Error::QueueNotReady)) => break,
                Some(Err(_)) => {
                    self.broken.fetch_or(1 << QUEUE_REQUEST, Ordering::Relaxed);
                    self.guest.violate(Reason::Ring);
                    break;
                }
            };
            let head = chain.head_index();
            let written = match self.may_walk(&memory, table, head) {
                Ok(()) => self.give_request(&memory, chain),
                Err(reason) => {
                    self.guest.violate(reason);
                    0
                }
            };
            answer(vring, head, written);
            drop(serving);
        }
        // The driver's next buffer rings the bell; one that came just before does not.
        let missed = running(vring, |state| state.enable_notification());
        if matches!(missed, Some(Ok(true)))
            && !self.is_broken(QUEUE_REQUEST)
            && self.guest.has_request()
        {
            let _ = self.wake.write(1);
        }
    }

    fn give_request(&self, memory: &GuestMemoryMmap, chain: Chain) -> u32 {
        let mut writer = match ends(memory, chain.clone()) {
            Some((_, writer)) if writer.available_bytes() >= REQUEST_BYTES => writer,
            _ => {
                self.guest.violate(Reason::Chain);
                return 0;
            }
        };
        if !self
            .guest
            .may_touch(untouched_pages(memory, chain, 0, REQUEST_BYTES))
        {
            self.guest.violate(Reason::Untouched);
            return 0;
        }
        let Some(request) = self.guest.next_request() else {
            return 0;
        };
        match writer.write_all(&request.to_bytes()) {
            Ok(()) => REQUEST_BYTES as u32,
            Err(_) => 0,
        }
    }

    fn serve_unfinished(&self, vrings: &[VringRwLock]) {
        let unfinished = self.unfinished.swap(0, Ordering::Relaxed);
        for queue in 0..self.queues {
            if unfinished & (1 << queue) != 0 {
                self.serve(queue, vrings);
            }
        }
    }

    fn serve(&self, queue: usize, vrings: &[VringRwLock]) {
        let Some(vring) = vrings.get(queue) else {
            return;
        };
        match queue {
            QUEUE_REQUEST => self.give_requests(vring),
            QUEUE_STATISTICS => self.drain(queue, vring, |memory, chain| {
                self.take_statistics(memory, chain);
                0
            }),
            _ => {
                let node = (queue - QUEUE_REPORT) as u16;
                self.drain(queue, vring, |memory, chain| {
                    self.take_report(node, memory, chain)
                });
            }
        }
    }
}

/// Everything to read comes before everything to write, and the chain ends where
/// it says. The queue crate gives a cut chain as a shorter one.
fn is_whole(chain: Chain) -> bool {
    let mut writes = false;
    let mut goes_on = true;
    for descriptor in chain {
        if writes && !descriptor.is_write_only() {
            return false;
        }
        writes = descriptor.is_write_only();
        goes_on = descriptor.has_next();
    }
    !goes_on
}

fn ends(memory: &GuestMemoryMmap, chain: Chain) -> Option<(Reader<'_>, Writer<'_>)> {
    if !is_whole(chain.clone()) {
        return None;
    }
    let reader = Reader::new(memory, chain.clone()).ok()?;
    let writer = Writer::new(memory, chain).ok()?;
    Some((reader, writer))
}

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        self.queues
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        // Whatever else a monitor wants, it asks for these first.
        self.end_silence();
        1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | PROTOCOL_FEATURES
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE
    }

    fn reset_device(&self) {
        self.broken.store(0, Ordering::Relaxed);
        *self.lock() = true;
        let _ = self.wake.write(1);
    }

    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        // Any read is answered; behind the end there are zeros. [DEV-3]
        let config = self.guest.config_bytes();
        let at = |index: u64| {
            usize::try_from(index)
                .ok()
                .and_then(|index| config.get(index).copied())
                .unwrap_or(0)
        };
        let size = size.min(4 * CONFIG_BYTES as u32);
        (0..u64::from(size))
            .map(|byte| at(u64::from(offset) + byte))
            .collect()
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        // This thread looks at rings, too.
        lost::watch(self.guest.lost());
        let handed: Vec<Handed> = memory
            .memory()
            .iter()
            .filter_map(|region| {
                let file = region.file_offset()?;
                Some(Handed {
                    gpa: region.start_addr().raw_value(),
                    length_bytes: region.len(),
                    file: file.arc().clone(),
                    offset_bytes: file.start(),
                })
            })
            .collect();
        self.guest.set_memory(&handed);
        Ok(())
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        let flags = EventFlag::NONBLOCK | EventFlag::CLOEXEC;
        let (consumer, notifier) = new_event_consumer_and_notifier(flags).ok()?;
        *self.exit_fd.lock().unwrap_or_else(PoisonError::into_inner) = Some(consumer.as_raw_fd());
        Some((consumer, notifier))
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        // What was taken out of it is answered before this is: nobody writes there after that.
        drop(self.lock());
        // Whatever starts next is another ring.
        self.broken.fetch_and(!(1 << queue), Ordering::Relaxed);
        self.unfinished.fetch_and(!(1 << queue), Ordering::Relaxed);
        Ok(())
    }

    fn handle_event(
        &self,
        event: u16,
        _events: EventSet,
        vrings: &[VringRwLock],
        _thread: usize,
    ) -> io::Result<()> {
        lost::watch(self.guest.lost());
        let event = u64::from(event);
        if event == self.wake_event() {
            let _ = self.wake.read();
            self.serve(QUEUE_REQUEST, vrings);
            self.serve_unfinished(vrings);
        } else if event == self.timer_event().1 {
            let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = timer.wait();
            drop(timer);
            self.timer_runs.store(false, Ordering::Relaxed);
            self.serve_unfinished(vrings);
        } else {
            self.serve(event as usize, vrings);
        }
        if self.guest.is_lost() {
            self.guest.give_up();
        }
        // Never an error: it would end the worker.
        Ok(())
    }
}
