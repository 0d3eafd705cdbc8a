// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sampler "vpmu": the virtual PEBS unit of the testbed, docs/spec/vpmu.md.
 *
 * The unit shares ID and class with every other ivshmem device. Only a device
 * that carries the magic and has no driver is taken, and what it says about
 * itself is checked once and then kept in our own memory: the other side may
 * change its part at any time.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/io.h>
#include <linux/pci.h>
#include <linux/percpu.h>

#include "tmm.h"

#define IVSHMEM_VENDOR 0x1af4
#define IVSHMEM_DEVICE 0x1110
#define IVSHMEM_BAR    2

/**
 * struct vpmu - the unit in use
 * @pdev: device; holds a reference and has its memory enabled
 * @bar: BAR 2
 * @bytes: its length
 * @nr_vcpus: vCPUs served
 * @stride: distance of their parts
 * @entries: records in a ring
 * @latency_gap_ps: SMEM latency less FMEM latency
 *
 * Set up and torn down under demeter_control_lock while nobody samples.
 */
static struct vpmu {
	struct pci_dev *pdev;
	void *bar;
	u64 bytes;
	u32 nr_vcpus;
	u32 stride;
	u32 entries;
	u64 latency_gap_ps;
} vpmu;

/**
 * struct vpmu_cpu - what a CPU knows of its ring
 * @tail: records consumed; the copy in the BAR is only for the device
 * @lost_base: the device's count of lost records when sampling started
 * @lost_settled: records lost since the probe and before that start
 * @sampling: started and not stopped; before that @tail means nothing
 * @overrun: records given up since that start, as the ring made no sense
 */
struct vpmu_cpu {
	u64 tail;
	u64 lost_base;
	u64 lost_settled;
	u64 overrun;
	bool sampling;
};

static DEFINE_PER_CPU(struct vpmu_cpu, vpmu_cpu);

static struct demeter_vpmu_vcpu *vcpu_of(unsigned int cpu)
{
	return vpmu.bar + DEMETER_VPMU_VCPU_OFFSET + (u64)cpu * vpmu.stride;
}

static const struct demeter_vpmu_record *ring_of(unsigned int cpu)
{
	return (void *)vcpu_of(cpu) + DEMETER_VPMU_RING_OFFSET;
}

/* Copy what the header says into @vpmu, if it makes sense. */
static const char *header_take(const struct demeter_vpmu_header *shared)
{
	struct demeter_vpmu_header header;
	u64 need;

	memcpy(&header, shared, sizeof(header));
	if (header.version != DEMETER_VPMU_VERSION)
		return "speaks another version of the interface";
	if (!header.nr_vcpus || !is_power_of_2(header.ring_entries))
		return "describes no usable ring";
	need = DEMETER_VPMU_RING_OFFSET +
	       (u64)header.ring_entries * sizeof(struct demeter_vpmu_record);
	if (header.vcpu_stride_bytes < need || header.vcpu_stride_bytes % 8)
		return "describes rings that overlap";
	if (DEMETER_VPMU_VCPU_OFFSET + (u64)header.nr_vcpus * header.vcpu_stride_bytes > vpmu.bytes)
		return "describes rings beyond the end of its memory";
	vpmu.nr_vcpus = header.nr_vcpus;
	vpmu.stride = header.vcpu_stride_bytes;
	vpmu.entries = header.ring_entries;
	vpmu.latency_gap_ps = header.smem_latency_ps > header.fmem_latency_ps
				      ? header.smem_latency_ps - header.fmem_latency_ps
				      : 0;
	return NULL;
}

/* 0 when it is ours and ready, -ENODEV when it is not, others when it is broken. */
static int device_take(struct pci_dev *pdev, char *reason, size_t size)
{
	const struct demeter_vpmu_header *header;
	const char *why;
	int ret;

	if (pdev->dev.driver || pci_resource_len(pdev, IVSHMEM_BAR) < DEMETER_VPMU_VCPU_OFFSET)
		return -ENODEV;
	ret = pci_enable_device_mem(pdev);
	if (ret)
		return -ENODEV;
	vpmu.bytes = pci_resource_len(pdev, IVSHMEM_BAR);
	vpmu.bar = memremap(pci_resource_start(pdev, IVSHMEM_BAR), vpmu.bytes, MEMREMAP_WB);
	ret = -ENODEV;
	if (!vpmu.bar)
		goto disable;
	header = vpmu.bar;
	if (READ_ONCE(header->magic) != DEMETER_VPMU_MAGIC)
		goto unmap;
	ret = pci_request_region(pdev, IVSHMEM_BAR, "demeter");
	if (ret) {
		snprintf(reason, size,
			 "the vPMU %s is in use by another driver; next: unload that one",
			 pci_name(pdev));
		goto unmap;
	}
	why = header_take(header);
	if (!why && vpmu.nr_vcpus < num_online_cpus())
		why = "serves fewer vCPUs than are online";
	if (why) {
		snprintf(reason, size,
			 "the vPMU %s %s; next: use a testbed and a module of the same version",
			 pci_name(pdev), why);
		ret = -EPROTO;
		goto release;
	}
	return 0;
release:
	pci_release_region(pdev, IVSHMEM_BAR);
unmap:
	memunmap(vpmu.bar);
	vpmu.bar = NULL;
disable:
	pci_disable_device(pdev);
	return ret;
}

static int vpmu_probe(char *reason, size_t size)
{
	struct pci_dev *pdev = NULL;
	int cpu, ret;

	for_each_possible_cpu(cpu)
		memset(per_cpu_ptr(&vpmu_cpu, cpu), 0, sizeof(struct vpmu_cpu));
	while ((pdev = pci_get_device(IVSHMEM_VENDOR, IVSHMEM_DEVICE, pdev))) {
		ret = device_take(pdev, reason, size);
		if (!ret) {
			vpmu.pdev = pdev;
			return 0;
		}
		if (ret != -ENODEV) {
			pci_dev_put(pdev);
			return ret;
		}
	}
	snprintf(reason, size, "%s; next: %s",
		 "no vPMU here (PCI device 1af4:1110 without driver, magic in BAR 2)",
		 "run in the testbed, or use the sampler pebs");
	return -ENODEV;
}

static void vpmu_release(void)
{
	if (!vpmu.pdev)
		return;
	/* All zero: no manager runs. */
	memset(vpmu.bar + DEMETER_VPMU_GUEST_OFFSET, 0, sizeof(struct demeter_vpmu_guest));
	memunmap(vpmu.bar);
	pci_release_region(vpmu.pdev, IVSHMEM_BAR);
	pci_disable_device(vpmu.pdev);
	pci_dev_put(vpmu.pdev);
	vpmu = (struct vpmu){};
}

static int vpmu_start(unsigned int cpu, u64 period, u64 threshold_ns)
{
	struct vpmu_cpu *own = per_cpu_ptr(&vpmu_cpu, cpu);
	struct demeter_vpmu_vcpu *vcpu;

	if (cpu >= vpmu.nr_vcpus) {
		pr_err("the vPMU serves %u vCPUs and not CPU %u\n", vpmu.nr_vcpus, cpu);
		return -ENXIO;
	}
	vcpu = vcpu_of(cpu);
	/* Pairs with the device's release of head. What is in the ring is from before. */
	own->tail = virt_load_acquire(&vcpu->head);
	own->lost_base = READ_ONCE(vcpu->lost);
	/* Pairs with the device's acquire of tail. */
	virt_store_release(&vcpu->tail, own->tail);
	WRITE_ONCE(vcpu->period, period);
	WRITE_ONCE(vcpu->threshold_ns, threshold_ns);
	/* On this CPU, in process context: the drain sees the tail set above. */
	WRITE_ONCE(own->sampling, true);
	/* The device reads period and threshold when it sees this. */
	virt_store_release(&vcpu->enable, 1);
	return 0;
}

static u64 cpu_lost(struct vpmu_cpu *own, const struct demeter_vpmu_vcpu *vcpu)
{
	return own->lost_settled + own->overrun + READ_ONCE(vcpu->lost) - own->lost_base;
}

static void vpmu_stop(unsigned int cpu)
{
	struct vpmu_cpu *own = per_cpu_ptr(&vpmu_cpu, cpu);
	struct demeter_vpmu_vcpu *vcpu;

	if (!vpmu.bar || cpu >= vpmu.nr_vcpus)
		return;
	vcpu = vcpu_of(cpu);
	WRITE_ONCE(own->sampling, false);
	/* Pairs with the device's acquire of enable. */
	virt_store_release(&vcpu->enable, 0);
	own->lost_settled = cpu_lost(own, vcpu);
	own->lost_base = READ_ONCE(vcpu->lost);
	own->overrun = 0;
}

static void vpmu_drain(unsigned int cpu, demeter_emit_t emit, void *ctx)
{
	struct vpmu_cpu *own = this_cpu_ptr(&vpmu_cpu);
	const struct demeter_vpmu_record *ring;
	struct demeter_vpmu_vcpu *vcpu;
	u64 head;

	if (!READ_ONCE(own->sampling))
		return;
	vcpu = vcpu_of(cpu);
	/* Pairs with the device's release of head: records before it are whole. */
	head = virt_load_acquire(&vcpu->head);
	if (head == own->tail)
		return;
	if (head - own->tail > vpmu.entries) {
		/* Reset, or not playing by the rules: nothing in the ring can be trusted. */
		own->overrun += min_t(u64, head - own->tail, vpmu.entries);
		own->tail = head;
	}
	ring = ring_of(cpu);
	while (own->tail != head) {
		const struct demeter_vpmu_record *record = &ring[own->tail & (vpmu.entries - 1)];
		u16 tier = READ_ONCE(record->tier);
		struct demeter_access access = {
			.gva = READ_ONCE(record->gva),
			.latency_ns = min_t(u32, READ_ONCE(record->latency_ns), U16_MAX),
			.tier = tier < DEMETER_TIERS ? tier : DEMETER_TIERS,
		};

		emit(ctx, &access);
		own->tail++;
	}
	/* Pairs with the device's acquire of tail: it may write these slots again. */
	virt_store_release(&vcpu->tail, own->tail);
}

static u64 vpmu_lost(void)
{
	u64 lost = 0;
	int cpu;

	for_each_possible_cpu(cpu) {
		struct vpmu_cpu *own = per_cpu_ptr(&vpmu_cpu, cpu);

		if (cpu < vpmu.nr_vcpus)
			lost += cpu_lost(own, vcpu_of(cpu));
	}
	return lost;
}

static u64 vpmu_latency_gap_ps(void)
{
	return vpmu.latency_gap_ps;
}

static void vpmu_publish(const struct demeter_vpmu_guest *totals)
{
	memcpy(vpmu.bar + DEMETER_VPMU_GUEST_OFFSET, totals, sizeof(*totals));
}

const struct demeter_sampler_ops demeter_sampler_vpmu = {
	.name = "vpmu",
	.caps = DEMETER_SAMPLER_LATENCY | DEMETER_SAMPLER_TIER,
	.probe = vpmu_probe,
	.release = vpmu_release,
	.start = vpmu_start,
	.stop = vpmu_stop,
	.drain = vpmu_drain,
	.lost = vpmu_lost,
	.latency_gap_ps = vpmu_latency_gap_ps,
	.publish = vpmu_publish,
};
