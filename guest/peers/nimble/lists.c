// SPDX-License-Identifier: GPL-2.0-only
/*
 * Linux's active and inactive lists of anonymous memory, looked at from their ends.
 *
 * A folio is seen under the lock of its list, which moves it to the head, so that the next
 * look meets others; then it is taken off by the kernel's own function, and given back by it
 * to the list that its active bit says.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kthread.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/vmstat.h>

#include "folio_check.h"
#include "kernel_calls.h"
#include "nimble.h"
#include "symbols.h"

/* Folios seen in one hold of the lock. */
#define SEEN 32u

#define demeter_type_folio_referenced	   folio_referenced
#define demeter_type_mem_cgroup_iter	   mem_cgroup_iter
#define demeter_type_mem_cgroup_iter_break mem_cgroup_iter_break
DEMETER_DEFINE_CALL(folio_referenced);
DEMETER_DEFINE_CALL(mem_cgroup_iter);
DEMETER_DEFINE_CALL(mem_cgroup_iter_break);

int nimble_lists_resolve(void)
{
	if (demeter_symbol_aim_call(folio_referenced, "folio_referenced") &&
	    demeter_symbol_aim_call(mem_cgroup_iter, "mem_cgroup_iter") &&
	    demeter_symbol_aim_call(mem_cgroup_iter_break, "mem_cgroup_iter_break"))
		return 0;
	pr_err("this kernel lacks a function for looking at page lists; next: use Debian's 6.12\n");
	return -ENOENT;
}

struct mem_cgroup *nimble_group_next(struct mem_cgroup *group)
{
	return demeter_call(mem_cgroup_iter)(NULL, group, NULL);
}

void nimble_group_leave(struct mem_cgroup *group)
{
	if (group)
		demeter_call(mem_cgroup_iter_break)(NULL, group);
}

static struct lruvec *lists_of(struct mem_cgroup *group, int nid)
{
	return group ? &group->nodeinfo[nid]->lruvec : &NODE_DATA(nid)->__lruvec;
}

static enum lru_list list_of(bool active)
{
	return LRU_INACTIVE_ANON + (active ? LRU_ACTIVE : 0);
}

u64 nimble_lists_pages(struct mem_cgroup *group, int nid, bool active)
{
	enum lru_list which = list_of(active);
	u64 pages = 0;
	int zone;

	for (zone = 0; zone < MAX_NR_ZONES; zone++)
		pages += group ? mem_cgroup_get_zone_lru_size(lists_of(group, nid), which, zone)
			       : zone_page_state(&NODE_DATA(nid)->node_zones[zone],
						 NR_ZONE_LRU_BASE + which);
	return pages;
}

/* See folios at the end of a list, with a reference on each; 0 if it has none. */
static u32 see(struct lruvec *lruvec, enum lru_list which, struct folio **seen, u64 pages)
{
	struct list_head *list = &lruvec->lists[which];
	u64 pages_seen = 0;
	u32 count = 0, looks;

	spin_lock_irq(&lruvec->lru_lock);
	for (looks = 0; looks < SEEN && pages_seen < pages && !list_empty(list); looks++) {
		struct folio *folio = list_last_entry(list, struct folio, lru);

		list_move(&folio->lru, list);
		pages_seen += folio_nr_pages(folio);
		/* Else it is being freed. */
		if (folio_try_get(folio))
			seen[count++] = folio;
	}
	spin_unlock_irq(&lruvec->lru_lock);
	return count;
}

/* Off its list, counted as such; the reference of see() is dropped. */
static bool isolate(struct folio *folio)
{
	bool isolated = demeter_isolated(demeter_call(folio_isolate_lru)(folio));

	if (isolated)
		demeter_folio_count_isolated(folio, folio_nr_pages(folio));
	folio_put(folio);
	return isolated;
}

static void age(struct folio *folio, bool active)
{
	unsigned long vm_flags;
	long pages = folio_nr_pages(folio);
	bool accessed;
	int references;

	if (!isolate(folio))
		return;
	references = demeter_call(folio_referenced)(folio, 0, NULL, &vm_flags);
	if (references < 0) {
		/* Others held what says who maps it: not known, which is not cold. */
		demeter_folio_putback(folio);
		return;
	}
	accessed = references > 0;
	if (accessed && !active) {
		folio_set_active(folio);
		atomic64_add(pages, &nimble_stats.activated_pages);
	} else if (!accessed && active) {
		folio_clear_active(folio);
		atomic64_add(pages, &nimble_stats.deactivated_pages);
	}
	atomic64_add(pages, &nimble_stats.scanned_pages);
	demeter_folio_putback(folio);
}

static void age_list(struct lruvec *lruvec, bool active, u64 pages)
{
	struct folio *seen[SEEN];
	u64 done = 0;
	u32 count, i;

	while (done < pages && !kthread_should_stop()) {
		count = see(lruvec, list_of(active), seen, pages - done);
		if (!count)
			break;
		for (i = 0; i < count; i++) {
			done += folio_nr_pages(seen[i]);
			age(seen[i], active);
		}
		cond_resched();
	}
}

void nimble_lists_age(struct mem_cgroup *group, int nid, u64 permille)
{
	u64 active = demeter_nimble_share(nimble_lists_pages(group, nid, true), permille);
	u64 inactive = demeter_nimble_share(nimble_lists_pages(group, nid, false), permille);

	/* In this order, and by the lengths before: nothing is looked at twice. */
	age_list(lists_of(group, nid), true, active);
	age_list(lists_of(group, nid), false, inactive);
}

static void take(struct folio *folio, struct demeter_folio_list *list, struct demeter_refusals *why)
{
	enum demeter_refusal reason;
	long pages = folio_nr_pages(folio);

	if (!isolate(folio)) {
		demeter_refuse(why, DEMETER_REFUSED_LRU, pages);
		return;
	}
	/* A file's page is not to lose its file meanwhile. */
	if (folio_trylock(folio)) {
		reason = demeter_folio_check(folio);
		folio_unlock(folio);
	} else {
		reason = DEMETER_REFUSED_LOCK;
	}
	if (reason != DEMETER_OK) {
		demeter_refuse(why, reason, pages);
		demeter_folio_putback(folio);
	} else if (!demeter_folio_is_exchangeable(folio)) {
		list_add_tail(&folio->lru, &list->other);
		list->other_pages += pages;
	} else if (folio_test_large(folio)) {
		list_add_tail(&folio->lru, &list->huge);
		list->huge_pages += pages;
	} else {
		list_add_tail(&folio->lru, &list->small);
		list->small_pages += pages;
	}
}

void nimble_lists_take(struct mem_cgroup *group, int nid, bool active, u64 pages,
		       struct demeter_folio_list *list, struct demeter_refusals *why)
{
	struct folio *seen[SEEN];
	u64 done = 0;
	u32 count, i;

	while (done < pages && !kthread_should_stop()) {
		count = see(lists_of(group, nid), list_of(active), seen, pages - done);
		if (!count)
			break;
		for (i = 0; i < count; i++) {
			done += folio_nr_pages(seen[i]);
			take(seen[i], list, why);
		}
		cond_resched();
	}
}
