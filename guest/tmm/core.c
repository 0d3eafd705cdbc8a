// SPDX-License-Identifier: GPL-2.0-only
/*
 * The core of Demeter as part of this module: one translation unit that
 * includes the shared sources, which needs no object files outside guest/.
 */
#include "../../core/core.c"
