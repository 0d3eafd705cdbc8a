// SPDX-License-Identifier: Apache-2.0 OR MIT
// exec, vfork, posix_spawn, system, popen, with arguments on disk; closing everything.
#include "check.h"
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

static void wait_for(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int threads_of(const char *folder)
{
	DIR *tasks = opendir(folder);
	int count = 0;

	CHECK(tasks);
	for (struct dirent *entry; (entry = readdir(tasks));)
		count += entry->d_name[0] != '.';
	closedir(tasks);
	return count;
}

// The child shares our memory and needs more of it than there is DRAM: what works for us must
// not come and go with the child.
static void memory_of_a_vfork_child(int background)
{
	int handlers = threads_of("/proc/self/task"), status;
	char *memory = map(48 * MIB);
	pid_t child = vfork();

	CHECK(child >= 0);
	if (!child) {
		fill(memory, 0, 48 * MIB / PAGE, 7);
		if (!holds(memory, 0, 48 * MIB / PAGE, 7))
			_exit(1);
		if (threads_of("/proc/self/task") != 1)
			_exit(2);
		execl("/bin/true", "true", NULL);
		_exit(3);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
	CHECK(holds(memory, 0, 48 * MIB / PAGE, 7));
	// Now they are started, if there are any.
	fill(memory, 0, 48 * MIB / PAGE, 8);
	CHECK(holds(memory, 0, 48 * MIB / PAGE, 8));
	CHECK(threads_of("/proc/self/task") >= handlers + background);
	CHECK(munmap(memory, 48 * MIB) == 0);
}

int main(int count, char **arguments)
{
	if (count > 1 && strcmp(arguments[1], "again") == 0) {
		// The next image of the same program, under the pager too.
		char *memory = map(40 * MIB);

		fill(memory, 0, 40 * MIB / PAGE, 5);
		CHECK(holds(memory, 0, 40 * MIB / PAGE, 5));
		CHECK(strlen(arguments[2]) == 50000);
		return 0;
	}
	memory_of_a_vfork_child(count > 1 && strcmp(arguments[1], "paged") == 0);
	char *memory = map(8 * MIB);
	char **list = (char **)(memory + 3 * PAGE - 8);
	char *text = memory + MIB + 17;

	fill(memory + 2 * MIB, 0, 4 * MIB / PAGE, 6);
	memset(text, 'x', 50000);
	text[50000] = 0;
	strcpy(memory + 7 * MIB, arguments[0]);
	strcpy(memory + 7 * MIB + 5 * PAGE, "again");
	list[0] = memory + 7 * MIB;
	list[1] = memory + 7 * MIB + 5 * PAGE;
	list[2] = text;
	list[3] = NULL;
	evict_the_rest();
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		execv(list[0], list);
		_exit(9);
	}
	wait_for(child);
	evict_the_rest();
	child = vfork();
	CHECK(child >= 0);
	if (!child) {
		execv(list[0], list);
		_exit(9);
	}
	wait_for(child);
	evict_the_rest();
	CHECK(posix_spawn(&child, list[0], NULL, NULL, list, environ) == 0);
	wait_for(child);
	posix_spawnattr_t attributes;
	sigset_t all;

	sigfillset(&all);
	CHECK(posix_spawnattr_init(&attributes) == 0);
	CHECK(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK) == 0);
	CHECK(posix_spawnattr_setsigdefault(&attributes, &all) == 0);
	evict_the_rest();
	CHECK(posix_spawn(&child, list[0], NULL, &attributes, list, environ) == 0);
	wait_for(child);
	CHECK(system("exit 0") == 0);
	FILE *stream = popen("echo popen works", "r");
	char line[100];

	CHECK(stream && fgets(line, sizeof(line), stream) && !strcmp(line, "popen works\n"));
	CHECK(pclose(stream) == 0);
	// An exec that fails leaves us as we were.
	CHECK(execv("/nonexistent", list) == -1 && errno == ENOENT);
	CHECK(holds(memory + 2 * MIB, 0, 4 * MIB / PAGE, 6));
	// Close everything, twice, and go on.
	for (int fd = 3; fd < 65536; fd++)
		close(fd);
	syscall(SYS_close_range, 3, ~0U, 0);
	CHECK(open("/dev/null", O_RDONLY) == 3);
	evict_the_rest();
	CHECK(holds(memory + 2 * MIB, 0, 4 * MIB / PAGE, 6));
	// A library loaded late.
	void *library = dlopen("libm.so.6", RTLD_NOW);

	CHECK(library);
	double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");

	CHECK(cosine && cosine(0.0) == 1.0);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK(holds(memory + 2 * MIB, 0, 4 * MIB / PAGE, 6));
		_exit(0);
	}
	wait_for(child);
	return done();
}
