// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Which releases a series in the list stands for. tests/suites/modules puts
 * guest/compat/known_kernels.h before it.
 */
#include <stdio.h>

static int expect(const char *list, const char *release, bool known)
{
	if (demeter_kernel_is_known(list, release) == known)
		return 0;
	printf("not ok - %s with the list %s\n", release, list);
	return 1;
}

int main(void)
{
	static const char *const plain[] = { "6.12",
					     "6.12.57",
					     "6.12.57+deb13-amd64",
					     "6.12.57+deb13-cloud-amd64",
					     "6.12.9+bpo-amd64",
					     "6.1.0-50-amd64",
					     "6.1.0-50-cloud-amd64",
					     "7.3.4+deb13-amd64",
					     "7.3.0-rc4",
					     "6.12.117-debug",
					     "6.12.22-amd64",
					     "6.1.0-0.deb11.21-amd64" };
	static const char *const others[] = { "6.12.0-124.8.1.el10_1.x86_64",
					      "6.12.0-160000.5-default",
					      "6.12.0-103.40.4.3.el9uek.x86_64",
					      "6.1.141-155.222.amzn2023.x86_64",
					      "6.12.0-55-generic",
					      "6.120.1",
					      "6.12.57-gentoo",
					      "6.12.57+",
					      "6.12.0-rc4-1-default",
					      "6.12.57-debug.el10",
					      "6.1.0-50-cloud-amd64-x",
					      "6.13.1",
					      "6.1.0-50-rt-amd64",
					      "5.6.12" };
	int bad = 0;
	size_t i;

	for (i = 0; i < sizeof(plain) / sizeof(*plain); i++)
		bad += expect(DEMETER_KNOWN_KERNELS, plain[i], true);
	for (i = 0; i < sizeof(others) / sizeof(*others); i++) {
		bad += expect(DEMETER_KNOWN_KERNELS, others[i], false);
		/* Its owner may list it whole. */
		bad += expect(others[i], others[i], true);
	}
	bad += expect("6.12.0-124", "6.12.0-124.8.1.el10_1.x86_64", true);
	bad += expect("6.12.0-12", "6.12.0-124.8.1.el10_1.x86_64", false);
	bad += expect("6.1", "6.12.57", false);
	bad += expect("", "6.12.57", false);
	return bad != 0;
}
