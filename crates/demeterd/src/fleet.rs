// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All virtual machines of this daemon, and how they are steered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use demeter_balloon::view::{PolicyClock, PolicyView, VmView};
use tokio::sync::watch;

use crate::policy::{self, Policy};
use crate::vm::Vm;

/// What is divided, and by whom.
pub struct Steering {
    /// None: an external one, through the control interface.
    pub policy: Option<Box<dyn Policy>>,
    /// FMEM of the host.
    pub fmem_pool_bytes: u64,
    /// Period of decisions.
    pub interval_ms: u64,
    /// Whose milliseconds these are.
    pub clock: PolicyClock,
    /// How often a policy has decided.
    pub decisions: u64,
}

/// All of it.
pub struct Fleet {
    vms: BTreeMap<String, Arc<Vm>>,
    changes: watch::Sender<u64>,
    steering: Mutex<Steering>,
}

impl Fleet {
    /// Of these machines.
    pub fn new(vms: Vec<Arc<Vm>>, changes: watch::Sender<u64>, steering: Steering) -> Self {
        Self {
            vms: vms
                .into_iter()
                .map(|vm| (vm.spec.name.clone(), vm))
                .collect(),
            changes,
            steering: Mutex::new(steering),
        }
    }

    /// All machines by name.
    pub fn vms(&self) -> impl Iterator<Item = &Arc<Vm>> {
        self.vms.values()
    }

    /// The machine of that name.
    pub fn vm(&self, name: &str) -> Option<&Arc<Vm>> {
        self.vms.get(name)
    }

    /// As the control interface shows them.
    pub fn views(&self) -> Vec<VmView> {
        self.vms().map(|vm| vm.view()).collect()
    }

    /// Counts changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Runs `body` on the steering.
    pub fn with_steering<T>(&self, body: impl FnOnce(&mut Steering) -> T) -> T {
        let mut steering = self.steering.lock().unwrap_or_else(PoisonError::into_inner);
        body(&mut steering)
    }

    /// Who decides.
    pub fn policy_view(&self) -> PolicyView {
        self.with_steering(|steering| PolicyView {
            name: steering
                .policy
                .as_ref()
                .map_or(policy::EXTERNAL, |policy| policy.name())
                .to_owned(),
            fmem_pool_bytes: steering.fmem_pool_bytes,
            interval_ms: steering.interval_ms,
            clock: steering.clock,
        })
    }
}
