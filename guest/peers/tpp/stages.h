/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long the kernel's functions that do TPP's work take, by probes at their entry and
 * exit. Costs some hundred instructions a call, so it is switched on to be looked at.
 */
#ifndef DEMETER_PEERS_STAGES_H
#define DEMETER_PEERS_STAGES_H

#include <linux/types.h>

/**
 * demeter_stages_start() - measure from now on
 *
 * Return: 0 or a negative errno, the reason in the kernel log.
 */
int demeter_stages_start(void);

/**
 * demeter_stages_stop() - stop that; nobody is in a probe when it returns
 */
void demeter_stages_stop(void);

/**
 * demeter_stages_hint_fault() - the fault that current is in is a hint fault
 *
 * Other faults are not counted. May be called while nothing is measured.
 */
void demeter_stages_hint_fault(void);

#endif /* DEMETER_PEERS_STAGES_H */
