// SPDX-License-Identifier: Apache-2.0 OR MIT
// One call of several vectors that are larger than DRAM together.
#include "check.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/uio.h>

#define COUNT 8
#define BYTES (4 * MIB)

static void write_and_read(int flags)
{
	char name[] = "./vectors-XXXXXX";
	int file = mkostemp(name, flags);
	struct iovec vectors[COUNT];

	CHECK(file >= 0 && unlink(name) == 0);
	char *memory = map(COUNT * 2 * BYTES);

	fill(memory, 0, COUNT * 2 * BYTES / PAGE, 1);
	for (int at = 0; at < COUNT; at++)
		vectors[at] = (struct iovec){ memory + at * 2 * BYTES, BYTES };
	CHECK(pwritev(file, vectors, COUNT, PAGE) == COUNT * BYTES);
	for (int at = 0; at < COUNT; at++)
		memset(vectors[at].iov_base, 0, BYTES);
	CHECK(preadv(file, vectors, COUNT, PAGE) == COUNT * BYTES);
	CHECK(holds(memory, 0, COUNT * 2 * BYTES / PAGE, 1));
	// By the file's own position, and to the end of the file.
	CHECK(lseek(file, PAGE + BYTES, SEEK_SET) >= 0);
	CHECK(readv(file, vectors, COUNT) == (COUNT - 1) * BYTES);
	CHECK(lseek(file, 0, SEEK_CUR) == PAGE + COUNT * BYTES);
	CHECK(holds(memory, BYTES / PAGE * 2, BYTES / PAGE, 1));
	CHECK(munmap(memory, COUNT * 2 * BYTES) == 0);
	close(file);
}

// Vectors that begin and end inside pages touch more of them than their bytes fill. Twenty of
// them are empty.
static void write_and_read_anywhere(void)
{
	enum { VECTORS = 100, LENGTH = 100001, EMPTY = 20, MOST = VECTORS * LENGTH };
	char name[] = "./vectors-XXXXXX";
	int file = mkstemp(name);
	struct iovec vectors[EMPTY + VECTORS];
	long pages = MOST / PAGE + 1;

	CHECK(file >= 0 && unlink(name) == 0);
	char *memory = map(2 * pages * PAGE), *copy = memory + pages * PAGE;

	fill(memory, 0, pages, 3);
	for (int at = 0; at < EMPTY + VECTORS; at++)
		vectors[at] = (struct iovec){ memory + (at < EMPTY ? 0 : at - EMPTY) * LENGTH,
					      at < EMPTY ? 0 : LENGTH };
	CHECK(pwritev(file, vectors, EMPTY + VECTORS, 1) == MOST);
	// Memory that nobody has touched: what is not brought in first is not there.
	for (int at = EMPTY; at < EMPTY + VECTORS; at++)
		vectors[at].iov_base = copy + (at - EMPTY) * LENGTH;
	CHECK(preadv(file, vectors, EMPTY + VECTORS, 1) == MOST);
	CHECK(memcmp(memory, copy, MOST) == 0);
	CHECK(munmap(memory, 2 * pages * PAGE) == 0);
	close(file);
}

int main(void)
{
	write_and_read_anywhere();
	write_and_read(0);
	write_and_read(O_DIRECT);
	return done();
}
