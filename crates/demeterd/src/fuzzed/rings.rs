// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that writes what it likes into its memory, its rings included, and a monitor
//! that sets rings up and takes them down at any moment. The daemon serves both as it
//! always does, but for the sockets in between.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;

use demeter_balloon::Parameters;
use demeter_balloon::wire::{OP_HELLO, OP_INFLATED, PAGE_SHIFT, Range, Report};
use vhost_user_backend::{VhostUserBackend, VringRwLock, VringT};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use super::Input;
use crate::backend::Backend;
use crate::pair::Pair;
use crate::spec;
use crate::vm::WordError;

/// Of each tier.
const PAGES: u64 = 64;
const TIER_BYTES: u64 = PAGES << PAGE_SHIFT;
const BEGINS: [u64; 2] = [0, 1 << 30];
/// Rings lie at the beginning of FMEM, a page each for descriptors, available, used and buffers.
const QUEUE_BYTES: u64 = 4 << PAGE_SHIFT;
const AVAILABLE: u64 = 1 << PAGE_SHIFT;
const USED: u64 = 2 << PAGE_SHIFT;
const BUFFERS: u64 = 3 << PAGE_SHIFT;
const QUEUES: u64 = 4;
const SIZE: u16 = 16;
const WRITE: u16 = 2;
const NEXT: u16 = 1;

/// Mapped once: mapping costs more than all that an input does.
struct Ground {
    directory: tempfile::TempDir,
    files: [File; 2],
    memory: GuestMemoryMmap,
}

thread_local! {
    static GROUND: RefCell<Option<Ground>> = const { RefCell::new(None) };
}

impl Ground {
    fn new() -> Self {
        let directory = super::directory();
        let make = |name: &str| {
            let path = directory.path().join(name);
            let file = (File::options().create_new(true).read(true).write(true)).open(path);
            let file = file.expect("a memory file");
            file.set_len(TIER_BYTES).expect("room for a memory file");
            file
        };
        let files = [make("fmem"), make("smem")];
        let ranges = [0, 1].map(|node: usize| {
            let file = files[node].try_clone().expect("a descriptor");
            (
                GuestAddress(BEGINS[node]),
                TIER_BYTES as usize,
                Some(FileOffset::new(file, 0)),
            )
        });
        Self {
            memory: GuestMemoryMmap::from_ranges_with_files(ranges).expect("a mapping"),
            directory,
            files,
        }
    }

    /// As if nobody had ever written.
    fn clear(&self) {
        for file in &self.files {
            let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the descriptor is open, and no pointers are passed.
            let status =
                unsafe { libc::fallocate(file.as_raw_fd(), punch, 0, TIER_BYTES as libc::off_t) };
            assert_eq!(status, 0);
        }
    }

    fn spec(&self) -> spec::Vm {
        let at = |name: &str| self.directory.path().join(name).display().to_string();
        let line = format!("a,socket=/nowhere,fmem={},smem={}", at("fmem"), at("smem"));
        let description = spec::Description::parse(&line).expect("a right line");
        description.finish(&BTreeMap::new()).expect("a machine")
    }
}

/// One guest's life. How many pages went into a balloon in it.
pub fn run(data: &[u8]) -> u64 {
    GROUND.with_borrow_mut(|ground| {
        let ground = ground.get_or_insert_with(Ground::new);
        ground.clear();
        let mut guest = Guest::new(ground);
        let mut input = Input(data);
        // A worker that talks too much is ended.
        while !input.is_empty() && guest.step(&mut input) {}
        guest.inflated_pages()
    })
}

struct Guest {
    pair: Pair,
    backend: Backend,
    memory: GuestMemoryMmap,
    vrings: Vec<VringRwLock>,
    /// Available buffers so far, where the guest is in earnest.
    available: [u16; QUEUES as usize],
}

impl Guest {
    fn new(ground: &Ground) -> Self {
        let parameters = Parameters {
            max_ranges: 8,
            ..Parameters::default()
        };
        let pair = Pair::bare(ground.spec(), parameters);
        let shared = GuestMemoryAtomic::new(ground.memory.clone());
        let backend = Backend::new(pair.guest.clone(), shared.clone()).expect("descriptors");
        backend.update_memory(shared.clone()).expect("a table");
        pair.guest.connected(backend.wake());
        pair.carry();
        assert_eq!(pair.vm.view().problem, None);
        let vring = |_| VringRwLock::new(shared.clone(), 256).expect("a ring");
        Self {
            vrings: (0..QUEUES).map(vring).collect(),
            memory: ground.memory.clone(),
            pair,
            backend,
            available: [0; QUEUES as usize],
        }
    }

    /// Whether the worker is still listened to.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        let op = input.byte();
        let queue = usize::from(op >> 4) % QUEUES as usize;
        match op & 15 {
            0 => self.set_up(queue, QUEUE_BYTES * queue as u64, SIZE),
            1 => {
                let (at, size) = (input.number(), input.word());
                self.set_up(queue, at, size);
            }
            2 => {
                let at = input.number();
                let length = usize::from(input.byte());
                let _ = self.memory.write(input.bytes(length), GuestAddress(at));
            }
            3 => self.describe(queue, input),
            4 => {
                let head = input.word();
                self.offer(queue, head);
            }
            5 => {
                let index = input.word();
                let at = QUEUE_BYTES * queue as u64 + AVAILABLE;
                self.put(at, &index.to_le_bytes()[..1]);
                self.put(at + 2, &index.to_le_bytes());
            }
            6 => self.event(queue as u64),
            7 => self.event(self.backend.wake_event()),
            8 => self.timer(),
            9 => {
                let _ =
                    (self.pair.vm).ask(u16::from(input.byte() % 3), input.number() << 12, "fuzzed");
            }
            10 => {
                self.vrings[queue].set_enabled(false);
                self.vrings[queue].set_queue_ready(false);
                let _ = self.backend.stop_vring(queue as u32);
                self.available[queue] = 0;
            }
            11 => self.speak(queue, input),
            12 => {
                let (offset, size) = (input.number() as u32, input.number() as u32);
                let config = self.backend.get_config(offset, size);
                assert!(config.len() <= 256);
            }
            13 => match input.byte() % 4 {
                0 => self.pair.guest.set_memory(&[]),
                1 => {
                    let shared = GuestMemoryAtomic::new(self.memory.clone());
                    let _ = self.backend.update_memory(shared);
                }
                2 => self.backend.reset_device(),
                _ => self.vrings[queue].set_queue_event_idx(true),
            },
            14 => self.vrings[queue].set_queue_next_avail(input.word()),
            _ => self.pair.vm.ask_statistics(),
        }
        self.check()
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let _ = self.memory.write(bytes, GuestAddress(at));
    }

    fn set_up(&mut self, queue: usize, at: u64, size: u16) {
        let vring = &self.vrings[queue];
        vring.set_queue_size(size);
        let (available, used) = (at.wrapping_add(AVAILABLE), at.wrapping_add(USED));
        if vring.set_queue_info(at, available, used).is_ok() {
            vring.set_queue_ready(true);
            vring.set_enabled(true);
        }
    }

    fn descriptor(&self, queue: usize, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let at = QUEUE_BYTES * queue as u64 + 16 * u64::from(index);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.put(at, &bytes);
    }

    fn describe(&self, queue: usize, input: &mut Input<'_>) {
        let (index, addr) = (u16::from(input.byte() % 32), input.number());
        let (len, flags, next) = (input.number() as u32, input.byte() & 7, input.byte());
        self.descriptor(queue, index, addr, len, flags.into(), next.into());
    }

    fn offer(&mut self, queue: usize, head: u16) {
        let at = QUEUE_BYTES * queue as u64 + AVAILABLE;
        let index = &mut self.available[queue];
        let slot = at + 4 + 2 * u64::from(*index % SIZE);
        *index = index.wrapping_add(1);
        let index = *index;
        self.put(slot, &head.to_le_bytes());
        self.put(at + 2, &index.to_le_bytes());
    }

    /// A message as a driver sends it, right or nearly, and the bell.
    fn speak(&mut self, queue: usize, input: &mut Input<'_>) {
        let base = QUEUE_BYTES * queue as u64;
        let buffers = base + BUFFERS;
        let shape = input.byte();
        match queue {
            0 => {
                self.descriptor(queue, 0, buffers, u32::from(shape), WRITE, 0);
            }
            1 => {
                let length = self.pair.guest.statistics_bytes() + usize::from(shape % 3) - 1;
                let mut bytes = vec![0; length];
                let given = input.bytes(32);
                bytes[8..8 + given.len()].copy_from_slice(given);
                bytes[16..18].copy_from_slice(&[2, 0]);
                self.put(buffers, &bytes);
                self.descriptor(queue, 0, buffers, length as u32, 0, 0);
            }
            _ => {
                let node = queue - 2;
                let op = match shape % 8 {
                    0..=2 => OP_HELLO,
                    3..=5 => OP_INFLATED,
                    _ => u16::from(input.byte()),
                };
                let report = Report {
                    id: u64::from(input.byte()),
                    op,
                    node: node as u16,
                    current_pages: input.number(),
                    ..Report::default()
                };
                let ranges: Vec<Range> = (0..shape >> 5)
                    .map(|_| Range {
                        gpa: BEGINS[node].wrapping_add(input.number() << PAGE_SHIFT),
                        nr_pages: input.number() % (2 * PAGES),
                    })
                    .collect();
                let bytes = report.message(&ranges);
                self.put(buffers, &bytes);
                self.descriptor(queue, 0, buffers, bytes.len() as u32, NEXT, 1);
                self.descriptor(queue, 1, buffers + 2048, 64, WRITE, 0);
            }
        }
        self.offer(queue, 0);
        self.event(queue as u64);
    }

    /// The event loop looks first whether it has rung, and so does this.
    fn timer(&self) {
        let (fd, event) = self.backend.timer_event();
        let mut rung = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, which lives until the end.
        if unsafe { libc::poll(&raw mut rung, 1, 0) } == 1 {
            self.event(event);
        }
    }

    fn event(&self, event: u64) {
        let served = (self.backend).handle_event(event as u16, EventSet::IN, &self.vrings, 0);
        // An error would end the worker, and with it all that this guest says.
        assert!(served.is_ok());
    }

    /// Whatever it did, it has no more than its tiers.
    fn check(&self) -> bool {
        match self.pair.try_carry() {
            Ok(()) => {}
            Err(WordError::Flood) => return false,
            Err(error) => panic!("its own worker is not understood: {error}"),
        }
        let view = self.pair.vm.view();
        for tier in &view.tiers {
            assert!(tier.balloon_bytes <= tier.total_bytes);
            assert!(tier.total_bytes == TIER_BYTES || tier.total_bytes == 0);
            assert_eq!(tier.size_bytes, tier.total_bytes - tier.balloon_bytes);
        }
        assert!(!self.pair.guest.is_lost());
        true
    }

    fn inflated_pages(&self) -> u64 {
        let view = self.pair.vm.view();
        (view.tiers.iter())
            .map(|tier| tier.traffic.inflated_pages)
            .sum()
    }
}
