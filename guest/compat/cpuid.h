/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shim for the header of cpuid_eax(), 2025-07: asm/processor.h includes it no
 * more from 6.16 on, where it is asm/cpuid/api.h. Goes with 6.12.
 */
#ifndef DEMETER_COMPAT_CPUID_H
#define DEMETER_COMPAT_CPUID_H

#include <linux/version.h>

#if KERNEL_VERSION(6, 16, 0) <= LINUX_VERSION_CODE
#include <asm/cpuid/api.h>
#else
#include <asm/processor.h>
#endif

#endif /* DEMETER_COMPAT_CPUID_H */
