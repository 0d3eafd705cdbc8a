// SPDX-License-Identifier: GPL-2.0-or-later
//! What the observer tells: counters, rows of the series, the summary.

use demeter_machine::bar::ModelCounters;
use demeter_machine::digest::Fnv;
use demeter_machine::series::{Counters, RowKind, SERIES_FORMAT, SeriesRow, Summary, VcpuCounters};

use demeter_recording::Resident;

use super::{Observer, Vcpu};
use crate::{NEXT_DISK, bar, output};

impl Observer {
    fn vcpu_counters(&self) -> Vec<VcpuCounters> {
        let count = |(index, vcpu): (usize, &Vcpu)| {
            // SAFETY: the scoreboard is ours, and the vCPU exists.
            let read = |entry| unsafe { (self.api.qemu_plugin_u64_get)(entry, index as u32) };
            let kernel_insn = read(self.kernel_insn);
            let pmu = vcpu.pmu.counts();
            VcpuCounters {
                insn: read(self.user_insn) + kernel_insn,
                kernel_insn,
                pmu_events: pmu.events,
                samples: pmu.records,
                samples_lost: pmu.dropped,
                pmu_interrupts: pmu.interrupts,
                ..self.machine.vcpu_counters(index)
            }
        };
        self.vcpus.iter().enumerate().map(count).collect()
    }

    fn counters(&self) -> Counters {
        let mut counters = self.machine.counters;
        counters.kthread_ps = self.tasks.times.kernel_ps();
        if let Some(hypervisor) = &self.machine.hypervisor {
            counters.hypervisor = hypervisor.counters();
        }
        for vcpu in self.vcpu_counters() {
            counters.insn += vcpu.insn;
            counters.kernel_insn += vcpu.kernel_insn;
            counters.pmu_events += vcpu.pmu_events;
            counters.samples += vcpu.samples;
            counters.samples_lost += vcpu.samples_lost;
            counters.pmu_interrupts += vcpu.pmu_interrupts;
        }
        counters
    }

    /// Of every record of each vCPU in turn.
    fn samples_digest(&self) -> String {
        let mut all = Fnv::default();
        for vcpu in &self.vcpus {
            all.write(vcpu.pmu.counts().digest.hex().as_bytes());
        }
        all.hex()
    }

    /// Writes a row of the series as of now.
    pub(super) fn row(&mut self, vcpu: usize, kind: RowKind, value: u64) {
        self.settle_tasks();
        let t_ns = self.now_ns(vcpu);
        let counters = self.counters();
        bar::show(&self.bar, &ModelCounters::new(t_ns, &counters));
        let row = SeriesRow {
            t_ns,
            kind,
            value,
            counters,
            guest: bar::guest(&self.bar).into(),
        };
        if let Err(error) = self.output.row(&row) {
            crate::fatal(&format!("cannot write the time series: {error}"), NEXT_DISK);
        }
    }

    /// Writes the summary as of `now_ns`.
    pub(super) fn summary(&mut self, end_ns: u64) {
        self.settle_tasks();
        let running_ns = if self.on {
            end_ns.saturating_sub(self.on_since_ns)
        } else {
            0
        };
        let summary = Summary {
            format: SERIES_FORMAT,
            modelled: self.first_on_ns.is_some(),
            on_ns: self.first_on_ns.unwrap_or(0),
            end_ns,
            model_ns: self.model_ns + running_ns,
            selftest_charged_ns: self.requests.charged_ns(),
            rows: 0,
            samples_digest: self.samples_digest(),
            series_digest: String::new(),
            counters: self.counters(),
            tasks: self.tasks.times.report(),
            vcpus: self.vcpu_counters(),
            guest: bar::guest(&self.bar).into(),
            machine: self.config.clone(),
        };
        let written = (self.output.summary(summary))
            .and_then(|()| output::write_watch(&self.watch, self.machine.watch.as_ref()));
        if let Err(error) = written {
            crate::fatal(&format!("cannot write the summary: {error}"), NEXT_DISK);
        }
    }

    /// QEMU is about to exit; not on the vCPU thread, which has stopped.
    pub fn exit(&mut self) {
        // How long a guest takes to power off depends on the host; what was
        // modelled does not.
        let end_ns = match &self.started {
            Some(started) if self.on => self.last_ns.max(started.clock.settled_ns()),
            _ => self.last_off_ns,
        };
        if self.on {
            self.pause_recording(end_ns);
        }
        if let Err(error) = self.recorder.finish() {
            cannot_record(&error);
        }
        self.summary(end_ns);
    }

    /// Writes what the address space of `vcpu` has when the model is switched on first.
    pub(super) fn record_resident(&mut self, vcpu: usize) {
        if self.first_on_ns.is_some() || !self.recorder.is_on() {
            return;
        }
        let (Some(own), Some(watch)) = (self.vcpus.get(vcpu), &mut self.machine.watch) else {
            return;
        };
        let resident = Resident {
            space: watch.space(vcpu),
            runs: self.ram.resident(own.cr3),
        };
        if let Some(accesses) = &mut watch.accesses {
            accesses.resident(&resident);
        }
        if let Err(error) = self.recorder.resident(&resident) {
            cannot_record(&error);
        }
    }

    /// Writes windows of recorded accesses that are complete.
    pub(super) fn write_windows(&mut self) {
        if let Err(error) = self.recorder.windows(self.machine.watch.as_mut()) {
            cannot_record(&error);
        }
    }

    /// Ends the running window of recorded accesses.
    pub(super) fn pause_recording(&mut self, now_ns: u64) {
        if let Some(watch) = &mut self.machine.watch {
            watch.pause(now_ns);
        }
        self.write_windows();
    }
}

fn cannot_record(error: &std::io::Error) -> ! {
    crate::fatal(&format!("cannot write the recording: {error}"), NEXT_DISK);
}
