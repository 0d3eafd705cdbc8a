// SPDX-License-Identifier: Apache-2.0 OR MIT
// System calls that read and write memory which is on disk just then.
#include "check.h"
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#define BYTES (4 * MIB)
#define PAGES (BYTES / PAGE)

static char *memory;

int main(void)
{
	char name[] = "/tmp/demeter-extmem-XXXXXX";
	int fd = mkstemp(name), pipes[2], sockets[2];

	CHECK(fd >= 0);
	memory = map(BYTES);
	// write, pread, read: whole, in pieces larger than one pin.
	fill(memory, 0, PAGES, 1);
	evict_the_rest();
	CHECK(write(fd, memory, BYTES) == (ssize_t)BYTES);
	fill(memory, 0, PAGES, 2);
	evict_the_rest();
	CHECK(pread(fd, memory, BYTES, 0) == (ssize_t)BYTES);
	CHECK(holds(memory, 0, PAGES, 1));
	evict_the_rest();
	CHECK(lseek(fd, 0, SEEK_SET) == 0);
	CHECK(read(fd, memory + 100, BYTES - 100) == (ssize_t)BYTES - 100);
	CHECK(memcmp(memory + 100, &(uint64_t){ word_of(1, 0, 0) }, 8) == 0);
	CHECK(pread(fd, memory, BYTES, 0) == (ssize_t)BYTES && holds(memory, 0, PAGES, 1));
	// O_DIRECT straight into evicted pages.
	int direct = open(name, O_RDONLY | O_DIRECT);

	if (direct >= 0) {
		memset(memory, 0, BYTES);
		evict_the_rest();
		CHECK(pread(direct, memory, BYTES, 0) == (ssize_t)BYTES);
		CHECK(holds(memory, 0, PAGES, 1));
		close(direct);
	}
	// Vectors that lie, and point, into evicted memory.
	struct iovec *vectors = (struct iovec *)(memory + 3 * MIB);

	for (int index = 0; index < 16; index++) {
		vectors[index].iov_base = memory + index * 2 * PAGE;
		vectors[index].iov_len = PAGE;
	}
	evict_the_rest();
	CHECK(preadv(fd, vectors, 16, 0) == 16 * (ssize_t)PAGE);
	for (int index = 0; index < 16; index++)
		CHECK(holds(memory + index * 2 * PAGE, index, 1, 1));
	evict_the_rest();
	CHECK(pwritev(fd, vectors, 16, BYTES) == 16 * (ssize_t)PAGE);
	CHECK(pread(fd, memory, 16 * PAGE, BYTES) == 16 * (ssize_t)PAGE && holds(memory, 0, 16, 1));
	// Pipe and sockets.
	CHECK(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	fill(memory, 0, PAGES, 3);
	evict_the_rest();
	CHECK(write(pipes[1], memory, 8 * PAGE) == 8 * (ssize_t)PAGE);
	CHECK(read(pipes[0], memory + MIB, 16 * PAGE) == 8 * (ssize_t)PAGE);
	CHECK(holds(memory + MIB, 0, 8, 3));
	evict_the_rest();
	CHECK(send(sockets[0], memory, 8 * PAGE, 0) == 8 * (ssize_t)PAGE);
	CHECK(recv(sockets[1], memory + MIB, 8 * PAGE, MSG_WAITALL) == 8 * (ssize_t)PAGE);
	CHECK(holds(memory + MIB, 0, 8, 3));
	struct msghdr *message = (struct msghdr *)(memory + 2 * MIB);
	struct iovec *vector = (struct iovec *)(memory + 2 * MIB + PAGE);

	*message = (struct msghdr){ .msg_iov = vector, .msg_iovlen = 1 };
	*vector = (struct iovec){ memory, 4 * PAGE };
	evict_the_rest();
	CHECK(sendmsg(sockets[0], message, 0) == 4 * (ssize_t)PAGE);
	evict_the_rest();
	vector->iov_base = memory + MIB;
	CHECK(recvmsg(sockets[1], message, 0) == 4 * (ssize_t)PAGE);
	CHECK(holds(memory + MIB, 0, 4, 3));
	// A blocking read that is answered while everything is being evicted.
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		usleep(200000);
		_exit(write(pipes[1], "hello", 5) != 5);
	}
	CHECK(read(pipes[0], memory + MIB, PAGE) == 5 && memcmp(memory + MIB, "hello", 5) == 0);
	waitpid(child, NULL, 0);
	// Small structures and strings.
	char *path = memory + 5 * PAGE - 3;

	strcpy(path, name);
	evict_the_rest();
	int again = open(path, O_RDONLY);

	CHECK(again >= 0);
	struct stat *status = (struct stat *)(memory + 10 * PAGE - 20);

	evict_the_rest();
	CHECK(fstat(again, status) == 0 && status->st_size >= (off_t)BYTES);
	evict_the_rest();
	CHECK(getcwd(memory + 20 * PAGE - 10, PATH_MAX) == memory + 20 * PAGE - 10);
	struct timespec *time = (struct timespec *)(memory + 30 * PAGE - 8);

	evict_the_rest();
	CHECK(clock_gettime(CLOCK_MONOTONIC, time) == 0 && time->tv_sec > 0);
	struct pollfd *polled = (struct pollfd *)(memory + 40 * PAGE);

	polled->fd = pipes[1];
	polled->events = POLLOUT;
	evict_the_rest();
	CHECK(poll(polled, 1, 1000) == 1 && polled->revents == POLLOUT);
	// Bad addresses stay errors.
	CHECK(munmap(memory + 3 * MIB, MIB) == 0);
	errno = 0;
	CHECK(write(fd, memory + 3 * MIB, 10) == -1 && errno == EFAULT);
	char *volatile nowhere = (char *)16;

	CHECK(read(fd, nowhere, 10) == -1 && errno == EFAULT);
	close(again);
	close(fd);
	unlink(name);
	return done();
}
