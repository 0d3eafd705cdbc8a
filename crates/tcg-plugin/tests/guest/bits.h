/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Accessed bits at every level of the page table, read and cleared where they
 * are: test bed and guest share the memory of node 0, and a device shows it to
 * the guest once more (harness: `window`). Part of init.c.
 */

#define ACCESSED 0x20ul
#define PRESENT 1ul
#define FRAME 0x000ffffffffff000ul
#define LEVELS 4
/* An entry of the upper levels each that nothing else uses. */
#define APART ((char *)0x200000000000ul)
#define PAGES 64ul

/* Memory of node 0, which begins at physical address 0. */
static volatile uint64_t *window;
static size_t window_bytes;

/* The upper levels' entries for APART, from the last level up, and the table of its pages. */
static volatile uint64_t *upper[LEVELS - 1];
static volatile uint64_t *leaves;

/* Maps the device that shows more than the model's. */
static int find_window(void)
{
	DIR *dir = opendir("/sys/bus/pci/devices");
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		char path[300];
		struct stat status;
		int fd;

		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/enable", entry->d_name);
		write_file(path, "1");
		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource2", entry->d_name);
		if (stat(path, &status) || status.st_size <= (off_t)DEMETER_MODEL_BAR_BYTES)
			continue;
		fd = open(path, O_RDWR);
		window = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (window == MAP_FAILED)
			continue;
		window_bytes = status.st_size;
		return 0;
	}
	return -1;
}

/* The one table whose entry at index refers to the frame at pa, or NULL. */
static volatile uint64_t *table_with(size_t index, uint64_t pa)
{
	volatile uint64_t *found = NULL;

	for (size_t i = index; i < window_bytes / 8; i += PAGE / 8) {
		if ((window[i] & FRAME) != pa || !(window[i] & PRESENT))
			continue;
		if (found)
			return NULL;
		found = window + (i - index);
	}
	return found;
}

static int find_tables(void)
{
	uint64_t va = (uint64_t)APART;
	volatile uint64_t *table = table_with(va >> 12 & 511, pagemap(va) & FRAME);

	leaves = table;
	for (int level = 0; table && level < LEVELS - 1; level++) {
		size_t index = va >> (21 + 9 * level) & 511;

		table = table_with(index, (uint64_t)(table - window) * 8);
		upper[level] = table + index;
	}
	return table ? 0 : -1;
}

static void clear_bits(void)
{
	for (size_t i = 0; i < PAGES; i++)
		__atomic_fetch_and(&leaves[i], ~ACCESSED, __ATOMIC_RELAXED);
	for (int level = 0; level < LEVELS - 1; level++)
		__atomic_fetch_and(upper[level], ~ACCESSED, __ATOMIC_RELAXED);
}

struct bits {
	size_t pages; /* marked at the last level */
	size_t tables; /* at the others */
};

static struct bits bits(void)
{
	struct bits found = { 0, 0 };

	for (size_t i = 0; i < PAGES; i++)
		found.pages += !!(leaves[i] & ACCESSED);
	for (int level = 0; level < LEVELS - 1; level++)
		found.tables += !!(*upper[level] & ACCESSED);
	return found;
}

/* A line of each page that was not touched the last 63 times. */
static void touch_anew(char *start)
{
	static size_t line;

	line++;
	for (size_t i = 0; i < PAGES; i++)
		*(volatile char *)(start + i * PAGE + (line + i) % 64 * 64);
}

/*
 * The modelled TLB holds both areas, QEMU's one of them: 1 GiB apart, their pages
 * take the same places in it. So QEMU walks for each touch, the model for none.
 */
static void test_levels(int cpu)
{
	char *other = APART + 1024 * MB;

	for (int round = 0; round < 8; round++) {
		struct bits cleared, kept, evicted;

		touch_anew(APART);
		touch_anew(other);
		clear_bits();
		cleared = bits();
		MAGIC(DEMETER_OP_MARK, 'l');
		touch_anew(other);
		touch_anew(APART);
		MAGIC(DEMETER_OP_PROGRESS, 0);
		kept = bits();
		drive_out();
		clear_bits();
		touch_anew(APART);
		evicted = bits();
		printf("RESULT levels%d-%d cleared=%zu kept=%zu kept_tables=%zu evicted=%zu evicted_tables=%zu\n",
		       cpu, round, cleared.pages + cleared.tables, kept.pages, kept.tables, evicted.pages,
		       evicted.tables);
	}
}

/* What one vCPU's TLB holds, another's does not. */
static volatile int levels_step;

static void *levels_elsewhere(void *unused)
{
	struct bits found;

	bind_to(1);
	touch_anew(APART);
	found = bits();
	printf("RESULT elsewhere pages=%zu tables=%zu\n", found.pages, found.tables);
	test_levels(1);
	levels_step = 1;
	return unused;
}

static void test_all_levels(void)
{
	pthread_t thread;
	int vcpus = sysconf(_SC_NPROCESSORS_ONLN);
	char *areas[] = { APART, APART + 1024 * MB };

	for (int i = 0; i < 2; i++) {
		if (mmap(areas[i], 2 * MB, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
			printf("no place for the pages\n");
		madvise(areas[i], 2 * MB, MADV_NOHUGEPAGE);
		memset(areas[i], 1, PAGES * PAGE);
	}
	if (find_window() || find_tables()) {
		printf("page tables not found\n");
		return;
	}
	drive_out(); /* takes its memory */
	bind_to(0);
	MAGIC(DEMETER_OP_MODEL_ON, 0);
	test_levels(0);
	if (vcpus > 1) {
		touch_anew(APART);
		clear_bits();
		pthread_create(&thread, NULL, levels_elsewhere, NULL);
		while (!levels_step)
			__builtin_ia32_pause();
		pthread_join(thread, NULL);
	}
	MAGIC(DEMETER_OP_MODEL_OFF, 0);
}
