/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kernels whose internal functions are known to be what we take them for.
 *
 * A function found by name is called with the type that we know of it. The build
 * checks that type where a header of the kernel declares it, and nobody checks
 * what it does: symbol versions cover exported functions only. So the kernels on
 * which the tests pass are listed; another one is for its owner to add, with the
 * module's parameter kernels.
 *
 * A vendor takes parts of later series over and keeps the number: 6.12.0-124.8.1.el10_1 is
 * not the 6.12 of kernel.org. So a series in the list stands for kernel.org's releases and
 * Debian's, and a vendor's is listed by more of its name, such as 6.12.0-124. No test runs
 * on Debian's real-time kernels, whose locks sleep: these are listed by their whole name, too.
 */
#ifndef DEMETER_COMPAT_KNOWN_KERNELS_H
#define DEMETER_COMPAT_KNOWN_KERNELS_H

#include <linux/ctype.h>
#include <linux/string.h>
#include <linux/types.h>

#define DEMETER_KNOWN_KERNELS "6.1,6.12,7.3"

/* After the series, as in 6.12.57, 6.12.57+deb13-amd64, 6.1.0-50-cloud-amd64, 7.3.0-rc4. */
static inline bool demeter_kernel_is_plain(const char *rest)
{
	static const char debian[] = "-amd64";
	size_t length;

	rest += strspn(rest, ".0123456789");
	length = strlen(rest);
	if (!length || !strcmp(rest, "-debug"))
		return true;
	if (strstr(rest, "-rt-"))
		return false;
	if (strstarts(rest, "-rc"))
		return length > 3 && strspn(rest + 3, "0123456789") == length - 3;
	return length >= strlen(debian) && !strcmp(rest + length - strlen(debian), debian);
}

/**
 * demeter_kernel_is_known() - is a kernel in a list
 * @list: series separated by commas, such as "6.1,6.12"; or more of a name, up to where a
 *	number ends
 * @release: as in uname -r
 *
 * Return: whether @release is of a listed series, or begins with what is listed of it.
 */
static inline bool demeter_kernel_is_known(const char *list, const char *release)
{
	while (*list) {
		size_t length = strcspn(list, ",");
		bool is_series = strspn(list, ".0123456789") >= length;

		if (length && !strncmp(list, release, length) && !isdigit(release[length]) &&
		    (!is_series || demeter_kernel_is_plain(release + length)))
			return true;
		list += length;
		list += *list == ',';
	}
	return false;
}

#endif /* DEMETER_COMPAT_KNOWN_KERNELS_H */
