// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sampler "ibs": instruction-based sampling of AMD CPUs, through the kernel's
 * perf.
 *
 * The hardware tags every n-th op, whatever it is, and interrupts when that one
 * retires; perf calls the overflow handler for each, in the NMI. From Zen 4 on it
 * can leave out all that did not miss the L3, so that nearly every interrupt is a
 * sample. Elsewhere most ops are dropped here: not loads, of the kernel (perf
 * of 6.12 refuses to leave it out), without an address, or below the latency
 * threshold. They are counted as unused.
 *
 * So the period counts ops, while the parameter sample_period counts slow loads.
 * A slow load is as likely to be tagged as any other op: with the filter n is the
 * parameter, and one slow load in n makes a sample. Without it n is OPS_PER_LOAD
 * times the parameter, or there would be too many interrupts: a choice, not
 * measured on any hardware.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/device.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <asm/processor.h>
#include <asm/ptrace.h>
#include <demeter_ledger.h>

#include "cpuid.h"
#include "sampler_perf.h"
#include "symbols.h"
#include "tmm.h"

#define OPS_PER_LOAD	    64u
/*
 * Of the period register: unit, least with the filter and without, greatest that
 * all CPUs have. perf accepts 0x90, but each period ends in an NMI of thousands of
 * cycles, and the next begins right after: a CPU would do little else. With the
 * filter most of them end without. A choice, not measured on any hardware.
 */
#define PERIOD_UNIT	    16u
#define PERIOD_MIN_FILTERED 1024u
#define PERIOD_MIN	    4096u
#define PERIOD_MAX	    0xffff0u
/* config: count ops, not cycles; only those that missed the L3. */
#define IBS_OP_COUNT_OPS    BIT_ULL(19)
#define IBS_OP_L3_MISSES    BIT_ULL(16)
/* CPUID: what IBS can do, and whether that is to filter for L3 misses. */
#define IBS_CPUID	    0x8000001bu
#define IBS_CPUID_L3_MISSES BIT(11)

/* Set by the probe, read while sampling. */
static int ibs_type;
static bool by_l3_misses;
static u64 ibs_threshold_ns;

static u64 ops_per_sample(u64 period)
{
	u64 ops = min_t(u64, period, PERIOD_MAX) * (by_l3_misses ? 1 : OPS_PER_LOAD);

	return clamp_t(u64, round_down(ops, PERIOD_UNIT),
		       by_l3_misses ? PERIOD_MIN_FILTERED : PERIOD_MIN, PERIOD_MAX);
}

static bool ibs_access(const struct perf_sample_data *data, struct pt_regs *regs,
		       struct demeter_access *access)
{
	const u64 need = PERF_SAMPLE_ADDR | PERF_SAMPLE_DATA_SRC;

	/*
	 * On a KVM host, what a VM does is sampled, too, with the VM's own addresses; by
	 * that of its instruction it even looks like user mode. perf does not accept to
	 * leave it out before 6.14.
	 */
	if (current->flags & PF_VCPU)
		return false;
	if (!user_mode(regs) || (data->sample_flags & need) != need)
		return false;
	if (!(data->data_src.mem_op & PERF_MEM_OP_LOAD))
		return false;
	if (!data->addr || data->addr >= TASK_SIZE_MAX)
		return false;
	*access = (struct demeter_access){
		.gva = data->addr,
		.latency_ns = demeter_perf_latency_ns(data),
		.tier = demeter_perf_tier(data),
	};
	return access->latency_ns >= READ_ONCE(ibs_threshold_ns);
}

static void ibs_overflow(struct perf_event *event, struct perf_sample_data *data,
			 struct pt_regs *regs)
{
	struct demeter_access access;

	this_cpu_inc(demeter_cpu_stats.handled_records);
	demeter_perf_note_throttling(event);
	if (ibs_access(data, regs, &access))
		demeter_sampler_push(current->mm ?: current->active_mm, &access);
	else
		this_cpu_inc(demeter_cpu_stats.unused_records);
}

static struct perf_event_attr event_attr(u64 period)
{
	return (struct perf_event_attr){
		.type = ibs_type,
		.size = sizeof(struct perf_event_attr),
		.config = IBS_OP_COUNT_OPS | (by_l3_misses ? IBS_OP_L3_MISSES : 0),
		.sample_period = ops_per_sample(period),
		.sample_type = PERF_SAMPLE_ADDR | PERF_SAMPLE_WEIGHT | PERF_SAMPLE_DATA_SRC,
		.pinned = 1,
	};
}

/*
 * perf numbers this PMU when it finds it. The bus that lists PMUs is not
 * exported; in user space the number is event_source/devices/ibs_op/type.
 */
static int find_type(void)
{
	struct bus_type *bus = (void *)demeter_symbol_address("pmu_bus");
	struct device *dev;
	struct pmu *pmu;
	int type;

	if (!bus)
		return -ENOENT;
	dev = bus_find_device_by_name(bus, NULL, "ibs_op");
	if (!dev)
		return -ENODEV;
	pmu = dev_get_drvdata(dev);
	type = pmu ? pmu->type : -ENODEV;
	put_device(dev);
	return type;
}

static int ibs_probe(char *reason, size_t size)
{
	const struct cpuinfo_x86 *cpu = &boot_cpu_data;
	struct perf_event_attr attr;
	struct perf_event *event;
	char why[80];

	if (cpu->x86_vendor != X86_VENDOR_AMD && cpu->x86_vendor != X86_VENDOR_HYGON)
		return demeter_perf_refuse(reason, size, -EOPNOTSUPP,
					   "this is not an AMD CPU, so it has no IBS",
					   "use the sampler pebs on an Intel CPU, or an AMD CPU");
	ibs_type = find_type();
	if (ibs_type == -ENOENT)
		return demeter_perf_refuse(reason, size, -EOPNOTSUPP,
					   "this kernel does not list its PMUs (no symbol pmu_bus)",
					   "use a kernel with CONFIG_KALLSYMS_ALL");
	if (ibs_type < 0)
		return demeter_perf_refuse(reason, size, -ENODEV,
					   "perf has found no IBS (no PMU ibs_op)",
					   "in a VM, use a host that passes IBS through");
	by_l3_misses = cpuid_eax(IBS_CPUID) & IBS_CPUID_L3_MISSES;
	attr = event_attr(READ_ONCE(demeter_params.sample_period));
	event = demeter_perf_claim(&attr, ibs_overflow);
	if (IS_ERR(event) && by_l3_misses) {
		/* A hypervisor may show the bit and not have it, a kernel not know it. */
		by_l3_misses = false;
		attr = event_attr(READ_ONCE(demeter_params.sample_period));
		event = demeter_perf_claim(&attr, ibs_overflow);
	}
	if (IS_ERR(event)) {
		snprintf(why, sizeof(why), "perf refused the event ibs_op with error %ld",
			 PTR_ERR(event));
		return demeter_perf_refuse(reason, size, PTR_ERR(event), why,
					   "see whether \"perf record -e ibs_op//\" works");
	}
	return 0;
}

static int ibs_start(unsigned int cpu, u64 period, u64 threshold_ns)
{
	struct perf_event_attr attr = event_attr(period);

	WRITE_ONCE(ibs_threshold_ns, threshold_ns);
	return demeter_perf_start(cpu, &attr, ibs_overflow);
}

static void ibs_set_period(u64 period)
{
	demeter_perf_set_period(ops_per_sample(period));
}

static unsigned int ibs_caps(void)
{
	return DEMETER_SAMPLER_LATENCY | DEMETER_SAMPLER_TIER | DEMETER_SAMPLER_PAGE;
}

static const char *ibs_delivery(void)
{
	return "interrupt";
}

const struct demeter_sampler_ops demeter_sampler_ibs = {
	.name = "ibs",
	.source = DEMETER_LEDGER_IBS,
	.probe = ibs_probe,
	.release = demeter_perf_release,
	.start = ibs_start,
	.stop = demeter_perf_stop,
	.caps = ibs_caps,
	.delivery = ibs_delivery,
	.accesses_per_sample = ops_per_sample,
	.set_period = ibs_set_period,
	.tick = demeter_perf_restart,
	.alive = demeter_perf_alive,
	.lost = demeter_perf_lost,
	.sees = demeter_perf_sees,
};
