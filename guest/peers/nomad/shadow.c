// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shadows: see shadow.h.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fprobe.h>
#include <linux/hashtable.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/numa.h>
#include <linux/rbtree.h>
#include <linux/sched/mm.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "shadow.h"

#define MASTERS_ORDER 12

/**
 * enum shadow_state - how far a shadow is
 * @SHADOW_BEGUN: known, not usable; its owner is about to copy
 * @SHADOW_READY: usable
 * @SHADOW_DROPPED: its page was changed before it became usable
 */
enum shadow_state {
	SHADOW_BEGUN,
	SHADOW_READY,
	SHADOW_DROPPED,
};

/**
 * struct nomad_shadow - a shadow
 * @by_address: in @shadows of its space, unless dropped
 * @by_master: in masters, while ready
 * @by_age: in ages, while ready
 * @space: of its page
 * @address: of its page
 * @folio: the memory, with a reference once ready
 * @master_pfn: of its master, once ready
 * @state: how far it is
 */
struct nomad_shadow {
	struct rb_node by_address;
	struct hlist_node by_master;
	struct list_head by_age;
	struct nomad_space *space;
	unsigned long address;
	struct folio *folio;
	unsigned long master_pfn;
	enum shadow_state state;
};

/**
 * struct nomad_space - an address space that has, or had, shadows
 * @notifier: tells of changes of page tables
 * @mm: the address space; exists for as long as this does
 * @list: in spaces
 * @shadows: by address
 * @changing: notifications begun and not ended
 * @owner: the task between begin and ready; its own notifications for @own_address do
 *	not count
 * @own_address: see @owner
 * @gone: the address space has no users any more
 */
struct nomad_space {
	struct mmu_notifier notifier;
	struct mm_struct *mm;
	struct list_head list;
	struct rb_root shadows;
	unsigned int changing;
	struct task_struct *owner;
	unsigned long own_address;
	bool gone;
};

struct nomad_shadow_counts nomad_shadow_counts;

/*
 * Protects all shadows, and of spaces all but @list. Taken under page-table locks and
 * locks of reverse mappings; nothing is called under it.
 */
static DEFINE_SPINLOCK(shadow_lock);
static DEFINE_HASHTABLE(masters, MASTERS_ORDER);
static LIST_HEAD(ages);
static unsigned long node_shadows[MAX_NUMNODES];

/* The worker's. */
static LIST_HEAD(spaces);

static struct shrinker *shrinker;

static struct nomad_shadow *shadow_of(struct rb_node *node)
{
	return rb_entry_safe(node, struct nomad_shadow, by_address);
}

/* The first shadow at or after an address. */
static struct nomad_shadow *shadow_from(struct nomad_space *space, unsigned long address)
{
	struct rb_node *node = space->shadows.rb_node;
	struct nomad_shadow *first = NULL;

	lockdep_assert_held(&shadow_lock);
	while (node) {
		struct nomad_shadow *shadow = shadow_of(node);

		if (shadow->address < address) {
			node = node->rb_right;
		} else {
			first = shadow;
			node = node->rb_left;
		}
	}
	return first;
}

static struct nomad_shadow *shadow_of_master(unsigned long pfn)
{
	struct nomad_shadow *shadow;

	lockdep_assert_held(&shadow_lock);
	hash_for_each_possible(masters, shadow, by_master, pfn) {
		if (shadow->master_pfn == pfn)
			return shadow;
	}
	return NULL;
}

/* Nobody finds it any more. A ready one is to be freed, from the list, by the caller. */
static void shadow_cut(struct nomad_shadow *shadow, struct list_head *ready)
{
	lockdep_assert_held(&shadow_lock);
	rb_erase(&shadow->by_address, &shadow->space->shadows);
	if (shadow->state == SHADOW_READY) {
		hash_del(&shadow->by_master);
		list_move_tail(&shadow->by_age, ready);
		node_shadows[folio_nid(shadow->folio)]--;
		atomic64_dec(&nomad_shadow_counts.shadows);
	}
	shadow->state = SHADOW_DROPPED;
}

/* Free what was cut. Return: how many. */
static unsigned long shadows_free(struct list_head *cut)
{
	struct nomad_shadow *shadow, *next;
	unsigned long freed = 0;

	list_for_each_entry_safe(shadow, next, cut, by_age) {
		folio_put(shadow->folio);
		kfree(shadow);
		freed++;
	}
	return freed;
}

static void shadows_drop(struct nomad_space *space, unsigned long start, unsigned long end)
{
	struct nomad_shadow *shadow = shadow_from(space, start);
	LIST_HEAD(cut);

	lockdep_assert_held(&shadow_lock);
	while (shadow && shadow->address < end) {
		struct nomad_shadow *next = shadow_of(rb_next(&shadow->by_address));

		shadow_cut(shadow, &cut);
		shadow = next;
	}
	spin_unlock(&shadow_lock);
	atomic64_add(shadows_free(&cut), &nomad_shadow_counts.dropped);
	spin_lock(&shadow_lock);
}

/* Is this what the owner of a shadow that is not ready yet does itself? */
static bool change_is_own(const struct nomad_space *space, const struct mmu_notifier_range *range)
{
	return READ_ONCE(space->owner) == current &&
	       (range->start & PAGE_MASK) == space->own_address &&
	       range->end <= space->own_address + PAGE_SIZE;
}

/*
 * Does it leave alone what validity is asked of? NUMA balancing does, which holds mmap_lock
 * for reading; mprotect() holds it for writing and does not. Where that cannot be told
 * (somebody waits for the lock), shadows are dropped.
 */
static bool change_is_harmless(const struct mmu_notifier_range *range)
{
	if (range->event != MMU_NOTIFY_PROTECTION_VMA || !mmap_read_trylock(range->mm))
		return false;
	mmap_read_unlock(range->mm);
	return true;
}

static int change_begins(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct nomad_space *space = container_of(notifier, struct nomad_space, notifier);
	bool harmless;

	if (change_is_own(space, range))
		return 0;
	harmless = change_is_harmless(range);
	spin_lock(&shadow_lock);
	space->changing++;
	if (!harmless)
		shadows_drop(space, range->start & PAGE_MASK, range->end);
	spin_unlock(&shadow_lock);
	return 0;
}

static void change_ends(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct nomad_space *space = container_of(notifier, struct nomad_space, notifier);

	if (change_is_own(space, range))
		return;
	spin_lock(&shadow_lock);
	space->changing--;
	spin_unlock(&shadow_lock);
}

static void space_ends(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	struct nomad_space *space = container_of(notifier, struct nomad_space, notifier);

	spin_lock(&shadow_lock);
	shadows_drop(space, 0, ULONG_MAX);
	space->gone = true;
	spin_unlock(&shadow_lock);
}

static const struct mmu_notifier_ops space_ops = {
	.release = space_ends,
	.invalidate_range_start = change_begins,
	.invalidate_range_end = change_ends,
};

struct nomad_space *nomad_space_of(struct mm_struct *mm)
{
	struct nomad_space *space;

	list_for_each_entry(space, &spaces, list) {
		if (space->mm == mm)
			return space;
	}
	space = kzalloc(sizeof(*space), GFP_KERNEL | __GFP_NOWARN);
	if (!space)
		return NULL;
	space->mm = mm;
	space->shadows = RB_ROOT;
	space->notifier.ops = &space_ops;
	/* Takes all locks under which notifications are sent: none is half seen. */
	if (mmu_notifier_register(&space->notifier, mm)) {
		kfree(space);
		return NULL;
	}
	list_add(&space->list, &spaces);
	return space;
}

static void spaces_forget(bool all)
{
	struct nomad_space *space, *next;

	list_for_each_entry_safe(space, next, &spaces, list) {
		if (!all && !READ_ONCE(space->gone))
			continue;
		list_del(&space->list);
		/* Calls space_ends() if nobody has; waits for whoever is in a callback. */
		mmu_notifier_unregister(&space->notifier, space->mm);
		kfree(space);
	}
}

void nomad_space_sweep(void)
{
	spaces_forget(false);
}

/* Where in the tree it goes; what is at its address already is older and dropped. */
static void shadow_insert(struct nomad_space *space, struct nomad_shadow *new)
{
	struct rb_node **link = &space->shadows.rb_node, *parent = NULL;

	lockdep_assert_held(&shadow_lock);
	while (*link) {
		parent = *link;
		link = shadow_of(parent)->address < new->address ? &parent->rb_right
								 : &parent->rb_left;
	}
	rb_link_node(&new->by_address, parent, link);
	rb_insert_color(&new->by_address, &space->shadows);
}

struct nomad_shadow *nomad_shadow_begin(struct nomad_space *space, unsigned long address,
					struct folio *folio)
{
	struct nomad_shadow *shadow = kzalloc(sizeof(*shadow), GFP_KERNEL | __GFP_NOWARN);

	if (!shadow)
		return NULL;
	shadow->space = space;
	shadow->address = address;
	shadow->folio = folio;
	spin_lock(&shadow_lock);
	shadows_drop(space, address, address + PAGE_SIZE);
	if (space->changing || space->gone) {
		spin_unlock(&shadow_lock);
		kfree(shadow);
		return NULL;
	}
	shadow_insert(space, shadow);
	space->own_address = address;
	WRITE_ONCE(space->owner, current);
	spin_unlock(&shadow_lock);
	return shadow;
}

void nomad_shadow_ready(struct nomad_shadow *shadow, struct folio *master)
{
	bool ready;

	spin_lock(&shadow_lock);
	ready = shadow->state == SHADOW_BEGUN;
	if (ready) {
		folio_get(shadow->folio);
		shadow->state = SHADOW_READY;
		shadow->master_pfn = folio_pfn(master);
		hash_add(masters, &shadow->by_master, shadow->master_pfn);
		list_add_tail(&shadow->by_age, &ages);
		node_shadows[folio_nid(shadow->folio)]++;
		atomic64_inc(&nomad_shadow_counts.shadows);
	}
	WRITE_ONCE(shadow->space->owner, NULL);
	spin_unlock(&shadow_lock);
	if (ready)
		return;
	kfree(shadow);
	atomic64_inc(&nomad_shadow_counts.dropped);
}

void nomad_shadow_cancel(struct nomad_shadow *shadow)
{
	spin_lock(&shadow_lock);
	if (shadow->state == SHADOW_BEGUN)
		rb_erase(&shadow->by_address, &shadow->space->shadows);
	WRITE_ONCE(shadow->space->owner, NULL);
	spin_unlock(&shadow_lock);
	kfree(shadow);
}

struct mm_struct *nomad_shadow_mm(struct folio *master)
{
	struct nomad_shadow *shadow;
	struct mm_struct *mm = NULL;

	spin_lock(&shadow_lock);
	shadow = shadow_of_master(folio_pfn(master));
	if (shadow && mmget_not_zero(shadow->space->mm))
		mm = shadow->space->mm;
	spin_unlock(&shadow_lock);
	return mm;
}

struct folio *nomad_shadow_take(struct folio *master, struct mm_struct *mm, unsigned long *address)
{
	struct folio *folio = NULL;
	struct nomad_shadow *shadow;
	LIST_HEAD(cut);

	spin_lock(&shadow_lock);
	shadow = shadow_of_master(folio_pfn(master));
	if (shadow && shadow->space->mm == mm) {
		folio = shadow->folio;
		*address = shadow->address;
		shadow_cut(shadow, &cut);
	} else {
		shadow = NULL;
	}
	spin_unlock(&shadow_lock);
	kfree(shadow);
	return folio;
}

unsigned long nomad_shadow_reclaim(int nid, unsigned long pages)
{
	struct nomad_shadow *shadow, *next;
	unsigned long taken = 0;
	LIST_HEAD(cut);

	spin_lock(&shadow_lock);
	list_for_each_entry_safe(shadow, next, &ages, by_age) {
		if (taken == pages || !node_shadows[nid])
			break;
		if (folio_nid(shadow->folio) != nid)
			continue;
		shadow_cut(shadow, &cut);
		taken++;
	}
	spin_unlock(&shadow_lock);
	atomic64_add(shadows_free(&cut), &nomad_shadow_counts.reclaimed);
	return taken;
}

unsigned long nomad_shadow_forget(unsigned long pfn)
{
	struct nomad_shadow *shadow;
	LIST_HEAD(cut);

	spin_lock(&shadow_lock);
	shadow = shadow_of_master(pfn);
	if (shadow)
		shadow_cut(shadow, &cut);
	spin_unlock(&shadow_lock);
	return shadows_free(&cut);
}

/* do_wp_page(vmf), under the page-table lock of the entry. */
static int on_write(struct fprobe *probe, unsigned long entry_ip, unsigned long ret_ip,
		    struct pt_regs *regs, void *data)
{
	const struct vm_fault *vmf = (void *)regs_get_kernel_argument(regs, 0);

	if ((vmf->flags & FAULT_FLAG_WRITE) && pte_present(vmf->orig_pte))
		atomic64_add(nomad_shadow_forget(pte_pfn(vmf->orig_pte)),
			     &nomad_shadow_counts.written);
	return 0;
}

static struct fprobe write_probe;

static unsigned long shadows_count(struct shrinker *unused, struct shrink_control *control)
{
	return READ_ONCE(node_shadows[control->nid]) ?: SHRINK_EMPTY;
}

static unsigned long shadows_scan(struct shrinker *unused, struct shrink_control *control)
{
	return nomad_shadow_reclaim(control->nid, control->nr_to_scan) ?: SHRINK_STOP;
}

int nomad_shadow_start(void)
{
	const char *function = "do_wp_page";
	int ret;

	/* Anew each time: unregistering leaves freed filters in it. */
	write_probe = (struct fprobe){ .entry_handler = on_write };
	ret = register_fprobe_syms(&write_probe, &function, 1);
	if (ret) {
		pr_err("%s() cannot be watched (error %d); next: use Debian's 6.12\n", function,
		       ret);
		return ret;
	}
	shrinker = shrinker_alloc(SHRINKER_NUMA_AWARE, "demeter-nomad");
	if (!shrinker) {
		unregister_fprobe(&write_probe);
		return -ENOMEM;
	}
	shrinker->count_objects = shadows_count;
	shrinker->scan_objects = shadows_scan;
	/* Nothing has to be read again: half of them at each call, before any page. */
	shrinker->seeks = 0;
	shrinker_register(shrinker);
	return 0;
}

void nomad_shadow_stop(void)
{
	unregister_fprobe(&write_probe);
	shrinker_free(shrinker);
	spaces_forget(true);
	WARN_ON_ONCE(atomic64_read(&nomad_shadow_counts.shadows));
}
