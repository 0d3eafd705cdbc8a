// SPDX-License-Identifier: GPL-2.0-only
/*
 * Balanced relocation: exchange two anonymous folios where they are.
 *
 * Migration needs a free page on the other side, copies, and frees; doing it in
 * both directions costs two of everything. The exchange allocates nothing: both
 * folios of a pair stay where they are and trade identities (what maps them)
 * and contents. The steps, each over a whole batch:
 *
 *   take     lock both folios, check both for good
 *   unmap    migration entries in place of every mapping, TLB flushes deferred
 *   flush    one TLB flush for the batch
 *   trade    swap contents, then freeze both reference counts and swap identities
 *   remap    migration entries of the one point at the other
 *   release  unlock, back to the LRU
 *
 * Why this is safe:
 * - Faults, GUP, fork, mremap, mprotect, munmap and exit treat the migration
 *   entries as they do in migrate_pages(): they wait for the folio lock, copy,
 *   move or drop the entries under locks that the remap walk takes as well.
 * - References on both anon_vmas keep them alive for the remap walk even when
 *   the last mapping goes away in between. Such a folio is freed by the putback.
 * - A frozen reference count of one, ours, proves that nobody else (GUP, /proc,
 *   a PFN walker) looks at the folio while mapping, index and memcg change.
 * - Until the entries are back nobody reads or writes either folio, so contents
 *   may be swapped before that proof, and back. They go first because a memory
 *   error may end that (contents.c), and the identities have not changed then.
 * - try_to_migrate() sends MMU notifications for each folio itself, so a KVM
 *   host's secondary page tables follow.
 * - PageAnonExclusive travels in the kind of the migration entry; node, zone,
 *   lock and waiter bits belong to the memory and stay; the charge of a memory
 *   cgroup moves with the identity, one page for one page, where it does not
 *   depend on the node; where it does, both have to be of one cgroup, and it stays.
 */
#include <linux/ktime.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "contents.h"
#include "folio_check.h"
#include "kernel_calls.h"
#include "relocate.h"

/*
 * Pairs of THPs a batch. Each THP is flushed by its unmapping anyway, so larger
 * batches would only keep more memory unreachable: two pairs are 8 MiB.
 */
#ifndef DEMETER_HUGE_BATCH_PAIRS
#define DEMETER_HUGE_BATCH_PAIRS 2u
#endif

static bool same_memcg(struct folio *a, struct folio *b)
{
	bool same;

	rcu_read_lock();
	same = folio_memcg(a) == folio_memcg(b);
	rcu_read_unlock();
	return same;
}

bool demeter_relocate_may_exchange(struct folio *a, struct folio *b)
{
	/*
	 * A charged page for a charged page is no change to either group. But a THP
	 * may wait in its group's deferred-split queue, which would go astray; and what
	 * is charged by node must not be charged for another.
	 */
	return (!DEMETER_COMPAT_CHARGE_BY_NODE && !folio_test_large(a)) || same_memcg(a, b);
}

/*
 * Take the next folio that is fit for exchange off @list, locked. Those that
 * are not are counted and put back, so that a bad one costs no partner.
 */
static struct folio *demeter_take(struct list_head *list, u64 *list_pages,
				  struct demeter_refusals *why)
{
	while (!list_empty(list)) {
		struct folio *folio = list_first_entry(list, struct folio, lru);
		long pages = folio_nr_pages(folio);
		enum demeter_refusal reason;

		list_del(&folio->lru);
		*list_pages -= pages;
		if (folio_trylock(folio)) {
			reason = demeter_folio_check_isolated(folio);
			if (reason == DEMETER_OK)
				return folio;
			folio_unlock(folio);
		} else {
			reason = DEMETER_REFUSED_LOCK;
		}
		demeter_refuse(why, reason, pages);
		demeter_folio_putback(folio);
	}
	return NULL;
}

static void demeter_untake(struct folio *folio, struct list_head *list, u64 *list_pages)
{
	folio_unlock(folio);
	list_add(&folio->lru, list);
	*list_pages += folio_nr_pages(folio);
}

/* Lock a pair and find its anon_vmas; false when one side has run out. */
static bool demeter_take_pair(struct demeter_pair *pair, struct list_head *hot, u64 *hot_pages,
			      struct list_head *cold, u64 *cold_pages, struct demeter_refusals *why)
{
	memset(pair, 0, sizeof(*pair));
	pair->hot = demeter_take(hot, hot_pages, why);
	if (!pair->hot)
		return false;
	pair->cold = demeter_take(cold, cold_pages, why);
	if (!pair->cold) {
		demeter_untake(pair->hot, hot, hot_pages);
		return false;
	}

	if (!demeter_relocate_may_exchange(pair->hot, pair->cold)) {
		pair->status = DEMETER_REFUSED_MEMCG;
		return true;
	}
	pair->hot_anon_vma = demeter_call(folio_get_anon_vma)(pair->hot);
	pair->cold_anon_vma = demeter_call(folio_get_anon_vma)(pair->cold);
	if (!pair->hot_anon_vma || !pair->cold_anon_vma)
		pair->status = DEMETER_REFUSED_UNMAPPED;
	return true;
}

static bool demeter_unmapped(const struct demeter_pair *pair)
{
	return pair->hot_anon_vma && pair->cold_anon_vma;
}

static void demeter_unmap_pair(struct demeter_pair *pair)
{
	if (!demeter_unmapped(pair))
		return;
	demeter_call(try_to_migrate)(pair->hot, DEMETER_TTU_BATCH);
	demeter_call(try_to_migrate)(pair->cold, DEMETER_TTU_BATCH);
	if (folio_mapped(pair->hot) || folio_mapped(pair->cold))
		pair->status = DEMETER_REFUSED_UNMAP;
}

static void demeter_swap_identity(struct folio *a, struct folio *b)
{
	unsigned long flags_a = READ_ONCE(demeter_folio_flags(a)) & DEMETER_IDENTITY_FLAGS;
	unsigned long flags_b = READ_ONCE(demeter_folio_flags(b)) & DEMETER_IDENTITY_FLAGS;

	swap(a->mapping, b->mapping);
	swap(a->index, b->index);
#if defined(CONFIG_MEMCG) && !DEMETER_COMPAT_CHARGE_BY_NODE
	swap(a->memcg_data, b->memcg_data);
#endif
	set_mask_bits(&demeter_folio_flags(a), DEMETER_IDENTITY_FLAGS, flags_b);
	set_mask_bits(&demeter_folio_flags(b), DEMETER_IDENTITY_FLAGS, flags_a);
}

/*
 * Exchange the contents. Returns the page with an uncorrectable memory error, or
 * NULL; both folios then hold what they held, as far as it can be read.
 */
static struct page *demeter_swap_contents(struct folio *a, struct folio *b)
{
	long pages = folio_nr_pages(a);
	void *bad;
	long i;

	/* x86-64 only: no highmem, so a folio is contiguous in the direct map. */
	for (i = 0; i < pages; i++) {
		bad = demeter_contents_swap(folio_address(a) + i * PAGE_SIZE,
					    folio_address(b) + i * PAGE_SIZE, PAGE_SIZE);
		if (unlikely(bad)) {
			demeter_contents_swap_back(folio_address(a), folio_address(b),
						   i * PAGE_SIZE);
			return virt_to_page(bad);
		}
		if (pages > 1)
			cond_resched();
	}
	return NULL;
}

/* Nobody but us has a reference; may change until it is frozen. */
static bool demeter_only_ours(struct folio *folio)
{
	return folio_ref_count(folio) == 1;
}

static bool demeter_freeze_pair(const struct demeter_pair *pair)
{
	if (!folio_ref_freeze(pair->hot, 1))
		return false;
	if (folio_ref_freeze(pair->cold, 1))
		return true;
	folio_ref_unfreeze(pair->hot, 1);
	return false;
}

static void demeter_trade_pair(struct demeter_pair *pair)
{
	if (pair->status != DEMETER_OK)
		return;
	/*
	 * Whoever reads or writes a folio that is mapped by nobody had a reference
	 * before the flush. Who takes one now only looks at the folio itself.
	 */
	if (!demeter_only_ours(pair->hot) || !demeter_only_ours(pair->cold)) {
		pair->status = DEMETER_REFUSED_REFS;
		return;
	}
	/* First, because it can fail for good: identities are not swapped back. */
	pair->poisoned = demeter_swap_contents(pair->hot, pair->cold);
	if (pair->poisoned) {
		pair->status = DEMETER_REFUSED_POISON;
		return;
	}
	if (!demeter_freeze_pair(pair)) {
		demeter_contents_swap_back(folio_address(pair->hot), folio_address(pair->cold),
					   folio_size(pair->hot));
		pair->status = DEMETER_REFUSED_REFS;
		return;
	}
	demeter_swap_identity(pair->hot, pair->cold);
	folio_ref_unfreeze(pair->cold, 1);
	folio_ref_unfreeze(pair->hot, 1);
}

/*
 * Point the migration entries of @a at @b and the other way round, after the
 * identities were swapped.
 *
 * The walk goes over the mapping and index of its second argument, but for a
 * large folio it takes the page offset that it compares entries with from the
 * first one. That one must show its old index meanwhile, which is the other's
 * new one. Nobody else reads it: both folios are locked and off the LRU.
 */
static void demeter_remap_traded(struct folio *a, struct folio *b)
{
	pgoff_t index_a = a->index;
	pgoff_t index_b = b->index;

	if (!folio_test_large(a)) {
		demeter_call(remove_migration_ptes)(a, b, 0);
		demeter_call(remove_migration_ptes)(b, a, 0);
		return;
	}
	WRITE_ONCE(a->index, index_b);
	demeter_call(remove_migration_ptes)(a, b, 0);
	WRITE_ONCE(a->index, index_a);
	WRITE_ONCE(b->index, index_a);
	demeter_call(remove_migration_ptes)(b, a, 0);
	WRITE_ONCE(b->index, index_b);
}

static void demeter_remap_pair(struct demeter_pair *pair)
{
	if (demeter_unmapped(pair)) {
		if (pair->status == DEMETER_OK) {
			demeter_remap_traded(pair->hot, pair->cold);
		} else {
			demeter_call(remove_migration_ptes)(pair->hot, pair->hot, 0);
			demeter_call(remove_migration_ptes)(pair->cold, pair->cold, 0);
		}
	}
	if (pair->hot_anon_vma)
		demeter_put_anon_vma(pair->hot_anon_vma);
	if (pair->cold_anon_vma)
		demeter_put_anon_vma(pair->cold_anon_vma);
	folio_unlock(pair->cold);
	folio_unlock(pair->hot);
}

/* Run one batch of locked pairs; returns pages promoted. */
static u64 demeter_exchange_batch(struct demeter_pair *pairs, u32 count,
				  struct demeter_refusals *why)
{
	u64 promoted = 0;
	u32 i;

	for (i = 0; i < count; i++)
		demeter_unmap_pair(&pairs[i]);
	demeter_call(try_to_unmap_flush)();
	for (i = 0; i < count; i++)
		demeter_trade_pair(&pairs[i]);
	for (i = 0; i < count; i++)
		demeter_remap_pair(&pairs[i]);
	for (i = 0; i < count; i++) {
		struct demeter_pair *pair = &pairs[i];
		long pages = folio_nr_pages(pair->hot);

		if (pair->status == DEMETER_OK)
			promoted += pages;
		else
			demeter_refuse(why, pair->status, 2 * pages);
		demeter_folio_putback(pair->hot);
		demeter_folio_putback(pair->cold);
		/* Now, as the kernel looks for its owners only when it is on the LRU. */
		if (pair->poisoned)
			memory_failure_queue(page_to_pfn(pair->poisoned), 0);
	}
	return promoted;
}

static u64 demeter_exchange_lists(struct list_head *hot, u64 *hot_pages, struct list_head *cold,
				  u64 *cold_pages, struct demeter_pair *pairs, u32 batch_pairs,
				  struct demeter_refusals *why)
{
	u64 promoted = 0;
	u32 count;

	do {
		count = 0;
		while (count < batch_pairs &&
		       demeter_take_pair(&pairs[count], hot, hot_pages, cold, cold_pages, why))
			count++;
		if (count)
			promoted += demeter_exchange_batch(pairs, count, why);
		cond_resched();
	} while (count == batch_pairs);
	return promoted;
}

u64 demeter_relocate_exchange(struct demeter_folio_list *hot, struct demeter_folio_list *cold,
			      u32 batch_pairs, struct demeter_refusals *why, u64 *spent_ns)
{
	u64 begin = ktime_get_ns();
	struct demeter_pair *pairs;
	u64 promoted = 0;
	u64 odd;

	batch_pairs = clamp(batch_pairs, DEMETER_BATCH_PAIRS_MIN, DEMETER_BATCH_PAIRS_MAX);
	pairs = kvcalloc(batch_pairs, sizeof(*pairs), GFP_KERNEL | __GFP_NOWARN);
	if (!pairs) {
		demeter_refuse(why, DEMETER_REFUSED_NO_MEMORY,
			       demeter_folio_list_pages(hot) + demeter_folio_list_pages(cold));
		goto putback;
	}

	promoted +=
		demeter_exchange_lists(&hot->huge, &hot->huge_pages, &cold->huge, &cold->huge_pages,
				       pairs, min(batch_pairs, DEMETER_HUGE_BATCH_PAIRS), why);
	promoted += demeter_exchange_lists(&hot->small, &hot->small_pages, &cold->small,
					   &cold->small_pages, pairs, batch_pairs, why);
	kvfree(pairs);

	odd = min(hot->small_pages, cold->huge_pages) + min(hot->huge_pages, cold->small_pages);
	demeter_refuse(why, DEMETER_REFUSED_MIXED_SIZE, 2 * odd);
	demeter_folio_list_refuse_other(hot, why);
	demeter_folio_list_refuse_other(cold, why);
putback:
	demeter_folio_list_putback(hot);
	demeter_folio_list_putback(cold);
	if (spent_ns)
		*spent_ns += ktime_get_ns() - begin;
	return promoted;
}
