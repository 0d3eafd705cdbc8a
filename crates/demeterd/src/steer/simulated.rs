// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `working-set` against guests that are a model: the coordinator, the policy, the device
//! and the messages are the daemon's own, and what a guest does with its memory is not
//! real. All rates and slowdowns here are modelled.
//!
//! A modelled guest has pages that it touches every so often, by class, and pages that
//! it never touches again. Who shrinks loses free pages first, then cold ones, of every
//! fifty one that was not cold, then those touched most seldom. A page that is touched and
//! not there costs a tenth of a millisecond.

use super::*;
use std::fs::File;

use demeter_balloon::wire::{
    NODE_STATISTICS_BYTES, OP_DEFLATE, OP_DONE, OP_INFLATED, Range, Report, STATISTICS_BYTES,
    Status, VALID_PSI,
};

use vmm_sys_util::eventfd::EventFd;

use crate::pair::Pair;
use crate::tiers::Handed;

/// Of FMEM and SMEM: a guest of 1 GiB.
const TIER_PAGES: [u64; 2] = [65_536, 196_608];
const ALL_PAGES: u64 = TIER_PAGES[0] + TIER_PAGES[1];
const SMEM_PAGE: u64 = 1 << 20;
const KERNEL_PAGES: [u64; 2] = [4_000, 8_000];
/// Free pages that the guest's kernel keeps for itself.
const WATERMARK_PAGES: u64 = ALL_PAGES / 256;
const REFAULT_S: f64 = 100e-6;
/// Of so many reclaimed pages one was in use.
const RECLAIM_ERROR: u64 = 50;
const INTERVAL_MS: u64 = 250;

/// Pages that are touched once in a period.
struct Class {
    period_s: f64,
    pages: u64,
    here: u64,
    /// Never read before: nobody is to blame that they are not here.
    fresh: u64,
}

struct Model {
    pair: Pair,
    files: [Arc<File>; 2],
    tells_hot: bool,
    /// It says that nothing is free, and that it misses pages, stalls and has no memory, always.
    lies: bool,
    /// It says nothing for now.
    is_mute: bool,
    now_s: f64,
    anon_pages: u64,
    classes: Vec<Class>,
    cold_pages: u64,
    /// Huge pages of SMEM that its kernel has set aside and nobody has touched.
    pool_pages: u64,
    balloon: [u64; 2],
    refaults: u64,
    lost_s: f64,
    /// Pages that the driver took back to save the guest, and pages that it had none for.
    rescued_pages: u64,
    killed: u64,
    sequence: u64,
    /// What the host has allocated when it last spoke, if that can be seen.
    backing_pages: Option<[u64; 2]>,
    /// Part of a refault that is still to come, by class.
    due: Vec<f64>,
}

impl Model {
    fn new(directory: &std::path::Path, name: &str, tells_hot: bool, more: &str) -> Self {
        let file = |tier: &str, pages: u64| {
            let path = directory.join(format!("{name}.{tier}"));
            let file = (File::options().create_new(true).read(true).write(true)).open(&path);
            let file = file.unwrap();
            file.set_len(pages << PAGE_SHIFT).unwrap();
            (path, Arc::new(file))
        };
        let (fmem_path, fmem) = file("fmem", TIER_PAGES[0]);
        let (smem_path, smem) = file("smem", TIER_PAGES[1]);
        let line = format!(
            "{name},socket=/s,fmem={},smem={}{more}",
            fmem_path.display(),
            smem_path.display()
        );
        let files = [fmem, smem];
        let pair = Pair::new(&line, &handed(&files));
        for node in 0..2 {
            pair.greet(node);
        }
        pair.carry();
        let class = |period_s, pages| Class {
            period_s,
            pages,
            here: pages,
            fresh: 0,
        };
        // 38 % free, 27 % cold.
        let classes = vec![class(0.5, 30_000), class(5.0, 20_000), class(30.0, 10_000)];
        Self {
            pair,
            files,
            tells_hot,
            lies: false,
            is_mute: false,
            now_s: 1.0,
            anon_pages: 20_000,
            due: vec![0.0; classes.len()],
            classes,
            cold_pages: 70_000,
            pool_pages: 0,
            balloon: [0; 2],
            refaults: 0,
            lost_s: 0.0,
            rescued_pages: 0,
            killed: 0,
            sequence: 0,
            backing_pages: None,
        }
    }

    fn used_pages(&self) -> u64 {
        let here: u64 = self.classes.iter().map(|class| class.here).sum();
        let kernel_pages = KERNEL_PAGES.iter().sum::<u64>() + self.pool_pages;
        kernel_pages + self.anon_pages + here + self.cold_pages
    }

    fn free_pages(&self) -> u64 {
        ALL_PAGES - self.balloon.iter().sum::<u64>() - self.used_pages()
    }

    /// Frees up to so many pages; how many.
    fn reclaim(&mut self, pages: u64) -> u64 {
        let mut left = pages;
        let cold = left.min(self.cold_pages);
        let wrongly = cold / RECLAIM_ERROR;
        self.cold_pages -= cold - wrongly;
        left -= cold - wrongly;
        for class in self.classes.iter_mut().rev() {
            let taken = left.min(class.here);
            class.here -= taken;
            left -= taken;
        }
        pages - left
    }

    /// Makes so many pages free, whatever it takes; false: there are none.
    fn make_room(&mut self, pages: u64) -> bool {
        let missing = |model: &Self| pages.saturating_sub(model.free_pages());
        self.reclaim(missing(self));
        if missing(self) > 0 {
            // As the driver does on its own account, the slower tier first.
            for node in [1, 0] {
                let back = missing(self).min(self.balloon[node]);
                if back > 0 {
                    self.rescued_pages += back;
                    self.resize(node, 0, self.balloon[node] - back);
                }
            }
        }
        missing(self) == 0
    }

    /// What it needs beside its classes; grows by as much at most.
    fn set_anon(&mut self, pages: u64) {
        let more = pages.saturating_sub(self.anon_pages);
        if more > 0 && !self.make_room(more) {
            self.killed += 1;
            return;
        }
        self.anon_pages = pages;
    }

    /// Works for a time, and misses what is not there.
    fn work(&mut self, elapsed_s: f64) {
        self.now_s += elapsed_s;
        for at in 0..self.classes.len() {
            let class = &self.classes[at];
            let missing = class.pages - class.here;
            let part = (elapsed_s / class.period_s).min(1.0);
            self.due[at] = (self.due[at] + missing as f64 * part).min(missing as f64);
            let touched = self.due[at] as u64;
            self.due[at] -= touched as f64;
            for _ in 0..touched {
                if self.free_pages() == 0 {
                    self.reclaim(64);
                }
                self.classes[at].here += 1;
            }
            let class = &mut self.classes[at];
            let fresh = touched.min(class.fresh);
            class.fresh -= fresh;
            self.refaults += touched - fresh;
            self.lost_s += (touched - fresh) as f64 * REFAULT_S;
        }
    }

    /// Changes a balloon as far as it can. Its size then.
    fn resize(&mut self, node: usize, id: u64, target_pages: u64) -> u64 {
        let held = self.balloon[node];
        let begin = [0, SMEM_PAGE][node];
        let end = begin + TIER_PAGES[node];
        let (op, target) = if target_pages > held {
            let wanted = target_pages - held;
            let missing = (wanted + WATERMARK_PAGES).saturating_sub(self.free_pages());
            self.reclaim(missing);
            let room = self.free_pages().saturating_sub(WATERMARK_PAGES);
            (OP_INFLATED, held + wanted.min(room))
        } else {
            (OP_DEFLATE, target_pages)
        };
        let pages = target.abs_diff(held);
        if pages > 0 {
            let report = Report {
                id,
                op,
                node: node as u16,
                current_pages: target,
                ..Report::default()
            };
            // The balloon holds the tier's last pages.
            let range = Range {
                gpa: (end - held.max(target)) << PAGE_SHIFT,
                nr_pages: pages,
            };
            let ack = self
                .pair
                .guest
                .report(node as u16, &report.message(&[range]));
            assert_eq!(ack.status, Status::Ok);
            self.balloon[node] = target;
        }
        target
    }

    /// Does what the daemon asks for.
    fn obey(&mut self) {
        self.pair.carry();
        while let Some(request) = self.pair.guest.next_request() {
            let node = usize::from(request.node);
            let reached = self.resize(node, request.id, request.target_pages);
            let done = Report {
                id: request.id,
                op: OP_DONE,
                node: request.node,
                result: u32::from(reached != request.target_pages),
                current_pages: reached,
                ..Report::default()
            };
            let ack = self.pair.guest.report(request.node, &done.message(&[]));
            assert_eq!(ack.status, Status::Ok);
        }
    }

    /// Its monitor is another one, with the same memory, and no driver yet.
    fn replug(&mut self) {
        self.pair.guest.disconnected();
        self.pair.carry();
        self.pair.guest.set_memory(&handed(&self.files));
        (self.pair.guest).connected(Arc::new(EventFd::new(0).unwrap()));
        self.pair.carry();
    }

    /// A driver greets that has no balloon.
    fn greet(&mut self) {
        self.balloon = [0; 2];
        for node in 0..2 {
            self.pair.greet(node);
        }
        self.pair.carry();
    }

    /// Tells what a driver would.
    fn tell(&mut self) {
        let mut bytes = vec![0; STATISTICS_BYTES + 2 * NODE_STATISTICS_BYTES];
        let mut put = |at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        put(0, self.sequence);
        put(8, (self.now_s * 1e9) as u64);
        put(16, 2 << 16 | if self.tells_hot { 1 << 32 } else { 0 });
        if self.tells_hot {
            put(40, self.anon_pages + self.classes[0].pages);
        }
        put(72, self.rescued_pages);
        put(80, self.refaults);
        let mut free = self.free_pages();
        let mut anon = self.anon_pages;
        if self.lies {
            put(16, 2 << 16 | u64::from(VALID_PSI) << 32);
            put(48, (self.now_s * 1e6) as u64);
            put(72, self.sequence);
            put(80, 1_000_000 * self.sequence);
            (free, anon) = (0, ALL_PAGES);
        }
        for node in 0..2 {
            let at = STATISTICS_BYTES + node * NODE_STATISTICS_BYTES;
            let pool_pages = [0, self.pool_pages][node];
            let room = TIER_PAGES[node] - KERNEL_PAGES[node] - pool_pages - self.balloon[node];
            let here_free = if node == 0 {
                free.min(room) / 4
            } else {
                free.min(room)
            };
            free -= here_free;
            let here_anon = anon.min(room - here_free);
            anon -= here_anon;
            if let Some(backing_pages) = &mut self.backing_pages {
                backing_pages[node] = KERNEL_PAGES[node] + room - here_free;
            }
            put(at, TIER_PAGES[node]);
            put(at + 8, here_free);
            put(at + 16, self.balloon[node]);
            put(at + 24, here_anon);
            put(at + 32, room - here_free - here_anon);
        }
        self.sequence += 1;
        self.pair.guest.statistics(&bytes);
        self.pair.carry();
    }

    fn given_back_pages(&self) -> u64 {
        self.balloon.iter().sum()
    }

    fn why(&self) -> Option<Why> {
        self.pair.vm.view().sizing.map(|sizing| sizing.why)
    }
}

fn handed(files: &[Arc<File>; 2]) -> [Handed; 2] {
    let handed = |at: usize, gpa| Handed {
        gpa,
        length_bytes: TIER_PAGES[at] << PAGE_SHIFT,
        file: files[at].clone(),
        offset_bytes: 0,
    };
    [handed(0, 0), handed(1, SMEM_PAGE << PAGE_SHIFT)]
}

struct Host {
    coordinator: Coordinator,
    orders: Orders,
}

impl Host {
    fn new(fmem_pool_pages: u64) -> Self {
        Self {
            coordinator: Coordinator::default(),
            orders: Orders {
                policy: policy::by_name("working-set").unwrap(),
                fmem_pool_bytes: fmem_pool_pages << PAGE_SHIFT,
                interval_ms: INTERVAL_MS,
                clock: PolicyClock::Guests,
                generation: 0,
            },
        }
    }

    /// An interval of the guests' time, and a decision.
    fn cycle(&mut self, guests: &mut [Model]) {
        for guest in guests.iter_mut() {
            guest.work(self.orders.interval_ms as f64 / 1000.0);
            guest.tell();
        }
        let seen = |guest: &Model| {
            let mut view = guest.pair.vm.view();
            for (tier, pages) in view
                .tiers
                .iter_mut()
                .zip(guest.backing_pages.iter().flatten())
            {
                tier.backing_bytes = Some(pages << PAGE_SHIFT);
            }
            (guest.pair.vm.clone(), view)
        };
        assert!((self.coordinator).decide(guests.iter().map(seen).collect(), &self.orders));
        guests.iter_mut().for_each(Model::obey);
    }
}

#[test]
fn cold_and_free_memory_is_back_within_ten_seconds() {
    for tells_hot in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut guests = [Model::new(directory.path(), "a", tells_hot, "")];
        let needless = guests[0].cold_pages + guests[0].free_pages();
        let mut host = Host::new(ALL_PAGES);
        for _ in 0..10_000 / INTERVAL_MS {
            host.cycle(&mut guests);
        }
        let back = guests[0].given_back_pages() as f64 / needless as f64;
        for _ in 0..110_000 / INTERVAL_MS {
            host.cycle(&mut guests);
        }
        let [guest] = &guests;
        let slower = guest.lost_s / 120.0;
        println!(
            "hot set told: {tells_hot}; back after 10 s {:.1} %, after 120 s {:.1} %; \
             slower by {:.2} % (modelled); {:?}",
            100.0 * back,
            100.0 * guest.given_back_pages() as f64 / needless as f64,
            100.0 * slower,
            guest.pair.vm.view().sizing,
        );
        assert!(back >= 0.9, "{back}");
        assert!(slower <= 0.01, "{slower}");
        assert_eq!((guest.rescued_pages, guest.killed), (0, 0));
    }
}

/// Of no quality, and the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = (self.0)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn ten_thousand_cycles_of_changing_load_run_nobody_out_of_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut guests = [Model::new(directory.path(), "a", false, "")];
    let mut host = Host::new(ALL_PAGES);
    let mut dice = Dice(1);
    let (mut anon_goal, mut phases) = (guests[0].anon_pages, 0);
    let (mut back, mut needless) = (0, 0);
    for cycle in 0..10_000 {
        let guest = &mut guests[0];
        if cycle % 400 == 0 {
            // A minute and 40 s of another load.
            phases += 1;
            anon_goal = 5_000 + dice.below(100_000);
            for class in &mut guest.classes {
                let pages = dice.below(40_000);
                class.fresh = (class.fresh + pages).saturating_sub(class.pages).min(pages);
                class.pages = pages;
                guest.cold_pages += class.here.saturating_sub(pages);
                class.here = class.here.min(pages);
            }
        }
        // A program allocates 8 MiB in a quarter of a second, and ends at once.
        let anon = if anon_goal < guest.anon_pages {
            anon_goal
        } else {
            anon_goal.min(guest.anon_pages + 2048)
        };
        guest.set_anon(anon);
        // Files that are read once.
        let read = dice.below(200).min(guest.free_pages());
        guest.cold_pages += read;
        host.cycle(&mut guests);
        let guest = &guests[0];
        let here: u64 = guest.classes.iter().map(|class| class.pages).sum();
        needless += ALL_PAGES - KERNEL_PAGES.iter().sum::<u64>() - guest.anon_pages - here;
        back += guest.given_back_pages();
    }
    let [guest] = &guests;
    println!(
        "{phases} phases: {:.1} % of what was not needed was back; slower by {:.2} % (modelled); \
         taken back by the driver: {} pages",
        100.0 * back as f64 / needless as f64,
        100.0 * guest.lost_s / guest.now_s,
        guest.rescued_pages
    );
    assert_eq!(guest.killed, 0, "out of memory");
    assert_eq!(guest.rescued_pages, 0, "nearly out of memory");
    assert!(back as f64 / needless as f64 >= 0.6);
    assert!(guest.lost_s / guest.now_s <= 0.01);
}

#[test]
fn a_guest_with_half_of_its_memory_in_huge_pages_grows_as_any_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut guests = [Model::new(directory.path(), "a", false, "")];
    let guest = &mut guests[0];
    guest.pool_pages = ALL_PAGES / 2;
    guest.backing_pages = Some([0; 2]);
    guest.anon_pages = ALL_PAGES / 8;
    for class in &mut guest.classes {
        class.pages /= 8;
        class.here = class.pages;
    }
    guest.cold_pages = 10_000;
    let mut host = Host::new(ALL_PAGES);
    for cycle in 0..4_800 {
        // It comes to rest first; then it grows by 8 MiB a decision.
        let guest = &mut guests[0];
        if cycle >= 400 {
            guest.set_anon((guest.anon_pages + 2048).min(3 * ALL_PAGES / 8));
        }
        host.cycle(&mut guests);
    }
    let [guest] = &guests;
    println!(
        "half in huge pages: {} pages taken back by the driver, {} times out of memory; \
         slower by {:.2} % (modelled)",
        guest.rescued_pages,
        guest.killed,
        100.0 * guest.lost_s / guest.now_s
    );
    assert_eq!((guest.rescued_pages, guest.killed), (0, 0), "out of memory");
    assert_eq!(guest.anon_pages, 3 * ALL_PAGES / 8);
    assert!(guest.lost_s / guest.now_s <= 0.01);
}

#[test]
fn whoever_is_short_of_credit_alone_is_told_that() {
    let directory = tempfile::tempdir().unwrap();
    let mut guests = ["a", "b"].map(|name| Model::new(directory.path(), name, true, ""));
    // 50,000 hot pages each; 45,000 are its share.
    let mut host = Host::new(90_000);
    let short = |guest: &Model| guest.pair.vm.view().sizing.unwrap().fmem_short;
    for _ in 0..40 {
        host.cycle(&mut guests);
    }
    assert_eq!(short(&guests[0]), Some(Short::Pool));
    let memory = host.coordinator.memories.get_mut("a").unwrap();
    memory.account.settle(u64::MAX, 1, 1e9);
    host.cycle(&mut guests);
    assert_eq!(short(&guests[0]), Some(Short::Credit));
    assert_eq!(short(&guests[1]), Some(Short::Pool));
}

#[test]
fn whoever_is_short_is_told_why() {
    let directory = tempfile::tempdir().unwrap();
    let model = |name: &str, more: &str| Model::new(directory.path(), name, true, more);
    let mut guests = [
        model("a", ""),
        model("b", ""),
        model("c", ",fmem-ceiling=64M"),
    ];
    // Each has 50,000 hot pages; c may have 16,384.
    let mut host = Host::new(80_000);
    for _ in 0..40 {
        host.cycle(&mut guests);
        let fmem = |guest: &Model| TIER_PAGES[0] - guest.balloon[0];
        let together: u64 = guests.iter().map(fmem).sum();
        assert!(together <= 80_000 || guests[0].now_s < 3.0, "{together}");
    }
    let short = |guest: &Model| guest.pair.vm.view().sizing.unwrap().fmem_short;
    assert_eq!(short(&guests[0]), Some(Short::Pool));
    assert_eq!(short(&guests[1]), Some(Short::Pool));
    assert_eq!(short(&guests[2]), Some(Short::Ceiling));
}

#[test]
fn a_guest_that_falls_silent_gets_the_last_step_back_and_keeps_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let mut guests = [Model::new(directory.path(), "a", false, "")];
    let mut host = Host::new(ALL_PAGES);
    let mut before = 0;
    while guests[0].why() != Some(Why::Cold) {
        before = guests[0].given_back_pages();
        host.cycle(&mut guests);
    }
    let back = guests[0].given_back_pages();
    assert!(back > before && before > 0);
    for _ in 0..50 {
        let mut view = guests[0].pair.vm.view();
        view.statistics = None;
        let seen = vec![(guests[0].pair.vm.clone(), view)];
        host.coordinator.decide(seen, &host.orders);
        guests[0].obey();
    }
    assert_eq!(guests[0].why(), Some(Why::Silent));
    assert_eq!(guests[0].given_back_pages(), before);
}

#[test]
fn a_liar_has_a_hundredth_more_than_its_share_after_a_day() {
    const SHARE_PAGES: u64 = 45_000;
    let directory = tempfile::tempdir().unwrap();
    let mut guests = ["a", "b", "c"].map(|name| Model::new(directory.path(), name, true, ""));
    for guest in &mut guests {
        // So few are hot that all fits, and more than a share is used.
        guest.anon_pages = 5_000;
    }
    guests[0].tells_hot = false;
    guests[0].lies = true;
    let mut host = Host::new(SHARE_PAGES * guests.len() as u64);
    host.orders.interval_ms = 5_000;
    let decisions = 86_400_000 / host.orders.interval_ms;
    let mut had = [0; 3];
    for _ in 0..decisions {
        host.cycle(&mut guests);
        for (had, guest) in had.iter_mut().zip(&guests) {
            *had += TIER_PAGES[0] - guest.balloon[0];
        }
    }
    let part = had.map(|pages| pages as f64 / (SHARE_PAGES * decisions) as f64);
    println!("a liar and two honest guests had of their shares in a day: {part:.4?}");
    assert!(part[0] <= 1.01, "{part:?}");
    assert!(part[1..].iter().all(|&part| part >= 0.99), "{part:?}");
}

mod booting;
mod paying;
mod touching;
mod two;
