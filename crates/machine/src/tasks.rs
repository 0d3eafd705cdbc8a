// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU time by task: a guest's helpers told apart from its program.
//!
//! A vCPU runs the program and the kernel's threads (reclaim, compaction,
//! monitoring, Demeter's worker) in turn. What its vCPU did between two
//! switches belongs to the task that left it: instructions and charged time,
//! interrupts and softirqs taken meanwhile included, as in the kernel's own
//! accounts. Time that idle vCPUs skip is nobody's.

use serde::{Deserialize, Serialize};

/// Names kept apart; later ones are counted as [`OTHERS`] of their kind.
const ENTRIES: usize = 64;
const OTHERS: &str = "other";
/// Bytes of a task's name, `TASK_COMM_LEN`.
pub const COMM_BYTES: usize = 16;

/// What a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskKind {
    /// It has user space: COMMAND, its children, the testbed's agent.
    Program,
    /// A thread of the kernel.
    Kernel,
    /// A vCPU's idle task, for what it executes before it halts and after it wakes.
    Idle,
}

/// CPU time of the tasks of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTime {
    /// Their name; of kernel threads only what is before a `/` (`kworker`).
    pub comm: String,
    /// What they are.
    pub kind: TaskKind,
    /// CPU time while the model was on.
    pub ns: u64,
}

/// Adds up CPU time by task. Every method ignores a vCPU it was not made for.
#[derive(Clone, Debug)]
pub struct TaskTimes {
    table: Vec<(String, TaskKind, u64)>,
    /// How much of each vCPU's time has been told to a task.
    told_ps: Vec<u64>,
    kernel_ps: u64,
}

impl TaskTimes {
    /// For a machine of so many vCPUs.
    #[must_use]
    pub fn new(vcpus: usize) -> Self {
        Self {
            table: Vec::new(),
            told_ps: vec![0; vcpus],
            kernel_ps: 0,
        }
    }

    /// All that `vcpu` did up to `busy_ps`, and has not been told yet, was this task's.
    pub fn tell(&mut self, vcpu: usize, busy_ps: u64, kind: TaskKind, comm: &[u8; COMM_BYTES]) {
        let Some(told_ps) = self.told_ps.get_mut(vcpu) else {
            return;
        };
        let ps = busy_ps.saturating_sub(*told_ps);
        if ps == 0 {
            return;
        }
        *told_ps = busy_ps;
        if kind == TaskKind::Kernel {
            self.kernel_ps += ps;
        }
        let name = name(kind, comm);
        let full = self.table.len() >= ENTRIES;
        let find = |name: &str| {
            (self.table.iter()).position(|(comm, known, _)| comm == name && *known == kind)
        };
        let at = match find(&name) {
            None if full => find(OTHERS),
            at => at,
        };
        match at.and_then(|at| self.table.get_mut(at)) {
            Some((_, _, sum_ps)) => *sum_ps += ps,
            None if full => self.table.push((OTHERS.to_owned(), kind, ps)),
            None => self.table.push((name, kind, ps)),
        }
    }

    /// Time of kernel threads.
    #[must_use]
    pub const fn kernel_ps(&self) -> u64 {
        self.kernel_ps
    }

    /// All of them, those with most time first.
    #[must_use]
    pub fn report(&self) -> Vec<TaskTime> {
        let mut times: Vec<TaskTime> = (self.table.iter())
            .map(|(comm, kind, ps)| TaskTime {
                comm: comm.clone(),
                kind: *kind,
                ns: ps / 1000,
            })
            .collect();
        times.sort_by(|a, b| (b.ns, a.kind, &a.comm).cmp(&(a.ns, b.kind, &b.comm)));
        times
    }
}

/// A task's name, made of what the guest's memory holds.
fn name(kind: TaskKind, comm: &[u8; COMM_BYTES]) -> String {
    let end = (comm.iter())
        .position(|&byte| byte == 0 || (byte == b'/' && kind != TaskKind::Program))
        .unwrap_or(COMM_BYTES);
    let text: String = String::from_utf8_lossy(&comm[..end])
        .chars()
        .map(|letter| if letter.is_control() { '?' } else { letter })
        .collect();
    if text.is_empty() { "?".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn comm(text: &str) -> [u8; COMM_BYTES] {
        let mut comm = [0; COMM_BYTES];
        comm[..text.len()].copy_from_slice(text.as_bytes());
        comm
    }

    #[test]
    fn time_goes_to_who_ran() {
        let mut times = TaskTimes::new(2);
        times.tell(0, 5_000, TaskKind::Program, &comm("gups"));
        times.tell(1, 1_000, TaskKind::Idle, &comm("swapper/1"));
        times.tell(0, 7_000, TaskKind::Kernel, &comm("kworker/0:1"));
        times.tell(0, 8_000, TaskKind::Kernel, &comm("kworker/u5:2"));
        times.tell(0, 20_000, TaskKind::Program, &comm("gups"));
        times.tell(7, 1, TaskKind::Program, &comm("gups"));
        let told: Vec<_> = (times.report().into_iter())
            .map(|time| (time.comm, time.kind, time.ns))
            .collect();
        assert_eq!(
            told,
            [
                ("gups".to_owned(), TaskKind::Program, 17),
                ("kworker".to_owned(), TaskKind::Kernel, 3),
                ("swapper".to_owned(), TaskKind::Idle, 1),
            ]
        );
        assert_eq!(times.kernel_ps(), 3_000);
    }

    #[test]
    fn names_are_the_guests_and_may_be_anything() {
        assert_eq!(name(TaskKind::Program, &comm("a/b")), "a/b");
        assert_eq!(name(TaskKind::Program, &[b'x'; 16]), "x".repeat(16));
        assert_eq!(name(TaskKind::Kernel, &comm("/")), "?");
        assert_eq!(name(TaskKind::Program, &comm("\n\u{7f}")), "??");
    }

    proptest! {
        /// However many names there are, the table is bounded and nothing is lost.
        #[test]
        fn sums_agree(steps in prop::collection::vec((0_u64..9_000, 0_u8..120, 0_u8..3), 1..400)) {
            let mut times = TaskTimes::new(1);
            let (mut busy_ps, mut kernel_ps) = (0, 0);
            for (ps, who, kind) in steps {
                let kind = [TaskKind::Program, TaskKind::Kernel, TaskKind::Idle][usize::from(kind)];
                busy_ps += ps * 1000;
                kernel_ps += if kind == TaskKind::Kernel { ps * 1000 } else { 0 };
                times.tell(0, busy_ps, kind, &comm(&format!("t{who}")));
            }
            let report = times.report();
            prop_assert!(report.len() <= ENTRIES + 3);
            prop_assert_eq!(report.iter().map(|time| time.ns).sum::<u64>(), busy_ps / 1000);
            prop_assert_eq!(times.kernel_ps(), kernel_ps);
        }
    }
}
