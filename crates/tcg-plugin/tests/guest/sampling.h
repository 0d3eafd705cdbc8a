/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Of the test guest: perf events of its own, and their records against the page table. */
/* demeter.ko is loaded, and the BAR its own. */
static int bar_taken;

/* What the model counted so far. */
static struct demeter_model_counters counted(void)
{
	MAGIC(DEMETER_OP_MARK, 0);
	if (bar_taken)
		return (struct demeter_model_counters){ 0 };
	return *(struct demeter_model_counters *)((char *)model + DEMETER_MODEL_COUNTERS_OFFSET);
}

/* Perf's buffer: pages of data after the first. A thread has one event at a time. */
#define RING_PAGES 512
static __thread struct perf_event_mmap_page *ring;
static __thread int event;
static __thread struct demeter_model_counters before;

static long number_in(const char *path)
{
	char text[32] = { 0 };
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		return -1;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(fd);
	return strtol(text, NULL, 10);
}

/* An event that gives memory accesses of this thread: one in @period loads, or IBS. */
static void start_sampling(uint64_t period)
{
	long ibs = number_in("/sys/bus/event_source/devices/ibs_op/type");
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_RAW,
		.config = 0x1cd, /* loads by latency */
		.config1 = 64,
		.sample_period = period,
		.precise_ip = 2,
		/* Until there is a buffer: what is sampled before would be lost unseen. */
		.disabled = 1,
		.exclude_kernel = 1,
		.exclude_hv = 1,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR |
			       PERF_SAMPLE_WEIGHT | PERF_SAMPLE_DATA_SRC,
	};

	if (ibs >= 0) {
		attr.type = ibs;
		attr.config = 1 << 19; /* count ops */
		attr.config1 = 0;
		attr.sample_period = period * 16;
		/* It can leave nothing out. */
		attr.exclude_kernel = 0;
		attr.exclude_hv = 0;
	}
	before = counted();
	/* Linux 6.1 has IBS for CPUs only, not for tasks: then this thread's, which stays on it. */
	event = syscall(SYS_perf_event_open, &attr, ibs >= 0 ? -1 : 0, ibs >= 0 ? sched_getcpu() : -1, -1, 0);
	if (event < 0) {
		printf("perf_event_open: %s\n", strerror(errno));
		ring = NULL;
		return;
	}
	ring = mmap(NULL, (1 + RING_PAGES) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, event, 0);
	if (ring == MAP_FAILED) {
		printf("mmap of perf's buffer: %s\n", strerror(errno));
		ring = NULL;
		return;
	}
	ioctl(event, PERF_EVENT_IOC_ENABLE, 0);
}

static void stop_sampling(void)
{
	if (ring)
		ioctl(event, PERF_EVENT_IOC_DISABLE, 0);
}

/* A record as start_sampling() asked for it. */
struct sample {
	struct perf_event_header header;
	uint64_t ip;
	uint32_t pid, tid;
	uint64_t time, addr, weight, source;
};

#ifndef PERF_MEM_LVLNUM_CXL
#define PERF_MEM_LVLNUM_CXL 9
#endif

/* What a record says its data came from. */
enum source { CACHE, LOCAL_DRAM, REMOTE_DRAM, PMEM, CXL, SOURCES };

static enum source source_of(union perf_mem_data_src source)
{
	switch (source.mem_lvl_num) {
	case PERF_MEM_LVLNUM_PMEM:
		return PMEM;
	case PERF_MEM_LVLNUM_CXL:
		return CXL;
	}
	if (source.mem_lvl & PERF_MEM_LVL_REM_RAM1)
		return REMOTE_DRAM;
	if (source.mem_lvl_num == PERF_MEM_LVLNUM_RAM)
		return source.mem_remote ? REMOTE_DRAM : LOCAL_DRAM;
	return source.mem_lvl & PERF_MEM_LVL_LOC_RAM ? LOCAL_DRAM : CACHE;
}

/*
 * Counts every record of perf's buffer: inside [start, start + bytes), and of those
 * the ones whose source is the node that the page is on. Closes the event.
 */
static void compare_samples(const char *name, uint64_t *start, size_t bytes)
{
	uint64_t records = 0, inside = 0, match = 0, weak = 0, lost = 0, throttled = 0;
	uint64_t from[SOURCES] = { 0 };
	struct demeter_model_counters after = counted();
	uint64_t node_bytes = env("NODE_MB", 320) * MB;
	char *data = (char *)ring + PAGE;

	for (uint64_t at = ring ? ring->data_tail : 0; ring && at < ring->data_head;) {
		struct sample sample;

		/* Records may wrap: byte by byte. */
		for (size_t i = 0; i < sizeof(sample); i++)
			((char *)&sample)[i] = data[(at + i) % (RING_PAGES * PAGE)];
		at += sample.header.size;
		if (sample.header.type == PERF_RECORD_LOST) {
			lost += sample.time; /* { id, lost } after the header: ip, pid+tid | time */
			continue;
		}
		if (sample.header.type == PERF_RECORD_THROTTLE)
			throttled++;
		if (sample.header.type != PERF_RECORD_SAMPLE)
			continue;
		records++;
		if (sample.addr < (uint64_t)start || sample.addr >= (uint64_t)start + bytes)
			continue;
		enum source source = source_of((union perf_mem_data_src){ .val = sample.source });

		inside++;
		weak += sample.weight < 64;
		from[source]++;
		if (source != CACHE)
			match += (source != LOCAL_DRAM) == (pagemap(sample.addr) >= node_bytes);
	}
	if (ring) {
		munmap(ring, (1 + RING_PAGES) * PAGE);
		close(event);
	}
	printf("RESULT %s records=%lu inside=%lu match=%lu weak=%lu lost=%lu throttled=%lu "
	       "fmem=%lu smem=%lu remote=%lu pmem=%lu cxl=%lu "
	       "written=%lu dropped=%lu interrupts=%lu\n",
	       name, records, inside, match, weak, lost, throttled,
	       from[LOCAL_DRAM], from[REMOTE_DRAM] + from[PMEM] + from[CXL], from[REMOTE_DRAM],
	       from[PMEM], from[CXL],
	       (unsigned long)(after.pmu_records - before.pmu_records),
	       (unsigned long)(after.pmu_dropped - before.pmu_dropped),
	       (unsigned long)(after.pmu_interrupts - before.pmu_interrupts));
}
