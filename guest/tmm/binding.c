// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where may a page go, see binding.h.
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
#include "binding.h"
#include "symbols.h"

#ifdef CONFIG_NUMA
void demeter_proto___mpol_put(struct mempolicy *policy);

DEFINE_STATIC_CALL_NULL(demeter_sc___mpol_put, demeter_proto___mpol_put);

static bool can_put;

void demeter_binding_resolve(void)
{
	unsigned long address = demeter_symbol_address("__mpol_put");

	if (address)
		__static_call_update(&STATIC_CALL_KEY(demeter_sc___mpol_put),
				     STATIC_CALL_TRAMP_ADDR(demeter_sc___mpol_put),
				     (void *)address);
	can_put = address;
}

static bool policy_refuses(const struct mempolicy *policy, const struct demeter_binding *binding)
{
	bool to = node_isset(binding->to_nid, policy->nodes);

	switch (policy->mode) {
	case MPOL_DEFAULT:
	case MPOL_LOCAL:
		return false;
	case MPOL_PREFERRED:
	case MPOL_PREFERRED_MANY:
		return !to && node_isset(binding->from_nid, policy->nodes);
	default:
		return !to;
	}
}

/* The owner is stable under RCU, its policy under its alloc_lock. */
#ifdef CONFIG_MEMCG
static void ask_owner(struct demeter_binding *binding, struct mm_struct *mm)
{
	struct task_struct *owner;

	rcu_read_lock();
	owner = rcu_dereference(mm->owner);
	if (owner) {
		task_lock(owner);
		binding->task_refuses =
			owner->mempolicy && policy_refuses(owner->mempolicy, binding);
#ifdef CONFIG_CPUSETS
		/* One bit: a change meanwhile is seen now or the next time. */
		binding->cpuset_refuses = !node_isset(binding->to_nid, owner->mems_allowed);
#endif
		task_unlock(owner);
	}
	rcu_read_unlock();
}
#else
static void ask_owner(struct demeter_binding *binding, struct mm_struct *mm)
{
}
#endif

void demeter_binding_init(struct demeter_binding *binding, struct mm_struct *mm, int from_nid,
			  int to_nid)
{
	*binding = (struct demeter_binding){ .from_nid = from_nid, .to_nid = to_nid };
	if (to_nid >= 0)
		ask_owner(binding, mm);
}

/* Shared memory keeps policies with the object, for whoever maps it. */
static bool object_refuses(const struct demeter_binding *binding, struct vm_area_struct *vma,
			   unsigned long addr)
{
	struct mempolicy *policy = demeter_compat_get_policy(vma, addr);
	bool refuses;

	if (!policy)
		return binding->task_refuses;
	refuses = policy_refuses(policy, binding);
	if (mpol_needs_cond_ref(policy))
		static_call(demeter_sc___mpol_put)(policy);
	return refuses;
}

bool demeter_binding_allows(const struct demeter_binding *binding, struct vm_area_struct *vma,
			    unsigned long addr)
{
	if (binding->to_nid < 0)
		return true;
	if (binding->cpuset_refuses)
		return false;
	if (can_put && vma->vm_ops && vma->vm_ops->get_policy)
		return !object_refuses(binding, vma, addr);
	return !(vma->vm_policy ? policy_refuses(vma->vm_policy, binding) : binding->task_refuses);
}
#else /* !CONFIG_NUMA: no second node, so nobody can be bound to one */
void demeter_binding_resolve(void)
{
}

void demeter_binding_init(struct demeter_binding *binding, struct mm_struct *mm, int from_nid,
			  int to_nid)
{
	*binding = (struct demeter_binding){ .from_nid = from_nid, .to_nid = to_nid };
}

bool demeter_binding_allows(const struct demeter_binding *binding, struct vm_area_struct *vma,
			    unsigned long addr)
{
	return true;
}
#endif
