/* SPDX-License-Identifier: GPL-2.0-only */
/* Which node is which tier, for managers that know one of each. */
#ifndef DEMETER_PEERS_NODES_H
#define DEMETER_PEERS_NODES_H

#include <demeter/deps.h>

/**
 * demeter_nodes_find() - find the node with CPUs and the one without
 * @node: out, by tier
 *
 * Return: 0 or -EOPNOTSUPP, the reason in the kernel log.
 */
int demeter_nodes_find(int node[DEMETER_TIERS]);

#endif /* DEMETER_PEERS_NODES_H */
