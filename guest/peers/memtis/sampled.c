// SPDX-License-Identifier: GPL-2.0-only
/*
 * ksampled: one kthread that looks into the rings at a fixed pace.
 *
 * Each sample walks the page table, under its lock, to learn how large the page is
 * and on which node, as the published system does to find its counters. Every so many
 * samples thresholds are chosen anew, and all counts halved (by kmigrated). If it takes
 * more of a CPU than its quota it samples by the next longer period.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>

#include "../contract.h"
#include "memtis.h"
#include "symbols.h"
#include "vma.h"

/* Not declared to modules, or not exported. */
pmd_t *demeter_type_mm_find_pmd(struct mm_struct *mm, unsigned long address);
#define demeter_type___pte_offset_map_lock __pte_offset_map_lock

DEMETER_DEFINE_CALL(mm_find_pmd);
DEMETER_DEFINE_CALL(__pte_offset_map_lock);

static struct task_struct *ksampled;

/**
 * struct sampled - where ksampled is; its own
 * @mm: of the sample before, with a reference on mm_users, or NULL
 * @space: of @mm, with a reference
 * @pid: of @mm
 * @step: of the ladder
 * @adapted: samples when thresholds were chosen
 * @cooled: samples when counts were halved
 * @paced_ns: when the period was looked at
 * @paced_exec_ns: CPU time until then
 */
struct sampled {
	struct mm_struct *mm;
	struct memtis_space *space;
	u32 pid;
	u32 step;
	u64 adapted;
	u64 cooled;
	u64 paced_ns;
	u64 paced_exec_ns;
};

static struct sampled sampled;

static enum demeter_tier tier_of(int nid)
{
	return nid == memtis_node[DEMETER_FMEM]	  ? DEMETER_FMEM
	       : nid == memtis_node[DEMETER_SMEM] ? DEMETER_SMEM
						  : DEMETER_TIERS;
}

/* Tier of a page that a PMD maps. In anonymous memory, what is not anonymous is the zero page. */
static enum demeter_tier huge_tier(struct vm_area_struct *vma, pmd_t *pmdp)
{
	enum demeter_tier tier = DEMETER_TIERS;
	spinlock_t *ptl = pmd_lock(vma->vm_mm, pmdp);
	pmd_t pmd = *pmdp;

	if (pmd_present(pmd) && pmd_trans_huge(pmd) &&
	    (folio_test_anon(page_folio(pmd_page(pmd))) || !vma_is_anonymous(vma)))
		tier = tier_of(page_to_nid(pmd_page(pmd)));
	spin_unlock(ptl);
	return tier;
}

static enum demeter_tier base_tier(struct mm_struct *mm, pmd_t *pmdp, unsigned long addr)
{
	enum demeter_tier tier = DEMETER_TIERS;
	spinlock_t *ptl; /* makes the mapping stable, and with it the folio */
	pte_t *ptep = demeter_call(__pte_offset_map_lock)(mm, pmdp, addr, &ptl);
	pte_t pte;

	if (!ptep)
		return tier;
	/* For sparse, which does not see through a static call. */
	__acquire(RCU);
	__acquire(ptl);
	pte = ptep_get(ptep);
	if (pte_present(pte) && !pte_special(pte) && pfn_valid(pte_pfn(pte)))
		tier = tier_of(page_to_nid(pte_page(pte)));
	pte_unmap_unlock(ptep, ptl);
	return tier;
}

/* Where the page of an address is; DEMETER_TIERS if it is not to be managed. */
static enum demeter_tier look_up(struct mm_struct *mm, unsigned long addr, bool *huge)
{
	enum demeter_tier tier = DEMETER_TIERS;
	struct vm_area_struct *vma;
	pmd_t *pmdp, pmd;

	if (!mmap_read_trylock(mm))
		return tier;
	vma = find_vma(mm, addr);
	if (!vma || vma->vm_start > addr || !demeter_vma_is_managed(vma))
		goto unlock;
	pmdp = demeter_call(mm_find_pmd)(mm, addr);
	if (!pmdp)
		goto unlock;
	pmd = pmdp_get_lockless(pmdp);
	*huge = pmd_present(pmd) && pmd_trans_huge(pmd);
	if (*huge)
		tier = huge_tier(vma, pmdp);
	else if (pmd_present(pmd))
		tier = base_tier(mm, pmdp, addr);
unlock:
	mmap_read_unlock(mm);
	return tier;
}

static void leave_process(void)
{
	if (sampled.mm)
		mmput_async(sampled.mm);
	memtis_space_put(sampled.space);
	sampled.mm = NULL;
	sampled.space = NULL;
}

/* Samples come in runs of one process. */
static bool enter_process(u32 pid)
{
	if (sampled.space && sampled.pid == pid)
		return true;
	leave_process();
	sampled.mm = demeter_rings_mm(pid);
	if (!sampled.mm)
		return false;
	sampled.pid = pid;
	sampled.space = memtis_space_find(sampled.mm);
	return sampled.space;
}

/* Under memtis_lock. */
static void take(const struct demeter_rings_record *record, bool store)
{
	enum demeter_tier tier = DEMETER_TIERS;
	bool huge = false;

	if (record->addr && record->addr < TASK_SIZE_MAX && enter_process(record->pid))
		tier = look_up(sampled.mm, record->addr, &huge);
	if (tier == DEMETER_TIERS || memtis_count(sampled.space, record->addr, huge, tier)) {
		atomic64_inc(&memtis_stats.unused_samples);
		return;
	}
	atomic64_inc(&memtis_stats.samples);
	if (store)
		atomic64_inc(&memtis_stats.store_samples);
}

static u64 permille(u64 part, u64 whole)
{
	return whole ? div64_u64(part * 1000, whole) : 0;
}

/* Pages of all programs that are sampled. Under memtis_lock. */
static u64 resident_pages(void)
{
	struct memtis_space *space;
	u64 pages = 0;

	list_for_each_entry(space, &memtis_spaces, node)
		pages += get_mm_rss(space->mm);
	return pages;
}

/* Look at splitting if there were samples enough. Under memtis_lock. */
static void look_at_splitting(void)
{
	struct demeter_memtis_period *period = &memtis_state.period;

	period->resident_pages = resident_pages();
	period->fmem_pages = memtis_fmem_pages();
	if (!demeter_memtis_split_due(period))
		return;
	atomic64_set(&memtis_stats.hit_permille, permille(period->hits, period->samples));
	atomic64_set(&memtis_stats.base_hit_permille, permille(period->base_hits, period->samples));
	if (memtis_params.split) {
		memtis_state.splits = demeter_memtis_split(&memtis_state.splitting, period);
		atomic64_add(memtis_state.splits, &memtis_stats.splits_wanted);
	}
	period->samples = 0;
	period->hits = 0;
	period->base_hits = 0;
	period->huge_samples = 0;
}

void memtis_choose_thresholds(void)
{
	u64 fmem_pages = memtis_fmem_pages();

	lockdep_assert_held(&memtis_lock);
	memtis_state.thresholds = demeter_memtis_choose(&memtis_state.histogram, fmem_pages);
	memtis_state.base_thresholds =
		demeter_memtis_choose(&memtis_state.base_histogram, fmem_pages);
	atomic64_set(&memtis_stats.hot_bin, memtis_state.thresholds.hot);
	atomic64_set(&memtis_stats.warm_bin, memtis_state.thresholds.warm);
}

/* Under memtis_lock. */
static void adapt(void)
{
	u64 samples = atomic64_read(&memtis_stats.samples);

	if (samples - sampled.cooled >= memtis_params.cooling_samples) {
		sampled.cooled = samples;
		memtis_state.coolings++;
	}
	if (samples - sampled.adapted < memtis_params.adaptation_samples)
		return;
	sampled.adapted = samples;
	memtis_choose_thresholds();
	atomic64_inc(&memtis_stats.adaptations);
	look_at_splitting();
}

struct demeter_rings_periods memtis_periods(u32 step)
{
	return (struct demeter_rings_periods){
		.loads = demeter_memtis_load_period(step),
		.stores = demeter_memtis_store_period(step),
	};
}

static void show_period(void)
{
	atomic64_set(&memtis_stats.period, demeter_memtis_load_period(sampled.step));
	atomic64_set(&memtis_stats.store_period, demeter_memtis_store_period(sampled.step));
}

/* Keep to the quota. What this thread has run is exact when it has just slept. */
static void keep_pace(void)
{
	struct demeter_rings_periods periods;
	u64 now_ns = ktime_get_ns(), exec_ns = current->se.sum_exec_runtime;
	u64 used;
	u32 step;

	if (now_ns - sampled.paced_ns < memtis_params.quota_ms * NSEC_PER_MSEC)
		return;
	used = permille(exec_ns - sampled.paced_exec_ns, now_ns - sampled.paced_ns);
	sampled.paced_ns = now_ns;
	sampled.paced_exec_ns = exec_ns;
	atomic64_set(&memtis_stats.ksampled_permille, used);
	step = demeter_memtis_step(sampled.step, used, memtis_params.quota_permille);
	if (step == sampled.step)
		return;
	sampled.step = step;
	periods = memtis_periods(step);
	demeter_rings_set_periods(&periods);
	show_period();
}

static int ksampled_run(void *unused)
{
	u64 exec_ns = 0;

	sampled.paced_ns = ktime_get_ns();
	while (!kthread_should_stop()) {
		mutex_lock(&memtis_lock);
		demeter_rings_drain(take);
		adapt();
		mutex_unlock(&memtis_lock);
		leave_process();
		schedule_timeout_interruptible(usecs_to_jiffies(memtis_params.poll_us));
		atomic64_add(current->se.sum_exec_runtime - exec_ns,
			     &demeter_peer_stage_ns[DEMETER_PEER_TRACK]);
		exec_ns = current->se.sum_exec_runtime;
		keep_pace();
	}
	return 0;
}

int memtis_sampled_start(void)
{
	if (!demeter_symbol_aim_call(mm_find_pmd, "mm_find_pmd") ||
	    !demeter_symbol_aim_call(__pte_offset_map_lock, "__pte_offset_map_lock")) {
		pr_err("this kernel's page tables cannot be walked by samples; next: use Debian's 6.12\n");
		return -ENOENT;
	}
	sampled = (struct sampled){
		.adapted = atomic64_read(&memtis_stats.samples),
		.cooled = atomic64_read(&memtis_stats.samples),
	};
	show_period();
	ksampled = kthread_run(ksampled_run, NULL, "ksampled");
	return PTR_ERR_OR_ZERO(ksampled);
}

void memtis_sampled_stop(void)
{
	kthread_stop(ksampled);
}
