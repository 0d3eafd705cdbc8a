// SPDX-License-Identifier: GPL-2.0-only
/*
 * The core of Demeter as part of this module: one translation unit that
 * includes the shared sources, which needs no object files outside guest/.
 */
#include "../../core/areas.c"
#include "../../core/ranges.c"
#include "../../core/ranges_room.c"
#include "../../core/ranges_digest.c"
#include "../../core/resident.c"
#include "../../core/rank.c"
#include "../../core/plan.c"
#include "../../core/groups.c"
#include "../../core/finer.c"
#include "../../core/gain.c"
#include "../../core/judge.c"
#include "../../core/pace.c"
#include "../../core/delivery.c"
#include "../../core/channel.c"
#include "../../core/touch.c"
