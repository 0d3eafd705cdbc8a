/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tiers: which NUMA nodes are fast and which are slow memory, and which of them
 * belong together.
 *
 * A tier is a set of nodes. They are found by the kernel's own memory tiers; where
 * these make no difference, memory with CPUs is fast and memory without is slow;
 * and the parameters fmem_node and smem_node overrule both.
 *
 * Pages move between one node and one other: along a route. A slow node and the
 * fast node that is nearest to it make a near route (several where several are
 * equally near, and a fast node that no slow one is nearest to is served by the one
 * nearest to itself). All others go to another socket. They are tried after the
 * near ones, for what those have left, and only where that pays: what firmware says
 * of the distance between the sockets is taken off the gain (SLIT: at 21 memory
 * takes 2.1 times as long as at 10). What slow memory itself costs is measured, and
 * its distance only says to which fast node it is nearest.
 *
 * Resident pages are counted by pair of nodes: a column has a fast node, a slow
 * node that is nearest to it, or only one of them. With one node a tier there is
 * one column and one route.
 *
 * demeter_control_lock protects the choice. What comes of it changes only while
 * nothing is managed.
 */
#ifndef DEMETER_TIERS_H
#define DEMETER_TIERS_H

#include <linux/nodemask.h>
#include <linux/numa.h>
#include <linux/types.h>
#include <demeter/ranges.h>

struct kobject;

/* Nodes of a tier at most: as many as x86 machines have sockets. */
#define DEMETER_MAX_COLUMNS 8

/**
 * struct demeter_route - where pages go from and to
 * @from: column of the slow node
 * @to: column of the fast node
 * @distance: from the fast node that is nearest to the slow one, to the fast node
 *	here, as firmware says; LOCAL_DISTANCE when that is the same
 */
struct demeter_route {
	u32 from;
	u32 to;
	u32 distance;
};

/**
 * demeter_route_is_far() - does a route lead to another socket
 * @route: the route
 *
 * Return: true if there is a fast node nearer to the slow one.
 */
static inline bool demeter_route_is_far(const struct demeter_route *route)
{
	return route->distance > LOCAL_DISTANCE;
}

/**
 * struct demeter_tiers - the nodes in use
 * @nodes: by tier
 * @columns: pairs of nodes
 * @node: by column and tier; NUMA_NO_NODE where a column lacks one
 * @nr_routes: length of @route
 * @nr_near: of these, near ones; they come first
 * @route: between all slow nodes and all fast ones
 * @slot: by node: column * DEMETER_TIERS + tier, or -1 for a node of no tier
 */
struct demeter_tiers {
	nodemask_t nodes[DEMETER_TIERS];
	u32 columns;
	int node[DEMETER_MAX_COLUMNS][DEMETER_TIERS];
	u32 nr_routes;
	u32 nr_near;
	struct demeter_route route[DEMETER_MAX_COLUMNS * DEMETER_MAX_COLUMNS];
	s8 slot[MAX_NUMNODES];
};

/**
 * struct demeter_node_stats - what came of one node
 * @arrived_pages: 4 KiB pages moved here from the other tier, since load
 * @resident_pages: of managed address spaces, as counted last
 *
 * Written by the epoch worker alone.
 */
struct demeter_node_stats {
	u64 arrived_pages;
	u64 resident_pages;
};

extern struct demeter_tiers demeter_tiers;
extern struct demeter_node_stats demeter_node_stats[MAX_NUMNODES];

/**
 * demeter_tier_of() - tier of a node
 * @nid: the node
 *
 * Safe in any context.
 *
 * Return: enum demeter_tier, or DEMETER_TIERS for a node of neither.
 */
static inline u16 demeter_tier_of(int nid)
{
	int slot = READ_ONCE(demeter_tiers.slot[nid]);

	return slot < 0 ? DEMETER_TIERS : slot % DEMETER_TIERS;
}

/**
 * demeter_table_alloc() - memory for a large table whose place programs need more
 * @nr: entries
 * @size: of each
 *
 * In the slow tier if there is one and it has room that the kernel may use: the fast
 * one is for programs. Tables that are searched for every sample stay where they are; the
 * queue of samples, written and read in order, does not.
 *
 * Return: zeroed, to be freed by kvfree(), or NULL.
 */
void *demeter_table_alloc(size_t nr, size_t size);

/**
 * demeter_tiers_resolve() - find the function that knows memory tiers; call once
 *
 * Not finding it is no error: then CPUs decide.
 */
void demeter_tiers_resolve(void);

/**
 * demeter_tiers_set() - say which nodes a tier has
 * @tier: the tier
 * @text: "auto", a number, or a list as 0,2 or 0-1
 *
 * Return: 0, or -EINVAL with the cause in the kernel log.
 */
int demeter_tiers_set(enum demeter_tier tier, const char *text);

/**
 * demeter_tiers_show() - the same as it was said
 * @tier: the tier
 * @buf: a page, out
 *
 * Return: length.
 */
ssize_t demeter_tiers_show(enum demeter_tier tier, char *buf);

/**
 * demeter_tiers_choose() - find the nodes, and how they belong together
 *
 * While nothing is managed. What is known of resident pages is forgotten when the
 * nodes are others than before.
 *
 * Return: 0, or -ENODEV with the cause in the kernel log.
 */
int demeter_tiers_choose(void);

/**
 * demeter_tiers_fmem_pages() - memory of all fast nodes
 *
 * While nothing is managed, of those that would be chosen. Under demeter_control_lock.
 *
 * Return: 4 KiB pages, 0 if nobody knows which nodes are fast.
 */
u64 demeter_tiers_fmem_pages(void);

/**
 * demeter_tiers_free_pages() - free memory of a node, below watermarks or above
 * @nid: the node
 *
 * Return: 4 KiB pages.
 */
u64 demeter_tiers_free_pages(int nid);

/* tiers_sysfs.c: the directories tiers/ and nodes/ */
int demeter_tiers_sysfs_init(struct kobject *root);
void demeter_tiers_sysfs_nodes(void);
void demeter_tiers_sysfs_exit(void);

#endif /* DEMETER_TIERS_H */
