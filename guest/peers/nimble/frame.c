// SPDX-License-Identifier: GPL-2.0-only
/* The parts that all managers share, compiled into this one. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "../frame/host.c"
#include "../frame/nodes.c"
#include "../frame/two_lists.c"
#include "../../tmm/symbols.c"
