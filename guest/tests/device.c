// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/demeter-hammer: lets the hammer program drive scan, exchange and migrate
 * on address spaces of its choice, and bring pages into awkward states. For
 * throw-away test guests only: root can do harm with it.
 */
#include <linux/delay.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/set_memory.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <demeter/resident.h>

#include "../tmm/binding.h"
#include "../tmm/contents.h"
#include "../tmm/folio_check.h"
#include "../tmm/huge.h"
#include "../tmm/kernel_calls.h"
#include "../tmm/relocate.h"
#include "../tmm/scan.h"
#include "../tmm/symbols.h"
#include "hammer_abi.h"

static_assert(DEMETER_REFUSALS <= DEMETER_HAMMER_REASONS);

static DEFINE_MUTEX(demeter_hammer_lock);
static struct page *demeter_hammer_held;
static u32 demeter_hammer_held_state;

static struct mm_struct *demeter_hammer_mm(pid_t nr)
{
	struct task_struct *task;
	struct mm_struct *mm;
	struct pid *pid;

	pid = find_get_pid(nr);
	task = get_pid_task(pid, PIDTYPE_PID);
	put_pid(pid);
	if (!task)
		return NULL;
	mm = get_task_mm(task);
	put_task_struct(task);
	return mm;
}

static int demeter_hammer_isolate(const struct demeter_hammer_area *area, int to_nid, u64 max_pages,
				  struct demeter_folio_list *out, struct demeter_refusals *why)
{
	struct mm_struct *mm = demeter_hammer_mm(area->pid);
	int ret;

	if (!mm)
		return -ESRCH;
	ret = demeter_scan_isolate(mm, area->start, area->end, area->nid, to_nid, max_pages, out,
				   why);
	mmput(mm);
	return ret;
}

/* What demeter.ko does between isolation and exchange. */
static void demeter_hammer_match(struct demeter_hammer_exchange *req,
				 struct demeter_folio_list *hot, struct demeter_folio_list *cold,
				 struct demeter_refusals *why)
{
	struct mm_struct *mm = demeter_hammer_mm(req->hot.pid);
	u64 hot_huge = hot->huge_pages, cold_huge = cold->huge_pages;
	struct demeter_huge_source from = {
		.mm = mm,
		.start = req->hot.start,
		.end = req->hot.end,
		.collapse_from = req->hot.start,
		.nid = req->hot.nid,
		.to_nid = NUMA_NO_NODE,
	};

	demeter_huge_match(&from, hot, cold, why);
	if (mm)
		mmput(mm);
	if (hot->huge_pages > hot_huge)
		req->collapsed_pages = hot->huge_pages - hot_huge;
	else
		req->split_pages = hot_huge - hot->huge_pages;
	req->split_pages += cold_huge - cold->huge_pages;
}

/*
 * Exchange as if moves told no secondary MMU: the control of tests that show that
 * they do. Nobody registers with the process meanwhile, it waits for us.
 */
static u64 demeter_hammer_exchange_deaf(struct demeter_hammer_exchange *req,
					struct demeter_folio_list *hot,
					struct demeter_folio_list *cold,
					struct demeter_refusals *why)
{
	struct mm_struct *mm = demeter_hammer_mm(req->hot.pid);
	struct mmu_notifier_subscriptions *all;
	u64 promoted;

	if (!mm)
		return 0;
	all = mm->notifier_subscriptions;
	WRITE_ONCE(mm->notifier_subscriptions, NULL);
	promoted = demeter_relocate_exchange(hot, cold, req->batch_pairs, why, &req->exchange_ns);
	WRITE_ONCE(mm->notifier_subscriptions, all);
	mmput(mm);
	return promoted;
}

static int demeter_hammer_exchange(struct demeter_hammer_exchange *req)
{
	struct demeter_refusals why = {};
	struct demeter_folio_list hot, cold;
	u64 begin = ktime_get_ns();
	int ret;

	demeter_folio_list_init(&hot);
	demeter_folio_list_init(&cold);
	ret = demeter_hammer_isolate(&req->hot, req->bound ? req->cold.nid : NUMA_NO_NODE,
				     req->max_pages, &hot, &why);
	if (!ret)
		ret = demeter_hammer_isolate(&req->cold, req->bound ? req->hot.nid : NUMA_NO_NODE,
					     req->max_pages, &cold, &why);
	req->hot_pages = demeter_folio_list_pages(&hot);
	req->cold_pages = demeter_folio_list_pages(&cold);
	req->collapsed_pages = 0;
	req->split_pages = 0;
	req->promoted_pages = 0;
	req->exchange_ns = 0;
	if (ret) {
		demeter_folio_list_putback(&hot);
		demeter_folio_list_putback(&cold);
		return ret;
	}
	if (req->pause_ms)
		msleep(req->pause_ms);
	if (req->match)
		demeter_hammer_match(req, &hot, &cold, &why);
	if (req->deaf)
		req->promoted_pages = demeter_hammer_exchange_deaf(req, &hot, &cold, &why);
	else
		req->promoted_pages = demeter_relocate_exchange(&hot, &cold, req->batch_pairs, &why,
								&req->exchange_ns);
	req->total_ns = ktime_get_ns() - begin;
	memcpy(req->refused, why.pages, sizeof(why.pages));
	return 0;
}

/* Wherever most of the pages are: exchanges may have moved some. */
static void demeter_hammer_collapse(const struct demeter_hammer_resize *req, struct mm_struct *mm)
{
	int other = first_node(node_states[N_MEMORY]);
	struct demeter_huge_source from = {
		.mm = mm,
		.start = req->area.start,
		.end = req->area.end,
		.collapse_from = req->area.start,
	};

	if (other == req->area.nid)
		other = next_node(other, node_states[N_MEMORY]);
	from.nid = req->area.nid;
	from.to_nid = other;
	if (demeter_huge_collapse(&from, req->max_pages) || other >= MAX_NUMNODES)
		return;
	from.nid = other;
	from.to_nid = req->area.nid;
	demeter_huge_collapse(&from, req->max_pages);
}

static int demeter_hammer_resize(struct demeter_hammer_resize *req)
{
	struct demeter_refusals why = {};
	struct demeter_folio_list list;
	struct mm_struct *mm;
	int ret;

	req->split_pages = 0;
	if (req->collapse) {
		mm = demeter_hammer_mm(req->area.pid);
		if (!mm)
			return -ESRCH;
		demeter_hammer_collapse(req, mm);
		mmput(mm);
		return 0;
	}
	demeter_folio_list_init(&list);
	ret = demeter_hammer_isolate(&req->area, NUMA_NO_NODE, req->max_pages, &list, &why);
	if (req->pause_ms)
		msleep(req->pause_ms);
	req->split_pages = demeter_huge_split(&list, req->max_pages);
	demeter_folio_list_putback(&list);
	return ret;
}

static int demeter_hammer_migrate(struct demeter_hammer_migrate *req)
{
	struct demeter_refusals why = {};
	struct demeter_folio_list list;
	int ret;

	demeter_folio_list_init(&list);
	ret = demeter_hammer_isolate(&req->area, NUMA_NO_NODE, req->max_pages, &list, &why);
	req->isolated_pages = demeter_folio_list_pages(&list);
	req->room_pages = demeter_relocate_room(req->target_nid);
	req->migrate_ns = 0;
	req->moved_pages = demeter_relocate_migrate(&list, req->target_nid, &why, &req->migrate_ns);
	memcpy(req->refused, why.pages, sizeof(why.pages));
	return ret;
}

/* By cells of a page, as demeter.ko does by larger ones. */
static int demeter_hammer_count_cells(struct demeter_hammer_count *req, struct mm_struct *mm,
				      struct demeter_cells *cells, s8 *slot_of_node)
{
	u64 at = req->area.start, leaf_bytes = (u64)DEMETER_LEAF_CELLS << PAGE_SHIFT;
	int ret = 0;
	u32 i;

	memset(slot_of_node, -1, MAX_NUMNODES);
	slot_of_node[req->area.nid] = 0;
	slot_of_node[req->other_nid] = 1;
	req->pages[0] = 0;
	req->pages[1] = 0;
	while (at < req->area.end && !ret) {
		struct demeter_scan_slice slice = {
			.slot_of_node = slot_of_node,
			.cell_shift = PAGE_SHIFT,
			.max_entries = U64_MAX,
			.cells = cells,
		};

		memset(cells, 0, sizeof(*cells));
		ret = demeter_scan_cells(mm, &at, min(req->area.end, (at | (leaf_bytes - 1)) + 1),
					 &slice);
		for (i = 0; i < DEMETER_LEAF_CELLS; i++) {
			req->pages[0] += cells->pages[i][0];
			req->pages[1] += cells->pages[i][1];
		}
	}
	return ret;
}

static int demeter_hammer_count(struct demeter_hammer_count *req)
{
	struct mm_struct *mm = demeter_hammer_mm(req->area.pid);
	struct demeter_cells *cells = kmalloc(sizeof(*cells), GFP_KERNEL);
	s8 *slot_of_node = kmalloc(MAX_NUMNODES, GFP_KERNEL);
	u64 begin = ktime_get_ns();
	int ret = -ENOMEM;

	if (!mm)
		ret = -ESRCH;
	else if (req->area.nid < 0 || req->area.nid >= MAX_NUMNODES || req->other_nid < 0 ||
		 req->other_nid >= MAX_NUMNODES)
		ret = -EINVAL;
	else if (cells && slot_of_node)
		ret = demeter_hammer_count_cells(req, mm, cells, slot_of_node);
	req->count_ns = ktime_get_ns() - begin;
	if (mm)
		mmput(mm);
	kfree(slot_of_node);
	kfree(cells);
	return ret;
}

/*
 * Exchange an area that ends @readable bytes before unmapped memory, on one side or
 * the other: loads fail there as they do on a machine check. Returns mistakes.
 */
static u64 demeter_hammer_contents_once(u8 *end, u8 *whole, size_t readable, bool bad_is_a)
{
	u8 *part = end - readable;
	void *want = part + round_down(readable, 16), *bad;
	u64 wrong = 0;
	size_t i;

	for (i = 0; i < PAGE_SIZE; i++)
		whole[i] = i * 3 + 1;
	for (i = 0; i < readable; i++)
		part[i] = i * 5 + 2;
	if (bad_is_a)
		bad = demeter_contents_swap(part, whole, PAGE_SIZE);
	else
		bad = demeter_contents_swap(whole, part, PAGE_SIZE);
	if (readable == PAGE_SIZE) {
		wrong += !!bad;
		demeter_contents_swap_back(part, whole, PAGE_SIZE);
	} else {
		wrong += bad != want;
	}
	for (i = 0; i < PAGE_SIZE; i++)
		wrong += whole[i] != (u8)(i * 3 + 1);
	for (i = 0; i < readable; i++)
		wrong += part[i] != (u8)(i * 5 + 2);
	return wrong;
}

static int demeter_hammer_contents(struct demeter_hammer_contents *req)
{
	/* Behind what vmalloc() returns lies a page that is not mapped. */
	u8 *part = vmalloc(PAGE_SIZE), *whole = vmalloc(PAGE_SIZE);
	size_t readable;

	req->checks = 0;
	req->wrong = 0;
	for (readable = 0; part && whole && readable <= PAGE_SIZE; readable += 8) {
		req->wrong += demeter_hammer_contents_once(part + PAGE_SIZE, whole, readable, true);
		req->wrong +=
			demeter_hammer_contents_once(part + PAGE_SIZE, whole, readable, false);
		req->checks += 2;
	}
	vfree(part);
	vfree(whole);
	return part && whole ? 0 : -ENOMEM;
}

static void demeter_hammer_names(struct demeter_hammer_names *names)
{
	u32 i;

	names->count = DEMETER_REFUSALS;
	for (i = 0; i < DEMETER_REFUSALS; i++)
		strscpy(names->name[i], demeter_refusal_names[i], DEMETER_HAMMER_NAME_LEN);
}

/*
 * Take a page out of the kernel's direct map, or put it back. By pointer, which
 * production code must not do: no guest of the tests has IBT.
 */
static int demeter_hammer_make_readable(struct page *page, bool readable)
{
	typeof(set_direct_map_default_noflush) *set_present;
	typeof(set_memory_np) *set_absent;

	set_present = (void *)demeter_symbol_address("set_direct_map_default_noflush");
	set_absent = (void *)demeter_symbol_address("set_memory_np");
	if (!set_present || !set_absent)
		return -EOPNOTSUPP;
	return readable ? set_present(page) : set_absent((unsigned long)page_address(page), 1);
}

/* Nobody else changes the mappings of the caller, or looks at them, for so long. */
static int demeter_hammer_sit(u64 ms)
{
	if (ms > 60000)
		return -EINVAL;
	mmap_write_lock(current->mm);
	msleep(ms);
	mmap_write_unlock(current->mm);
	return 0;
}

static int demeter_hammer_hold(const struct demeter_hammer_hold *req)
{
	unsigned int gup = FOLL_WRITE;
	struct folio *folio;
	struct page *page;
	int got;

	if (req->state == DEMETER_HAMMER_MMAP_LOCK)
		return demeter_hammer_sit(req->addr);

	if (demeter_hammer_held)
		return -EBUSY;
	if (req->state == DEMETER_HAMMER_PIN)
		got = pin_user_pages_fast(req->addr, 1, gup, &page);
	else
		got = get_user_pages_fast(req->addr, 1, gup, &page);
	if (got != 1)
		return got < 0 ? got : -EFAULT;
	folio = page_folio(page);

	switch (req->state) {
	case DEMETER_HAMMER_LOCK:
		folio_lock(folio);
		break;
	case DEMETER_HAMMER_ISOLATE:
		demeter_call(lru_add_drain)();
		if (!demeter_isolated(demeter_call(folio_isolate_lru)(folio))) {
			put_page(page);
			return -EAGAIN;
		}
		break;
	case DEMETER_HAMMER_WRITEBACK:
		/* Only the flag: what matters is that it is respected. */
		set_bit(PG_writeback, &demeter_folio_flags(folio));
		break;
	case DEMETER_HAMMER_UNREADABLE:
		got = demeter_hammer_make_readable(page, false);
		/* No reference is kept: that would be refused for another reason. */
		put_page(page);
		if (got)
			return got;
		break;
	}
	demeter_hammer_held = page;
	demeter_hammer_held_state = req->state;
	return 0;
}

static int demeter_hammer_release(void)
{
	struct page *page = demeter_hammer_held;
	struct folio *folio;

	if (!page)
		return -ENOENT;
	folio = page_folio(page);
	demeter_hammer_held = NULL;

	switch (demeter_hammer_held_state) {
	case DEMETER_HAMMER_PIN:
		unpin_user_page(page);
		return 0;
	case DEMETER_HAMMER_LOCK:
		folio_unlock(folio);
		break;
	case DEMETER_HAMMER_ISOLATE:
		demeter_call(folio_putback_lru)(folio);
		break;
	case DEMETER_HAMMER_WRITEBACK:
		clear_bit(PG_writeback, &demeter_folio_flags(folio));
		break;
	case DEMETER_HAMMER_UNREADABLE:
		return demeter_hammer_make_readable(page, true);
	}
	put_page(page);
	return 0;
}

/* An MMU besides the CPU's. It need not be told anything: that it is there is what matters. */
struct demeter_hammer_mmu {
	struct mmu_notifier notifier;
	struct mmu_interval_notifier interval;
	bool is_interval;
};

static const struct mmu_notifier_ops demeter_hammer_mmu_ops;

static bool demeter_hammer_invalidate(struct mmu_interval_notifier *interval,
				      const struct mmu_notifier_range *range, unsigned long seq)
{
	mmu_interval_set_seq(interval, seq);
	return true;
}

static const struct mmu_interval_notifier_ops demeter_hammer_interval_ops = {
	.invalidate = demeter_hammer_invalidate,
};

static int demeter_hammer_secondary(struct file *file, bool is_interval)
{
	struct demeter_hammer_mmu *mmu;
	int ret;

	if (file->private_data)
		return -EBUSY;
	mmu = kzalloc(sizeof(*mmu), GFP_KERNEL);
	if (!mmu)
		return -ENOMEM;
	mmu->is_interval = is_interval;
	mmu->notifier.ops = &demeter_hammer_mmu_ops;
	if (is_interval)
		ret = mmu_interval_notifier_insert(&mmu->interval, current->mm, 0, TASK_SIZE,
						   &demeter_hammer_interval_ops);
	else
		ret = mmu_notifier_register(&mmu->notifier, current->mm);
	if (ret)
		kfree(mmu);
	else
		file->private_data = mmu;
	return ret;
}

static int demeter_hammer_open(struct inode *inode, struct file *file)
{
	file->private_data = NULL;
	return 0;
}

static int demeter_hammer_close(struct inode *inode, struct file *file)
{
	struct demeter_hammer_mmu *mmu = file->private_data;

	if (mmu && mmu->is_interval)
		mmu_interval_notifier_remove(&mmu->interval);
	else if (mmu)
		mmu_notifier_unregister(&mmu->notifier, mmu->notifier.mm);
	kfree(mmu);
	return 0;
}

union demeter_hammer_request {
	struct demeter_hammer_exchange exchange;
	struct demeter_hammer_resize resize;
	struct demeter_hammer_migrate migrate;
	struct demeter_hammer_count count;
	struct demeter_hammer_names names;
	struct demeter_hammer_contents contents;
	struct demeter_hammer_hold hold;
};

static int demeter_hammer_dispatch(struct file *file, unsigned int cmd,
				   union demeter_hammer_request *req)
{
	switch (cmd) {
	case DEMETER_HAMMER_SECONDARY:
	case DEMETER_HAMMER_INTERVAL:
		return demeter_hammer_secondary(file, cmd == DEMETER_HAMMER_INTERVAL);
	case DEMETER_HAMMER_EXCHANGE:
		return demeter_hammer_exchange(&req->exchange);
	case DEMETER_HAMMER_RESIZE:
		return demeter_hammer_resize(&req->resize);
	case DEMETER_HAMMER_MIGRATE:
		return demeter_hammer_migrate(&req->migrate);
	case DEMETER_HAMMER_COUNT:
		return demeter_hammer_count(&req->count);
	case DEMETER_HAMMER_NAMES:
		demeter_hammer_names(&req->names);
		return 0;
	case DEMETER_HAMMER_CONTENTS:
		return demeter_hammer_contents(&req->contents);
	case DEMETER_HAMMER_HOLD:
		return demeter_hammer_hold(&req->hold);
	case DEMETER_HAMMER_RELEASE:
		return demeter_hammer_release();
	case DEMETER_HAMMER_DRAIN:
		demeter_call(lru_add_drain)();
		return 0;
	}
	return -ENOTTY;
}

static long demeter_hammer_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;
	size_t size = _IOC_SIZE(cmd);
	union demeter_hammer_request *req;
	long ret;

	if (size > sizeof(*req))
		return -ENOTTY;
	req = kzalloc(sizeof(*req), GFP_KERNEL);
	if (!req)
		return -ENOMEM;
	ret = -EFAULT;
	if ((_IOC_DIR(cmd) & _IOC_WRITE) && copy_from_user(req, user, size))
		goto free;
	mutex_lock(&demeter_hammer_lock);
	ret = demeter_hammer_dispatch(file, cmd, req);
	mutex_unlock(&demeter_hammer_lock);
	if (!ret && (_IOC_DIR(cmd) & _IOC_READ) && copy_to_user(user, req, size))
		ret = -EFAULT;
free:
	kfree(req);
	return ret;
}

static const struct file_operations demeter_hammer_fops = {
	.owner = THIS_MODULE,
	.open = demeter_hammer_open,
	.release = demeter_hammer_close,
	.unlocked_ioctl = demeter_hammer_ioctl,
};

static struct miscdevice demeter_hammer_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "demeter-hammer",
	.mode = 0600,
	.fops = &demeter_hammer_fops,
};

static int __init demeter_hammer_init(void)
{
	int ret = demeter_symbols_resolve();

	if (ret)
		return ret;
	demeter_huge_resolve();
	demeter_binding_resolve();
	return misc_register(&demeter_hammer_device);
}
module_init(demeter_hammer_init);

static void __exit demeter_hammer_exit(void)
{
	misc_deregister(&demeter_hammer_device);
	demeter_hammer_release();
}
module_exit(demeter_hammer_exit);

MODULE_DESCRIPTION("Demeter: page exchange on request, for the hammer test");
MODULE_LICENSE("GPL");
