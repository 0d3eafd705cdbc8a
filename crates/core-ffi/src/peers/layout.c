// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Sizes, offsets and constants as C sees them, for the layout test of src/peers/sys.rs. */
#include <demeter/peers/hemem.h>
#include <demeter/peers/memtis.h>
#include <demeter/peers/nimble.h>

const size_t demeter_peers_layout[];
const size_t demeter_peers_layout[] = {
	sizeof(struct demeter_hemem_rules),
	offsetof(struct demeter_hemem_rules, writes_first),
	sizeof(struct demeter_hemem_page),
	offsetof(struct demeter_hemem_page, clock),
	offsetof(struct demeter_hemem_page, tier),
	offsetof(struct demeter_hemem_page, hot),
	sizeof(struct demeter_hemem_list),
	offsetof(struct demeter_hemem_list, pages),
	sizeof(struct demeter_hemem),
	offsetof(struct demeter_hemem, lists),
	offsetof(struct demeter_hemem, cooling),
	offsetof(struct demeter_hemem, clock),
	sizeof(struct demeter_hemem_move),
	offsetof(struct demeter_hemem_move, down),
	DEMETER_MEMTIS_BINS,
	DEMETER_MEMTIS_HUGE_PAGES,
	DEMETER_MEMTIS_EXEMPT_BIN,
	DEMETER_MEMTIS_NOWHERE,
	sizeof(struct demeter_memtis_histogram),
	sizeof(struct demeter_memtis_thresholds),
	offsetof(struct demeter_memtis_thresholds, warm),
	sizeof(struct demeter_memtis_period),
	offsetof(struct demeter_memtis_period, huge_pages),
	offsetof(struct demeter_memtis_period, gap_permille),
	sizeof(struct demeter_memtis_splitting),
	offsetof(struct demeter_memtis_splitting, off),
	sizeof(struct demeter_nimble_lists),
	offsetof(struct demeter_nimble_lists, room),
	offsetof(struct demeter_nimble_lists, huge),
	sizeof(struct demeter_nimble_plan),
	offsetof(struct demeter_nimble_plan, trade),
};
