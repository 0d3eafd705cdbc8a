/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Put a function of one's own in the place of one of the kernel's.
 *
 * By ftrace with IPMODIFY, as livepatch does it: the traced call at the head of the
 * function goes on at ours, with the arguments and the return address of the original
 * call. A function that the compiler has inlined cannot be replaced where it is
 * inlined, and only one user at a time can replace a function (livepatch is another).
 *
 * Who may be where when a replacement is taken back, and what waits for them:
 *	in ftrace's trampoline, or on the way out of it	tasks-RCU
 *	in the replacement, awake or asleep		the SRCU domain it entered
 *	between leaving that and the return		tasks-RCU, once more
 * so every replacement brackets all it does by demeter_replacement_enter() and
 * demeter_replacement_leave().
 */
#ifndef DEMETER_PEERS_REPLACE_H
#define DEMETER_PEERS_REPLACE_H

#include <linux/ftrace.h>
#include <linux/srcu.h>

/**
 * struct demeter_replacement - a function and what takes its place
 * @function: name of the kernel's function
 * @with: ours, of the very same type
 * @ops: of ftrace; private
 * @inside: who is in @with; private
 * @in_place: private; written by demeter_replace() and demeter_restore() only
 */
struct demeter_replacement {
	const char *function;
	void *with;
	struct ftrace_ops ops;
	struct srcu_struct inside;
	bool in_place;
};

/**
 * demeter_replace() - put a function in the place of the kernel's
 * @replacement: @function and @with set, all else zero
 *
 * Says in the kernel log why it cannot be done. Sleeps.
 *
 * Return: 0; -ENOENT when the kernel has no such function, or it is not one that can
 * be traced; -EBUSY when somebody else has replaced it; or another negative errno.
 */
int demeter_replace(struct demeter_replacement *replacement);

/**
 * demeter_restore() - undo demeter_replace(), and wait until nobody is in ours any more
 * @replacement: the replacement; nothing is done if it is not in place
 *
 * Sleeps for as long as a caller does in the replacement. After a fault of ftrace
 * itself code cannot be patched back: then the module is kept loaded for ever, which
 * is said in the kernel log, and false returned.
 *
 * Return: whether the function is the kernel's own again.
 */
bool demeter_restore(struct demeter_replacement *replacement);

/**
 * demeter_replacement_enter() - the first thing that a replacement does
 * @replacement: the replacement
 *
 * Any context that the replaced function may be called in, NMI excepted.
 *
 * Return: for demeter_replacement_leave()
 */
static inline int demeter_replacement_enter(struct demeter_replacement *replacement)
{
	return srcu_read_lock(&replacement->inside);
}

/**
 * demeter_replacement_leave() - the last thing that a replacement does
 * @replacement: the replacement
 * @index: what demeter_replacement_enter() returned
 */
static inline void demeter_replacement_leave(struct demeter_replacement *replacement, int index)
{
	srcu_read_unlock(&replacement->inside, index);
}

#endif /* DEMETER_PEERS_REPLACE_H */
