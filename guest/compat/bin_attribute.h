/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shim for <linux/sysfs.h>, 2025-08: from 6.17 on, the read callback of a
 * binary attribute takes the attribute as const.
 */
#ifndef DEMETER_COMPAT_BIN_ATTRIBUTE_H
#define DEMETER_COMPAT_BIN_ATTRIBUTE_H

#include <linux/sysfs.h>
#include <linux/version.h>

#if KERNEL_VERSION(6, 17, 0) <= LINUX_VERSION_CODE
#define DEMETER_COMPAT_BIN_ATTRIBUTE const struct bin_attribute
#else
#define DEMETER_COMPAT_BIN_ATTRIBUTE struct bin_attribute
#endif

#endif /* DEMETER_COMPAT_BIN_ATTRIBUTE_H */
