/* SPDX-License-Identifier: GPL-2.0-only */
/* As engine.c: the code under test, with its object file here. */
#include "../tmm/contents_swap.S"
