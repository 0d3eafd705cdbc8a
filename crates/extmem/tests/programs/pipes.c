// SPDX-License-Identifier: Apache-2.0 OR MIT
// The pager's pipes: large while pages leave by them, small before and after; a user's programs
// share what pipes may have. The child of a fork has pipes of its own.
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#define PAGES (40 * MIB / PAGE)
#define LARGE (128L * 4096)

static char *memory;

// Bytes of the largest pipe that was opened since the program began (others are no close-on-exec
// ones), and how many ends of such pipes there are; the name of one.
static long largest(int *ends, char *name)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	long most = 0;

	CHECK(folder);
	*ends = 0;
	while ((entry = readdir(folder))) {
		char link[64] = "";
		long bytes;

		if (readlinkat(dirfd(folder), entry->d_name, link, sizeof(link) - 1) < 0 ||
		    strncmp(link, "pipe:", 5) || !fcntl(atoi(entry->d_name), F_GETFD))
			continue;
		bytes = fcntl(atoi(entry->d_name), F_GETPIPE_SZ);
		CHECK(bytes > 0);
		most = bytes > most ? bytes : most;
		++*ends;
		strcpy(name, link);
	}
	closedir(folder);
	return most;
}

static void *push(void *seed)
{
	for (uint64_t step = 0; step < 12000; step++)
		memory[word_of((uint64_t)seed, step, 0) % PAGES * PAGE + 8] = 7;
	return NULL;
}

// Whether pages leave by pipes here: Linux takes advice about several ranges from 6.15 on.
static int by_pipes(void)
{
	struct utsname about;
	int major, minor;

	CHECK(uname(&about) == 0 && sscanf(about.release, "%d.%d", &major, &minor) == 2);
	return major > 6 || (major == 6 && minor >= 15);
}

// Waits until nothing leaves any more and the pipes are small again; the last look.
static long settled(long idle, int *ends, char *name)
{
	long now = largest(ends, name);

	for (int looks = 0; now > idle && looks < 500; looks++) {
		usleep(20000);
		now = largest(ends, name);
	}
	return now;
}

static void use(long idle)
{
	char before[64] = "", after[64] = "";
	pthread_t threads[2];
	long most = 0;
	int ends;

	CHECK(settled(idle, &ends, before) == idle && ends == (idle ? 4 : 0));
	for (uint64_t index = 0; index < 2; index++)
		CHECK(pthread_create(&threads[index], NULL, push, (void *)index) == 0);
	for (int look = 0; look < 2; look++) {
		while (pthread_tryjoin_np(threads[look], NULL)) {
			long now = largest(&ends, after);

			most = now > most ? now : most;
			usleep(2000);
		}
	}
	CHECK(most == (idle ? LARGE : 0));
	CHECK(settled(idle, &ends, after) == idle && strcmp(before, after) == 0);
}

int main(void)
{
	// In handler mode, on older kernels, and without the pager, there are none.
	const char *mode = getenv("DEMETER_EXTMEM_MODE");
	long idle = mode && !strcmp(mode, "inline") && by_pipes() ? PAGE : 0;
	char own[64] = "", parents[64] = "";
	int status, ends;
	pid_t child;

	memory = map(PAGES * PAGE);
	fill(memory, 0, PAGES, 1);
	use(idle);
	largest(&ends, parents);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		largest(&ends, own);
		CHECK(!idle || strcmp(own, parents));
		use(idle);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	use(idle);
	return done();
}
