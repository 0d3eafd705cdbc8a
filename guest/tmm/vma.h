/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which mappings are managed. The areas and the page-table walks must agree, or
 * pages would be counted that no range holds.
 */
#ifndef DEMETER_VMA_H
#define DEMETER_VMA_H

#include <linux/fs.h>
#include <linux/mm.h>

/*
 * Mappings without struct pages of their own kind, code, and stacks that grow. Code
 * is small, and its pages serve every process that runs it.
 */
#define DEMETER_VM_UNMANAGED (VM_IO | VM_PFNMAP | VM_MIXEDMAP | VM_EXEC | VM_GROWSDOWN)

/*
 * May a walk look at the pages of @vma? Not at those of DAX: they are the device, and up to
 * 6.12 the kernel's walker takes their huge entries out of the table to look below them.
 */
static inline bool demeter_vma_is_walked(const struct vm_area_struct *vma)
{
	return !(vma->vm_flags & DEMETER_VM_UNMANAGED) && !vma_is_dax(vma);
}

/* areas.c; the hammer has one of its own, as it knows no samplers and no other targets. */
bool demeter_vma_is_left_out(const struct vm_area_struct *vma);

/*
 * Is @vma part of an area? What nobody may read or write is reserved at most:
 * allocators and runtimes reserve gigabytes that they never use.
 */
static inline bool demeter_vma_is_managed(const struct vm_area_struct *vma)
{
	return demeter_vma_is_walked(vma) && !(vma->vm_flags & VM_HUGETLB) &&
	       (vma->vm_flags & (VM_READ | VM_WRITE));
}

#endif /* DEMETER_VMA_H */
