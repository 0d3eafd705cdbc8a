// SPDX-License-Identifier: GPL-2.0-only
/*
 * perf's ring buffers, read by us instead of by a program. Included by frame.c of the managers
 * that sample by them.
 *
 * A kernel counter without a handler of its own writes its records to its ring buffer,
 * which normally a program has mapped. So there is one to be made (rb_alloc()) and
 * attached (ring_buffer_attach()); its pages have the layout that programs know: a head
 * that perf moves, a tail that the reader moves, records in between. The buffer goes with
 * the counter.
 *
 * Events are those of the published artifacts of Memtis and HeMem: loads that FMEM or SMEM
 * served (of either kind of SMEM: one of the two never counts), and all stores. perf batches
 * records, as there is nothing but address and process in them.
 */
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>

#include "kernel_calls.h"
#include "rings.h"
#include "symbols.h"

/* Pages of a ring buffer, a power of two. */
#define RING_PAGES    16
#define RING_BYTES    (RING_PAGES * PAGE_SIZE)
/* Of rb_alloc(): no overwriting of what was not read yet. */
#define RING_WRITABLE 0x01

DEMETER_DEFINE_CALL(rb_alloc);
DEMETER_DEFINE_CALL(ring_buffer_attach);
DEMETER_DEFINE_CALL(perf_mmap_to_page);

/* What a record is laid out like with our sample_type; 8 bytes each line. */
enum { RECORD_HEADER, RECORD_IP, RECORD_PID_TID, RECORD_ADDR, RECORD_WORDS };

static const struct {
	u64 config;
	bool store;
} events[] = {
	{ 0x01d3 },	  /* MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM */
	{ 0x80d1 },	  /* MEM_LOAD_RETIRED.LOCAL_PMM */
	{ 0x02d3 },	  /* MEM_LOAD_L3_MISS_RETIRED.REMOTE_DRAM */
	{ 0x82d0, true }, /* MEM_INST_RETIRED.ALL_STORES */
};

/**
 * struct ring - a counter and its buffer
 * @event: the counter
 * @user: its first page: head and tail
 * @page: its others
 */
struct ring {
	struct perf_event *event;
	struct perf_event_mmap_page *user;
	void *page[RING_PAGES];
};

struct cpu_rings {
	struct ring ring[ARRAY_SIZE(events)];
};

/* Written by start and stop, while nobody drains. */
static struct cpu_rings __percpu *rings;
static atomic64_t *rings_lost;
static struct pid_namespace *namespace;

static u64 period_of(const struct demeter_rings_periods *periods, int i)
{
	return events[i].store ? periods->stores : periods->loads;
}

static int ring_attach(struct ring *ring, int cpu)
{
	struct perf_buffer *rb = demeter_call(rb_alloc)(RING_PAGES, 0, cpu, RING_WRITABLE);
	int i;

	if (!rb)
		return -ENOMEM;
	ring->user = page_address(demeter_call(perf_mmap_to_page)(rb, 0));
	for (i = 0; i < RING_PAGES; i++)
		ring->page[i] = page_address(demeter_call(perf_mmap_to_page)(rb, i + 1));
	mutex_lock(&ring->event->mmap_mutex);
	demeter_call(ring_buffer_attach)(ring->event, rb);
	mutex_unlock(&ring->event->mmap_mutex);
	return 0;
}

static int ring_start(struct ring *ring, int cpu, u64 config, u64 period)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_RAW,
		.size = sizeof(attr),
		.config = config,
		.sample_period = period,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_ADDR,
		.precise_ip = 1,
		.disabled = 1,
		.exclude_kernel = 1,
		.exclude_hv = 1,
		.exclude_guest = 1,
	};
	struct perf_event *event = perf_event_create_kernel_counter(&attr, cpu, NULL, NULL, NULL);
	int ret;

	if (IS_ERR(event)) {
		pr_err("perf refuses event %#llx (error %ld); next: give the guest a PMU with PEBS (--pmu icelake)\n",
		       config, PTR_ERR(event));
		return PTR_ERR(event);
	}
	ring->event = event;
	namespace = event->ns;
	/* perf works these out for the counters of programs only, and writes records by them. */
	event->header_size = sizeof(u64) * (RECORD_WORDS - RECORD_IP - 1);
	event->id_header_size = sizeof(u64);
	ret = ring_attach(ring, cpu);
	if (!ret)
		perf_event_enable(event);
	return ret;
}

static int rings_resolve(void)
{
	if (demeter_symbol_aim_call(rb_alloc, "rb_alloc") &&
	    demeter_symbol_aim_call(ring_buffer_attach, "ring_buffer_attach") &&
	    demeter_symbol_aim_call(perf_mmap_to_page, "perf_mmap_to_page"))
		return 0;
	pr_err("this kernel's perf has no ring buffers of the known kind; next: use Debian's 6.12\n");
	return -ENOENT;
}

int demeter_rings_start(const struct demeter_rings_periods *periods, atomic64_t *lost)
{
	int ret = rings_resolve(), cpu, i;

	if (ret)
		return ret;
	rings = alloc_percpu(struct cpu_rings);
	if (!rings)
		return -ENOMEM;
	rings_lost = lost;
	/* A CPU that comes later is not sampled. */
	for_each_online_cpu(cpu) {
		for (i = 0; i < ARRAY_SIZE(events); i++) {
			ret = ring_start(&per_cpu_ptr(rings, cpu)->ring[i], cpu, events[i].config,
					 period_of(periods, i));
			if (ret) {
				demeter_rings_stop();
				return ret;
			}
		}
	}
	return 0;
}

void demeter_rings_stop(void)
{
	int cpu, i;

	for_each_possible_cpu(cpu) {
		for (i = 0; i < ARRAY_SIZE(events); i++) {
			struct perf_event *event = per_cpu_ptr(rings, cpu)->ring[i].event;

			/* With its buffer, and nothing of this module in either. */
			if (event)
				perf_event_release_kernel(event);
		}
	}
	free_percpu(rings);
	rings = NULL;
}

void demeter_rings_set_periods(const struct demeter_rings_periods *periods)
{
	int cpu, i;

	for_each_possible_cpu(cpu) {
		for (i = 0; i < ARRAY_SIZE(events); i++) {
			struct perf_event *event = per_cpu_ptr(rings, cpu)->ring[i].event;

			if (event && perf_event_period(event, period_of(periods, i)))
				pr_warn_once("perf refuses a period; next: report it\n");
		}
	}
}

/* Records and the ring's end are multiples of 8 bytes. */
static u64 ring_word(const struct ring *ring, u64 at)
{
	u64 offset = at & (RING_BYTES - 1);

	return READ_ONCE(*(u64 *)(ring->page[offset >> PAGE_SHIFT] + (offset & ~PAGE_MASK)));
}

static void ring_drain(struct ring *ring, bool store,
		       void (*each)(const struct demeter_rings_record *record, bool store))
{
	u64 tail = ring->user->data_tail;
	/* Before the records, which perf has written before it. */
	u64 head = smp_load_acquire(&ring->user->data_head);

	while (tail != head) {
		union {
			u64 word;
			struct perf_event_header header;
		} first = { .word = ring_word(ring, tail) };

		if (first.header.type == PERF_RECORD_SAMPLE &&
		    first.header.size == RECORD_WORDS * sizeof(u64)) {
			struct demeter_rings_record record = {
				.pid = (u32)ring_word(ring, tail + RECORD_PID_TID * sizeof(u64)),
				.addr = ring_word(ring, tail + RECORD_ADDR * sizeof(u64)),
			};

			each(&record, store);
		} else if (first.header.type == PERF_RECORD_LOST) {
			/* After the header: an id, and how many. */
			atomic64_add(ring_word(ring, tail + 2 * sizeof(u64)), rings_lost);
		}
		if (WARN_ON_ONCE(!first.header.size))
			tail = head;
		else
			tail += first.header.size;
	}
	/* After the records are read, which perf may overwrite now. */
	smp_store_release(&ring->user->data_tail, tail);
}

void demeter_rings_drain(void (*each)(const struct demeter_rings_record *record, bool store))
{
	int cpu, i;

	for_each_possible_cpu(cpu) {
		for (i = 0; i < ARRAY_SIZE(events); i++) {
			struct ring *ring = &per_cpu_ptr(rings, cpu)->ring[i];

			if (ring->event)
				ring_drain(ring, events[i].store, each);
		}
	}
}

struct mm_struct *demeter_rings_mm(u32 pid)
{
	struct task_struct *task;
	struct mm_struct *mm = NULL;

	rcu_read_lock();
	task = pid_task(find_pid_ns(pid, namespace), PIDTYPE_TGID);
	if (task)
		mm = get_task_mm(task);
	rcu_read_unlock();
	return mm;
}
