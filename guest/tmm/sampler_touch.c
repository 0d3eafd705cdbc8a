// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sampler "touch": hotness without a PMU.
 *
 * In ticks of its own, of some milliseconds, a few pages are armed, so that each faults once;
 * how long its program runs until then tells how often the page is accessed
 * (core/touch.c). Half of them are where accesses are known to be, the others
 * are spread over everything. Once a tick of the worker the rates of all granules become
 * samples, which the worker counts like those of a PMU.
 *
 * Accessed bits would cost no fault, but say only "since the last look": of huge
 * pages even cold ones are accessed between any two looks that one can afford.
 *
 * What differs from a PMU: every access counts, also those that a cache serves;
 * of several accesses in a row to a page only the first is seen; kernel-mode
 * accesses are seen. Latencies are not known; the tier is that of the page which
 * was armed last.
 *
 * Cost: arming, faults and arithmetic are measured, and the number of pages
 * follows from that: less than 1/320 of the time that the managed programs run, in the
 * long run. Where there is nothing to learn, ticks are as rare and pages as few as the
 * pace says (pacing.c), and what that saves is spent when there is something again.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmap_lock.h>
#include <linux/prandom.h>
#include <linux/sched/clock.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>
#include <demeter_ledger.h>

#include "tmm.h"
#include "sampler_perf.h"
#include "touch.h"

/* Between two times of arming, and where nothing that is managed runs. */
#define TICK_MS	      16u
#define IDLE_TICK_MS  128u
/* Pages armed in one, at most: mmap_lock is held meanwhile. */
#define TICK_PAGES    256u
/* Pages armed in a second at the usual pace: more would tell little that matters. */
#define PAGES_PER_S   2500u
/* Samples made in an epoch, at most. */
#define EPOCH_SAMPLES 2048u
/* Armed pages looked at in an epoch, whether their marks are still there. */
#define EPOCH_CHECKS  512u
/* Pages to arm in proportion to rates, in an epoch; as the array of a space. */
#define EPOCH_FOLLOW  4096u
/* How well those are divided: each round finds what more is beyond a granule's part. */
#define FOLLOW_ROUNDS 2u
/* Granules between two offers to let others have the CPU: some ten microseconds. */
#define YIELD_EVERY   256u

static struct workqueue_struct *queue;
static struct delayed_work tick_work;

/* demeter_touch_lock protects all of these. */
static struct cpumask cpus;
static u64 epoch_spent_ns;
static struct demeter_touch_purse purse;
static u64 sample_carry;
/* Not get_random_u32(): dear until the pool is ready, as in a VM without RDRAND. */
static struct rnd_state random_state;

static u64 spent_ns(void)
{
	return demeter_touch_sum(offsetof(struct demeter_touch_cpu, spent_ns));
}

static void charge(u64 ns)
{
	this_cpu_add(demeter_touch_cpu.spent_ns, ns);
	this_cpu_add(demeter_cpu_stats.drain_ns, ns);
}

static u32 random_below(u32 limit)
{
	return ((u64)prandom_u32_state(&random_state) * limit) >> 32;
}

static u64 clock_of(struct demeter_touch_space *space)
{
	unsigned long flags;
	u64 clock_ns;

	raw_spin_lock_irqsave(&space->lock, flags);
	clock_ns = demeter_touch_clock(space, local_clock());
	raw_spin_unlock_irqrestore(&space->lock, flags);
	return clock_ns;
}

static void set_armed(struct demeter_touch_space *space, struct demeter_touch_granule *granule,
		      unsigned long armed)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&space->lock, flags);
	granule->armed = armed;
	granule->since_ns = demeter_touch_clock(space, local_clock());
	raw_spin_unlock_irqrestore(&space->lock, flags);
}

/* Arm a page of a granule that has none armed. */
static bool arm(struct demeter_touch_space *space, struct demeter_touch_granule *granule)
{
	unsigned long pages = BIT(space->shift - PAGE_SHIFT);
	unsigned long addr = granule->addr + ((unsigned long)random_below(pages) << PAGE_SHIFT);
	struct demeter_touch_entry entry;
	unsigned long armed = addr;
	bool done;

	if (!demeter_touch_vma(space->mm, addr) ||
	    !demeter_touch_entry_lock(space->mm, addr, &entry)) {
		this_cpu_inc(demeter_touch_cpu.absent);
		demeter_touch_look(&granule->known, false);
		return false;
	}
	if (entry.huge)
		armed = (addr & PMD_MASK) | DEMETER_TOUCH_HUGE;
	/* Known before it can fault. */
	set_armed(space, granule, armed);
	done = demeter_touch_entry_mark(&entry);
	demeter_touch_entry_unlock(&entry);
	demeter_touch_look(&granule->known, done);
	granule->tier = demeter_tier_of(entry.nid);
	if (done)
		this_cpu_inc(demeter_touch_cpu.armed);
	else
		set_armed(space, granule, 0);
	return done;
}

/* Time counts from when all CPUs fault on what was armed. */
static void expose(struct demeter_touch_space *space, const u32 *batch, u32 nr)
{
	unsigned long flags;
	u64 clock_ns;
	u32 i;

	raw_spin_lock_irqsave(&space->lock, flags);
	clock_ns = demeter_touch_clock(space, local_clock());
	for (i = 0; i < nr; i++)
		if (space->granule[batch[i]].armed)
			space->granule[batch[i]].since_ns = clock_ns;
	raw_spin_unlock_irqrestore(&space->lock, flags);
}

/* KVM, which maps the page, shall ask for it, too. */
static void drop_secondary(struct demeter_touch_space *space,
			   const struct demeter_touch_granule *granule)
{
	unsigned long armed = READ_ONCE(granule->armed);

	/* It is none any more when a CPU has touched it since. */
	if (armed)
		demeter_touch_secondary_drop(space->mm, armed);
}

/* Has its page been armed for so long that another shall be? */
static bool has_dwelt(const struct demeter_touch_space *space,
		      const struct demeter_touch_granule *granule, u64 clock_ns)
{
	u64 bytes = demeter_touch_armed_bytes(READ_ONCE(granule->armed));

	return clock_ns > granule->since_ns &&
	       demeter_touch_has_dwelt(clock_ns - granule->since_ns, bytes, BIT_ULL(space->shift));
}

static void arm_some(struct demeter_touch_space *space, u32 pages, bool kvm)
{
	static u32 batch[TICK_PAGES]; /* demeter_touch_lock */
	u64 clock_ns = clock_of(space);
	u32 nr = 0, i;

	/* Who unmaps meanwhile must flush, though no present entry is seen. */
	inc_tlb_flush_pending(space->mm);
	for (i = 0; i < pages; i++) {
		struct demeter_touch_granule *granule;
		bool turn = i & 1 || space->next >= space->nr_follow;
		u32 index = turn ? demeter_touch_explore(&space->turn, space->nr)
				 : space->follow[space->next++];

		granule = &space->granule[index];
		if (READ_ONCE(granule->armed)) {
			if (!has_dwelt(space, granule, clock_ns))
				continue;
			demeter_touch_settle(space, granule, true);
		}
		if (!READ_ONCE(granule->armed) && arm(space, granule))
			batch[nr++] = index;
	}
	if (nr)
		demeter_touch_flush(space->mm);
	dec_tlb_flush_pending(space->mm);
	if (kvm)
		for (i = 0; i < nr; i++)
			drop_secondary(space, &space->granule[batch[i]]);
	if (nr)
		expose(space, batch, nr);
}

/* How many pages the time that a space has run since the last tick pays for. */
static u32 earned(struct demeter_touch_space *space)
{
	u64 ran_ns = demeter_touch_passed(&space->tick_ran_ns, demeter_touch_ran(space)), pages;

	/* What a tick cannot do is left to the next ones, up to a second's worth. */
	space->owed += demeter_touch_now.pages_per_s * min_t(u64, ran_ns, NSEC_PER_SEC);
	space->owed = min(space->owed, demeter_touch_now.pages_per_s * NSEC_PER_SEC);
	pages = min_t(u64, div_u64(space->owed, NSEC_PER_SEC), TICK_PAGES);
	space->owed -= pages * NSEC_PER_SEC;
	return pages;
}

static void tick_space(struct demeter_touch_space *space, bool *ran)
{
	u64 before_ns = space->tick_ran_ns;
	enum demeter_touch_secondary other;
	u32 pages = earned(space);

	*ran |= space->tick_ran_ns != before_ns;
	if (!pages || !space->nr || space->skipped || !mmget_not_zero(space->mm))
		return;
	/* Busy with mappings: another tick will do. */
	if (!mmap_read_trylock(space->mm)) {
		this_cpu_inc(demeter_touch_cpu.busy_spaces);
	} else {
		/* Some may have joined since the epoch. None does meanwhile. */
		other = demeter_touch_secondary_of(space->mm);
		if (other == DEMETER_TOUCH_NOBODY ||
		    (other == DEMETER_TOUCH_KVM && demeter_touch_secondary_ready()))
			arm_some(space, pages, other == DEMETER_TOUCH_KVM);
		mmap_read_unlock(space->mm);
	}
	mmput_async(space->mm);
}

static void tick(struct work_struct *unused)
{
	struct demeter_touch_space *space = NULL;
	unsigned int tick_ms;
	bool ran = true;

	demeter_touch_tick_begin();

	/* An epoch takes its time: it arms nothing meanwhile, and neither do we. */
	if (mutex_trylock(&demeter_touch_lock)) {
		ran = false;
		while ((space = demeter_touch_space_next(space)))
			tick_space(space, &ran);
		mutex_unlock(&demeter_touch_lock);
	}
	charge(demeter_touch_tick_end());
	tick_ms = ran ? TICK_MS << demeter_pacing_shift() : IDLE_TICK_MS;
	queue_delayed_work(queue, &tick_work, msecs_to_jiffies(tick_ms));
}

/* Look for marks that somebody removed, a few at a time, and follow the layout. */
static void inspect(struct demeter_touch_space *space)
{
	u32 left = space->nr, checks = EPOCH_CHECKS;

	if (!mmget_not_zero(space->mm))
		return;
	if (!mmap_read_trylock(space->mm)) {
		this_cpu_inc(demeter_touch_cpu.busy_spaces);
		mmput_async(space->mm);
		return;
	}
	for (; left && checks; left--) {
		struct demeter_touch_granule *granule;

		if (space->check >= space->nr)
			space->check = 0;
		granule = &space->granule[space->check++];
		if (!READ_ONCE(granule->armed))
			continue;
		demeter_touch_settle(space, granule, false);
		checks--;
	}
	mmap_read_unlock(space->mm);
	demeter_touch_space_layout(space);
	mmput_async(space->mm);
}

/* Before granule @i: an epoch may have a million of them. */
static void yield_at(u32 i)
{
	if (!(i % YIELD_EVERY))
		cond_resched();
}

/* What is known of a granule; the fault may change it at any time. */
static struct demeter_touch known_of(struct demeter_touch_space *space, u32 index)
{
	struct demeter_touch known;
	unsigned long flags;

	raw_spin_lock_irqsave(&space->lock, flags);
	known = space->granule[index].known;
	raw_spin_unlock_irqrestore(&space->lock, flags);
	return known;
}

/* Accesses of each granule in the epoch, and their sums. */
static void estimate(struct demeter_touch_space *space, u64 ran_ns, struct demeter_touch_sum *sum)
{
	u64 most = demeter_touch_accesses(space->most_per_s, ran_ns);
	u32 i;

	for (i = 0; i < space->nr; i++) {
		struct demeter_touch known = known_of(space, i);
		u64 rate = demeter_touch_rate(&known, space->mean_per_s);

		yield_at(i);
		space->granule[i].accesses = demeter_touch_accesses(rate, ran_ns);
		demeter_touch_add(sum, &known, space->granule[i].accesses, most);
	}
}

static void add_up(struct demeter_touch_sum *all, const struct demeter_touch_sum *sum)
{
	all->accesses += sum->accesses;
	all->counted += sum->counted;
	all->variance += sum->variance;
}

/*
 * Samples of a granule. They go by several at a time, as each costs its way through the
 * channel; and to the parts that a range could be in turn, as nothing is known of how they lie:
 * by chance they would lie in clumps, and look like heat.
 */
static void emit_granule(struct demeter_touch_space *space, struct demeter_touch_granule *granule,
			 u64 nr)
{
	u64 granule_bytes = max(READ_ONCE(demeter_params.granule_bytes), PAGE_SIZE);
	u64 parts = max(BIT_ULL(space->shift) / granule_bytes, 1);
	u64 part_bytes = BIT_ULL(space->shift) / parts;
	u64 at_once = clamp_t(u64, nr / parts, 1, 1 + (u64)U8_MAX);
	u32 part = random_below(parts);

	while (nr) {
		u64 offset = (u64)random_below(part_bytes >> PAGE_SHIFT) << PAGE_SHIFT;
		u64 now = min(nr, at_once);
		struct demeter_access access = {
			.gva = granule->addr + part_bytes * (part++ % parts) + offset,
			.tier = granule->tier,
			.more = now - 1,
		};

		demeter_sampler_push(space->mm, &access);
		nr -= now;
	}
}

static void emit(struct demeter_touch_space *space, u64 accesses_per_sample)
{
	u32 i;

	for (i = 0; i < space->nr; i++) {
		u64 nr = demeter_touch_share(&sample_carry, space->granule[i].accesses,
					     accesses_per_sample);

		yield_at(i);
		emit_granule(space, &space->granule[i], nr);
	}
}

/* Accesses of all granules, no more than @most of each. */
static u64 accesses_up_to(struct demeter_touch_space *space, u64 most)
{
	u64 sum = 0;
	u32 i;

	for (i = 0; i < space->nr; i++) {
		yield_at(i);
		sum += min(space->granule[i].accesses, most);
	}
	return sum;
}

/*
 * The granules to arm next, in proportion to what counts of their accesses and in no order.
 * A granule is armed once a tick at most: what would be its part beyond that is for others.
 */
static void follow(struct demeter_touch_space *space, u64 counted, u64 ran_ns)
{
	u64 most = demeter_touch_accesses(space->most_per_s, ran_ns);
	u64 pages = div_u64(demeter_touch_now.pages_per_s * min_t(u64, ran_ns, 10 * NSEC_PER_SEC),
			    2 * NSEC_PER_SEC);
	u64 ticks = (div_u64(ran_ns, TICK_MS * NSEC_PER_MSEC) >> demeter_pacing_shift()) + 1;
	u64 carry = 0, unit, nr;
	u32 i;

	space->next = 0;
	space->nr_follow = 0;
	pages = clamp_t(u64, pages, 1, EPOCH_FOLLOW);
	unit = div64_u64(counted, pages) + 1;
	for (i = 0; i < FOLLOW_ROUNDS; i++) {
		most = min(most, unit * ticks);
		unit = div64_u64(accesses_up_to(space, most), pages) + 1;
	}
	for (i = 0; i < space->nr; i++) {
		yield_at(i);
		nr = demeter_touch_share(&carry, min(space->granule[i].accesses, most), unit);
		while (nr-- && space->nr_follow < EPOCH_FOLLOW)
			space->follow[space->nr_follow++] = i;
	}
	for (i = space->nr_follow; i > 1; i--)
		swap(space->follow[i - 1], space->follow[random_below(i)]);
}

/* One space's part of the epoch: its estimates, added to those of @all. */
static void estimate_space(struct demeter_touch_space *space, u64 ran_ns,
			   struct demeter_touch_sum *all)
{
	struct demeter_touch_sum sum = {};

	inspect(space);
	if (!ran_ns) {
		/* It has no accesses to share out; what is known of it stays. */
		space->estimated = false;
		return;
	}
	estimate(space, ran_ns, &sum);
	if (!space->mean_per_s) {
		/* Rates that were made without a mean say nothing. */
		space->mean_per_s = demeter_touch_mean(&sum, 0);
		sum = (struct demeter_touch_sum){};
		estimate(space, ran_ns, &sum);
	}
	space->estimated = space->mean_per_s && !space->skipped;
	space->mean_per_s = demeter_touch_mean(&sum, space->mean_per_s);
	if (space->estimated)
		add_up(all, &sum);
	follow(space, sum.counted, ran_ns);
	space->most_per_s = demeter_touch_most(&sum, ran_ns);
}

static void follow_cost(u64 ran_ns)
{
	u64 spent = spent_ns();

	if (ran_ns)
		demeter_touch_budget(&purse, spent - epoch_spent_ns, ran_ns, PAGES_PER_S,
				     demeter_pacing_shift());
	WRITE_ONCE(demeter_touch_now.pages_per_s, purse.pages_per_s);
	epoch_spent_ns = spent;
}

/* One epoch: whether any space has pages that KVM maps. */
static bool epoch(void)
{
	struct demeter_touch_space *space = NULL;
	struct demeter_touch_sum all = {};
	u64 ran_ns = 0, skipped = 0, unit;
	bool secondary = false;

	demeter_touch_secondary_forget();
	while ((space = demeter_touch_space_next(space))) {
		u64 space_ran_ns =
			demeter_touch_passed(&space->epoch_ran_ns, demeter_touch_ran(space));

		estimate_space(space, space_ran_ns, &all);
		ran_ns += space_ran_ns;
		skipped += space->skipped;
		secondary |= space->secondary;
	}
	WRITE_ONCE(demeter_touch_now.accesses_per_sample,
		   demeter_touch_accesses_per_sample(&all, demeter_touch_now.accesses_per_sample,
						     EPOCH_SAMPLES));
	/* An epoch of several ticks is known no better than one of a tick. */
	unit = demeter_touch_now.accesses_per_sample << demeter_pacing_sparse();
	/* Left over from epochs in which a sample stood for more, it would be several now. */
	sample_carry = min(sample_carry, unit - 1);
	while ((space = demeter_touch_space_next(space)))
		if (space->estimated)
			emit(space, unit);
	follow_cost(ran_ns);
	WRITE_ONCE(demeter_touch_now.skipped_spaces, skipped);
	return secondary;
}

static void touch_make_samples(void)
{
	/* Of the worker, who waits for locks and grace periods here, and may be preempted. */
	u64 start_ns = demeter_worker_clock();
	bool secondary;

	mutex_lock(&demeter_touch_lock);
	demeter_touch_spaces_sync();
	secondary = epoch();
	mutex_unlock(&demeter_touch_lock);
	demeter_touch_secondary_need(secondary);
	/* The worker keeps its own time by stages. */
	this_cpu_add(demeter_touch_cpu.spent_ns, demeter_worker_clock() - start_ns);
}

static unsigned int touch_alive(void)
{
	unsigned int alive;

	mutex_lock(&demeter_touch_lock);
	alive = cpumask_weight(&cpus);
	mutex_unlock(&demeter_touch_lock);
	return alive;
}

static int touch_probe(char *reason, size_t size)
{
	int ret = demeter_touch_arm_resolve(reason, size);

	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		return demeter_perf_refuse(reason, size, -EOPNOTSUPP,
					   "page-table locks sleep in a real-time kernel",
					   "use a PMU, or another kernel");
	if (ret)
		return ret;
	queue = alloc_workqueue("demeter_touch", WQ_UNBOUND | WQ_FREEZABLE, 1);
	if (!queue) {
		snprintf(reason, size, "no memory for a work queue; next: try again");
		return -ENOMEM;
	}
	ret = demeter_touch_probes_start(reason, size);
	if (ret) {
		destroy_workqueue(queue);
		return ret;
	}
	mutex_lock(&demeter_touch_lock);
	/* Not deferrable: the CPU with the timer may sleep while others run the program. */
	INIT_DELAYED_WORK(&tick_work, tick);
	prandom_seed_state(&random_state, 1);
	purse = (struct demeter_touch_purse){};
	demeter_touch_budget(&purse, 0, 0, PAGES_PER_S, 0);
	demeter_touch_now = (struct demeter_touch_now){ .pages_per_s = purse.pages_per_s };
	epoch_spent_ns = spent_ns();
	sample_carry = 0;
	cpumask_clear(&cpus);
	mutex_unlock(&demeter_touch_lock);
	return 0;
}

static void touch_release(void)
{
	cancel_delayed_work_sync(&tick_work);
	mutex_lock(&demeter_touch_lock);
	demeter_touch_spaces_drop();
	mutex_unlock(&demeter_touch_lock);
	demeter_touch_secondary_need(false);
	demeter_touch_probes_stop();
	destroy_workqueue(queue);
}

/* Nothing is done for each CPU; but the first one makes it begin, and the last one end. */
static int touch_start(unsigned int cpu, u64 period, u64 threshold_ns)
{
	mutex_lock(&demeter_touch_lock);
	cpumask_set_cpu(cpu, &cpus);
	queue_delayed_work(queue, &tick_work, msecs_to_jiffies(TICK_MS));
	mutex_unlock(&demeter_touch_lock);
	return 0;
}

static void touch_stop(unsigned int cpu)
{
	bool last;

	mutex_lock(&demeter_touch_lock);
	cpumask_clear_cpu(cpu, &cpus);
	last = cpumask_empty(&cpus);
	mutex_unlock(&demeter_touch_lock);
	if (last)
		cancel_delayed_work_sync(&tick_work);
}

static unsigned int touch_caps(void)
{
	return DEMETER_SAMPLER_TIER;
}

static const char *touch_delivery(void)
{
	return "fault";
}

static u64 touch_accesses_per_sample(u64 period)
{
	return (READ_ONCE(demeter_touch_now.accesses_per_sample) ?: 1) << demeter_pacing_sparse();
}

static u64 touch_lost(void)
{
	return 0;
}

static bool touch_sees(const struct mm_struct *mm)
{
	const struct demeter_touch_space *space;
	bool sees;

	rcu_read_lock();
	space = demeter_touch_space_of(mm);
	sees = space && !READ_ONCE(space->skipped);
	rcu_read_unlock();
	return sees;
}

const struct demeter_sampler_ops demeter_sampler_touch = {
	.name = "touch",
	.source = DEMETER_LEDGER_TOUCH,
	.probe = touch_probe,
	.release = touch_release,
	.start = touch_start,
	.stop = touch_stop,
	.caps = touch_caps,
	.delivery = touch_delivery,
	.accesses_per_sample = touch_accesses_per_sample,
	.follows_pace = true,
	.tick = touch_make_samples,
	.alive = touch_alive,
	.lost = touch_lost,
	.sees = touch_sees,
	.sees_mapping = demeter_touch_sees_mapping,
};
