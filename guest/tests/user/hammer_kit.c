// SPDX-License-Identifier: GPL-2.0-only
/* What every phase of the hammer needs. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hammer.h"

#define MPOL_PREFERRED	1
#define MPOL_BIND	2
#define MPOL_INTERLEAVE 3

static int passed_count, failed_count;
static int device_fd = -1;
static struct demeter_hammer_names names;

uint64_t exchanges_total, exchanges_racing;

void check(bool passed, const char *format, ...)
{
	va_list args;

	if (passed)
		passed_count++;
	else
		failed_count++;
	printf("%s %d - ", passed ? "ok" : "not ok", passed_count + failed_count);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

int checks_failed(void)
{
	return failed_count;
}

int checks_passed(void)
{
	return passed_count;
}

static void die(const char *what)
{
	printf("not ok - %s: %s\n", what, strerror(errno));
	exit(1);
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

bool quota_open(const struct quota *quota, uint64_t exchanges, uint64_t begin_ns)
{
	uint64_t seconds = (now_ns() - begin_ns) / 1000000000;

	return seconds < quota->max_seconds &&
	       (exchanges < quota->exchanges || seconds < quota->min_seconds);
}

int read_file(const char *path, char *buffer, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t have = 0;
	ssize_t got;

	buffer[0] = 0;
	if (fd < 0)
		return -errno;
	while (have + 1 < size && (got = read(fd, buffer + have, size - 1 - have)) > 0)
		have += got;
	close(fd);
	buffer[have] = 0;
	return have;
}

bool write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (!good)
		printf("# cannot write \"%s\" to %s: %s\n", text, path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return good;
}

long read_key(const char *path, const char *key)
{
	static char text[1 << 16];
	size_t length = strlen(key);
	char *line;

	if (read_file(path, text, sizeof(text)) < 0)
		return -1;
	for (line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (!strncmp(line, key, length) && (line[length] == ' ' || line[length] == ':'))
			return strtol(line + length + 1, NULL, 10);
	return -1;
}

/* MemFree leaves out what CPUs hold in their lists, which is tens of MiB with THP. */
long free_kib(void)
{
	static char text[1 << 17];
	long pages = 0;
	char *at;

	read_file("/proc/zoneinfo", text, sizeof(text));
	for (at = text; (at = strstr(at, " count:")); at++)
		pages += strtol(at + 7, NULL, 10);
	return read_key("/proc/meminfo", "MemFree") + pages * (long)(PAGE / 1024);
}

size_t node_bytes(int node)
{
	static char text[4096];
	char path[64], *at;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
	read_file(path, text, sizeof(text));
	at = strstr(text, "MemTotal:");
	return at ? strtoul(at + 9, NULL, 10) >> 10 << 20 : 0;
}

char *reserve(size_t bytes)
{
	char *at = mmap(NULL, bytes + THP, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		die("mmap");
	return (char *)(((uintptr_t)at + THP - 1) & ~(THP - 1));
}

void prefer_node(int node, bool strictly)
{
	unsigned long mask = 1UL << (node < 0 ? 0 : node);

	if (node < 0)
		syscall(SYS_set_mempolicy, 0, NULL, 0);
	else
		syscall(SYS_set_mempolicy, strictly ? MPOL_BIND : MPOL_PREFERRED, &mask, 64);
}

void prefer_both_nodes(void)
{
	unsigned long mask = 3;

	syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &mask, 64);
}

void touch_on(int node, char *at, size_t bytes, bool thp)
{
	size_t i;

	madvise(at, bytes, thp ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	prefer_node(node, true);
	for (i = 0; i < bytes; i += PAGE)
		*(volatile uint64_t *)(at + i) = i + 1;
	prefer_node(-1, false);
}

char *map_on(int node, size_t bytes, bool thp)
{
	char *at = reserve(bytes);

	touch_on(node, at, bytes, thp);
	return at;
}

int node_of(const void *addr)
{
	void *page = (void *)((uintptr_t)addr & ~(PAGE - 1));
	int status = -1;

	if (syscall(SYS_move_pages, 0, 1UL, &page, NULL, &status, 0))
		return -errno;
	return status;
}

void *shared_page(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("mmap shared");
	return at;
}

long anon_huge_kib(const void *addr)
{
	static char text[1 << 18];
	unsigned long start, end;
	bool inside = false;
	char *line, *next;

	if (read_file("/proc/self/smaps", text, sizeof(text)) < 0)
		return -1;
	for (line = text; line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start <= (uintptr_t)addr && (uintptr_t)addr < end;
		else if (inside && !strncmp(line, "AnonHugePages:", 14))
			return strtol(line + 14, NULL, 10);
	}
	return -1;
}

int device_open(void)
{
	device_fd = open("/dev/demeter-hammer", O_RDWR | O_CLOEXEC);
	if (device_fd < 0 || device_call(DEMETER_HAMMER_NAMES, &names)) {
		printf("not ok - open /dev/demeter-hammer: %s\n", strerror(errno));
		return -1;
	}
	return 0;
}

int device_call(unsigned long request, void *argument)
{
	return ioctl(device_fd, request, argument) < 0 ? -errno : 0;
}

void area_set(struct demeter_hammer_area *area, pid_t pid, int nid, const void *at, size_t bytes)
{
	area->pid = pid;
	area->nid = nid;
	area->start = (uintptr_t)at;
	area->end = (uintptr_t)at + bytes;
}

int reason(const char *name)
{
	unsigned int i;

	for (i = 0; i < names.count; i++)
		if (!strcmp(names.name[i], name))
			return i;
	printf("not ok - the module knows no refusal \"%s\"\n", name);
	exit(1);
}

const char *reason_name(unsigned int index)
{
	return index < names.count ? names.name[index] : "?";
}

void print_refused(const uint64_t *refused)
{
	unsigned int i;

	for (i = 0; i < names.count; i++)
		if (refused[i])
			printf(" %s=%llu", names.name[i], (unsigned long long)refused[i]);
}

void pin_cpu(int cpu)
{
	cpu_set_t cpus;
	int i;

	CPU_ZERO(&cpus);
	for (i = 0; i < CPU_SETSIZE; i++)
		if (cpu < 0 || i == cpu)
			CPU_SET(i, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

void load_module(const char *path, bool required)
{
	load_module_with(path, "", required);
}

void load_module_with(const char *path, const char *parameters, bool required)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool loaded = fd >= 0 && !syscall(SYS_finit_module, fd, parameters, 0);

	if (!loaded && errno != EEXIST && (required || fd >= 0))
		printf("# module %s: %s\n", path, strerror(errno));
	if (fd >= 0)
		close(fd);
}

int unload_module(const char *name)
{
	return syscall(SYS_delete_module, name, 0) ? -errno : 0;
}

/* Eager: it looks for pages to make THPs of all the time; else it never does. */
void hasten_khugepaged(bool eager)
{
	const char *dir = "/sys/kernel/mm/transparent_hugepage/khugepaged/";
	char path[128];

	snprintf(path, sizeof(path), "%s%s", dir, "alloc_sleep_millisecs");
	write_file(path, "20");
	snprintf(path, sizeof(path), "%s%s", dir, "scan_sleep_millisecs");
	write_file(path, eager ? "20" : "3600000");
}

bool kernel_log_clean(void)
{
	static const char *const signs[] = {
		"BUG",
		"Bad ",
		"WARNING",
		"Oops",
		"rss-counter",
		"Call Trace",
		"hung_task",
		"blocked for more",
		"list_add",
		"list_del",
		"corrupt",
		"lockup",
		"stall",
		"general protection",
		"unable to handle",
		"leak",
	};
	static char log[1 << 20];
	static size_t seen;
	int length = klogctl(3, log, sizeof(log) - 1);
	char *line, *next;
	bool clean = true;
	size_t i;

	log[length > 0 ? length : 0] = 0;
	if (seen > strlen(log))
		seen = 0;
	for (line = log + seen; *line; line = next) {
		next = line + strcspn(line, "\n");
		if (*next)
			*next++ = 0;
		for (i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
			if (strstr(line, signs[i])) {
				printf("# kernel: %s\n", line);
				clean = false;
				break;
			}
		}
	}
	seen = length > 0 ? length : 0;
	return clean;
}

void settle(void)
{
	device_call(DEMETER_HAMMER_DRAIN, NULL);
	usleep(200000);
	write_file("/proc/sys/vm/stat_refresh", "1");
}

/* A zram disk as swap: reclaim in both directions without a disk. */
bool start_swap(void)
{
	static const size_t bytes = 192UL << 20;
	unsigned int header[1024] = { 0 };
	int fd;

	load_module("/modules/zsmalloc.ko", false);
	load_module("/modules/lz4_compress.ko", false);
	load_module("/modules/lz4hc_compress.ko", false);
	load_module("/modules/zram.ko", true);
	if (!write_file("/sys/block/zram0/disksize", "201326592"))
		return false;
	/* The swap header: version, last page, no bad pages; magic at the page's end. */
	header[256] = 1;
	header[257] = bytes / PAGE - 1;
	memcpy((char *)header + PAGE - 10, "SWAPSPACE2", 10);
	fd = open("/dev/zram0", O_RDWR | O_CLOEXEC);
	if (fd < 0 || write(fd, header, PAGE) != (ssize_t)PAGE)
		return false;
	fsync(fd);
	close(fd);
	return !swapon("/dev/zram0", 0);
}
