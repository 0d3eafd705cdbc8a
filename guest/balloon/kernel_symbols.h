/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Types of the unexported kernel functions that kernel_symbols.c calls. These
 * only give the static calls their type; none is defined.
 */
#ifndef DEMETER_BALLOON_KERNEL_SYMBOLS_H
#define DEMETER_BALLOON_KERNEL_SYMBOLS_H

#include <linux/kallsyms.h>
#include <linux/mm.h>
#include <linux/psi.h>

/* Declared in the kernel's headers, so that the compiler knows their types. */
#define demeter_balloon_type_kallsyms_lookup_name kallsyms_lookup_name
#define demeter_balloon_type_psi_show		  psi_show

/* Not declared in all of them: the types are restated. */
int demeter_balloon_type_isolate_free_page(struct page *page, unsigned int order);
void demeter_balloon_type_setup_per_zone_wmarks(void);

#endif /* DEMETER_BALLOON_KERNEL_SYMBOLS_H */
