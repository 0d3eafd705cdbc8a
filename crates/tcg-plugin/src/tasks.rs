// SPDX-License-Identifier: GPL-2.0-or-later
//! Which task runs on which vCPU, seen at the kernel's own switch.
//!
//! The guest's agent says where `__switch_to_asm(prev, next)` is and where a task's
//! flags, name and number lie. The plugin looks on as that function is called; the
//! guest executes nothing for it, and no guest time passes.

use demeter_machine::tasks::{COMM_BYTES, TaskKind, TaskTimes};

use crate::ram::Ram;

/// `PF_KTHREAD`.
const KERNEL_THREAD: u32 = 0x0020_0000;
/// Most bytes of code that a translation block covers.
const BLOCK_BYTES: u64 = 2 * 4096;

/// Guest memory and the page tables to find a task with. The kernel's own
/// addresses are the same in all of them.
pub type Memory<'a> = (&'a Ram, u64);

/// Offsets in `task_struct`.
#[derive(Clone, Copy)]
struct Layout {
    flags: u64,
    comm: u64,
    pid: u64,
}

impl Layout {
    fn unpack(word: u64) -> Self {
        Self {
            flags: word & 0xffff,
            comm: word >> 16 & 0xffff,
            pid: word >> 32 & 0xffff,
        }
    }

    fn identify(self, (ram, cr3): Memory<'_>, task: u64) -> Option<(TaskKind, [u8; COMM_BYTES])> {
        let word = |offset: u64| {
            let mut bytes = [0; 4];
            ram.copy(cr3, task.wrapping_add(offset), &mut bytes)
                .then(|| u32::from_le_bytes(bytes))
        };
        let mut comm = [0; COMM_BYTES];
        if !ram.copy(cr3, task.wrapping_add(self.comm), &mut comm) {
            return None;
        }
        let kind = if word(self.pid)? == 0 {
            TaskKind::Idle
        } else if word(self.flags)? & KERNEL_THREAD != 0 {
            TaskKind::Kernel
        } else {
            TaskKind::Program
        };
        Some((kind, comm))
    }
}

/// See the module.
pub struct Tasks {
    switch: Option<u64>,
    layout: Option<Layout>,
    /// Address of the task on each vCPU, once it was seen to switch.
    current: Vec<Option<u64>>,
    /// CPU time so far.
    pub times: TaskTimes,
}

impl Tasks {
    /// For so many vCPUs.
    pub fn new(vcpus: usize) -> Self {
        Self {
            switch: None,
            layout: None,
            current: vec![None; vcpus],
            times: TaskTimes::new(vcpus),
        }
    }

    /// The kernel switches tasks at `address`.
    pub fn switch_at(&mut self, address: u64) {
        // Nothing else than kernel code: a guest that errs slows nobody down.
        self.switch = (address >> 63 == 1).then_some(address);
    }

    /// Offsets as the guest packs them.
    pub fn lay_out(&mut self, word: u64) {
        self.layout = Some(Layout::unpack(word));
    }

    /// Where the switch is, if a block of code that starts at `start` may contain it.
    #[inline]
    pub fn switch_in(&self, start: u64) -> Option<u64> {
        self.switch
            .filter(|switch| (start..start.saturating_add(BLOCK_BYTES)).contains(switch))
    }

    /// `vcpu`, which has been busy for `busy_ps` in all, goes from one task to another.
    pub fn switch(&mut self, vcpu: usize, memory: Memory<'_>, from: u64, to: u64, busy_ps: u64) {
        self.tell(vcpu, memory, from, busy_ps);
        if let Some(current) = self.current.get_mut(vcpu) {
            *current = Some(to);
        }
    }

    /// What `vcpu` did so far is the running task's, if it is known.
    pub fn settle(&mut self, vcpu: usize, memory: Memory<'_>, busy_ps: u64) {
        if let Some(&Some(task)) = self.current.get(vcpu) {
            self.tell(vcpu, memory, task, busy_ps);
        }
    }

    fn tell(&mut self, vcpu: usize, memory: Memory<'_>, task: u64, busy_ps: u64) {
        if let Some(layout) = self.layout
            && let Some((kind, comm)) = layout.identify(memory, task)
        {
            self.times.tell(vcpu, busy_ps, kind, &comm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::Mapping;
    use demeter_machine::MemoryLayout;

    /// A task at 0x1000 of a kernel mapped 1:1 in the lowest 2 MiB.
    fn guest(name: &str, flags: u32, pid: u32) -> Ram {
        let path =
            std::env::temp_dir().join(format!("demeter-tasks-{}-{name}", std::process::id()));
        let nodes = [0, 1].map(|_| Mapping::shared(&path, 2 << 20).unwrap());
        std::fs::remove_file(&path).unwrap();
        let write = |offset: usize, word: u64| {
            // SAFETY: inside the mapping, which only this test uses.
            unsafe { nodes[0].at::<u64>(offset).unwrap().write(word) };
        };
        write(0x8000, 0x9000 | 0x67);
        write(0x9000, 0xa000 | 0x67);
        write(0xa000, 0xe7);
        write(0x1000, u64::from(flags) << 32);
        write(0x1010, u64::from_le_bytes(*b"kswapd0\0"));
        write(0x1020, u64::from(pid));
        Ram::new(nodes, MemoryLayout::new(2 << 20, 2 << 20))
    }

    #[test]
    fn tasks_are_told_apart() {
        for (name, flags, pid, kind) in [
            ("a", 0x0020_0040, 31, TaskKind::Kernel),
            ("b", 0x0040_0000, 31, TaskKind::Program),
            ("c", 0x0020_0002, 0, TaskKind::Idle),
        ] {
            let ram = guest(name, flags, pid);
            let mut tasks = Tasks::new(1);
            tasks.switch_at(0xffff_ffff_8100_0000);
            tasks.lay_out(4 | 0x10 << 16 | 0x20 << 32);
            tasks.settle(0, (&ram, 0x8000), 1_000);
            assert!(tasks.times.report().is_empty());
            tasks.switch(0, (&ram, 0x8000), 0x1000, 0x1000, 2_000);
            tasks.settle(0, (&ram, 0x8000), 5_000);
            let [time] = &tasks.times.report()[..] else {
                panic!("one task");
            };
            assert_eq!(
                (time.comm.as_str(), time.kind, time.ns),
                ("kswapd0", kind, 5)
            );
        }
    }

    #[test]
    fn only_blocks_with_the_switch_are_searched() {
        let mut tasks = Tasks::new(1);
        assert_eq!(tasks.switch_in(0), None);
        tasks.switch_at(0x1000);
        assert_eq!(tasks.switch_in(0x1000), None);
        let at = 0xffff_ffff_8100_0040;
        tasks.switch_at(at);
        assert_eq!(tasks.switch_in(at), Some(at));
        assert_eq!(tasks.switch_in(at - 100), Some(at));
        assert_eq!(tasks.switch_in(at + 1), None);
        assert_eq!(tasks.switch_in(at - BLOCK_BYTES), None);
    }
}
