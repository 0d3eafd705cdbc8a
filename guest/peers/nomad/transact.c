// SPDX-License-Identifier: GPL-2.0-only
/*
 * Transactional page migration: see transact.h.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/gfp.h>
#include <linux/memcontrol.h>
#include <linux/memory_hotplug.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/nodemask.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>
#include <linux/sched/mm.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <asm/tlbflush.h>

#include "../../compat/mmu_notifier.h"
#include "folio_check.h"
#include "kernel_calls.h"
#include "relocate.h"
#include "shadow.h"
#include "symbols.h"
#include "transact.h"

#define demeter_type_rmap_walk		  rmap_walk
#define demeter_type_page_vma_mapped_walk page_vma_mapped_walk
#define demeter_type_change_prot_numa	  change_prot_numa
DEMETER_DECLARE_CALL(rmap_walk);
DEMETER_DEFINE_CALL(rmap_walk);
DEMETER_DECLARE_CALL(page_vma_mapped_walk);
DEMETER_DEFINE_CALL(page_vma_mapped_walk);
DEMETER_DECLARE_CALL(flush_tlb_mm_range);
DEMETER_DEFINE_CALL(flush_tlb_mm_range);
DEMETER_DECLARE_CALL(change_prot_numa);
DEMETER_DEFINE_CALL(change_prot_numa);
DEMETER_DECLARE_CALL(__mmu_notifier_invalidate_range_start);
DEMETER_DEFINE_CALL(__mmu_notifier_invalidate_range_start);
DEMETER_DECLARE_CALL(__mmu_notifier_invalidate_range_end);
DEMETER_DEFINE_CALL(__mmu_notifier_invalidate_range_end);

/* Mappings whose pages are left alone. */
#define LEFT_ALONE                                                                                 \
	(VM_SHARED | VM_LOCKED | VM_IO | VM_PFNMAP | VM_MIXEDMAP | VM_HUGETLB | VM_SHADOW_STACK |  \
	 __VM_UFFD_FLAGS)

struct nomad_moves nomad_moves;

/**
 * struct mapping - what maps a folio
 * @mm: address space; with a reference on its users if it was looked for
 * @address: in it
 * @entries: entries seen of the kind that was looked for
 * @young: the entry was accessed
 */
struct mapping {
	struct mm_struct *mm;
	unsigned long address;
	unsigned int entries;
	bool young;
};

int nomad_transact_resolve(void)
{
	if (demeter_symbol_aim_call(rmap_walk, "rmap_walk") &&
	    demeter_symbol_aim_call(page_vma_mapped_walk, "page_vma_mapped_walk") &&
	    demeter_symbol_aim_call(flush_tlb_mm_range, "flush_tlb_mm_range") &&
	    demeter_symbol_aim_call(change_prot_numa, "change_prot_numa") &&
	    demeter_symbol_aim_call(__mmu_notifier_invalidate_range_start,
				    "__mmu_notifier_invalidate_range_start") &&
	    demeter_symbol_aim_call(__mmu_notifier_invalidate_range_end,
				    "__mmu_notifier_invalidate_range_end"))
		return 0;
	pr_err("this kernel lacks a function for moving pages; next: use Debian's 6.12\n");
	return -ENOENT;
}

static void walk_mappings(struct folio *folio, struct mapping *mapping,
			  bool (*one)(struct folio *, struct vm_area_struct *, unsigned long,
				      void *))
{
	struct rmap_walk_control control = { .arg = mapping, .rmap_one = one };

	mapping->entries = 0;
	demeter_call(rmap_walk)(folio, &control);
}

/* Where is it mapped? */
static bool look_one(struct folio *folio, struct vm_area_struct *vma, unsigned long address,
		     void *arg)
{
	DEFINE_FOLIO_VMA_WALK(walk, folio, vma, address, 0);
	struct mapping *mapping = arg;

	while (demeter_call(page_vma_mapped_walk)(&walk)) {
		if (!walk.pte || !pte_present(ptep_get(walk.pte)))
			continue;
		if (mapping->mm || !mmget_not_zero(vma->vm_mm))
			continue;
		mapping->mm = vma->vm_mm;
		mapping->address = address;
		mapping->young = pte_young(ptep_get(walk.pte));
	}
	return !mapping->mm;
}

/* Make the entry clean and not writable, if it is the one that was seen. */
static bool arm_one(struct folio *folio, struct vm_area_struct *vma, unsigned long address,
		    void *arg)
{
	DEFINE_FOLIO_VMA_WALK(walk, folio, vma, address, 0);
	struct mapping *mapping = arg;
	struct mmu_notifier_range range;

	if (vma->vm_mm != mapping->mm || address != mapping->address)
		return true;
	mmu_notifier_range_init(&range, MMU_NOTIFY_PROTECTION_PAGE, 0, mapping->mm, address,
				address + PAGE_SIZE);
	/* Nobody may say that it cannot wait: its writes would not be seen. */
	range.flags |= MMU_NOTIFIER_RANGE_BLOCKABLE;
	demeter_call(__mmu_notifier_invalidate_range_start)(&range);
	while (demeter_call(page_vma_mapped_walk)(&walk)) {
		pte_t pte;

		if (!walk.pte)
			continue;
		pte = ptep_get(walk.pte);
		if (!pte_present(pte) || pte_protnone(pte) || pte_special(pte) ||
		    !PageAnonExclusive(folio_page(folio, 0)))
			continue;
		/* The CPU sets dirty in no entry that is not there: none is lost. */
		pte = ptep_get_and_clear(mapping->mm, address, walk.pte);
		if (pte_dirty(pte))
			folio_mark_dirty(folio);
		set_pte_at(mapping->mm, address, walk.pte, pte_mkclean(pte_wrprotect(pte)));
		demeter_call(flush_tlb_mm_range)(mapping->mm, address, address + PAGE_SIZE,
						 PAGE_SHIFT, false);
		mapping->entries++;
	}
	demeter_call(__mmu_notifier_invalidate_range_end)(&range);
	return true;
}

/* Count migration entries of an entry that was not writable, and its page not shared. */
static bool ask_one(struct folio *folio, struct vm_area_struct *vma, unsigned long address,
		    void *arg)
{
	DEFINE_FOLIO_VMA_WALK(walk, folio, vma, address, PVMW_MIGRATION);
	struct mapping *mapping = arg;

	while (demeter_call(page_vma_mapped_walk)(&walk)) {
		if (walk.pte && vma->vm_mm == mapping->mm && address == mapping->address &&
		    is_readable_exclusive_migration_entry(pte_to_swp_entry(ptep_get(walk.pte))))
			mapping->entries++;
	}
	return true;
}

/*
 * Put a migration entry in place of the entry. Return: whether there was exactly one, and
 * it was clean and not writable when it was taken away.
 */
static bool unmap_clean(struct folio *folio, struct mapping *mapping)
{
	bool dirty;

	/* Linux keeps it set for an anonymous folio whose entry is clean; seldom otherwise. */
	folio_test_clear_dirty(folio);
	demeter_call(try_to_migrate)(folio, 0);
	dirty = folio_test_dirty(folio);
	folio_set_dirty(folio);
	if (dirty || folio_mapped(folio))
		return false;
	walk_mappings(folio, mapping, ask_one);
	return mapping->entries == 1;
}

/*
 * Move the mapping of @from, if nothing has written to it since @to was the same. Both
 * locked; @from isolated, @to nobody's but the caller's. @shadow is told before
 * programs can write to @to; NULL for none.
 */
static bool remap(struct folio *from, struct folio *to, struct mapping *mapping,
		  struct nomad_shadow *shadow)
{
	struct anon_vma *anon_vma = demeter_call(folio_get_anon_vma)(from);
	bool moved;

	if (!anon_vma)
		return false;
	moved = unmap_clean(from, mapping) && !folio_migrate_mapping(NULL, to, from, 0);
	if (moved) {
		folio_migrate_flags(to, from);
		if (shadow)
			nomad_shadow_ready(shadow, to);
		folio_add_lru(to);
	}
	demeter_call(remove_migration_ptes)(from, moved ? to : from, 0);
	demeter_put_anon_vma(anon_vma);
	return moved;
}

/* What was a program's page is memory that nobody has but who keeps a reference. */
static void strip(struct folio *folio)
{
	folio->mapping = NULL;
	set_mask_bits(&demeter_folio_flags(folio), DEMETER_IDENTITY_FLAGS, 0);
}

static struct vm_area_struct *mapping_area(const struct mapping *mapping)
{
	struct vm_area_struct *vma = find_vma(mapping->mm, mapping->address);

	if (!vma || vma->vm_start > mapping->address || !(vma->vm_flags & VM_WRITE) ||
	    (vma->vm_flags & LEFT_ALONE))
		return NULL;
	return vma;
}

/* One transaction. Return: DEMETER_OK: committed; DEMETER_REFUSED_REFS: worth another one. */
static enum demeter_refusal transact(struct folio *folio, struct folio *copy,
				     struct mapping *mapping, struct nomad_shadow *shadow)
{
	enum demeter_refusal reason;

	walk_mappings(folio, mapping, arm_one);
	if (mapping->entries != 1)
		return DEMETER_REFUSED_UNMAP;
	/* After the entry has changed: GUP, which looks in the other order, is seen or fails. */
	smp_mb();
	reason = demeter_folio_check_isolated(folio);
	if (reason != DEMETER_OK)
		return reason;
	if (folio_mc_copy(copy, folio))
		return DEMETER_REFUSED_POISON;
	if (!remap(folio, copy, mapping, shadow))
		return DEMETER_REFUSED_REFS;
	return DEMETER_OK;
}

/* Up to @passes of them. @folio and @copy locked, mmap_lock held for reading. */
static enum demeter_refusal transact_passes(struct folio *folio, struct folio *copy,
					    struct mapping *mapping, struct nomad_space *space,
					    unsigned int passes)
{
	struct nomad_shadow *shadow = nomad_shadow_begin(space, mapping->address, folio);
	enum demeter_refusal reason = DEMETER_REFUSED_LOCK;

	if (!shadow)
		return reason;
	while (passes--) {
		reason = transact(folio, copy, mapping, shadow);
		if (reason == DEMETER_OK) {
			strip(folio);
			atomic64_inc(&nomad_moves.committed);
			atomic64_inc(&nomad_moves.promoted);
			return reason;
		}
		if (reason != DEMETER_REFUSED_REFS)
			break;
		atomic64_inc(&nomad_moves.aborted);
		cond_resched();
	}
	nomad_shadow_cancel(shadow);
	return reason;
}

/* Promote what is isolated and not locked, whose mapping is known. */
static enum demeter_refusal promote_mapped(struct folio *folio, int nid, struct mapping *mapping,
					   unsigned int passes)
{
	gfp_t gfp = GFP_HIGHUSER_MOVABLE | __GFP_THISNODE | __GFP_NOWARN | __GFP_NOMEMALLOC;
	struct nomad_space *space = nomad_space_of(mapping->mm);
	enum demeter_refusal reason = DEMETER_REFUSED_LOCK;
	struct folio *copy = NULL;

	/* Linux's promotion stops at the high watermark, too. */
	if (demeter_relocate_room(nid))
		copy = __folio_alloc(gfp & ~__GFP_RECLAIM, 0, nid, NULL);
	if (!copy)
		return DEMETER_REFUSED_NO_ROOM;
	if (!space) {
		reason = DEMETER_REFUSED_NO_MEMORY;
		goto put;
	}
	/* Not to be waited for: somebody may hold it and wait for the folio to come back. */
	if (!mmap_read_trylock(mapping->mm))
		goto put;
	__folio_set_locked(copy);
	if (folio_trylock(folio)) {
		if (mapping_area(mapping))
			reason = transact_passes(folio, copy, mapping, space, passes);
		else
			reason = DEMETER_REFUSED_POLICY;
		folio_unlock(folio);
	}
	folio_unlock(copy);
	mmap_read_unlock(mapping->mm);
put:
	folio_put(copy);
	return reason;
}

/* Isolate the page, if it is one of SMEM that can be promoted; else NULL. */
static struct folio *take(unsigned long pfn)
{
	struct page *page = pfn_to_online_page(pfn);
	struct folio *folio = page ? page_folio(page) : NULL;
	bool isolated;

	if (!folio || !folio_try_get(folio))
		return NULL;
	isolated = page_folio(page) == folio && !folio_test_large(folio) &&
		   !node_state(folio_nid(folio), N_CPU) &&
		   demeter_isolated(demeter_call(folio_isolate_lru)(folio));
	if (isolated)
		demeter_folio_count_isolated(folio, 1);
	folio_put(folio);
	return isolated ? folio : NULL;
}

enum demeter_refusal nomad_promote(unsigned long pfn, int nid, unsigned int passes)
{
	struct folio *folio = take(pfn);
	struct mapping mapping = {};
	enum demeter_refusal reason;

	if (!folio)
		return DEMETER_REFUSED_LRU;
	if (!folio_trylock(folio)) {
		reason = DEMETER_REFUSED_LOCK;
		goto putback;
	}
	reason = demeter_folio_check_isolated(folio);
	if (reason == DEMETER_OK)
		walk_mappings(folio, &mapping, look_one);
	folio_unlock(folio);
	if (reason != DEMETER_OK)
		goto putback;
	if (!mapping.mm)
		reason = DEMETER_REFUSED_UNMAPPED;
	else if (!mapping.young)
		reason = DEMETER_REFUSED_POLICY;
	else
		reason = promote_mapped(folio, nid, &mapping, passes);
	if (mapping.mm)
		mmput_async(mapping.mm);
	if (reason == DEMETER_OK) {
		/* Counted as file pages by now: it is nobody's any more. */
		mod_node_page_state(folio_pgdat(folio), NR_ISOLATED_ANON, -1);
		folio_put(folio);
		return reason;
	}
putback:
	demeter_folio_putback(folio);
	return reason;
}

/* All locks are held, the shadow is the caller's. */
static bool demote_locked(struct folio *folio, struct folio *shadow, struct mapping *mapping)
{
	struct vm_area_struct *vma = mapping_area(mapping);

	if (!vma || demeter_folio_check_isolated(folio) != DEMETER_OK || !folio_trylock(shadow))
		return false;
	if (!remap(folio, shadow, mapping, NULL)) {
		folio_unlock(shadow);
		return false;
	}
	folio_unlock(shadow);
	/* As published: the next access faults. */
	demeter_call(change_prot_numa)(vma, mapping->address, mapping->address + PAGE_SIZE);
	return true;
}

bool nomad_demote_to_shadow(struct folio *folio)
{
	struct mapping mapping = { .mm = nomad_shadow_mm(folio) };
	struct folio *shadow = NULL;
	bool demoted = false;

	if (!mapping.mm)
		return false;
	/* mprotect() and fork() are kept out from before the shadow is taken. */
	if (mmap_read_trylock(mapping.mm)) {
		if (folio_trylock(folio)) {
			shadow = nomad_shadow_take(folio, mapping.mm, &mapping.address);
			if (shadow)
				demoted = demote_locked(folio, shadow, &mapping);
			folio_unlock(folio);
		}
		mmap_read_unlock(mapping.mm);
	}
	mmput_async(mapping.mm);
	if (demoted) {
		atomic64_inc(&nomad_moves.shadow_demoted);
		folio_put(folio);
	} else if (shadow) {
		atomic64_inc(&nomad_moves.shadow_stale);
	}
	if (shadow)
		folio_put(shadow);
	return demoted;
}
