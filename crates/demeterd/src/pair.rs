// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coordinator's and worker's side of a machine in one thread, for tests and models: the
//! messages between them are real, and are carried when somebody says so.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use demeter_balloon::Parameters;
use demeter_balloon::wire::{OP_HELLO, PAGE_SHIFT, Report, Status};
use tokio::sync::watch;
use vmm_sys_util::eventfd::EventFd;

use crate::channel::Channel;
use crate::guest::Guest;
use crate::ledger::Ledger;
use crate::message::{Order, Word};
use crate::spec;
use crate::tiers::{self, Handed};
use crate::vm::{Vm, WordError};

/// Both sides.
pub struct Pair {
    pub vm: Arc<Vm>,
    pub guest: Arc<Guest>,
    orders: Channel,
}

impl Pair {
    /// A machine of that description, with a monitor that hands this over.
    pub fn new(line: &str, handed: &[Handed]) -> Self {
        let description = spec::Description::parse(line).unwrap();
        let spec = description.finish(&BTreeMap::new()).unwrap();
        let pair = Self::bare(spec, Parameters::default());
        pair.guest.set_memory(handed);
        (pair.guest).connected(Arc::new(EventFd::new(0).unwrap()));
        pair.carry();
        pair
    }

    /// A machine without a monitor.
    pub fn bare(spec: spec::Vm, parameters: Parameters) -> Self {
        let tiers = spec.tiers.clone();
        let name = spec.name.clone();
        let vm = Vm::new(
            spec,
            parameters,
            Ledger::open(None, &name).unwrap(),
            watch::channel(0).0,
        );
        let (link, orders) = Channel::pair().unwrap();
        let begin = vm.begin(Arc::new(link), None, None, |begin| begin);
        let guest = Guest::new(begin, Box::new(move || Some(tiers::look(&tiers))));
        let pair = Self {
            vm: Arc::new(vm),
            guest: Arc::new(guest),
            orders: Channel::from_fd(orders),
        };
        pair.vm.hear(Word::Which, Vec::new()).unwrap();
        pair
    }

    /// Carries orders there, and news back.
    pub fn carry(&self) {
        self.try_carry().unwrap();
    }

    /// As [`Self::carry`], of a worker that may say what it should not.
    pub fn try_carry(&self) -> Result<(), WordError> {
        self.vm.look();
        loop {
            match self.orders.receive::<Order>().unwrap().unwrap().0 {
                Order::Target { node, wish } => self.guest.ask(node, wish),
                Order::Statistics => self.guest.ask_statistics(),
                Order::Look(number) => {
                    self.guest.look(number);
                    break;
                }
                Order::Begin(_) | Order::Known(_) => {}
            }
        }
        let (news, files) = self.guest.take_news();
        let word = Word::News(Box::new(news));
        self.vm.hear(word, Vec::new())?;
        let Some(files) = files else {
            return Ok(());
        };
        let (mut nodes, mut fds) = (Vec::new(), Vec::new());
        for (node, files) in files.tiers().iter().enumerate() {
            for file in files {
                nodes.push(node as u16);
                fds.push(OwnedFd::from(file.try_clone().unwrap()));
            }
        }
        if !fds.is_empty() {
            let first = true;
            self.vm.hear(Word::Files { nodes, first }, fds)?;
        }
        Ok(())
    }

    /// Its driver greets for that node.
    pub fn greet(&self, node: u16) {
        let hello = Report {
            op: OP_HELLO,
            node,
            ..Report::default()
        };
        let ack = self.guest.report(node, &hello.message(&[]));
        assert_eq!(ack.status, Status::Ok);
    }
}

/// With 16 pages of FMEM, a driver, and a balloon of four that is asked for.
pub fn driven(directory: &Path, name: &str) -> Pair {
    let pair = driven_with(directory, name, "");
    pair.vm.ask(0, 12 << PAGE_SHIFT, "test").unwrap();
    pair.carry();
    pair.guest.next_request().unwrap();
    pair
}

/// With 16 pages of FMEM, a driver, and more keys.
pub fn driven_with(directory: &Path, name: &str, keys: &str) -> Pair {
    let path = directory.join(name);
    let file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    file.set_len(16 << PAGE_SHIFT).unwrap();
    let line = format!("{name},socket=/s,fmem={},{keys}", path.display());
    let pair = Pair::new(
        line.trim_end_matches(','),
        &[Handed {
            gpa: 0,
            length_bytes: 16 << PAGE_SHIFT,
            file: Arc::new(file),
            offset_bytes: 0,
        }],
    );
    pair.greet(0);
    pair.carry();
    pair
}
