/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kernel functions that are not exported to modules.
 *
 * They are found by name at load time and called through static calls: these
 * are direct calls, so they also work on CPUs with IBT, where an indirect call
 * of a function whose ENDBR was sealed at boot would fault.
 */
#ifndef DEMETER_SYMBOLS_H
#define DEMETER_SYMBOLS_H

#include <linux/static_call.h>
#include <linux/types.h>

struct tracepoint;

/**
 * demeter_symbols_resolve() - find all functions; call once, at module load
 *
 * Says in the kernel log what is missing and what to do about it.
 *
 * Return: 0, or -ENOENT, -EOPNOTSUPP or the error of register_kprobe().
 */
int demeter_symbols_resolve(void);

/**
 * demeter_symbol_address() - address of a kernel symbol by name
 * @name: the symbol
 *
 * For data, and for callers with their own static call.
 *
 * Return: the address, or 0. Valid after demeter_symbols_resolve().
 */
unsigned long demeter_symbol_address(const char *name);

/**
 * demeter_symbol_aim() - aim a static call at a kernel function, if there is one
 * @key: of the static call
 * @trampoline: of the static call
 * @name: the function
 *
 * Return: whether it may be called now.
 */
bool demeter_symbol_aim(struct static_call_key *key, void *trampoline, const char *name);

/**
 * demeter_tracepoint_find() - a tracepoint by name
 * @name: of the tracepoint
 *
 * Most are not exported by name, but every one can be visited.
 *
 * Return: the tracepoint, NULL when this kernel has none of that name.
 */
struct tracepoint *demeter_tracepoint_find(const char *name);

/* demeter_symbol_aim() for what DEMETER_DEFINE_CALL() defined, by another name if need be. */
#define demeter_symbol_aim_call(symbol, name)                                                      \
	demeter_symbol_aim(&STATIC_CALL_KEY(demeter_sc_##symbol),                                  \
			   STATIC_CALL_TRAMP_ADDR(demeter_sc_##symbol), name)

#endif /* DEMETER_SYMBOLS_H */
