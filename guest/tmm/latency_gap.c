// SPDX-License-Identifier: GPL-2.0-only
/*
 * Latency gap: how much longer a load from SMEM takes than one from FMEM, from
 * the samples themselves.
 *
 * A mean per tier over the samples of the last few epochs, or over the least number
 * that says something where there are fewer. Loads below the
 * sampler's latency threshold are in neither, and what both tiers pay alike
 * (page walks, the way to the memory controller) cancels out.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/math64.h>
#include <linux/printk.h>
#include <linux/topology.h>

#include "tmm.h"

/* Samples of each tier below which nothing is said. */
#define MIN_SAMPLES	 128u
/* Each epoch forgets one part in 2^this. */
#define FORGET_SHIFT	 3
/* The gap is only changed when what was measured differs from it by one part in 2^this. */
#define HYSTERESIS_SHIFT 3
/*
 * What is measured of two tiers alike falls to either side of nothing. SMEM faster
 * by one part in 2^this is more than that: the tiers are not what they seem.
 */
#define SWAPPED_SHIFT	 3
/* Slower than any memory: the load waited for something else (a fault, the host). */
#define LATENCY_NS_MAX	 10000u

/* A count of samples carries fraction bits, so that forgetting is even. */
#define FRACTION_SHIFT 8

static struct {
	u64 sum_ns;
	u64 nr;
} seen[DEMETER_TIERS];

/* SMEM latency less FMEM latency if nobody knows better: DCPMM against DRAM. */
#define LATENCY_GAP_PS	108000
/* A load from the fast memory of the own socket, while that is not measured. */
#define FMEM_LATENCY_PS 70000

static u64 gap_ps;
static u64 fmem_latency_ps;
static bool swapped_said;

/**
 * demeter_latency_gap_reset() - forget what was measured
 *
 * For who starts the worker, before.
 */
void demeter_latency_gap_reset(void)
{
	memset(seen, 0, sizeof(seen));
	swapped_said = false;
	WRITE_ONCE(gap_ps, 0);
	WRITE_ONCE(fmem_latency_ps, 0);
}

/**
 * demeter_latency_gap_sample() - take a sample into account
 * @sample: the sample
 *
 * For the worker.
 */
void demeter_latency_gap_sample(const struct demeter_sample *sample)
{
	if (sample->tier >= DEMETER_TIERS || !sample->latency_ns ||
	    sample->latency_ns > LATENCY_NS_MAX)
		return;
	seen[sample->tier].sum_ns += (u64)sample->latency_ns << FRACTION_SHIFT;
	seen[sample->tier].nr += 1ull << FRACTION_SHIFT;
}

/*
 * perf's "local" and "remote" are the physical CPU's notion: where a hypervisor
 * runs a vCPU on another socket than its node's memory is on, they are swapped.
 */
static bool tiers_swapped(u64 fmem_ps, u64 smem_ps)
{
	if (smem_ps >= fmem_ps - (fmem_ps >> SWAPPED_SHIFT))
		return false;
	if (!swapped_said)
		pr_warn("loads said to be from SMEM took %llu ps, from FMEM %llu ps, so that the latency gap is not known: the tiers may be swapped; next: check params/fmem_node and smem_node, and in a VM that vCPUs run on the socket of their node's memory, or set params/latency_gap_ns\n",
			smem_ps, fmem_ps);
	swapped_said = true;
	return true;
}

static u64 mean_ps(u32 tier)
{
	return mul_u64_u64_div_u64(seen[tier].sum_ns, 1000, seen[tier].nr);
}

/**
 * demeter_latency_gap_end_epoch() - bring the gap up to date
 *
 * For the worker.
 */
void demeter_latency_gap_end_epoch(void)
{
	u64 measured_ps = 1, fmem_ps, smem_ps, change_ps;
	bool enough = true;
	u32 tier;

	for (tier = 0; tier < DEMETER_TIERS; tier++)
		enough &= seen[tier].nr >= (u64)MIN_SAMPLES << FRACTION_SHIFT;
	if (enough) {
		fmem_ps = mean_ps(DEMETER_FMEM);
		smem_ps = mean_ps(DEMETER_SMEM);
		/* Known to gain nothing is not the same as not known, which 0 is. */
		if (tiers_swapped(fmem_ps, smem_ps))
			measured_ps = 0;
		else if (smem_ps > fmem_ps)
			measured_ps = smem_ps - fmem_ps;
		change_ps = measured_ps > gap_ps ? measured_ps - gap_ps : gap_ps - measured_ps;
		if (change_ps > gap_ps >> HYSTERESIS_SHIFT)
			WRITE_ONCE(gap_ps, measured_ps);
		if (measured_ps)
			WRITE_ONCE(fmem_latency_ps, fmem_ps);
	}
	for (tier = 0; tier < DEMETER_TIERS; tier++) {
		/* A tier that is seldom read would never be known otherwise. */
		if (seen[tier].nr <= (u64)MIN_SAMPLES << FRACTION_SHIFT)
			continue;
		seen[tier].sum_ns -= seen[tier].sum_ns >> FORGET_SHIFT;
		seen[tier].nr -= seen[tier].nr >> FORGET_SHIFT;
	}
}

/**
 * demeter_latency_gap_measured_ps() - SMEM latency less FMEM latency
 *
 * Return: picoseconds, 0 while not known.
 */
u64 demeter_latency_gap_measured_ps(void)
{
	return READ_ONCE(gap_ps);
}

/**
 * demeter_latency_gap_ps() - SMEM latency less FMEM latency
 *
 * Return: picoseconds: as set, else as measured, else a default.
 */
u64 demeter_latency_gap_ps(void)
{
	u64 set_ps = READ_ONCE(demeter_params.latency_gap_ns) * 1000;

	return set_ps ?: demeter_latency_gap_measured_ps() ?: LATENCY_GAP_PS;
}

/**
 * demeter_latency_remote_ps() - how much longer a load from another socket's FMEM takes
 * @distance: as firmware says (SLIT)
 *
 * Return: picoseconds: the part of FMEM's latency that the distance is above the
 * local one, 0 where it is not.
 */
u64 demeter_latency_remote_ps(u32 distance)
{
	u64 local_ps = READ_ONCE(fmem_latency_ps) ?: FMEM_LATENCY_PS;

	if (distance <= LOCAL_DISTANCE)
		return 0;
	return div_u64(local_ps * (distance - LOCAL_DISTANCE), LOCAL_DISTANCE);
}
