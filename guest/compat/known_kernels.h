/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kernels whose internal functions are known to be what we take them for.
 *
 * A function found by name is called with the type that we know of it. The build
 * checks that type where a header of the kernel declares it, and nobody checks
 * what it does: symbol versions cover exported functions only. So the kernels on
 * which the tests pass are listed; another one is for its owner to add, with the
 * module's parameter kernels.
 */
#ifndef DEMETER_COMPAT_KNOWN_KERNELS_H
#define DEMETER_COMPAT_KNOWN_KERNELS_H

#include <linux/ctype.h>
#include <linux/string.h>
#include <linux/types.h>

#define DEMETER_KNOWN_KERNELS "6.1,6.12,7.3"

/**
 * demeter_kernel_is_known() - is a kernel in a list
 * @list: series separated by commas, such as "6.1,6.12"
 * @release: as in uname -r
 *
 * Return: whether @release is of a listed series.
 */
static inline bool demeter_kernel_is_known(const char *list, const char *release)
{
	while (*list) {
		size_t length = strcspn(list, ",");

		if (length && !strncmp(list, release, length) && !isdigit(release[length]))
			return true;
		list += length;
		list += *list == ',';
	}
	return false;
}

#endif /* DEMETER_COMPAT_KNOWN_KERNELS_H */
