/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shadows: the pages of SMEM that promoted pages (their masters) came from, kept for as
 * long as they hold the same.
 *
 * What makes a shadow valid. Before its contents were copied, the entry of the page was
 * made clean and not writable, its TLB entry flushed, and nobody but its one mapping and
 * us had a reference (transact.c). From there on
 *   - a write by a program, or by the kernel for one, goes through a fault that makes
 *     the entry dirty and writable, so it is asked of the entry, at the moment at
 *     which it is taken away, whether there was one;
 *   - whatever could take those two bits back (unmapping, MADV_FREE, KSM, swapping, fork,
 *     migration, mprotect(), clear_refs) sends an MMU notification, and that
 *     drops the shadow. mprotect() also is what would let ptrace() write to a page that
 *     is not writable. NUMA balancing, which notifies too, holds mmap_lock for reading
 *     only, and shadows outlive it. It keeps the dirty bit; its hint fault makes an entry
 *     writable again, so whoever decides on that drops the shadow (nomad_decide()). In mode
 *     2, which the row sets, pages of FMEM get no hint faults at all; other modes were not
 *     thought through to the end.
 * The probe on do_wp_page() gives the memory back at the first write; nothing depends
 * on it.
 *
 * A shadow is made known before the copy (nomad_shadow_begin()), so that no notification
 * is missed, refused while one is under way, and usable after it (nomad_shadow_ready()).
 */
#ifndef DEMETER_NOMAD_SHADOW_H
#define DEMETER_NOMAD_SHADOW_H

#include <linux/atomic.h>
#include <linux/types.h>

struct folio;
struct mm_struct;
struct nomad_shadow;
struct nomad_space;

/**
 * struct nomad_shadow_counts - counters, see README.md
 * @shadows: there are now
 * @written: dropped at the first write to their master
 * @dropped: dropped by a notification
 * @reclaimed: dropped for their memory
 */
struct nomad_shadow_counts {
	atomic64_t shadows;
	atomic64_t written;
	atomic64_t dropped;
	atomic64_t reclaimed;
};

extern struct nomad_shadow_counts nomad_shadow_counts;

/**
 * nomad_shadow_start() - watch for writes, offer shadows to the shrinkers
 *
 * Return: 0 or a negative errno, the reason in the kernel log.
 */
int nomad_shadow_start(void);

/**
 * nomad_shadow_stop() - drop all shadows, forget all address spaces
 *
 * Nobody may be in nomad_shadow_begin() and what follows it, nor take shadows.
 */
void nomad_shadow_stop(void);

/**
 * nomad_space_of() - watch an address space
 * @mm: the caller has a reference on its users, and no lock
 *
 * For the worker only.
 *
 * Return: the space, valid until nomad_space_sweep(); NULL without memory.
 */
struct nomad_space *nomad_space_of(struct mm_struct *mm);

/**
 * nomad_space_sweep() - forget the address spaces that are gone
 *
 * For the worker only. Sleeps.
 */
void nomad_space_sweep(void);

/**
 * nomad_shadow_begin() - make a shadow known that is not usable yet
 * @space: of the page
 * @address: of the page
 * @folio: the page; the shadow takes a reference when it is ready
 *
 * The caller holds mmap_lock for reading until nomad_shadow_ready() or
 * nomad_shadow_cancel(), and is the only one who does this.
 *
 * Return: the shadow; NULL without memory or while page tables there change.
 */
struct nomad_shadow *nomad_shadow_begin(struct nomad_space *space, unsigned long address,
					struct folio *folio);

/**
 * nomad_shadow_ready() - the shadow may be used, if nothing happened meanwhile
 * @shadow: from nomad_shadow_begin(); not the caller's any more
 * @master: what was made a copy of it
 */
void nomad_shadow_ready(struct nomad_shadow *shadow, struct folio *master);

/**
 * nomad_shadow_cancel() - there is no copy
 * @shadow: from nomad_shadow_begin(); not the caller's any more
 */
void nomad_shadow_cancel(struct nomad_shadow *shadow);

/**
 * nomad_shadow_mm() - the address space of a master
 * @master: a folio
 *
 * Return: with a reference on its users, for mmput_async(); NULL without a shadow.
 */
struct mm_struct *nomad_shadow_mm(struct folio *master);

/**
 * nomad_shadow_take() - take the shadow of a master
 * @master: locked
 * @mm: as nomad_shadow_mm() said; the caller holds its mmap_lock for reading
 * @address: out: of the page
 *
 * Return: the folio with its reference, the caller's now; NULL when it is gone.
 */
struct folio *nomad_shadow_take(struct folio *master, struct mm_struct *mm, unsigned long *address);

/**
 * nomad_shadow_forget() - drop the shadow of a master whose entry is about to change
 * @pfn: of the folio, a master or not
 *
 * Any context but interrupts; page-table locks may be held.
 *
 * Return: how many were dropped.
 */
unsigned long nomad_shadow_forget(unsigned long pfn);

/**
 * nomad_shadow_reclaim() - give back the oldest shadows of a node
 * @nid: the node
 * @pages: how many
 *
 * Any context but interrupts.
 *
 * Return: how many were.
 */
unsigned long nomad_shadow_reclaim(int nid, unsigned long pages);

#endif /* DEMETER_NOMAD_SHADOW_H */
