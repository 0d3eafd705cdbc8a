// SPDX-License-Identifier: GPL-2.0-only
/*
 * Spaces: the address spaces that "touch" watches, their granules and clocks.
 *
 * A page waits to be touched only while its program runs. So each space has a
 * clock that runs while any CPU does run it, less the time that our own faults
 * take: a program that sleeps, shares its CPU, or is stopped is not cold.
 */
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/rculist.h>
#include <linux/sched/clock.h>
#include <linux/sched/mm.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/userfaultfd_k.h>

#include "scan.h"
#include "tmm.h"
#include "touch.h"
#include "vma.h"

/*
 * Granules of a space; a larger one has larger granules. All of them are looked at in each
 * epoch, so that there are 2^16 in all: beside many, a space has fewer.
 */
#define MAX_GRANULES  16384u
#define FULL_SPACES   4u
#define LEAST_SHIFT   5u /* of MAX_GRANULES: 512 are left of them */
/* Pages to arm in proportion to rates, in an epoch. */
#define MAX_FOLLOW    4096u
/* The layout is looked at again after this many epochs, changed or not. */
#define LAYOUT_EPOCHS 8u
/* Mappings looked at under mmap_lock: some ten microseconds. */
#define VMAS_AT_ONCE  256u

/* Spaces and their granules, for writers; see touch.h. */
DEFINE_MUTEX(demeter_touch_lock);

/* The same spaces twice: to be found by mm, and one after the other. */
static DEFINE_HASHTABLE(spaces, 10);
static LIST_HEAD(all_spaces);
static u32 nr_spaces;

/*
 * Addresses of granules while they are laid out, and what is managed while spaces are
 * compared with it. Made once, where programs lose nothing by it: demeter_touch_lock.
 */
static unsigned long *addresses;
static struct mm_struct *managed[DEMETER_MAX_TARGETS];

/* The space that this CPU runs, as far as its clock is concerned. */
static DEFINE_PER_CPU(struct demeter_touch_space *, here);

DEFINE_PER_CPU(bool, demeter_touch_holds_lock);

/**
 * demeter_touch_any_space() - is anything watched
 *
 * Safe in any context.
 *
 * Return: whether there is a space.
 */
bool demeter_touch_any_space(void)
{
	return READ_ONCE(nr_spaces);
}

/**
 * demeter_touch_space_of() - the space of an mm
 * @mm: only compared
 *
 * Return: the space, valid under RCU, or NULL.
 */
struct demeter_touch_space *demeter_touch_space_of(const struct mm_struct *mm)
{
	struct demeter_touch_space *space;

	hash_for_each_possible_rcu(spaces, space, node, (unsigned long)mm) {
		if (space->mm == mm)
			return space;
	}
	return NULL;
}

/**
 * demeter_touch_space_next() - walk the spaces
 * @space: where to go on from, NULL to begin
 *
 * Caller holds demeter_touch_lock.
 *
 * Return: the next one, or NULL.
 */
struct demeter_touch_space *demeter_touch_space_next(struct demeter_touch_space *space)
{
	struct list_head *next = space ? space->link.next : all_spaces.next;

	lockdep_assert_held(&demeter_touch_lock);
	return next == &all_spaces ? NULL : list_entry(next, struct demeter_touch_space, link);
}

/* The time that a space ran until now. Under its lock. */
static u64 ran_until(struct demeter_touch_space *space, u64 now_ns)
{
	u64 ran_ns = space->ran_ns;

	if (space->is_timed && now_ns > space->entered_ns)
		ran_ns += now_ns - space->entered_ns;
	return ran_ns;
}

/**
 * demeter_touch_clock() - the clock by which pages are exposed
 * @space: the space; its lock is held
 * @now_ns: local_clock()
 *
 * Return: nanoseconds from an arbitrary start.
 */
u64 demeter_touch_clock(struct demeter_touch_space *space, u64 now_ns)
{
	u64 ran_ns = ran_until(space, now_ns);

	return ran_ns > space->lost_ns ? ran_ns - space->lost_ns : 0;
}

/**
 * demeter_touch_ran() - for how long a space has run
 * @space: the space
 *
 * Return: nanoseconds in which at least one CPU ran it.
 */
u64 demeter_touch_ran(struct demeter_touch_space *space)
{
	unsigned long flags;
	u64 ran_ns;

	local_irq_save(flags);
	demeter_touch_space_lock(space);
	ran_ns = ran_until(space, local_clock());
	demeter_touch_space_unlock(space);
	local_irq_restore(flags);
	return ran_ns;
}

/*
 * Let the clock run if any CPU runs the space, and else stand. Whoever makes @running 0
 * or 1 comes here afterwards and looks again, under the lock: of two that cross, the
 * later one finds what is true, in whatever order they come.
 */
static void start_or_stop(struct demeter_touch_space *space)
{
	bool runs;
	u64 now_ns;

	demeter_touch_space_lock(space);
	runs = atomic_read(&space->running);
	if (runs != space->is_timed) {
		now_ns = local_clock();
		space->ran_ns = ran_until(space, now_ns);
		space->entered_ns = now_ns;
		space->is_timed = runs;
	}
	demeter_touch_space_unlock(space);
}

/* Many CPUs may come and go at once, under their run-queue locks: few of them take ours. */
static void enter(struct demeter_touch_space *space)
{
	if (atomic_inc_return(&space->running) == 1)
		start_or_stop(space);
}

static void leave(struct demeter_touch_space *space)
{
	if (atomic_dec_and_test(&space->running))
		start_or_stop(space);
}

/**
 * demeter_touch_switch() - this CPU goes on with another task
 * @next: its address space, NULL for a kernel thread
 *
 * Called with interrupts off, possibly under the run queue lock.
 */
void demeter_touch_switch(const struct mm_struct *next)
{
	struct demeter_touch_space *old = this_cpu_read(here), *new = NULL;

	if (old && old->mm == next)
		return;
	rcu_read_lock();
	if (next && READ_ONCE(nr_spaces))
		new = demeter_touch_space_of(next);
	if (old)
		leave(old);
	if (new)
		enter(new);
	this_cpu_write(here, new);
	rcu_read_unlock();
}

static void look_here(void *unused)
{
	demeter_touch_switch(current->mm);
}

static void forget_unwanted(void *unused)
{
	const struct demeter_touch_space *space = this_cpu_read(here);

	if (space && !space->wanted)
		this_cpu_write(here, NULL);
}

static bool add(struct mm_struct *mm)
{
	struct demeter_touch_space *space = kzalloc(sizeof(*space), GFP_KERNEL);

	if (!space)
		return false;
	space->follow = demeter_table_alloc(MAX_FOLLOW, sizeof(*space->follow));
	if (!space->follow) {
		kfree(space);
		return false;
	}
	mmgrab(mm);
	space->mm = mm;
	space->wanted = true;
	space->most_per_s = U64_MAX;
	raw_spin_lock_init(&space->lock);
	list_add_tail(&space->link, &all_spaces);
	hash_add_rcu(spaces, &space->node, (unsigned long)mm);
	WRITE_ONCE(nr_spaces, nr_spaces + 1);
	return true;
}

/* Put back what is armed. mmap_lock is held for reading. */
static void disarm_mapped(struct demeter_touch_space *space)
{
	u32 i;

	for (i = 0; i < space->nr; i++) {
		demeter_touch_settle(space, &space->granule[i], true);
		if (!(i % 256))
			cond_resched();
	}
}

/* False if somebody kept mmap_lock for too long. */
static bool disarm_all(struct demeter_touch_space *space)
{
	if (!demeter_scan_lock(space->mm))
		return false;
	disarm_mapped(space);
	mmap_read_unlock(space->mm);
	return true;
}

/* What is armed is no longer ours. */
static void disown(struct demeter_touch_space *space)
{
	unsigned long flags;
	u32 i;

	for (i = 0; i < space->nr; i++) {
		if (!(i % 256))
			cond_resched();
		if (!READ_ONCE(space->granule[i].armed))
			continue;
		local_irq_save(flags);
		demeter_touch_space_lock(space);
		/* Not so when it was touched meanwhile. */
		if (space->granule[i].armed)
			this_cpu_inc(demeter_touch_cpu.lost_marks);
		space->granule[i].armed = 0;
		demeter_touch_space_unlock(space);
		local_irq_restore(flags);
	}
}

/*
 * For a space that is about to be freed. Where the process is gone already, so are the
 * marks. Where somebody sits on mmap_lock, as a mount that hangs may, they stay: to wait
 * for it would stop all sampling, disabling and CPU hotplug. The fault on one puts it
 * back, as a child's copies (touch_fault.c).
 */
static void disarm(struct demeter_touch_space *space)
{
	bool done = false;

	if (mmget_not_zero(space->mm)) {
		done = disarm_all(space);
		mmput_async(space->mm);
	}
	if (!done)
		disown(space);
}

/* Many may end at once: all CPUs are interrupted once, and a grace period waited for. */
static void remove_unwanted(void)
{
	struct demeter_touch_space *space, *next;
	LIST_HEAD(gone);

	list_for_each_entry_safe(space, next, &all_spaces, link) {
		if (space->wanted)
			continue;
		disarm(space);
		hash_del_rcu(&space->node);
		WRITE_ONCE(nr_spaces, nr_spaces - 1);
		list_move(&space->link, &gone);
	}
	if (list_empty(&gone))
		return;
	on_each_cpu(forget_unwanted, NULL, 1);
	/* Faults and switches that found them before. */
	synchronize_rcu();
	list_for_each_entry_safe(space, next, &gone, link) {
		mmdrop(space->mm);
		kvfree(space->follow);
		kvfree(space->granule);
		kfree(space);
	}
}

/**
 * demeter_touch_spaces_sync() - watch what is managed now, and nothing else
 *
 * Caller holds demeter_touch_lock.
 */
void demeter_touch_spaces_sync(void)
{
	struct demeter_touch_space *space;
	bool added = false;
	u32 nr, i;

	lockdep_assert_held(&demeter_touch_lock);
	list_for_each_entry(space, &all_spaces, link)
		space->wanted = false;
	nr = demeter_targets_hold(managed, DEMETER_MAX_TARGETS);
	for (i = 0; i < nr; i++) {
		rcu_read_lock();
		space = demeter_touch_space_of(managed[i]);
		rcu_read_unlock();
		if (!atomic_read(&managed[i]->mm_users))
			continue;
		if (space)
			space->wanted = true;
		else
			added |= add(managed[i]);
	}
	/* A thread that never leaves its CPU would not be seen to run. */
	if (added)
		on_each_cpu(look_here, NULL, 1);
	remove_unwanted();
	for (i = 0; i < nr; i++)
		mmdrop(managed[i]);
}

/**
 * demeter_touch_spaces_drop() - watch nothing, and put back what is armed
 *
 * Caller holds demeter_touch_lock.
 */
void demeter_touch_spaces_drop(void)
{
	struct demeter_touch_space *space;

	lockdep_assert_held(&demeter_touch_lock);
	list_for_each_entry(space, &all_spaces, link)
		space->wanted = false;
	remove_unwanted();
	kvfree(addresses);
	addresses = NULL;
}

/**
 * demeter_touch_sees_mapping() - are pages of a mapping armed, of those that are managed
 * @vma: the mapping, mmap_lock held
 *
 * Anonymous and shared memory (shmem, which memfd, System V and shared anonymous
 * mappings are, too). A mark is in one address space and says nothing of others that
 * map the page: each of those that are managed has its own, and the samples of all go
 * to who has the object in its ranges (shared_objects.c).
 *
 * Not where userfaultfd tracks writes or accesses, or wants the faults on pages that
 * are there: it has marks of its own in the same entries, and some take an entry that
 * faults once for theirs.
 *
 * Return: whether they are.
 */
bool demeter_touch_sees_mapping(const struct vm_area_struct *vma)
{
	/* What asks takes no const in all kernels; nothing is changed. */
	struct vm_area_struct *same = (struct vm_area_struct *)vma;

	if (uffd_disable_fault_around(same))
		return false;
	return vma_is_anonymous(same) || (vma->vm_file && shmem_mapping(vma->vm_file->f_mapping));
}

static bool is_watched(struct vm_area_struct *vma)
{
	return demeter_vma_is_managed(vma) && demeter_touch_sees_mapping(vma);
}

/**
 * demeter_touch_vma() - the VMA of an address, if it is watched
 * @mm: address space; mmap_lock is held
 * @addr: the address
 *
 * Return: the VMA or NULL.
 */
struct vm_area_struct *demeter_touch_vma(struct mm_struct *mm, unsigned long addr)
{
	struct vm_area_struct *vma = vma_lookup(mm, addr);

	return vma && is_watched(vma) ? vma : NULL;
}

/**
 * demeter_touch_granule_of() - the granule of an address
 * @space: the space; its lock is held, or demeter_touch_lock
 * @addr: the address
 *
 * Return: the granule or NULL.
 */
struct demeter_touch_granule *demeter_touch_granule_of(struct demeter_touch_space *space,
						       unsigned long addr)
{
	u32 low = 0, high = space->nr;

	addr &= ~0ul << space->shift;
	while (low < high) {
		u32 mid = low + (high - low) / 2;

		if (space->granule[mid].addr < addr)
			low = mid + 1;
		else
			high = mid;
	}
	return low < space->nr && space->granule[low].addr == addr ? &space->granule[low] : NULL;
}

/**
 * demeter_touch_note_armed() - a page was armed until now
 * @space: the space; its lock is held
 * @granule: of the page
 * @clock_ns: demeter_touch_clock()
 * @touched: it was touched
 */
void demeter_touch_note_armed(struct demeter_touch_space *space,
			      struct demeter_touch_granule *granule, u64 clock_ns, bool touched)
{
	u64 bytes = demeter_touch_armed_bytes(granule->armed);
	u64 watched_ns = clock_ns > granule->since_ns ? clock_ns - granule->since_ns : 0;

	demeter_touch_note(&granule->known,
			   demeter_touch_exposure(watched_ns, bytes, BIT_ULL(space->shift)),
			   touched, space->mean_per_s);
	granule->since_ns = clock_ns;
}

/**
 * demeter_touch_settle() - see what has become of an armed page
 * @space: the space; mmap_lock is held for reading
 * @granule: of the page
 * @disarm: put it back
 *
 * The time until now counts, if the mark is still there. If it is not, somebody
 * removed it, and when that was is not known: nothing counts then.
 */
void demeter_touch_settle(struct demeter_touch_space *space, struct demeter_touch_granule *granule,
			  bool disarm)
{
	unsigned long armed = READ_ONCE(granule->armed), addr = demeter_touch_armed_addr(armed);
	enum demeter_touch_state state = DEMETER_TOUCH_UNMARKED;
	struct vm_area_struct *vma;
	unsigned long flags;

	if (!armed)
		return;
	vma = vma_lookup(space->mm, addr);
	/* Somebody may have other uses for its entries now. */
	disarm |= vma && !is_watched(vma);
	if (vma)
		state = disarm ? demeter_touch_restore_wait(space->mm, addr)
			       : demeter_touch_peek(space->mm, addr);
	local_irq_save(flags);
	demeter_touch_space_lock(space);
	/* Not so when it was touched meanwhile. */
	if (granule->armed == armed) {
		if (state == DEMETER_TOUCH_MARKED)
			demeter_touch_note_armed(space, granule,
						 demeter_touch_clock(space, local_clock()), false);
		else
			this_cpu_inc(demeter_touch_cpu.lost_marks);
		if (disarm && state == DEMETER_TOUCH_MARKED)
			this_cpu_inc(demeter_touch_cpu.retired);
		if (disarm || state != DEMETER_TOUCH_MARKED)
			granule->armed = 0;
	}
	demeter_touch_space_unlock(space);
	local_irq_restore(flags);
}

/**
 * struct layout - granules over what is watched
 * @addr: where they begin, ascending
 * @nr: their number, at most @most
 * @most: see granules_each()
 * @shift: log2 of their size
 */
struct layout {
	unsigned long *addr;
	u32 nr;
	u32 most;
	u32 shift;
};

/* Granules that a space may have, a power of two, so that few spaces lose what they know. */
static u32 granules_each(void)
{
	return MAX_GRANULES >> min_t(u32, fls(nr_spaces / (FULL_SPACES + 1)), LEAST_SHIFT);
}

/* Granules twice as large are fewer. */
static void coarsen(struct layout *layout)
{
	u32 i, nr = 0;

	layout->shift++;
	for (i = 0; i < layout->nr; i++) {
		unsigned long addr = layout->addr[i] & ~0ul << layout->shift;

		if (!nr || layout->addr[nr - 1] != addr)
			layout->addr[nr++] = addr;
	}
	layout->nr = nr;
}

/* Lay granules over [start, end), which comes after all before. */
static void lay_one(struct layout *layout, unsigned long start, unsigned long end)
{
	unsigned long addr;

	for (;;) {
		addr = start & ~0ul << layout->shift;
		if (layout->nr)
			addr = max(addr, layout->addr[layout->nr - 1] + BIT(layout->shift));
		if (addr >= end)
			return;
		if ((end - addr - 1) >> layout->shift < layout->most - layout->nr)
			break;
		coarsen(layout);
	}
	for (; addr < end; addr += BIT(layout->shift))
		layout->addr[layout->nr++] = addr;
}

/* Some mappings from @at on. Returns where to go on, 0 at the end. */
static unsigned long lay_some(struct mm_struct *mm, struct layout *layout, unsigned long at)
{
	struct vm_area_struct *vma;
	u32 nr = 0;

	VMA_ITERATOR(vmi, mm, at);

	for_each_vma(vmi, vma) {
		if (nr++ == VMAS_AT_ONCE)
			return max(vma->vm_start, at);
		if (is_watched(vma))
			lay_one(layout, max(vma->vm_start, at), vma->vm_end);
	}
	return 0;
}

/* All mappings, in many holds of mmap_lock; false when it was not to be had. */
static bool lay(struct mm_struct *mm, struct layout *layout)
{
	unsigned long at = 0;

	do {
		if (!demeter_scan_lock(mm))
			return false;
		at = lay_some(mm, layout, at);
		mmap_read_unlock(mm);
		cond_resched();
	} while (at);
	return true;
}

/* What was known of granules that are still there is kept. */
static void carry_over(struct demeter_touch_space *space, struct demeter_touch_granule *to, u32 nr)
{
	u32 i, old = 0;

	for (i = 0; i < nr; i++) {
		while (old < space->nr && space->granule[old].addr < to[i].addr) {
			if (space->granule[old].armed)
				this_cpu_inc(demeter_touch_cpu.lost_marks);
			old++;
		}
		if (old < space->nr && space->granule[old].addr == to[i].addr)
			to[i] = space->granule[old++];
	}
	for (; old < space->nr; old++)
		if (space->granule[old].armed)
			this_cpu_inc(demeter_touch_cpu.lost_marks);
}

static bool layout_changed(struct demeter_touch_space *space)
{
	const struct mm_struct *mm = space->mm;

	if (space->granule && space->seen_brk == READ_ONCE(mm->brk) &&
	    space->seen_total_vm == READ_ONCE(mm->total_vm) &&
	    space->seen_map_count == READ_ONCE(mm->map_count) &&
	    ++space->seen_epoch < LAYOUT_EPOCHS)
		return false;
	space->seen_brk = READ_ONCE(mm->brk);
	space->seen_total_vm = READ_ONCE(mm->total_vm);
	space->seen_map_count = READ_ONCE(mm->map_count);
	space->seen_epoch = 0;
	return true;
}

/* Is it what the space has already? */
static bool same_layout(const struct demeter_touch_space *space, const struct layout *layout)
{
	u32 i;

	if (layout->nr != space->nr || layout->shift != space->shift)
		return false;
	for (i = 0; i < layout->nr; i++)
		if (space->granule[i].addr != layout->addr[i])
			return false;
	return true;
}

/* Have these granules instead of those before. */
static void take_layout(struct demeter_touch_space *space, const struct layout *layout)
{
	struct demeter_touch_granule *to, *old;
	unsigned long flags;
	u32 i;

	to = kvcalloc(max(layout->nr, 1u), sizeof(*to), GFP_KERNEL);
	if (!to)
		return;
	for (i = 0; i < layout->nr; i++)
		to[i] = (struct demeter_touch_granule){
			.addr = layout->addr[i],
			.tier = DEMETER_TIERS,
		};
	if (layout->shift != space->shift && !disarm_all(space)) {
		kvfree(to);
		return;
	}
	local_irq_save(flags);
	demeter_touch_space_lock(space);
	if (layout->shift == space->shift)
		carry_over(space, to, layout->nr);
	old = space->granule;
	space->granule = to;
	space->nr = layout->nr;
	space->shift = layout->shift;
	demeter_touch_space_unlock(space);
	local_irq_restore(flags);
	space->nr_follow = 0;
	space->check = 0;
	/* Faults look at granules under the lock alone. */
	kvfree(old);
}

/**
 * demeter_touch_space_layout() - bring the granules of a space up to date
 * @space: the space
 *
 * Caller holds demeter_touch_lock and mm_users.
 */
void demeter_touch_space_layout(struct demeter_touch_space *space)
{
	enum demeter_touch_secondary other = demeter_touch_secondary_of(space->mm);
	struct layout layout = { .shift = PMD_SHIFT, .most = granules_each() };

	space->secondary = other == DEMETER_TOUCH_KVM;
	space->skipped = other == DEMETER_TOUCH_OTHERS ||
			 (space->secondary && !demeter_touch_secondary_ready());
	if (space->skipped) {
		disarm_all(space);
		return;
	}
	if (!layout_changed(space))
		return;
	if (!addresses)
		addresses = demeter_table_alloc(MAX_GRANULES, sizeof(*addresses));
	layout.addr = addresses;
	if (layout.addr && lay(space->mm, &layout)) {
		if (!same_layout(space, &layout))
			take_layout(space, &layout);
	} else {
		/* Another epoch will do. */
		space->seen_epoch = LAYOUT_EPOCHS;
	}
}
