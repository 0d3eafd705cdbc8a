// SPDX-License-Identifier: GPL-2.0-only
/*
 * Process 1 of the hammer guest. From the kernel command line, by environment:
 *   HAMMER_SECONDS    how long to hammer, about (default 60)
 *   HAMMER_EXCHANGES  how many exchanges to insist on (default 200000)
 *   HAMMER_PHASE_LIMIT  seconds after which a phase gives up (default 120 and three
 *                       times HAMMER_SECONDS)
 *   HAMMER_ONLY       one of basics refusals memcg marks nodes races node_races load,
 *                     or kvm, which is not among the phases of a whole run
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "hammer.h"

static unsigned long number(const char *name, unsigned long otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoul(text, NULL, 10) : otherwise;
}

static bool wanted(const char *phase)
{
	const char *only = getenv("HAMMER_ONLY");

	return !only || !*only || !strcmp(only, phase);
}

static void set_up(void)
{
	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sys", "/sys", "sysfs", 0, NULL);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* Two managers of placement would undo each other's work. */
	write_file("/proc/sys/kernel/numa_balancing", "0");
	write_file("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "0");
	hasten_khugepaged(false);
}

static long nr_isolated(void)
{
	return read_key("/proc/vmstat", "nr_isolated_anon") +
	       read_key("/proc/vmstat", "nr_isolated_file");
}

static void hammer(void)
{
	unsigned long seconds = number("HAMMER_SECONDS", 60);
	unsigned long exchanges = number("HAMMER_EXCHANGES", 200000);
	struct quota quota = {
		.min_seconds = seconds / 5,
		.max_seconds = number("HAMMER_PHASE_LIMIT", 120 + 3 * seconds),
	};
	bool swap;
	int i;

	if (wanted("basics"))
		test_basics();
	swap = start_swap();
	check(swap, "swap on zram");
	if (wanted("refusals"))
		test_refusals();
	if (wanted("memcg"))
		test_memcg();
	if (wanted("marks"))
		test_marks();
	if (wanted("nodes"))
		test_nodes();
	if (getenv("HAMMER_ONLY") && !strcmp(getenv("HAMMER_ONLY"), "kvm"))
		test_kvm();
	if (wanted("races")) {
		quota.exchanges = exchanges / 10 * 4;
		test_races(RACE_SMALL, &quota);
		quota.exchanges = exchanges / 1000;
		test_races(RACE_HUGE, &quota);
		if (swap) {
			quota.exchanges = 10 + exchanges / 5000;
			test_races(RACE_SIZES, &quota);
			quota.exchanges = exchanges / 10 * 2;
			test_races(RACE_SWAP, &quota);
		}
	}
	if (wanted("node_races")) {
		quota.exchanges = exchanges / 20;
		test_races(RACE_NODES, &quota);
	}
	if (wanted("load")) {
		quota.exchanges = exchanges / 400;
		test_load(true, &quota);
		quota.exchanges = exchanges > exchanges_total ? exchanges - exchanges_total : 1;
		test_load(false, &quota);
		check(exchanges_total >= exchanges,
		      "%llu exchanges in total, wanted %lu; %llu of them in races",
		      (unsigned long long)exchanges_total, exchanges,
		      (unsigned long long)exchanges_racing);
	}
	settle();
	/* The kernel's own compaction isolates as well, for a while. */
	for (i = 0; i < 25 && nr_isolated(); i++)
		usleep(200000);
	check(!nr_isolated(), "isolated counters back to zero (%ld anon, %ld file)",
	      read_key("/proc/vmstat", "nr_isolated_anon"),
	      read_key("/proc/vmstat", "nr_isolated_file"));
	check(kernel_log_clean(), "kernel log clean at the end");
	/* A kernel with lockdep: it stops after its first finding, and when its tables are full. */
	if (!access("/proc/lockdep_stats", R_OK))
		check(read_key("/proc/lockdep_stats", " debug_locks") == 1,
		      "lockdep looked on until the end");
}

int main(void)
{
	struct utsname name;

	set_up();
	uname(&name);
	printf("# hammer on Linux %s\n", name.release);
	load_module("/modules/demeter_hammer.ko", true);
	if (!device_open())
		hammer();
	else
		check(false, "the test module loads");
	printf("hammer: %d passed, %d failed\n", checks_passed(), checks_failed());
	fflush(NULL);
	sync();
	reboot(RB_POWER_OFF);
	return 0;
}
