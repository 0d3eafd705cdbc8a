// SPDX-License-Identifier: GPL-2.0-only
/* The parts that all managers share, compiled into this one. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "../common/host.c"
#include "../common/replace.c"
#include "../../tmm/symbols.c"
