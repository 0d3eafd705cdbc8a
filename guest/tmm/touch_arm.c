// SPDX-License-Identifier: GPL-2.0-only
/*
 * Arm: make a page fault once, and put it back.
 *
 * An armed entry has _PAGE_PRESENT exchanged for _PAGE_PROTNONE and its frame
 * number inverted (against L1TF, as every entry that is not present); all
 * other bits stay. To the kernel it is an entry of NUMA balancing, which all of
 * it handles: migration, fork, swap, GUP, MGLRU, collapse and split see a
 * present page. That _PAGE_USER stays tells it from both PROT_NONE and NUMA
 * balancing, whose PAGE_NONE has none; that _PAGE_RW, soft-dirty, uffd-wp and
 * the protection key stay makes fork and soft-dirty protect it as usual, and
 * the entry that is put back be the one that was.
 *
 * Walking: at a fault interrupts are off, which keeps the current address
 * space's tables from being freed, as in get_user_pages_fast(). All others hold
 * mmap_lock and have found a VMA, which keeps them too, and RCU for kernels that
 * free empty tables under mmap_lock.
 *
 * Counting: kernels that check their page tables count what maps a page, and an armed
 * entry, to them, maps none. They are told of both changes.
 */
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmap_lock.h>
#include <linux/pgtable.h>
#include <linux/static_call.h>
#include <linux/uaccess.h>
#include <asm/tlbflush.h>

#include "kernel_calls.h"
#include "page_table_check.h"
#include "pagewalk.h"
#include "sampler_perf.h"
#include "symbols.h"
#include "touch.h"

/* Bits by which an armed entry is known, and their values. */
#define MARK_BITS  (_PAGE_PRESENT | _PAGE_USER | _PAGE_PROTNONE)
#define MARK	   (_PAGE_USER | _PAGE_PROTNONE)
/* A page of user space that the CPU may use; one without a struct page is special. */
#define PLAIN_BITS (_PAGE_PRESENT | _PAGE_USER | _PAGE_SPECIAL)
#define PLAIN	   (_PAGE_PRESENT | _PAGE_USER)

/* Looks at a page-table lock that is taken, at a fault. */
#define LOCK_TRIES 64u

DEFINE_STATIC_CALL_NULL(demeter_sc_flush_tlb_mm_range, demeter_type_flush_tlb_mm_range);

/**
 * demeter_touch_arm_resolve() - find what arming needs of the kernel
 * @reason: out: what is missing and what to do about it
 * @size: its length
 *
 * Return: 0 or a negative errno.
 */
int demeter_touch_arm_resolve(char *reason, size_t size)
{
	unsigned long address = demeter_symbol_address("flush_tlb_mm_range");

	if (!IS_ENABLED(CONFIG_NUMA_BALANCING))
		return demeter_perf_refuse(reason, size, -EOPNOTSUPP,
					   "this kernel has no entries that fault once",
					   "use one with CONFIG_NUMA_BALANCING");
	if (!address)
		return demeter_perf_refuse(reason, size, -ENOENT,
					   "this kernel has no function flush_tlb_mm_range",
					   "boot a supported kernel (Debian 6.1, 6.12 or 7.x)");
	static_call_update(demeter_sc_flush_tlb_mm_range,
			   (typeof(demeter_type_flush_tlb_mm_range) *)address);
	return 0;
}

/* Each level is read once: at a fault munmap may clear it meanwhile. */
static pmd_t *pmd_at(struct mm_struct *mm, unsigned long addr)
{
	pgd_t *pgdp = pgd_offset(mm, addr), pgd = READ_ONCE(*pgdp);
	p4d_t *p4dp, p4d;
	pud_t *pudp, pud;

	if (pgd_none(pgd) || pgd_bad(pgd))
		return NULL;
	p4dp = p4d_offset_lockless(pgdp, pgd, addr);
	p4d = READ_ONCE(*p4dp);
	if (p4d_none(p4d) || p4d_bad(p4d))
		return NULL;
	pudp = pud_offset_lockless(p4dp, p4d, addr);
	pud = READ_ONCE(*pudp);
	/* One that maps a page itself is bad, too. */
	if (pud_none(pud) || pud_bad(pud))
		return NULL;
	return pmd_offset_lockless(pudp, pud, addr);
}

/**
 * struct place - where the entry of an address is
 * @entry: the entry, not locked
 * @pmdp: the entry above, or itself for a huge page
 * @pmd: its value
 */
struct place {
	struct demeter_touch_entry entry;
	pmd_t *pmdp;
	pmd_t pmd;
};

/* Find the entry; what is on its way in or out (migration, swap, a split) is not found. */
static bool find(struct mm_struct *mm, unsigned long addr, struct place *place)
{
	struct demeter_touch_entry *entry = &place->entry;
	unsigned long value;

	entry->mm = mm;
	entry->addr = addr;
	place->pmdp = pmd_at(mm, addr);
	if (!place->pmdp)
		return false;
	place->pmd = pmdp_get_lockless(place->pmdp);
	value = pmd_val(place->pmd);
	if (!(value & (_PAGE_PRESENT | _PAGE_PROTNONE)))
		return false;
	entry->huge = value & _PAGE_PSE;
	if (entry->huge) {
		entry->slot = (unsigned long *)place->pmdp;
		entry->ptl = pmd_lockptr(mm, place->pmdp);
		entry->pfn_mask = PHYSICAL_PMD_PAGE_MASK;
		return true;
	}
	if (pmd_bad(place->pmd))
		return false;
	entry->slot = (unsigned long *)pte_offset_kernel(&place->pmd, addr);
	entry->ptl = pte_lockptr(mm, &place->pmd);
	entry->pfn_mask = PTE_PFN_MASK;
	return true;
}

/* Under the lock: is the entry still in the table that was found? */
static bool still_there(const struct place *place)
{
	unsigned long now = pmd_val(pmdp_get_lockless(place->pmdp));

	if (place->entry.huge)
		return now & _PAGE_PSE;
	/* The CPU sets the accessed bit without a lock. */
	return !((now ^ pmd_val(place->pmd)) & ~_PAGE_ACCESSED);
}

static bool is_marked(unsigned long value)
{
	return (value & MARK_BITS) == MARK;
}

/* The page behind a plain entry, if it is of the kind that can be armed. */
static bool page_fits(struct demeter_touch_entry *entry, unsigned long value)
{
	unsigned long pfn = (value & entry->pfn_mask) >> PAGE_SHIFT;
	struct folio *folio;

	if ((value & PLAIN_BITS) != PLAIN || !pfn_valid(pfn))
		return false;
	folio = page_folio(pfn_to_page(pfn));
	/* Anonymous or shmem: not a zero page, nor one of a device or of another file. */
	if (!folio_test_anon(folio) && !folio_test_swapbacked(folio))
		return false;
	entry->nid = folio_nid(folio);
	return true;
}

/**
 * demeter_touch_entry_lock() - find an entry that can be armed, and lock it
 * @mm: address space
 * @addr: the address, of a VMA
 * @entry: out
 *
 * Caller holds mmap_lock for reading.
 *
 * Return: whether there is one; demeter_touch_entry_unlock() undoes it then.
 */
bool demeter_touch_entry_lock(struct mm_struct *mm, unsigned long addr,
			      struct demeter_touch_entry *entry)
{
	struct place place;

	rcu_read_lock();
	if (!find(mm, addr, &place))
		goto nothing;
	spin_lock(place.entry.ptl);
	if (still_there(&place) && page_fits(&place.entry, READ_ONCE(*place.entry.slot))) {
		*entry = place.entry;
		/* For sparse, which cannot follow: the caller has both locks. */
		__release(place.entry.ptl);
		__release(RCU);
		return true;
	}
	spin_unlock(place.entry.ptl);
nothing:
	rcu_read_unlock();
	return false;
}

/**
 * demeter_touch_entry_unlock() - undo demeter_touch_entry_lock()
 * @entry: the entry
 */
void demeter_touch_entry_unlock(struct demeter_touch_entry *entry)
{
	__acquire(RCU);
	__acquire(entry->ptl);
	spin_unlock(entry->ptl);
	rcu_read_unlock();
}

/* Tell who checks that an entry, which was this, maps nothing any more. */
static void check_marked(const struct demeter_touch_entry *entry, unsigned long old)
{
	if (entry->huge)
		demeter_check_pmd_clear(entry->mm, entry->addr, __pmd(old));
	else
		demeter_check_pte_clear(entry->mm, entry->addr, __pte(old));
}

/* Tell that it maps a page again; before it does, as the old value is looked at. */
static void check_unmarking(const struct demeter_touch_entry *entry, unsigned long new)
{
	if (entry->huge)
		demeter_check_pmd_set(entry->mm, entry->addr, (pmd_t *)entry->slot, __pmd(new));
	else
		demeter_check_pte_set(entry->mm, entry->addr, (pte_t *)entry->slot, __pte(new));
}

/**
 * demeter_touch_entry_mark() - make the page fault
 * @entry: locked
 *
 * From the next TLB flush on, which is the caller's, all CPUs fault.
 *
 * Return: whether it does.
 */
bool demeter_touch_entry_mark(struct demeter_touch_entry *entry)
{
	unsigned long old = READ_ONCE(*entry->slot), new;

	/* The CPU may set accessed and dirty meanwhile. */
	do {
		if ((old & PLAIN_BITS) != PLAIN)
			return false;
		new = (old & ~_PAGE_PRESENT) | _PAGE_PROTNONE;
		new = flip_protnone_guard(old, new, entry->pfn_mask);
	} while (!try_cmpxchg(entry->slot, &old, new));
	check_marked(entry, old);
	return true;
}

/* Put an entry back, under its lock: the CPU changes none that is not present. */
static bool unmark(const struct demeter_touch_entry *entry, bool touched)
{
	unsigned long old = READ_ONCE(*entry->slot), new;

	if (!is_marked(old))
		return false;
	new = (old & ~_PAGE_PROTNONE) | _PAGE_PRESENT;
	/* The CPU is about to set it, and saves a walk so. */
	if (touched)
		new |= _PAGE_ACCESSED;
	new = flip_protnone_guard(old, new, entry->pfn_mask);
	check_unmarking(entry, new);
	WRITE_ONCE(*entry->slot, new);
	return true;
}

static enum demeter_touch_state restore(struct mm_struct *mm, unsigned long addr, bool touched)
{
	enum demeter_touch_state state = DEMETER_TOUCH_UNMARKED;
	u32 tries = LOCK_TRIES;
	struct place place;

	if (!find(mm, addr, &place) || !is_marked(READ_ONCE(*place.entry.slot)))
		return state;
	/*
	 * The holder may wait for this CPU, whose interrupts are off, to flush its TLB. Most
	 * keep the lock for less than a microsecond, though, and it is worth two or three to
	 * keep do_numa_page() out (touch_fault.c).
	 */
	while (!spin_trylock(place.entry.ptl)) {
		if (!--tries)
			return DEMETER_TOUCH_BUSY;
		cpu_relax();
	}
	if (still_there(&place) && unmark(&place.entry, touched))
		state = DEMETER_TOUCH_MARKED;
	spin_unlock(place.entry.ptl);
	return state;
}

/**
 * demeter_touch_peek() - is an entry armed
 * @mm: address space
 * @addr: the address, of a VMA
 *
 * Caller holds mmap_lock for reading, or has interrupts off in this address space.
 *
 * Return: MARKED or UNMARKED.
 */
enum demeter_touch_state demeter_touch_peek(struct mm_struct *mm, unsigned long addr)
{
	enum demeter_touch_state state = DEMETER_TOUCH_UNMARKED;
	struct place place;

	rcu_read_lock();
	if (find(mm, addr, &place) && is_marked(READ_ONCE(*place.entry.slot)))
		state = DEMETER_TOUCH_MARKED;
	rcu_read_unlock();
	return state;
}

/**
 * demeter_touch_restore() - put an entry back at a fault
 * @mm: the current address space
 * @addr: where it faulted
 *
 * Called with interrupts off.
 *
 * Return: MARKED when it was put back, BUSY when do_numa_page() will have to.
 */
enum demeter_touch_state demeter_touch_restore(struct mm_struct *mm, unsigned long addr)
{
	enum demeter_touch_state state = DEMETER_TOUCH_UNMARKED;

	if (!ALLOC_SPLIT_PTLOCKS)
		return restore(mm, addr, true);
	/*
	 * Debug kernels have page-table locks apart from the tables, and up to 6.12 munmap frees
	 * a lock before it waits for CPUs whose interrupts are off. There a VMA has to keep it. A
	 * tracer that may not fault may have the lock that a waiting writer is woken with.
	 */
	if (pagefault_disabled() || !mmap_read_trylock(mm)) {
		if (demeter_touch_peek(mm, addr) == DEMETER_TOUCH_MARKED)
			state = DEMETER_TOUCH_BUSY;
		return state;
	}
	if (vma_lookup(mm, addr))
		state = restore(mm, addr, true);
	mmap_read_unlock(mm);
	return state;
}

/**
 * demeter_touch_restore_wait() - put an entry back that nobody touched
 * @mm: address space
 * @addr: the address, of a VMA
 *
 * Caller holds mmap_lock for reading. No TLB is to be flushed: none holds an
 * entry that was not present.
 *
 * Return: MARKED when it was put back, else UNMARKED.
 */
enum demeter_touch_state demeter_touch_restore_wait(struct mm_struct *mm, unsigned long addr)
{
	enum demeter_touch_state state = DEMETER_TOUCH_UNMARKED;
	struct place place;

	rcu_read_lock();
	if (find(mm, addr, &place)) {
		spin_lock(place.entry.ptl);
		if (still_there(&place) && unmark(&place.entry, false))
			state = DEMETER_TOUCH_MARKED;
		spin_unlock(place.entry.ptl);
	}
	rcu_read_unlock();
	return state;
}

/**
 * demeter_touch_flush() - let no CPU use what it knew of an address space
 * @mm: the address space
 */
void demeter_touch_flush(struct mm_struct *mm)
{
	unsigned int cpus = cpumask_weight(mm_cpumask(mm));

	this_cpu_inc(demeter_touch_cpu.flushes);
	if (cpus > 1)
		this_cpu_add(demeter_touch_cpu.interrupts, cpus - 1);
	static_call(demeter_sc_flush_tlb_mm_range)(mm, 0, TLB_FLUSH_ALL, PAGE_SHIFT, false);
}
