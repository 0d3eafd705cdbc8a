// SPDX-License-Identifier: GPL-2.0-only
/* Nodes of the two tiers, see nodes.h. Included by frame.c of the managers that ask. */
#include <linux/errno.h>
#include <linux/nodemask.h>
#include <linux/printk.h>

#include "nodes.h"

int demeter_nodes_find(int node[DEMETER_TIERS])
{
	int nid, found[DEMETER_TIERS] = {};

	for (nid = 0; nid < MAX_NUMNODES; nid++) {
		enum demeter_tier tier = node_state(nid, N_CPU) ? DEMETER_FMEM : DEMETER_SMEM;

		if (!node_state(nid, N_MEMORY))
			continue;
		node[tier] = nid;
		found[tier]++;
	}
	if (found[DEMETER_FMEM] == 1 && found[DEMETER_SMEM] == 1)
		return 0;
	pr_err("there are %d nodes with CPUs and %d without; next: use a machine with one of each (--sockets 1)\n",
	       found[DEMETER_FMEM], found[DEMETER_SMEM]);
	return -EOPNOTSUPP;
}
