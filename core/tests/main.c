// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * User-space runner. Without arguments: all tests. With "digest FILE...": the
 * digest of each trace, as lines "NAME HEX".
 */
#include <errno.h>
#include <string.h>

#include "suite.h"

static int digest_file(const char *path)
{
	const char *name = strrchr(path, '/');
	static char text[1 << 16];
	FILE *file = fopen(path, "r");
	u64 digest;
	size_t length;
	int err;

	if (!file) {
		fprintf(stderr, "core: cannot open %s: %s\n", path, strerror(errno));
		return 1;
	}
	length = fread(text, 1, sizeof(text) - 1, file);
	text[length] = '\0';
	fclose(file);
	err = golden_replay(text, &digest);
	if (err) {
		fprintf(stderr, "core: %s is not a trace: %s\n", path, strerror(-err));
		return 1;
	}
	name = name ? name + 1 : path;
	printf("%.*s %016llx\n", (int)strcspn(name, "."), name, (test_ull)digest);
	return 0;
}

int main(int argc, char **argv)
{
	struct test_tally tally = { 0 };
	int i, err = 0;

	if (argc > 1 && strcmp(argv[1], "digest") == 0) {
		for (i = 2; i < argc; i++)
			err |= digest_file(argv[i]);
		return err;
	}
	suite_run(&tally);
	printf("core: %u passed, %u failed\n", tally.passed, tally.failed);
	return tally.failed != 0;
}
