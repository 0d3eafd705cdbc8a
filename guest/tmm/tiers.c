// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tiers: see tiers.h.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/bitmap.h>
#include <linux/memory-tiers.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/moduleparam.h>
#include <linux/overflow.h>
#include <linux/sysfs.h>
#include <linux/topology.h>
#include <linux/vmalloc.h>

#include "kernel_calls.h"
#include "symbols.h"
#include "tiers.h"
#include "tmm.h"

/* What was said of each tier; no nodes: to be found. demeter_control_lock. */
static nodemask_t choice[DEMETER_TIERS];

static const char *const param_names[] = {
	[DEMETER_FMEM] = "fmem_node",
	[DEMETER_SMEM] = "smem_node",
};

struct demeter_tiers demeter_tiers;
struct demeter_node_stats demeter_node_stats[MAX_NUMNODES];

#if defined(CONFIG_NUMA) && defined(CONFIG_MIGRATION)
#define demeter_type_node_is_toptier node_is_toptier
DEMETER_DEFINE_CALL(node_is_toptier);
static bool kernel_knows;

void demeter_tiers_resolve(void)
{
	kernel_knows = demeter_symbol_aim_call(node_is_toptier, "node_is_toptier");
}

static bool is_top_tier(int nid)
{
	return kernel_knows && demeter_call(node_is_toptier)(nid);
}
#else
void demeter_tiers_resolve(void)
{
}

static bool is_top_tier(int nid)
{
	return false;
}
#endif

static int list_parse(const char *text, nodemask_t *nodes)
{
	unsigned long nid;

	nodes_clear(*nodes);
	if (!kstrtoul(text, 0, &nid)) {
		if (nid >= MAX_NUMNODES)
			return -EINVAL;
		node_set(nid, *nodes);
		return 0;
	}
	if (nodelist_parse(text, *nodes) || nodes_empty(*nodes))
		return -EINVAL;
	return 0;
}

/* A list as it was written, without what ends the line. */
static int text_length(const char *text)
{
	return strcspn(text, "\n");
}

int demeter_tiers_set(enum demeter_tier tier, const char *text)
{
	nodemask_t nodes, absent;

	if (sysfs_streq(text, "auto")) {
		nodes_clear(choice[tier]);
		return 0;
	}
	if (list_parse(text, &nodes)) {
		pr_err("%s: \"%.*s\" is no list of nodes; next: write auto, a node such as 0, or a list such as 0,2 or 0-1\n",
		       param_names[tier], text_length(text), text);
		return -EINVAL;
	}
	nodes_andnot(absent, nodes, node_states[N_MEMORY]);
	if (!nodes_empty(absent)) {
		/* A list leaves out nodes that this machine cannot have. */
		pr_err("%s: node %d has no memory; next: choose from %*pbl\n", param_names[tier],
		       (int)first_node(absent), nodemask_pr_args(&node_states[N_MEMORY]));
		return -EINVAL;
	}
	if (nodes_weight(nodes) > DEMETER_MAX_COLUMNS) {
		pr_err("%s: %*pbl are more than %d nodes; next: leave some out\n",
		       param_names[tier], nodemask_pr_args(&nodes), DEMETER_MAX_COLUMNS);
		return -EINVAL;
	}
	/* Whether the two have nodes in common is checked once both are set, by enabling. */
	choice[tier] = nodes;
	return 0;
}

ssize_t demeter_tiers_show(enum demeter_tier tier, char *buf)
{
	if (nodes_empty(choice[tier]))
		return sysfs_emit(buf, "auto\n");
	return sysfs_emit(buf, "%*pbl\n", nodemask_pr_args(&choice[tier]));
}

static int tier_of_param(const struct kernel_param *kp)
{
	return (long)kp->arg;
}

static int param_tier_set(const char *text, const struct kernel_param *kp)
{
	return demeter_tiers_set(tier_of_param(kp), text);
}

static const struct kernel_param_ops param_tier_ops = { .set = param_tier_set };
module_param_cb(fmem_node, &param_tier_ops, (void *)DEMETER_FMEM, 0);
MODULE_PARM_DESC(fmem_node, "see /sys/kernel/mm/demeter");
module_param_cb(smem_node, &param_tier_ops, (void *)DEMETER_SMEM, 0);
MODULE_PARM_DESC(smem_node, "see /sys/kernel/mm/demeter");

/* The fast nodes by themselves. Returns what tells them apart, NULL if nothing does. */
static const char *find_fast(nodemask_t *fast)
{
	const nodemask_t *all = &node_states[N_MEMORY];
	int nid;

	nodes_clear(*fast);
	for_each_node_mask(nid, *all)
		if (is_top_tier(nid))
			node_set(nid, *fast);
	if (!nodes_empty(*fast) && !nodes_equal(*fast, *all))
		return "by the kernel's memory tiers";
	nodes_and(*fast, *all, node_states[N_CPU]);
	if (!nodes_empty(*fast) && !nodes_equal(*fast, *all))
		return "by CPUs";
	return NULL;
}

/* Where tables go: chosen or not, as they may be made before. NUMA_NO_NODE if unknown. */
static int table_node(void)
{
	nodemask_t slow = demeter_tiers.nodes[DEMETER_SMEM], fast;

	if (nodes_empty(slow))
		slow = choice[DEMETER_SMEM];
	if (nodes_empty(slow) && find_fast(&fast))
		nodes_andnot(slow, node_states[N_MEMORY], fast);
	return nodes_empty(slow) ? NUMA_NO_NODE : first_node(slow);
}

void *demeter_table_alloc(size_t nr, size_t size)
{
	size_t bytes;

	if (check_mul_overflow(nr, size, &bytes))
		return NULL;
	return vzalloc_node(bytes, table_node());
}

u64 demeter_tiers_fmem_pages(void)
{
	nodemask_t nodes = demeter_tiers.nodes[DEMETER_FMEM];
	u64 pages = 0;
	int nid;

	lockdep_assert_held(&demeter_control_lock);
	if (nodes_empty(nodes))
		nodes = choice[DEMETER_FMEM];
	if (nodes_empty(nodes) && !find_fast(&nodes))
		return 0;
	nodes_and(nodes, nodes, node_states[N_MEMORY]);
	for_each_node_mask(nid, nodes)
		pages += NODE_DATA(nid)->node_present_pages;
	return pages;
}

/* Which nodes are which. Returns how they were found, or NULL after saying why not. */
static const char *find_nodes(nodemask_t nodes[DEMETER_TIERS])
{
	bool fmem_set = !nodes_empty(choice[DEMETER_FMEM]);
	bool smem_set = !nodes_empty(choice[DEMETER_SMEM]);
	nodemask_t both, fast, slow;
	const char *how;

	how = find_fast(&fast);
	if (!how && !fmem_set && !smem_set) {
		pr_err("nodes %*pbl cannot be told apart: to the kernel they are one memory tier, and all of them or none have CPUs; next: set params/fmem_node and params/smem_node\n",
		       nodemask_pr_args(&node_states[N_MEMORY]));
		return NULL;
	}
	/* Where nothing tells them apart, what is said of one leaves the rest to the other. */
	slow = node_states[N_MEMORY];
	if (how)
		nodes_andnot(slow, slow, fast);
	else
		fast = slow;
	nodes_andnot(nodes[DEMETER_FMEM], fast, choice[DEMETER_SMEM]);
	nodes_andnot(nodes[DEMETER_SMEM], slow, choice[DEMETER_FMEM]);
	if (fmem_set)
		nodes[DEMETER_FMEM] = choice[DEMETER_FMEM];
	if (smem_set)
		nodes[DEMETER_SMEM] = choice[DEMETER_SMEM];
	if (fmem_set && smem_set)
		how = "as set";
	else if (fmem_set || smem_set)
		how = "as set in part";
	if (nodes_empty(nodes[DEMETER_FMEM]) || nodes_empty(nodes[DEMETER_SMEM])) {
		pr_err("all memory (node %*pbl) is in one tier, so there is nothing to choose; next: set params/fmem_node and params/smem_node\n",
		       nodemask_pr_args(&node_states[N_MEMORY]));
		return NULL;
	}
	nodes_and(both, nodes[DEMETER_FMEM], nodes[DEMETER_SMEM]);
	if (!nodes_empty(both)) {
		pr_err("node %*pbl is in both tiers; next: set params/fmem_node and params/smem_node to others\n",
		       nodemask_pr_args(&both));
		return NULL;
	}
	nodes_or(both, nodes[DEMETER_FMEM], nodes[DEMETER_SMEM]);
	if (!nodes_subset(both, node_states[N_MEMORY])) {
		nodes_andnot(both, both, node_states[N_MEMORY]);
		pr_err("node %*pbl has no memory any more; next: set params/fmem_node and params/smem_node\n",
		       nodemask_pr_args(&both));
		return NULL;
	}
	if (nodes_weight(nodes[DEMETER_FMEM]) > DEMETER_MAX_COLUMNS ||
	    nodes_weight(nodes[DEMETER_SMEM]) > DEMETER_MAX_COLUMNS) {
		pr_err("a tier can have %d nodes; next: set params/fmem_node and params/smem_node to fewer\n",
		       DEMETER_MAX_COLUMNS);
		return NULL;
	}
	return how;
}

/* The least distance from @nid to a node of @nodes. */
static int least_distance(int nid, const nodemask_t *nodes)
{
	int least = INT_MAX, other;

	for_each_node_mask(other, *nodes)
		least = min(least, node_distance(nid, other));
	return least;
}

/* Is there nothing of the fast tier nearer to the slow node, or the other way round? */
static bool is_near(const struct demeter_tiers *tiers, int slow, int fast)
{
	return node_distance(slow, fast) == least_distance(slow, &tiers->nodes[DEMETER_FMEM]);
}

static bool is_chosen(const struct demeter_tiers *tiers, int fast)
{
	int slow;

	for_each_node_mask(slow, tiers->nodes[DEMETER_SMEM])
		if (is_near(tiers, slow, fast))
			return true;
	return false;
}

/* A fast node that no slow one is nearest to takes from the one nearest to itself. */
static bool is_pair(const struct demeter_tiers *tiers, int slow, int fast)
{
	if (is_near(tiers, slow, fast))
		return true;
	return !is_chosen(tiers, fast) &&
	       node_distance(fast, slow) == least_distance(fast, &tiers->nodes[DEMETER_SMEM]);
}

static void put(struct demeter_tiers *tiers, u32 column, enum demeter_tier tier, int nid)
{
	tiers->node[column][tier] = nid;
	WRITE_ONCE(tiers->slot[nid], column * DEMETER_TIERS + tier);
	tiers->columns = max(tiers->columns, column + 1);
}

/* A slow node shares the column of a fast one of its pairs, as long as that has none. */
static void make_columns(struct demeter_tiers *tiers)
{
	u32 column, nr = 0;
	int nid;

	tiers->columns = 0;
	for (column = 0; column < DEMETER_MAX_COLUMNS; column++) {
		tiers->node[column][DEMETER_FMEM] = NUMA_NO_NODE;
		tiers->node[column][DEMETER_SMEM] = NUMA_NO_NODE;
	}
	for (nid = 0; nid < MAX_NUMNODES; nid++)
		WRITE_ONCE(tiers->slot[nid], -1);
	for_each_node_mask(nid, tiers->nodes[DEMETER_FMEM])
		put(tiers, nr++, DEMETER_FMEM, nid);
	for_each_node_mask(nid, tiers->nodes[DEMETER_SMEM]) {
		for (column = 0; column < nr; column++)
			if (tiers->node[column][DEMETER_SMEM] == NUMA_NO_NODE &&
			    is_pair(tiers, nid, tiers->node[column][DEMETER_FMEM]))
				break;
		if (column < nr)
			put(tiers, column, DEMETER_SMEM, nid);
	}
	for_each_node_mask(nid, tiers->nodes[DEMETER_SMEM]) {
		if (tiers->slot[nid] >= 0)
			continue;
		for (column = 0; tiers->node[column][DEMETER_SMEM] != NUMA_NO_NODE;)
			column++;
		put(tiers, column, DEMETER_SMEM, nid);
	}
}

static void add_routes(struct demeter_tiers *tiers, bool near)
{
	int slow, fast, home;

	for_each_node_mask(slow, tiers->nodes[DEMETER_SMEM]) {
		for_each_node_mask(home, tiers->nodes[DEMETER_FMEM])
			if (is_near(tiers, slow, home))
				break;
		for_each_node_mask(fast, tiers->nodes[DEMETER_FMEM]) {
			struct demeter_route *route = &tiers->route[tiers->nr_routes];

			if (is_pair(tiers, slow, fast) != near)
				continue;
			*route = (struct demeter_route){
				.from = tiers->slot[slow] / DEMETER_TIERS,
				.to = tiers->slot[fast] / DEMETER_TIERS,
				.distance = is_near(tiers, slow, fast) ? LOCAL_DISTANCE
								       : node_distance(home, fast),
			};
			tiers->nr_routes++;
		}
	}
}

/* What is counted by column means nothing any more. */
static void forget_counts(void)
{
	struct demeter_target *target;
	int index = demeter_targets_read_lock(), nid;
	u32 space = 0;

	while ((target = demeter_target_next(&space)))
		demeter_recount_forget(target);
	demeter_targets_read_unlock(index);
	for_each_node(nid)
		WRITE_ONCE(demeter_node_stats[nid].resident_pages, 0);
}

int demeter_tiers_choose(void)
{
	struct demeter_tiers *tiers = &demeter_tiers;
	nodemask_t nodes[DEMETER_TIERS];
	const char *how;
	u32 i;

	lockdep_assert_held(&demeter_control_lock);
	how = find_nodes(nodes);
	if (!how)
		return -ENODEV;
	if (!nodes_equal(nodes[DEMETER_FMEM], tiers->nodes[DEMETER_FMEM]) ||
	    !nodes_equal(nodes[DEMETER_SMEM], tiers->nodes[DEMETER_SMEM]))
		forget_counts();
	tiers->nodes[DEMETER_FMEM] = nodes[DEMETER_FMEM];
	tiers->nodes[DEMETER_SMEM] = nodes[DEMETER_SMEM];
	make_columns(tiers);
	tiers->nr_routes = 0;
	add_routes(tiers, true);
	tiers->nr_near = tiers->nr_routes;
	add_routes(tiers, false);
	pr_info("tiers %s: FMEM node %*pbl, SMEM node %*pbl\n", how,
		nodemask_pr_args(&nodes[DEMETER_FMEM]), nodemask_pr_args(&nodes[DEMETER_SMEM]));
	for (i = 0; i < tiers->nr_near && tiers->columns > 1; i++)
		pr_info("SMEM node %d is paired with FMEM node %d\n",
			tiers->node[tiers->route[i].from][DEMETER_SMEM],
			tiers->node[tiers->route[i].to][DEMETER_FMEM]);
	demeter_tiers_sysfs_nodes();
	return 0;
}

u64 demeter_tiers_free_pages(int nid)
{
	u64 pages = 0;
	int i;

	if (!node_online(nid))
		return 0;
	for (i = 0; i < MAX_NR_ZONES; i++)
		pages += zone_page_state(&NODE_DATA(nid)->node_zones[i], NR_FREE_PAGES);
	return pages;
}
