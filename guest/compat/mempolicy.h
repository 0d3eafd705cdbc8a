/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/mm.h: what changed between 6.1 and 7.x about policies of mappings.
 *
 * Drop the file when the oldest supported kernel is newer than the version it
 * names. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_MEMPOLICY_H
#define DEMETER_COMPAT_MEMPOLICY_H

#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/version.h>

#ifdef CONFIG_NUMA
/* 6.7 (2024-01) hands back the index for interleaving as well. Goes with 6.1. */
static inline struct mempolicy *demeter_compat_get_policy(struct vm_area_struct *vma,
							  unsigned long addr)
{
#if KERNEL_VERSION(6, 7, 0) <= LINUX_VERSION_CODE
	pgoff_t index = 0;

	return vma->vm_ops->get_policy(vma, addr, &index);
#else
	return vma->vm_ops->get_policy(vma, addr);
#endif
}
#endif

#endif /* DEMETER_COMPAT_MEMPOLICY_H */
