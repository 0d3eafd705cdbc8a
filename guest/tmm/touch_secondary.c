// SPDX-License-Identifier: GPL-2.0-only
/*
 * Secondary: pages that another MMU maps as well, as KVM's for the memory of a VM.
 *
 * Such an MMU has page tables of its own (EPT, NPT). It drops what it knows of a
 * page when it is told to, by a notification, and then asks for the page as a CPU
 * would that faults: through handle_mm_fault(), though without the exception and so
 * without the tracepoints of touch_fault.c. A probe there takes their place.
 *
 * The notification comes after the entry has changed, not before. Pages do not
 * move, so that nobody can do harm through an old mapping; and whoever asked for
 * the page before the entry changed is either told now, or finds that there was a
 * notification meanwhile, and asks again.
 *
 * Only KVM is told so. To it this is a page to be looked up again; but drivers of GPUs
 * stop the queues of a process for it (amdgpu_amdkfd_evict_userptr()), RDMA unmaps the
 * page from the device, and either may wait. An address space in which anybody but KVM
 * takes part is left alone.
 *
 * The probe is there only while it is needed: it costs each page fault of the
 * machine some tens of nanoseconds.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/mutex.h>

#include "../compat/mmu_notifier.h"
#include "kernel_calls.h"
#include "symbols.h"
#include "touch.h"

/*
 * What of it the probe does not see: the VM's exit, KVM's look at its tables, the
 * entry. A choice, measured on no hardware (docs/hardware.md says how to).
 */
#define SECONDARY_UNSEEN_NS 3000u

DEMETER_DECLARE_CALL(__mmu_notifier_invalidate_range_start);
DEMETER_DEFINE_CALL(__mmu_notifier_invalidate_range_start);
DEMETER_DECLARE_CALL(__mmu_notifier_invalidate_range_end);
DEMETER_DEFINE_CALL(__mmu_notifier_invalidate_range_end);

/* What KVM has called in each of the kernels; its module may come and go. */
#define KVM_FUNCTION "kvm_mmu_notifier_invalidate_range_start"

/* KVM's, or NULL if not known; demeter_touch_lock. */
static const struct mmu_notifier_ops *kvm_ops;

/* Protects the probe from being placed and removed at once. */
static DEFINE_MUTEX(probe_lock);
static bool is_placed;	/* read without the lock */
static bool is_refused; /* this kernel cannot; said once */

/* handle_mm_fault(vma, address, flags, regs): no registers, no exception. */
static int on_fault(struct kprobe *probe, struct pt_regs *regs)
{
	const struct vm_area_struct *vma = (void *)regs_get_kernel_argument(regs, 0);
	unsigned long flags;

	if (regs_get_kernel_argument(regs, 3) || !demeter_touch_any_space())
		return 0;
	/* The caller holds a lock of the mapping, which keeps the page tables. */
	local_irq_save(flags);
	demeter_touch_fault(vma->vm_mm, regs_get_kernel_argument(regs, 1), SECONDARY_UNSEEN_NS);
	local_irq_restore(flags);
	return 0;
}

static struct kprobe fault_probe = {
	.symbol_name = "handle_mm_fault",
	.pre_handler = on_fault,
};

static bool put_probe(void)
{
	int ret;

	if (!demeter_symbol_aim_call(__mmu_notifier_invalidate_range_start,
				     "__mmu_notifier_invalidate_range_start") ||
	    !demeter_symbol_aim_call(__mmu_notifier_invalidate_range_end,
				     "__mmu_notifier_invalidate_range_end")) {
		pr_warn("this kernel does not tell other MMUs of changes, so sampler touch leaves alone what they map; next: use the sampler pebs or ibs for the other processes, or a supported kernel\n");
		return false;
	}
	/* As registered before: the kernel refuses what it has resolved itself. */
	fault_probe.addr = NULL;
	fault_probe.flags = 0;
	ret = register_kprobe(&fault_probe);
	if (ret)
		pr_warn("cannot place a kprobe on handle_mm_fault (error %d), so sampler touch leaves alone what other MMUs map, as KVM's; next: see whether kprobes are switched off\n",
			ret);
	return !ret;
}

/**
 * demeter_touch_secondary_need() - be able to watch what other MMUs map, or not
 * @needed: whether there is anything of the kind to be watched
 *
 * Takes the locks of CPU hotplug: not under demeter_touch_lock.
 */
void demeter_touch_secondary_need(bool needed)
{
	mutex_lock(&probe_lock);
	if (needed && !is_placed && !is_refused) {
		is_refused = !put_probe();
		WRITE_ONCE(is_placed, !is_refused);
	} else if (!needed && is_placed) {
		WRITE_ONCE(is_placed, false);
		unregister_kprobe(&fault_probe);
	}
	mutex_unlock(&probe_lock);
}

/**
 * demeter_touch_secondary_ready() - can what other MMUs map be watched
 *
 * Return: whether touches through them are seen.
 */
bool demeter_touch_secondary_ready(void)
{
	return READ_ONCE(is_placed);
}

#ifdef CONFIG_MMU_NOTIFIER
static bool is_kvm(const struct mmu_notifier_ops *ops)
{
	char name[sizeof(KVM_FUNCTION)];

	if (ops == kvm_ops)
		return true;
	if (!ops->invalidate_range_start)
		return false;
	/* Cut off where the name ends; that of its module follows. */
	snprintf(name, sizeof(name), "%ps", ops->invalidate_range_start);
	if (strcmp(name, KVM_FUNCTION))
		return false;
	kvm_ops = ops;
	return true;
}

/**
 * demeter_touch_secondary_of() - who besides the CPUs uses the pages of an address space
 * @mm: address space
 *
 * Caller holds demeter_touch_lock, and mmap_lock for reading where the answer has to
 * stay true: nobody joins meanwhile.
 *
 * Return: nobody, KVM alone, or others.
 */
enum demeter_touch_secondary demeter_touch_secondary_of(const struct mm_struct *mm)
{
	struct demeter_notifiers *all = demeter_notifiers_of(mm);
	enum demeter_touch_secondary who = DEMETER_TOUCH_NOBODY;
	const struct mmu_notifier *one;

	lockdep_assert_held(&demeter_touch_lock);
	if (!all)
		return who;
	/* Under the lock, what is listed is not freed, and its module is there. */
	spin_lock(&all->lock);
	hlist_for_each_entry(one, &all->list, hlist)
		if (who != DEMETER_TOUCH_OTHERS)
			who = is_kvm(one->ops) ? DEMETER_TOUCH_KVM : DEMETER_TOUCH_OTHERS;
	if (all->has_itree)
		who = DEMETER_TOUCH_OTHERS;
	spin_unlock(&all->lock);
	return who;
}
#else
enum demeter_touch_secondary demeter_touch_secondary_of(const struct mm_struct *mm)
{
	return DEMETER_TOUCH_NOBODY;
}
#endif

/**
 * demeter_touch_secondary_forget() - look anew who KVM is
 *
 * Its module may be unloaded, and another lie in its place. Caller holds
 * demeter_touch_lock.
 */
void demeter_touch_secondary_forget(void)
{
	lockdep_assert_held(&demeter_touch_lock);
	kvm_ops = NULL;
}

/**
 * demeter_touch_secondary_drop() - have other MMUs ask for a page again
 * @mm: address space, which only KVM shares; mmap_lock is held for reading
 * @armed: the page, as in struct demeter_touch_granule
 */
void demeter_touch_secondary_drop(struct mm_struct *mm, unsigned long armed)
{
	unsigned long start = demeter_touch_armed_addr(armed);
	struct mmu_notifier_range range;

	demeter_notifier_range_init(&range, mm, start, start + demeter_touch_armed_bytes(armed));
	range.flags |= MMU_NOTIFIER_RANGE_BLOCKABLE;
	demeter_call(__mmu_notifier_invalidate_range_start)(&range);
	demeter_notifier_range_end(&range);
}
