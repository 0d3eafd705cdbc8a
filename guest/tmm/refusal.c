// SPDX-License-Identifier: GPL-2.0-only
/* Names of the refusal reasons: they are file names in sysfs, so they never change. */
#include "refusal.h"

const char *const demeter_refusal_names[DEMETER_REFUSALS] = {
	[DEMETER_OK] = "ok",
	[DEMETER_REFUSED_UNMAPPED] = "unmapped",
	[DEMETER_REFUSED_ZERO_PAGE] = "zero_page",
	[DEMETER_REFUSED_FILE] = "file",
	[DEMETER_REFUSED_KSM] = "ksm",
	[DEMETER_REFUSED_HUGETLB] = "hugetlb",
	[DEMETER_REFUSED_SPECIAL] = "special",
	[DEMETER_REFUSED_MLOCKED] = "mlocked",
	[DEMETER_REFUSED_PINNED] = "pinned",
	[DEMETER_REFUSED_SWAPCACHE] = "swapcache",
	[DEMETER_REFUSED_WRITEBACK] = "writeback",
	[DEMETER_REFUSED_LAZYFREE] = "lazyfree",
	[DEMETER_REFUSED_SHARED] = "shared",
	[DEMETER_REFUSED_MIXED_SIZE] = "mixed_size",
	[DEMETER_REFUSED_MEMCG] = "memcg",
	[DEMETER_REFUSED_LRU] = "lru",
	[DEMETER_REFUSED_LOCK] = "lock",
	[DEMETER_REFUSED_UNMAP] = "unmap",
	[DEMETER_REFUSED_REFS] = "refs",
	[DEMETER_REFUSED_NO_ROOM] = "no_room",
	[DEMETER_REFUSED_NO_MEMORY] = "no_memory",
	[DEMETER_REFUSED_MIGRATE] = "migrate",
	[DEMETER_REFUSED_POISON] = "poison",
	[DEMETER_REFUSED_POLICY] = "policy",
};
