/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shim for <linux/page_table_check.h>, 2026-11: the address went in 6.6 and is back in
 * 7.x, entries are set by number since 6.8. Goes with 6.12.
 */
#ifndef DEMETER_COMPAT_PAGE_TABLE_CHECK_H
#define DEMETER_COMPAT_PAGE_TABLE_CHECK_H

#include <linux/page_table_check.h>
#include <linux/version.h>

#if KERNEL_VERSION(7, 0, 0) <= LINUX_VERSION_CODE
#define DEMETER_COMPAT_CHECK_WITHOUT_ADDR 0
#elif KERNEL_VERSION(6, 8, 0) <= LINUX_VERSION_CODE
#define DEMETER_COMPAT_CHECK_WITHOUT_ADDR 1
#else
#define DEMETER_COMPAT_CHECK_WITHOUT_ADDR 0
#endif

static inline void demeter_check_pte_clear(struct mm_struct *mm, unsigned long addr, pte_t pte)
{
#if DEMETER_COMPAT_CHECK_WITHOUT_ADDR
	page_table_check_pte_clear(mm, pte);
#else
	page_table_check_pte_clear(mm, addr, pte);
#endif
}

static inline void demeter_check_pmd_clear(struct mm_struct *mm, unsigned long addr, pmd_t pmd)
{
#if DEMETER_COMPAT_CHECK_WITHOUT_ADDR
	page_table_check_pmd_clear(mm, pmd);
#else
	page_table_check_pmd_clear(mm, addr, pmd);
#endif
}

static inline void demeter_check_pte_set(struct mm_struct *mm, unsigned long addr, pte_t *ptep,
					 pte_t pte)
{
#if DEMETER_COMPAT_CHECK_WITHOUT_ADDR
	page_table_check_ptes_set(mm, ptep, pte, 1);
#elif KERNEL_VERSION(7, 0, 0) <= LINUX_VERSION_CODE
	page_table_check_ptes_set(mm, addr, ptep, pte, 1);
#else
	page_table_check_pte_set(mm, addr, ptep, pte);
#endif
}

static inline void demeter_check_pmd_set(struct mm_struct *mm, unsigned long addr, pmd_t *pmdp,
					 pmd_t pmd)
{
#if DEMETER_COMPAT_CHECK_WITHOUT_ADDR
	page_table_check_pmd_set(mm, pmdp, pmd);
#elif KERNEL_VERSION(7, 0, 0) <= LINUX_VERSION_CODE
	page_table_check_pmds_set(mm, addr, pmdp, pmd, 1);
#else
	page_table_check_pmd_set(mm, addr, pmdp, pmd);
#endif
}

#endif /* DEMETER_COMPAT_PAGE_TABLE_CHECK_H */
