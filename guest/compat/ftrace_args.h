/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shim for <linux/ftrace.h>, 2023-02: ftrace_regs_get_argument() came with 6.2.
 * Before, the registers that hold arguments are at the head of struct
 * ftrace_regs. Goes with 6.1.
 */
#ifndef DEMETER_COMPAT_FTRACE_ARGS_H
#define DEMETER_COMPAT_FTRACE_ARGS_H

#include <linux/ftrace.h>
#include <linux/version.h>

#if KERNEL_VERSION(6, 2, 0) <= LINUX_VERSION_CODE
#define demeter_ftrace_argument(fregs, n) ftrace_regs_get_argument(fregs, n)
#else
#include <asm/ptrace.h>
#define demeter_ftrace_argument(fregs, n) regs_get_kernel_argument(&(fregs)->regs, n)
#endif

#endif /* DEMETER_COMPAT_FTRACE_ARGS_H */
