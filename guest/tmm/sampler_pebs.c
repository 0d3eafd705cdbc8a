// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sampler "pebs": precise events of an Intel PMU, through the kernel's perf.
 *
 * One pinned kernel counter per CPU with a fixed period, so that perf can let
 * the hardware write many records before it interrupts (large PEBS) and drains
 * them itself when a task leaves the CPU. perf calls back for each record while
 * the task that made it is still current, so records are pushed at once and
 * there is nothing to drain.
 *
 * Event by CPU model: loads at or above a latency where perf lets a single
 * event count them; on CPUs where that event must follow an auxiliary one
 * (Sapphire Rapids and later; a kernel counter cannot lead a group) loads that
 * missed the L3, which needs no threshold to tell memory from cache.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/perf_event.h>
#include <linux/sched.h>
#include <asm/cpufeature.h>
#include <asm/processor.h>
#include <asm/tsc.h>

#include "tmm.h"

#define MEM_TRANS_RETIRED_LOAD_LATENCY 0x01cdu
#define MEM_LOAD_RETIRED_L3_MISS       0x20d1u
/* Least and greatest value of the latency threshold register, in core cycles. */
#define LATENCY_CYCLES_MIN	       3u
#define LATENCY_CYCLES_MAX	       65535u

static const struct {
	u8 model;
	bool single; /* load latency works as a single event */
} models[] = {
	{ 0x3f, true },					  /* Haswell server */
	{ 0x3c, true },	 { 0x45, true },  { 0x46, true }, /* Haswell */
	{ 0x3d, true },	 { 0x47, true },		  /* Broadwell */
	{ 0x4f, true },	 { 0x56, true },		  /* Broadwell server */
	{ 0x4e, true },	 { 0x5e, true },		  /* Skylake */
	{ 0x55, true },			  /* Skylake, Cascade Lake, Cooper Lake server */
	{ 0x8e, true },	 { 0x9e, true },  /* Kaby Lake, Coffee Lake */
	{ 0xa5, true },	 { 0xa6, true },  /* Comet Lake */
	{ 0x7d, true },	 { 0x7e, true },  /* Ice Lake */
	{ 0x6a, true },	 { 0x6c, true },  /* Ice Lake server */
	{ 0x8c, true },	 { 0x8d, true },  /* Tiger Lake */
	{ 0xa7, true },			  /* Rocket Lake */
	{ 0x8f, false },		  /* Sapphire Rapids */
	{ 0xcf, false },		  /* Emerald Rapids */
	{ 0xad, false }, { 0xae, false }, /* Granite Rapids */
};

static DEFINE_PER_CPU(struct perf_event *, pebs_event);
static bool pebs_single;

static u64 threshold_cycles(u64 threshold_ns)
{
	/* The register counts core cycles; the TSC's rate is the nominal one. */
	return clamp_t(u64, div_u64(threshold_ns * tsc_khz, 1000000), LATENCY_CYCLES_MIN,
		       LATENCY_CYCLES_MAX);
}

static void pebs_overflow(struct perf_event *event, struct perf_sample_data *data,
			  struct pt_regs *regs)
{
	const struct mm_struct *mm = current->mm ?: current->active_mm;
	struct demeter_access access = {
		.gva = data->addr,
		.tier = DEMETER_TIERS,
	};

	/* Records without a data address (the event was not a load) say nothing. */
	if (!access.gva || access.gva >= TASK_SIZE_MAX)
		return;
	if (pebs_single && tsc_khz)
		access.latency_ns =
			min_t(u64, div_u64(data->weight.full * 1000000, tsc_khz), U16_MAX);
	demeter_sampler_push(mm, &access);
}

static struct perf_event *event_create(unsigned int cpu, u64 period, u64 threshold_ns)
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
	};

	if (pebs_single) {
		attr.config = MEM_TRANS_RETIRED_LOAD_LATENCY;
		attr.config1 = threshold_cycles(threshold_ns);
		attr.sample_type |= PERF_SAMPLE_WEIGHT;
	}
	return perf_event_create_kernel_counter(&attr, cpu, NULL, pebs_overflow, NULL);
}

static int refuse(char *reason, size_t size, int error, const char *why, const char *next)
{
	snprintf(reason, size, "%s; next: %s", why, next);
	return error;
}

/* What rules PEBS out before perf is asked. */
static int pebs_available(char *reason, size_t size)
{
	const struct cpuinfo_x86 *cpu = &boot_cpu_data;

	if (cpu->x86_vendor == X86_VENDOR_AMD || cpu->x86_vendor == X86_VENDOR_HYGON)
		return refuse(reason, size, -EOPNOTSUPP,
			      "this is an AMD CPU, whose sampling (IBS) is not supported yet",
			      "use an Intel CPU, or the sampler vpmu in the testbed");
	if (cpu->x86_vendor != X86_VENDOR_INTEL)
		return refuse(reason, size, -EOPNOTSUPP,
			      "this is not an Intel CPU, so it has no PEBS",
			      "use an Intel CPU, or the sampler vpmu in the testbed");
#ifdef X86_FEATURE_HYBRID_CPU
	if (boot_cpu_has(X86_FEATURE_HYBRID_CPU))
		return refuse(reason, size, -EOPNOTSUPP,
			      "this CPU mixes kinds of cores, which is not supported",
			      "use a server CPU");
#endif
	if (!boot_cpu_has(X86_FEATURE_ARCH_PERFMON))
		return refuse(reason, size, -ENODEV, "this machine has no PMU",
			      "give the VM one (QEMU with KVM: -cpu host,pmu=on)");
	if (!boot_cpu_has(X86_FEATURE_PEBS) || !boot_cpu_has(X86_FEATURE_DTES64))
		return refuse(reason, size, -ENODEV, "the PMU has no PEBS",
			      "in a VM, use a KVM host that passes PEBS through (Ice Lake on)");
	return 0;
}

static int pebs_probe(char *reason, size_t size)
{
	const struct cpuinfo_x86 *cpu = &boot_cpu_data;
	struct perf_event *event;
	char why[80];
	int i, ret;

	ret = pebs_available(reason, size);
	if (ret)
		return ret;
	for (i = 0; i < ARRAY_SIZE(models); i++)
		if (cpu->x86 == 6 && cpu->x86_model == models[i].model)
			break;
	if (i == ARRAY_SIZE(models)) {
		snprintf(why, sizeof(why), "CPU family %u model %#x is not in the table of events",
			 cpu->x86, cpu->x86_model);
		return refuse(reason, size, -EOPNOTSUPP, why,
			      "use a listed CPU, or add this one to the sampler's table");
	}
	pebs_single = models[i].single;
	/* The table says what should work; only perf knows what does. */
	event = event_create(raw_smp_processor_id(), READ_ONCE(demeter_params.sample_period),
			     READ_ONCE(demeter_params.latency_threshold_ns));
	if (IS_ERR(event) && pebs_single) {
		pebs_single = false;
		event = event_create(raw_smp_processor_id(),
				     READ_ONCE(demeter_params.sample_period), 0);
		if (!IS_ERR(event))
			pr_warn("perf has no load latency event here; sampling L3 misses without a threshold\n");
	}
	if (IS_ERR(event)) {
		ret = PTR_ERR(event);
		snprintf(why, sizeof(why), "perf refused the event with error %d", ret);
		return refuse(reason, size, ret, why,
			      "see who uses the counters, and whether \"perf mem record\" works");
	}
	perf_event_release_kernel(event);
	return 0;
}

static void pebs_release(void)
{
}

static int pebs_start(unsigned int cpu, u64 period, u64 threshold_ns)
{
	struct perf_event *event = event_create(cpu, period, threshold_ns);

	if (IS_ERR(event)) {
		pr_err("perf refused the event on CPU %u with error %ld\n", cpu, PTR_ERR(event));
		return PTR_ERR(event);
	}
	per_cpu(pebs_event, cpu) = event;
	return 0;
}

static void pebs_stop(unsigned int cpu)
{
	struct perf_event *event = per_cpu(pebs_event, cpu);

	if (!event)
		return;
	per_cpu(pebs_event, cpu) = NULL;
	perf_event_release_kernel(event);
}

const struct demeter_sampler_ops demeter_sampler_pebs = {
	.name = "pebs",
	.caps = DEMETER_SAMPLER_LATENCY,
	.probe = pebs_probe,
	.release = pebs_release,
	.start = pebs_start,
	.stop = pebs_stop,
};
