/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where may a page go? Programs and administrators bind memory to nodes, by
 * mempolicy (set_mempolicy(), mbind(), numactl) and by cpuset. What they said
 * counts for more than what is hot.
 */
#ifndef DEMETER_BINDING_H
#define DEMETER_BINDING_H

#include <linux/types.h>

struct mempolicy;
struct mm_struct;
struct vm_area_struct;

/**
 * struct demeter_binding - what is known of one address space and one move
 * @from_nid: node that pages leave
 * @to_nid: node that they go to; below 0 when it does not matter
 * @task_refuses: the policy of the owning task, which holds where a mapping has
 *	none, forbids it
 * @cpuset_refuses: the cpuset of the owning task forbids it everywhere
 */
struct demeter_binding {
	int from_nid;
	int to_nid;
	bool task_refuses;
	bool cpuset_refuses;
};

/**
 * demeter_binding_resolve() - find the functions; call once, after the symbols
 *
 * Not finding them is no error: policies of shared memory are then not asked for.
 */
void demeter_binding_resolve(void);

/**
 * demeter_binding_init() - ask what the owner of an address space wants
 * @binding: what to initialise
 * @mm: address space
 * @from_nid: node that pages leave
 * @to_nid: node that they go to; below 0 to ask nobody
 *
 * The owner is one task, the leader of its thread group as a rule: policies that
 * threads set for themselves alone cannot be told from a page.
 */
void demeter_binding_init(struct demeter_binding *binding, struct mm_struct *mm, int from_nid,
			  int to_nid);

/**
 * demeter_binding_allows() - may the page at an address go there
 * @binding: as initialised
 * @vma: mapping, its mmap_lock held
 * @addr: address in @vma
 *
 * Safe under a page-table lock.
 *
 * Return: whether no policy forbids it.
 */
bool demeter_binding_allows(const struct demeter_binding *binding, struct vm_area_struct *vma,
			    unsigned long addr);

#endif /* DEMETER_BINDING_H */
