/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Contents of two areas, exchanged so that an uncorrectable memory error in one
 * of them is survived.
 */
#ifndef DEMETER_CONTENTS_H
#define DEMETER_CONTENTS_H

#include <linux/types.h>

void *demeter_contents_swap(void *a, void *b, size_t bytes);
void demeter_contents_swap_back(void *a, void *b, size_t bytes);

/* contents_swap.S */
void *demeter_contents_swap_groups(void *a, void *b, size_t bytes);

#endif /* DEMETER_CONTENTS_H */
