/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shim for <asm/msr.h>, 2025-07: rdmsrl_safe() became rdmsrq_safe() in 6.16.
 * Goes with 6.12.
 */
#ifndef DEMETER_COMPAT_MSR_H
#define DEMETER_COMPAT_MSR_H

#include <linux/version.h>
#include <asm/msr.h>

#if KERNEL_VERSION(6, 16, 0) <= LINUX_VERSION_CODE
#define demeter_rdmsr_safe(msr, value) rdmsrq_safe(msr, value)
#else
#define demeter_rdmsr_safe(msr, value) rdmsrl_safe(msr, value)
#endif

#endif /* DEMETER_COMPAT_MSR_H */
