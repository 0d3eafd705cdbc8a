/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Sampler "touch": what its files share.
 *
 * A page is armed by an entry of the page table that makes the CPU fault and
 * that every part of the kernel takes for one of NUMA balancing's
 * (touch_arm.c). At the fault its time is noted and the entry put back before
 * the kernel looks (touch_fault.c); touch_secondary.c does the same for what KVM
 * maps for a VM. Address spaces, their granules and their clocks are in
 * touch_space.c; sampler_touch.c arms in ticks of its own and makes samples once a tick
 * of the worker, which the words epoch_ and _epoch mean here;
 * core/touch.c has the arithmetic.
 *
 * Locks, outermost first:
 *
 * demeter_touch_lock (mutex) protects the spaces and their arrays of granules
 *	for writers, and all that is not said to be under another lock. Ticks and
 *	epochs hold it.
 * mmap_lock of a space is taken for reading under it.
 * The page-table lock is taken under that; at a fault it is only tried, some times,
 *	since its holder may wait for this CPU to flush its TLB.
 * struct demeter_touch_space.lock protects a space's clock and what the fault
 *	notes in granules; taken with interrupts off, and innermost. A context switch
 *	takes it when the space begins or ceases to run at all.
 * RCU protects the lookup of a space by its mm from faults and context switches.
 */
#ifndef DEMETER_TOUCH_GUEST_H
#define DEMETER_TOUCH_GUEST_H

#include <linux/atomic.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/pgtable.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>
#include <linux/sysfs.h>
#include <linux/types.h>

#include <demeter/touch.h>

struct mm_struct;
struct vm_area_struct;

/**
 * struct demeter_touch_granule - a part of an address space that is watched
 * @known: what is known of it; space lock
 * @addr: first byte
 * @armed: the armed address, with DEMETER_TOUCH_HUGE for a huge page; 0 = none;
 *	space lock
 * @since_ns: clock of the space when it was armed or looked at last; space lock
 * @accesses: its accesses in the epoch that just ended
 * @tier: of the page that was armed last
 */
struct demeter_touch_granule {
	struct demeter_touch known;
	unsigned long addr;
	unsigned long armed;
	u64 since_ns;
	u64 accesses;
	u16 tier;
};

#define DEMETER_TOUCH_HUGE 1ul

/* First byte of the page that is armed, see struct demeter_touch_granule. */
static inline unsigned long demeter_touch_armed_addr(unsigned long armed)
{
	return armed & ~DEMETER_TOUCH_HUGE;
}

/* And its size in bytes. */
static inline unsigned long demeter_touch_armed_bytes(unsigned long armed)
{
	return armed & DEMETER_TOUCH_HUGE ? PMD_SIZE : PAGE_SIZE;
}

/**
 * struct demeter_touch_space - an address space that is watched
 * @node: in the hash of spaces by mm (RCU)
 * @link: in the list of all, or of those that are about to be freed
 * @mm: holds mm_count
 * @lock: see above
 * @running: CPUs that run it now
 * @is_timed: any did when the clock was last set; @lock, as all to @lost_ns
 * @entered_ns: when that was
 * @ran_ns: for how long at least one CPU ran it, before that
 * @lost_ns: part of it that our faults took
 * @granule: sorted by address; changed under both locks
 * @nr: length of @granule
 * @shift: log2 of the size of a granule
 * @follow: granules to arm next, by index, in proportion to their rates
 * @nr_follow: their number
 * @next: first of them that was not yet
 * @turn: see demeter_touch_explore()
 * @check: granule where the next look for lost marks begins
 * @mean_per_s: mean rate of all granules, 0 while not known
 * @most_per_s: accesses for which a granule counts at most, see demeter_touch_most()
 * @epoch_ran_ns: how long it had run at the end of the last epoch
 * @tick_ran_ns: how long it had run at the last tick
 * @owed: what is left of the budget, in billionths of a page
 * @seen_brk: end of the heap when granules were laid out
 * @seen_total_vm: size of the address space then
 * @seen_map_count: number of its mappings then
 * @seen_epoch: epochs since then
 * @secondary: KVM maps its pages as well
 * @skipped: touches through that are not seen, or others than KVM map them: it is left
 *	alone
 * @estimated: the rates of this epoch say something
 * @wanted: still a target
 */
struct demeter_touch_space {
	struct hlist_node node;
	struct list_head link;
	struct mm_struct *mm;
	raw_spinlock_t lock;
	bool is_timed;
	u64 entered_ns;
	u64 ran_ns;
	u64 lost_ns;
	struct demeter_touch_granule *granule;
	u32 nr;
	u32 shift;
	u32 *follow;
	u32 nr_follow;
	u32 next;
	u32 turn;
	u32 check;
	u64 mean_per_s;
	u64 most_per_s;
	u64 epoch_ran_ns;
	u64 tick_ran_ns;
	u64 owed;
	unsigned long seen_brk;
	unsigned long seen_total_vm;
	int seen_map_count;
	u32 seen_epoch;
	bool secondary;
	bool skipped;
	bool estimated;
	bool wanted;
	/* Written at each switch by CPUs that come and go: not beside what faults read. */
	atomic_t running ____cacheline_aligned_in_smp;
};

extern struct mutex demeter_touch_lock;

/* touch_arm.c */

enum demeter_touch_state {
	DEMETER_TOUCH_UNMARKED, /* the entry is not ours */
	DEMETER_TOUCH_MARKED,	/* it is; or was, and has been put back */
	DEMETER_TOUCH_BUSY,	/* it is, but its lock was taken */
};

/**
 * struct demeter_touch_entry - an entry of a page table, locked
 * @mm: whose it is
 * @addr: an address that it maps
 * @slot: the entry
 * @ptl: its lock
 * @pfn_mask: bits of the frame number
 * @nid: NUMA node of its page
 * @huge: it maps a huge page
 */
struct demeter_touch_entry {
	struct mm_struct *mm;
	unsigned long addr;
	unsigned long *slot;
	spinlock_t *ptl; /* protects @slot */
	u64 pfn_mask;
	int nid;
	bool huge;
};

int demeter_touch_arm_resolve(char *reason, size_t size);
bool demeter_touch_entry_lock(struct mm_struct *mm, unsigned long addr,
			      struct demeter_touch_entry *entry);
bool demeter_touch_entry_mark(struct demeter_touch_entry *entry);
void demeter_touch_entry_unlock(struct demeter_touch_entry *entry);
enum demeter_touch_state demeter_touch_restore(struct mm_struct *mm, unsigned long addr);
enum demeter_touch_state demeter_touch_restore_wait(struct mm_struct *mm, unsigned long addr);
enum demeter_touch_state demeter_touch_peek(struct mm_struct *mm, unsigned long addr);
void demeter_touch_flush(struct mm_struct *mm);

/* touch_fault.c */
void demeter_touch_fault(struct mm_struct *mm, unsigned long address, u64 unseen_ns);
void demeter_touch_tick_begin(void);
u64 demeter_touch_tick_end(void);
int demeter_touch_probes_start(char *reason, size_t size);
void demeter_touch_probes_stop(void);

/* touch_secondary.c */

/* Who besides the CPUs uses the pages of an address space, by an MMU of its own. */
enum demeter_touch_secondary {
	DEMETER_TOUCH_NOBODY,
	DEMETER_TOUCH_KVM,
	DEMETER_TOUCH_OTHERS, /* somebody else, as well or alone */
};

enum demeter_touch_secondary demeter_touch_secondary_of(const struct mm_struct *mm);
void demeter_touch_secondary_forget(void);
void demeter_touch_secondary_need(bool needed);
bool demeter_touch_secondary_ready(void);
void demeter_touch_secondary_drop(struct mm_struct *mm, unsigned long armed);

/* touch_space.c */
bool demeter_touch_any_space(void);
struct demeter_touch_space *demeter_touch_space_of(const struct mm_struct *mm);
struct demeter_touch_space *demeter_touch_space_next(struct demeter_touch_space *space);
void demeter_touch_spaces_sync(void);
void demeter_touch_spaces_drop(void);
void demeter_touch_space_layout(struct demeter_touch_space *space);
bool demeter_touch_sees_mapping(const struct vm_area_struct *vma);
struct vm_area_struct *demeter_touch_vma(struct mm_struct *mm, unsigned long addr);
struct demeter_touch_granule *demeter_touch_granule_of(struct demeter_touch_space *space,
						       unsigned long addr);
/* Whether this CPU holds the lock of a space, or waits for one: see touched(). */
DECLARE_PER_CPU(bool, demeter_touch_holds_lock);

/* With interrupts off; a CPU holds one of them at a time. */
static inline void demeter_touch_space_lock(struct demeter_touch_space *space)
	__acquires(&space->lock)
{
	this_cpu_write(demeter_touch_holds_lock, true);
	raw_spin_lock(&space->lock);
}

static inline void demeter_touch_space_unlock(struct demeter_touch_space *space)
	__releases(&space->lock)
{
	raw_spin_unlock(&space->lock);
	this_cpu_write(demeter_touch_holds_lock, false);
}

u64 demeter_touch_ran(struct demeter_touch_space *space);
u64 demeter_touch_clock(struct demeter_touch_space *space, u64 now_ns);
void demeter_touch_note_armed(struct demeter_touch_space *space,
			      struct demeter_touch_granule *granule, u64 clock_ns, bool touched);
void demeter_touch_settle(struct demeter_touch_space *space, struct demeter_touch_granule *granule,
			  bool disarm);
void demeter_touch_switch(const struct mm_struct *next);

/* touch_stats.c */

/**
 * struct demeter_touch_cpu - what is counted, on its own CPU
 * @armed: pages armed
 * @touched: of those, touched and timed
 * @retired: of those, taken back untouched, to look elsewhere or to stop
 * @lost_marks: of those, whose mark somebody else removed (a migration, a split or
 *	collapse, mprotect, unmapping) before it was touched
 * @unclaimed: faults on marks that belong to no watched page: inherited by fork,
 *	or moved by mremap
 * @left_to_kernel: faults that the kernel put back, as the page-table lock was taken
 * @absent: looks at addresses where nothing can be armed
 * @flushes: TLB flushes
 * @interrupts: other CPUs that those may have interrupted
 * @busy_spaces: times that a space could not be visited, as its mmap_lock was taken
 * @spent_ns: CPU time of all of it
 */
struct demeter_touch_cpu {
	u64 armed;
	u64 touched;
	u64 retired;
	u64 lost_marks;
	u64 unclaimed;
	u64 left_to_kernel;
	u64 absent;
	u64 flushes;
	u64 interrupts;
	u64 busy_spaces;
	u64 spent_ns;
};

DECLARE_PER_CPU(struct demeter_touch_cpu, demeter_touch_cpu);

u64 demeter_touch_sum(size_t offset);

/* What is true now; written by sampler_touch.c. */
struct demeter_touch_now {
	u64 pages_per_s;
	u64 accesses_per_sample;
	u64 skipped_spaces;
};

extern struct demeter_touch_now demeter_touch_now;
extern const struct attribute_group demeter_touch_stats_group;

#endif /* DEMETER_TOUCH_GUEST_H */
