/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef DEMETER_FAULT_H
#define DEMETER_FAULT_H

/* return.S: where a function goes that is to do nothing. Never called. */
void demeter_fault_return(void);

#endif /* DEMETER_FAULT_H */
