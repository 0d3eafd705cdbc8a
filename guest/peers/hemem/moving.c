// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages are found, isolated and moved by Demeter's own code, compiled into this module:
 * what a move costs is the same for both.
 */
#include "../../../core/peers/hemem.c"
#include "../../tmm/refusal.c"
#include "../../tmm/binding.c"
#include "../../tmm/scan.c"
#include "../../tmm/room.c"
#include "../../tmm/migrate.c"
#include "../../tmm/huge.c"

/* Nothing that can be moved is left alone. */
bool demeter_vma_is_left_out(const struct vm_area_struct *vma)
{
	return false;
}
