/* SPDX-License-Identifier: GPL-2.0-only */
/* As moving.c: Demeter's own, with its object file here. */
#include "../../tmm/contents_swap.S"
