// SPDX-License-Identifier: GPL-2.0-only
/*
 * The code under test, compiled into the test module as it is. Included rather
 * than listed in Kbuild, so that no object files land in ../tmm.
 */
#include "../tmm/vma.h"

bool demeter_vma_is_left_out(const struct vm_area_struct *vma)
{
	return false;
}

#include "../tmm/refusal.c"
#include "../tmm/symbols.c"
#include "../tmm/binding.c"
#include "../tmm/scan.c"
#include "../tmm/huge.c"
#include "../tmm/contents.c"
#include "../tmm/relocate.c"
#include "../tmm/migrate.c"
#include "../tmm/room.c"
