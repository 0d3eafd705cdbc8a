// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages are exchanged and migrated by Demeter's own code, compiled into this module: what a
 * move costs is the same for both. What copying takes of an exchange is measured, as the
 * published system has four threads for it.
 */
#include <linux/ktime.h>

#include "nimble.h"

#include "../../../core/peers/nimble.c"
#include "../../tmm/refusal.c"
#include "../../tmm/binding.c"
#include "../../tmm/scan.c"
#include "../../tmm/room.c"
#include "../../tmm/migrate.c"
#include "../../tmm/contents.c"

static void *nimble_contents_swap(void *a, void *b, size_t bytes)
{
	u64 begin_ns = ktime_get_ns();
	void *bad = demeter_contents_swap(a, b, bytes);

	atomic64_add(ktime_get_ns() - begin_ns, &nimble_stats.copy_ns);
	return bad;
}

#define demeter_contents_swap	 nimble_contents_swap
/* As published: THPs are exchanged in batches of params/batch, not of Demeter's two. */
#define DEMETER_HUGE_BATCH_PAIRS DEMETER_BATCH_PAIRS_MAX
#include "../../tmm/relocate.c"

/* Nothing that can be moved is left alone. */
bool demeter_vma_is_left_out(const struct vm_area_struct *vma)
{
	return false;
}
