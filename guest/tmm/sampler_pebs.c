// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sampler "pebs": precise events of an Intel PMU, through the kernel's perf.
 *
 * One pinned kernel counter per CPU with a fixed period, so that perf lets the
 * hardware write many records before it interrupts (large PEBS) and drains them
 * when a task leaves the CPU, while the task that made them is still current.
 * A record comes to us either through perf's overflow handler or, all others,
 * where perf hands it to its output (perf_hook.c): each is seen exactly once,
 * and pushed at once. wakeup_events = 1 makes perf take an interrupt for each
 * record and call the handler for all: so it is on CPUs where that is cheaper than
 * draining at every switch (sampler_form.c), and on all where that output cannot be
 * traced; at high rates perf throttles it.
 *
 * Event by CPU model: loads at or above a latency where a single event tells
 * where the data came from; on CPUs where that needs an auxiliary event in the
 * same group (Sapphire and Emerald Rapids; a kernel counter cannot be in a
 * group) loads that missed the L3, whatever they took and wherever they went.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/bitfield.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <asm/cpufeature.h>
#include <asm/msr-index.h>
#include <asm/processor.h>
#include <asm/tsc.h>
#include <demeter_ledger.h>

#include "msr.h"
#include "perf_context.h"
#include "sampler_perf.h"
#include "tmm.h"

#define MEM_TRANS_RETIRED_LOAD_LATENCY 0x01cdu
#define MEM_LOAD_RETIRED_L3_MISS       0x20d1u
/* Least and greatest value of the latency threshold register, in core cycles. */
#define LATENCY_CYCLES_MIN	       3u
#define LATENCY_CYCLES_MAX	       65535u
/* Of MSR_IA32_PERF_CAPABILITIES: the first format whose records come in groups. */
#define PEBS_FORMAT_GROUPS	       4u
/* Records of which not one has an address, by which something must be wrong. */
#define ADDRESSLESS_RECORDS	       1024u
/* What a record takes in a batch: the CPU itself, perf's look at it, its way through here. */
#define BATCHED_RECORD_NS	       1800u

static bool pebs_interrupts;
module_param(pebs_interrupts, bool, 0644);
MODULE_PARM_DESC(pebs_interrupts,
		 "sampler pebs: an interrupt for each record instead of tracing perf");

static const struct {
	u8 model;
	bool latency; /* load latency works as a single event */
} models[] = {
	{ 0x3f, true },					 /* Haswell server */
	{ 0x3c, true },	 { 0x45, true }, { 0x46, true }, /* Haswell */
	{ 0x3d, true },	 { 0x47, true },		 /* Broadwell */
	{ 0x4f, true },	 { 0x56, true },		 /* Broadwell server */
	{ 0x4e, true },	 { 0x5e, true },		 /* Skylake */
	{ 0x55, true },			 /* Skylake, Cascade Lake, Cooper Lake server */
	{ 0x8e, true },	 { 0x9e, true }, /* Kaby Lake, Coffee Lake */
	{ 0xa5, true },	 { 0xa6, true }, /* Comet Lake */
	{ 0x7d, true },	 { 0x7e, true }, /* Ice Lake */
	{ 0x6a, true },	 { 0x6c, true }, /* Ice Lake server */
	{ 0x8c, true },	 { 0x8d, true }, /* Tiger Lake */
	{ 0xa7, true },			 /* Rocket Lake */
	{ 0x8f, false },		 /* Sapphire Rapids */
	{ 0xcf, false },		 /* Emerald Rapids */
	{ 0xad, true },	 { 0xae, true }, /* Granite Rapids */
};

/* Set by the probe, read while sampling. */
static bool by_latency;
static bool by_trace;

/* What had been counted by the probe, and whether it was said since; the worker's. */
static u64 records_before;
static u64 unused_before;
static bool addressless_said;

static u64 threshold_cycles(u64 threshold_ns)
{
	/*
	 * The register counts core cycles; the TSC's rate is the nominal one. To the
	 * nearest: a rate measured a millionth too low is no other threshold, which
	 * nobody else could use at the same time.
	 */
	u64 cycles = div_u64(threshold_ns * tsc_khz + 500000, 1000000);

	return clamp_t(u64, cycles, LATENCY_CYCLES_MIN, LATENCY_CYCLES_MAX);
}

static void pebs_record(struct perf_sample_data *data)
{
	struct demeter_access access = {
		.gva = data->sample_flags & PERF_SAMPLE_ADDR ? data->addr : 0,
		.tier = demeter_perf_tier(data),
	};

	/* Records without a data address (the event was not a load) say nothing. */
	if (!access.gva || access.gva >= TASK_SIZE_MAX) {
		this_cpu_inc(demeter_cpu_stats.unused_records);
		return;
	}
	if (by_latency)
		access.latency_ns = demeter_perf_latency_ns(data);
	demeter_sampler_push(current->mm ?: current->active_mm, &access);
}

static void pebs_overflow(struct perf_event *event, struct perf_sample_data *data,
			  struct pt_regs *regs)
{
	this_cpu_inc(demeter_cpu_stats.handled_records);
	demeter_perf_note_throttling(event);
	if (by_trace && event->attr.wakeup_events)
		demeter_perf_hook_time();
	pebs_record(data);
}

static struct perf_event_attr event_attr(u64 period, u64 threshold_ns)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_RAW,
		.size = sizeof(attr),
		.config = MEM_LOAD_RETIRED_L3_MISS,
		.sample_period = period,
		.sample_type = PERF_SAMPLE_ADDR,
		.precise_ip = 2,
		.pinned = 1,
		.exclude_kernel = 1,
		.exclude_hv = 1,
		/*
		 * On a KVM host: a VM's addresses are its own. Nor do VMs and counters
		 * that include them bear with each other where KVM lends out the PMU.
		 */
		.exclude_guest = 1,
		.wakeup_events = by_trace ? 0 : 1,
	};

	if (by_latency) {
		attr.config = MEM_TRANS_RETIRED_LOAD_LATENCY;
		attr.config1 = threshold_cycles(threshold_ns);
		attr.sample_type |= PERF_SAMPLE_WEIGHT | PERF_SAMPLE_DATA_SRC;
	}
	return attr;
}

/*
 * From format 4 on a record is a basic group, with no address, and others that
 * the PMU adds on demand if it has the "baseline". A hypervisor may pass the
 * former through and not the latter, and perf then accepts our events.
 */
static bool basic_records_only(void)
{
	u64 caps;

	if (demeter_rdmsr_safe(MSR_IA32_PERF_CAPABILITIES, &caps))
		return false;
	return FIELD_GET(PERF_CAP_PEBS_FORMAT, caps) >= PEBS_FORMAT_GROUPS &&
	       !(caps & PERF_CAP_PEBS_BASELINE);
}

/* What rules PEBS out before perf is asked. */
static int pebs_available(char *reason, size_t size)
{
	if (boot_cpu_data.x86_vendor != X86_VENDOR_INTEL)
		return demeter_perf_refuse(reason, size, -EOPNOTSUPP,
					   "this is not an Intel CPU, so it has no PEBS",
					   "use the sampler ibs on an AMD CPU, or an Intel CPU");
#ifdef X86_FEATURE_HYBRID_CPU
	if (boot_cpu_has(X86_FEATURE_HYBRID_CPU))
		return demeter_perf_refuse(reason, size, -EOPNOTSUPP,
					   "this CPU mixes kinds of cores, which is not supported",
					   "use a server CPU");
#endif
	if (!boot_cpu_has(X86_FEATURE_ARCH_PERFMON))
		return demeter_perf_refuse(reason, size, -ENODEV, "this machine has no PMU",
					   "give the VM one (QEMU with KVM: -cpu host,pmu=on)");
	if (!boot_cpu_has(X86_FEATURE_PEBS) || !boot_cpu_has(X86_FEATURE_DTES64))
		return demeter_perf_refuse(reason, size, -ENODEV, "the PMU has no PEBS",
					   "in a VM, use a KVM host that passes PEBS through");
	if (basic_records_only())
		return demeter_perf_refuse(reason, size, -EOPNOTSUPP,
					   "this host passes PEBS without addresses (no baseline)",
					   "use a KVM host that passes PEBS baseline through");
	return 0;
}

static int model_find(char *reason, size_t size)
{
	const struct cpuinfo_x86 *cpu = &boot_cpu_data;
	char why[80];
	int i;

	for (i = 0; i < ARRAY_SIZE(models); i++) {
		if (cpu->x86 == 6 && cpu->x86_model == models[i].model) {
			by_latency = models[i].latency;
			return 0;
		}
	}
	snprintf(why, sizeof(why), "CPU family %u model %#x is not in the table of events",
		 cpu->x86, cpu->x86_model);
	return demeter_perf_refuse(reason, size, -EOPNOTSUPP, why,
				   "use a listed CPU, or add this one to the sampler's table");
}

static struct perf_event *claim(void)
{
	struct perf_event_attr attr = event_attr(READ_ONCE(demeter_params.sample_period),
						 READ_ONCE(demeter_params.latency_threshold_ns));
	struct perf_event *event = demeter_perf_claim(&attr, pebs_overflow);

	/*
	 * A kernel older than the CPU accepts any raw event, but does not know
	 * that this one has a threshold and would never set it.
	 */
	if (!IS_ERR(event) && by_latency && event->hw.extra_reg.reg != MSR_PEBS_LD_LAT_THRESHOLD) {
		demeter_perf_release();
		return ERR_PTR(-EOPNOTSUPP);
	}
	return event;
}

static u64 counted_records(void)
{
	return demeter_stats_cpu_sum(offsetof(struct demeter_cpu_stats, traced_records)) +
	       demeter_stats_cpu_sum(offsetof(struct demeter_cpu_stats, handled_records));
}

static u64 counted_unused(void)
{
	return demeter_stats_cpu_sum(offsetof(struct demeter_cpu_stats, unused_records));
}

/* Every event is a load of user space; says so once if none has an address. */
static void look_for_addresses(void)
{
	u64 records = counted_records() - records_before;

	if (addressless_said || records < ADDRESSLESS_RECORDS)
		return;
	if (counted_unused() - unused_before < records)
		return;
	addressless_said = true;
	pr_warn("none of %llu PEBS records has an address, so nothing is learned: the PMU, or the hypervisor, leaves addresses out; next: see whether \"perf mem record\" gives addresses, and in a VM use another host\n",
		records);
}

/* What to do so that perf's output can be traced; see demeter_perf_hook(). */
static const char *hook_advice(int error)
{
	switch (error) {
	case -EOPNOTSUPP:
		return "use a kernel with CONFIG_DYNAMIC_FTRACE_WITH_ARGS";
	case -ENODEV:
		return "tracing has died of an error: look for it in this log, and restart";
	case -ENOENT:
		return "nothing of that name can be traced: report version and configuration";
	case -ENOMEM:
		return "free some memory, disable and enable this module";
	case -EBUSY:
		return "set kernel.ftrace_enabled=1";
	default:
		return "set kernel.ftrace_enabled=1, look for errors of ftrace in this log";
	}
}

static int pebs_probe(char *reason, size_t size)
{
	struct perf_event *event;
	char why[80];
	int ret;

	ret = pebs_available(reason, size) ?: model_find(reason, size);
	if (ret)
		return ret;
	ret = READ_ONCE(pebs_interrupts) ? -ECANCELED : demeter_perf_hook(pebs_record);
	by_trace = !ret;
	/* The table says what should work; only perf knows what does. */
	event = claim();
	if (IS_ERR(event) && by_latency) {
		pr_info("perf has no load latency event of its own here (error %ld)\n",
			PTR_ERR(event));
		by_latency = false;
		event = claim();
	}
	if (IS_ERR(event)) {
		if (by_trace)
			demeter_perf_unhook();
		snprintf(why, sizeof(why), "perf refused the event with error %ld", PTR_ERR(event));
		return demeter_perf_refuse(reason, size, PTR_ERR(event), why,
					   "see whether \"perf mem record\" works");
	}
	if (!by_trace && ret != -ECANCELED)
		pr_warn("perf_event_output() cannot be traced (error %d), so every sample costs an interrupt; next: %s\n",
			ret, hook_advice(ret));
	if (!by_latency)
		pr_info("sampling L3 misses: latencies and tiers are not known and params/latency_threshold_ns is not used\n");
	demeter_form_start();
	records_before = counted_records();
	unused_before = counted_unused();
	addressless_said = false;
	return 0;
}

static void pebs_release(void)
{
	demeter_perf_release();
	if (by_trace)
		demeter_perf_unhook();
	by_trace = false;
}

static int pebs_start(unsigned int cpu, u64 period, u64 threshold_ns)
{
	struct perf_event_attr attr = event_attr(period, threshold_ns);

	return demeter_perf_start(cpu, &attr, pebs_overflow);
}

/* perf drains the buffer after this, but not for a task that has only other events. */
static void pebs_leave(const struct task_struct *task)
{
	if (by_trace && demeter_may_skip_drain(task))
		demeter_perf_collect_here();
}

static unsigned int pebs_caps(void)
{
	/* perf decodes the source of the data for the load latency event alone. */
	return DEMETER_SAMPLER_PAGE |
	       (by_latency ? DEMETER_SAMPLER_LATENCY | DEMETER_SAMPLER_TIER : 0);
}

static u64 pebs_record_ns(void)
{
	/* Without a trace nobody times interrupts either. */
	return by_trace ? max_t(u64, demeter_form_record_ns(), BATCHED_RECORD_NS) : 0;
}

static void pebs_tick(void)
{
	/* A task that never leaves its CPU would keep a buffer full of records. */
	if (by_trace) {
		demeter_perf_hook_look();
		demeter_perf_collect();
		demeter_form_tick();
	}
	look_for_addresses();
	demeter_perf_restart();
}

static const char *pebs_delivery(void)
{
	return by_trace ? "trace" : "interrupt";
}

static u64 pebs_accesses_per_sample(u64 period)
{
	return period;
}

const struct demeter_sampler_ops demeter_sampler_pebs = {
	.name = "pebs",
	.source = DEMETER_LEDGER_PEBS,
	.probe = pebs_probe,
	.release = pebs_release,
	.start = pebs_start,
	.stop = demeter_perf_stop,
	.leave = pebs_leave,
	.caps = pebs_caps,
	.delivery = pebs_delivery,
	.accesses_per_sample = pebs_accesses_per_sample,
	.set_period = demeter_perf_set_period,
	.least_shift = demeter_form_least_shift,
	.record_ns = pebs_record_ns,
	.tick = pebs_tick,
	.alive = demeter_perf_alive,
	.lost = demeter_perf_lost,
	.sees = demeter_perf_sees,
};
