// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The core as one translation unit, for those who take it as a whole: the kernel
 * module, its tests in the kernel, and the Rust crates. The one list of its sources;
 * each of them compiles by itself as well, which core/tests does.
 */
#include "areas.c"
#include "ranges.c"
#include "ranges_room.c"
#include "ranges_digest.c"
#include "resident.c"
#include "rank.c"
#include "plan.c"
#include "groups.c"
#include "finer.c"
#include "finer_gate.c"
#include "finer_budget.c"
#include "gain.c"
#include "judge.c"
#include "pace.c"
#include "delivery.c"
#include "channel.c"
#include "touch.c"
