/* SPDX-License-Identifier: GPL-2.0-only */
/* For managers that need Linux's active and inactive lists. */
#ifndef DEMETER_PEERS_TWO_LISTS_H
#define DEMETER_PEERS_TWO_LISTS_H

/**
 * demeter_two_lists_check() - are pages on two lists
 *
 * Return: 0 or -EOPNOTSUPP, the reason in the kernel log.
 */
int demeter_two_lists_check(void);

#endif /* DEMETER_PEERS_TWO_LISTS_H */
