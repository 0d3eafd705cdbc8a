/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/mmu_notifier.h: what changed between 6.1 and 7.x.
 *
 * Drop a block when the oldest supported kernel is newer than the version it
 * names; drop the file when no block is left. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_MMU_NOTIFIER_H
#define DEMETER_COMPAT_MMU_NOTIFIER_H

#include <linux/mmu_notifier.h>
#include <linux/version.h>

/* Not declared without CONFIG_MMU_NOTIFIER, and then never called: types are restated. */
int demeter_type___mmu_notifier_invalidate_range_start(struct mmu_notifier_range *range);

/* 6.3 (2023-04): a range knows no mapping any more. Goes with 6.1. */
#if KERNEL_VERSION(6, 3, 0) <= LINUX_VERSION_CODE
#define demeter_notifier_range_init(range, mm, start, end)                                         \
	mmu_notifier_range_init(range, MMU_NOTIFY_CLEAR, 0, mm, start, end)
#else
#define demeter_notifier_range_init(range, mm, start, end)                                         \
	mmu_notifier_range_init(range, MMU_NOTIFY_CLEAR, 0, NULL, mm, start, end)
#endif

/*
 * 6.6 (2023-10): TLBs of devices are flushed with the CPU's, no longer at the end of
 * an invalidation. Goes with 6.1.
 */
#if KERNEL_VERSION(6, 6, 0) <= LINUX_VERSION_CODE
void demeter_type___mmu_notifier_invalidate_range_end(struct mmu_notifier_range *range);
#define demeter_notifier_range_end(range) demeter_call(__mmu_notifier_invalidate_range_end)(range)
#else
void demeter_type___mmu_notifier_invalidate_range_end(struct mmu_notifier_range *range,
						      bool only_end);
#define demeter_notifier_range_end(range)                                                          \
	demeter_call(__mmu_notifier_invalidate_range_end)(range, false)
#endif

/*
 * 5.5 (2020-01): mm/mmu_notifier.c keeps what an address space has of notifiers for
 * itself. This is how its struct mmu_notifier_subscriptions begins in 6.1, 6.12 and 7.3;
 * what the BTF of a kernel says of it is to be compared where that is new.
 */
#ifdef CONFIG_MMU_NOTIFIER
/**
 * struct demeter_notifiers - who wants to be told of changes of an address space
 * @list: of struct mmu_notifier
 * @has_itree: there are, or once were, interval notifiers; set under mmap_lock
 * @lock: protects @list
 */
struct demeter_notifiers {
	struct hlist_head list;
	bool has_itree;
	spinlock_t lock; /* protects @list */
};

/* NULL while there are none; then as long as the mm. */
static inline struct demeter_notifiers *demeter_notifiers_of(const struct mm_struct *mm)
{
	/* Pairs with the release of __mmu_notifier_register(). */
	return (struct demeter_notifiers *)smp_load_acquire(&mm->notifier_subscriptions);
}
#endif

#endif /* DEMETER_COMPAT_MMU_NOTIFIER_H */
