// SPDX-License-Identifier: GPL-2.0-only
/*
 * The thread that reads perf's ring buffers. The published one spins; this one sleeps in
 * between, and what the other would have burnt is counted (stats/burnt_ns).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>

#include "../contract.h"
#include "hemem.h"
#include "rings.h"

/* Threads of the published system that spin: samples and policy. */
#define SPINNING 2u

static struct task_struct *sampled;

/* Of the sample before, as they come in runs of one process; under hemem_lock. */
static struct hemem_space *last_space;
static u32 last_pid;

static struct hemem_space *space_of(u32 pid)
{
	struct mm_struct *mm;

	if (last_space && last_pid == pid)
		return last_space;
	mm = demeter_rings_mm(pid);
	if (!mm)
		return NULL;
	last_space = hemem_space_find(mm);
	last_pid = pid;
	mmput_async(mm);
	return last_space;
}

/* Under hemem_lock. */
static void take(const struct demeter_rings_record *record, bool store)
{
	struct hemem_space *space = NULL;
	struct hemem_granule *granule;

	if (record->addr && record->addr < TASK_SIZE_MAX)
		space = space_of(record->pid);
	/* The page table is not asked: what is in no known page is not managed, or not yet. */
	granule = space ? xa_load(&space->pages, record->addr >> HPAGE_PMD_SHIFT) : NULL;
	if (!granule) {
		atomic64_inc(&hemem_stats.unused_samples);
		return;
	}
	if (demeter_hemem_count(&hemem, &granule->page, store))
		atomic64_inc(&hemem_stats.coolings);
	atomic64_inc(&hemem_stats.samples);
	if (store)
		atomic64_inc(&hemem_stats.store_samples);
}

static int sampled_run(void *unused)
{
	u64 exec_ns = 0, began_ns = ktime_get_ns();

	while (!kthread_should_stop()) {
		u64 now_ns;

		mutex_lock(&hemem_lock);
		last_space = NULL;
		demeter_rings_drain(take);
		mutex_unlock(&hemem_lock);
		schedule_timeout_interruptible(msecs_to_jiffies(hemem_params.poll_ms));
		/* Exact when it has just slept. */
		atomic64_add(current->se.sum_exec_runtime - exec_ns,
			     &demeter_peer_stage_ns[DEMETER_PEER_TRACK]);
		exec_ns = current->se.sum_exec_runtime;
		now_ns = ktime_get_ns();
		atomic64_add(SPINNING * (now_ns - began_ns), &hemem_stats.burnt_ns);
		began_ns = now_ns;
	}
	return 0;
}

int hemem_sampled_start(void)
{
	sampled = kthread_run(sampled_run, NULL, "hemem_samples");
	return PTR_ERR_OR_ZERO(sampled);
}

void hemem_sampled_stop(void)
{
	kthread_stop(sampled);
}
