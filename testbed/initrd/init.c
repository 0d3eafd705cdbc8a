// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * First process of the guest: loads the modules, mounts the guest root (DAX) under
 * an overlay, hands over to /demeter/agent of the per-run archive. Any failure ends
 * in one "demeter-init: error:" line and a power-off.
 *
 * It is linked statically, since the agent's libraries are on the guest root. System
 * calls and no shell: each process that a shell starts costs the host some 20 ms, as
 * the emulator translates code that runs once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOAD_ORDER   "/modules/load-order"
#define ROOT_DEVICE  "/dev/pmem0"
#define AGENT	     "/demeter/agent"
/* nd_pmem makes its device in a worker: a second of guest time is plenty. */
#define DEVICE_TRIES 1000

static void fail(const char *what, const char *which, int error)
{
	printf("demeter-init: error: %s%s%s%s\n", what, which, error ? ": " : "",
	       error ? strerror(error) : "");
	fflush(stdout);
	sync();
	for (;;) {
		reboot(RB_POWER_OFF);
		sleep(1);
	}
}

static void directory(const char *path)
{
	if (mkdir(path, 0755) && errno != EEXIST)
		fail("cannot make ", path, errno);
}

static void attach(const char *source, const char *target, const char *type, unsigned long flags,
		   const char *options)
{
	directory(target);
	if (mount(source, target, type, flags, options))
		fail("cannot mount ", target, errno);
}

static void load(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		fail("cannot open ", path, errno);
	/* Built in as well, or a dependency of two: there is no need for it. */
	if (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST)
		fail("the kernel refused ", path, errno);
	close(fd);
}

/* What was loaded is not needed any more: its memory is the guest's. */
static void load_modules(void)
{
	char line[128], path[sizeof("/modules/") + sizeof(line)];
	FILE *order = fopen(LOAD_ORDER, "re");

	if (!order)
		fail("cannot open ", LOAD_ORDER, errno);
	while (fgets(line, sizeof(line), order)) {
		line[strcspn(line, "\n")] = '\0';
		snprintf(path, sizeof(path), "/modules/%s", line);
		load(path);
		unlink(path);
	}
	fclose(order);
	unlink(LOAD_ORDER);
}

static void wait_for_device(void)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	int tries;

	for (tries = 0; access(ROOT_DEVICE, F_OK); tries++) {
		if (tries == DEVICE_TRIES)
			fail("the machine has no virtio-pmem device with the guest root: no ",
			     ROOT_DEVICE, 0);
		nanosleep(&pause, NULL);
	}
}

/* A kernel may mount without DAX where it cannot have it. */
static void check_dax(const char *mounts_path, const char *target)
{
	char line[1024], name[256], options[512];
	FILE *mounts = fopen(mounts_path, "re");
	int is_dax = 0;

	if (!mounts)
		fail("cannot open ", mounts_path, errno);
	while (fgets(line, sizeof(line), mounts)) {
		if (sscanf(line, "%*s %255s %*s %511s", name, options) == 2 &&
		    !strcmp(name, target))
			is_dax = strstr(options, "dax=always") != NULL;
	}
	fclose(mounts);
	if (!is_dax)
		fail("the guest root is mounted without DAX", "", 0);
}

int main(void)
{
	/* For a word on the console; the kernel opened it as standard output. */
	setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
	/* The kernel mounts no devtmpfs for an initramfs. */
	attach("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	load_modules();
	wait_for_device();
	attach(ROOT_DEVICE, "/lower", "erofs", MS_RDONLY, "dax=always");

	/* One small tmpfs for all that the guest writes outside its own /tmp. */
	attach("upper", "/upper", "tmpfs", 0, "size=16m,mode=0755");
	directory("/upper/data");
	directory("/upper/work");
	attach("root", "/newroot", "overlay", 0,
	       "lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work");
	attach("proc", "/newroot/proc", "proc", 0, NULL);
	attach("sysfs", "/newroot/sys", "sysfs", 0, NULL);
	attach("/dev", "/newroot/dev", NULL, MS_MOVE, NULL);
	check_dax("/newroot/proc/mounts", "/lower");
	puts("demeter-init: guest root mounted, dax=always");

	/* The run's files stay where the kernel unpacked them. */
	if (access(AGENT, X_OK))
		fail("no executable ", AGENT " in the run's archive, or no memory to unpack it", 0);
	attach("/demeter", "/newroot/demeter", NULL, MS_BIND, NULL);
	unlink("/bin/busybox");
	unlink("/bin/sh");
	unlink("/init");

	if (chdir("/newroot") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		fail("cannot make the overlay the root", "", errno);
	execl(AGENT, AGENT, (char *)NULL);
	fail("cannot start ", AGENT, errno);
}
