/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Types of the unexported kernel functions that kernel_symbols.c calls. These
 * only give the static calls their type; none is defined.
 */
#ifndef DEMETER_BALLOON_KERNEL_SYMBOLS_H
#define DEMETER_BALLOON_KERNEL_SYMBOLS_H

#include <linux/mm_types.h>
#include <linux/psi_types.h>
#include <linux/seq_file.h>

unsigned long demeter_balloon_proto_kallsyms_lookup_name(const char *name);
int demeter_balloon_proto_isolate_free_page(struct page *page, unsigned int order);
void demeter_balloon_proto_setup_per_zone_wmarks(void);
int demeter_balloon_proto_psi_show(struct seq_file *seq, struct psi_group *group, enum psi_res res);

#endif /* DEMETER_BALLOON_KERNEL_SYMBOLS_H */
