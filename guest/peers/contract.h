/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a manager other than Demeter is to the testbed: a module that defines
 * demeter_peer_this and includes frame/host.c. Everything else (sysfs, order of
 * starting and stopping, unloading) is the host's, docs/peers.md.
 *
 *	/sys/kernel/mm/demeter_peer/name		name of the manager
 *	/sys/kernel/mm/demeter_peer/enabled		1 starts, 0 stops
 *	/sys/kernel/mm/demeter_peer/params/NAME		only while stopped
 *	/sys/kernel/mm/demeter_peer/stats/NAME		and STAGE_ns for each stage
 *
 * One at a time: the folder is taken by the module that was loaded first. It can be
 * unloaded while it is stopped.
 */
#ifndef DEMETER_PEERS_CONTRACT_H
#define DEMETER_PEERS_CONTRACT_H

#include <linux/atomic.h>
#include <linux/types.h>

/**
 * enum demeter_peer_stage - what CPU time is spent on
 * @DEMETER_PEER_TRACK: learning which pages are accessed
 * @DEMETER_PEER_CLASSIFY: deciding what to move
 * @DEMETER_PEER_MIGRATE: moving
 * @DEMETER_PEER_STAGES: how many there are
 */
enum demeter_peer_stage {
	DEMETER_PEER_TRACK,
	DEMETER_PEER_CLASSIFY,
	DEMETER_PEER_MIGRATE,
	DEMETER_PEER_STAGES,
};

/**
 * struct demeter_peer_param - a parameter
 * @name: file below params/
 * @value: its value; written only while the manager is stopped
 * @min: least value that is taken
 * @max: largest value that is taken
 */
struct demeter_peer_param {
	const char *name;
	u64 *value;
	u64 min;
	u64 max;
};

/**
 * struct demeter_peer_stat - a counter
 * @name: file below stats/. A manager that moves pages itself, not by the kernel's own
 *	promotion and demotion, has promoted_pages, demoted_pages and refused_pages.
 * @value: its value since the module was loaded
 */
struct demeter_peer_stat {
	const char *name;
	atomic64_t *value;
};

/**
 * struct demeter_peer - a manager
 * @name: as in the folder guest/peers/NAME and the module demeter_NAME.ko
 * @params: parameters, ended by an entry without a name; may be NULL
 * @stats: counters, ended by an entry without a name; may be NULL
 * @start: begin; on failure says why and what to do in the kernel log. Process
 *	context, may sleep.
 * @stop: end; nothing of the manager runs any more when it returns, running
 *	callers of replaced functions included. Called once for each @start that
 *	succeeded.
 *
 * @start and @stop are serialised.
 */
struct demeter_peer {
	const char *name;
	const struct demeter_peer_param *params;
	const struct demeter_peer_stat *stats;
	int (*start)(void);
	void (*stop)(void);
};

/* Defined by the manager. */
extern const struct demeter_peer demeter_peer_this;

/* CPU time by stage; a manager adds what it measures. */
extern atomic64_t demeter_peer_stage_ns[DEMETER_PEER_STAGES];

#endif /* DEMETER_PEERS_CONTRACT_H */
