// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where may a page go, see placement.h.
 *
 * The kernel's own demotion ignores policies on most versions, and its NUMA
 * balancing leaves out mappings that have one (mpol_misplaced(), vma_policy_mof()).
 * Here a policy decides: bind and both interleaves allow their nodes only, the two
 * preferred ones allow to come to their nodes and not to leave them.
 */
#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/static_call.h>

#include "../compat/mempolicy.h"
#include "placement.h"
#include "symbols.h"

#ifdef CONFIG_NUMA
void demeter_proto___mpol_put(struct mempolicy *policy);

DEFINE_STATIC_CALL_NULL(demeter_sc___mpol_put, demeter_proto___mpol_put);

static bool can_put;

void demeter_placement_resolve(void)
{
	unsigned long address = demeter_symbol_address("__mpol_put");

	if (address)
		__static_call_update(&STATIC_CALL_KEY(demeter_sc___mpol_put),
				     STATIC_CALL_TRAMP_ADDR(demeter_sc___mpol_put),
				     (void *)address);
	can_put = address;
}

static bool policy_refuses(const struct mempolicy *policy,
			   const struct demeter_placement *placement)
{
	bool to = node_isset(placement->to_nid, policy->nodes);

	switch (policy->mode) {
	case MPOL_DEFAULT:
	case MPOL_LOCAL:
		return false;
	case MPOL_PREFERRED:
	case MPOL_PREFERRED_MANY:
		return !to && node_isset(placement->from_nid, policy->nodes);
	default:
		return !to;
	}
}

/* The owner is stable under RCU, its policy under its alloc_lock. */
#ifdef CONFIG_MEMCG
static void ask_owner(struct demeter_placement *placement, struct mm_struct *mm)
{
	struct task_struct *owner;

	rcu_read_lock();
	owner = rcu_dereference(mm->owner);
	if (owner) {
		task_lock(owner);
		placement->task_refuses =
			owner->mempolicy && policy_refuses(owner->mempolicy, placement);
#ifdef CONFIG_CPUSETS
		/* One bit: a change meanwhile is seen now or the next time. */
		placement->cpuset_refuses = !node_isset(placement->to_nid, owner->mems_allowed);
#endif
		task_unlock(owner);
	}
	rcu_read_unlock();
}
#else
static void ask_owner(struct demeter_placement *placement, struct mm_struct *mm)
{
}
#endif

void demeter_placement_init(struct demeter_placement *placement, struct mm_struct *mm, int from_nid,
			    int to_nid)
{
	*placement = (struct demeter_placement){ .from_nid = from_nid, .to_nid = to_nid };
	if (to_nid >= 0)
		ask_owner(placement, mm);
}

/* Shared memory keeps policies with the object, for whoever maps it. */
static bool object_refuses(const struct demeter_placement *placement, struct vm_area_struct *vma,
			   unsigned long addr)
{
	struct mempolicy *policy = demeter_compat_get_policy(vma, addr);
	bool refuses;

	if (!policy)
		return placement->task_refuses;
	refuses = policy_refuses(policy, placement);
	if (mpol_needs_cond_ref(policy))
		static_call(demeter_sc___mpol_put)(policy);
	return refuses;
}

bool demeter_placement_allows(const struct demeter_placement *placement, struct vm_area_struct *vma,
			      unsigned long addr)
{
	if (placement->to_nid < 0)
		return true;
	if (placement->cpuset_refuses)
		return false;
	if (can_put && vma->vm_ops && vma->vm_ops->get_policy)
		return !object_refuses(placement, vma, addr);
	return !(vma->vm_policy ? policy_refuses(vma->vm_policy, placement)
				: placement->task_refuses);
}
#else /* !CONFIG_NUMA: no second node, so nobody can be bound to one */
void demeter_placement_resolve(void)
{
}

void demeter_placement_init(struct demeter_placement *placement, struct mm_struct *mm, int from_nid,
			    int to_nid)
{
	*placement = (struct demeter_placement){ .from_nid = from_nid, .to_nid = to_nid };
}

bool demeter_placement_allows(const struct demeter_placement *placement, struct vm_area_struct *vma,
			      unsigned long addr)
{
	return true;
}
#endif
