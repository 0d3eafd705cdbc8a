// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What Nimble decides: see <demeter/peers/nimble.h>.
 */
#include <demeter/math.h>
#include <demeter/peers/nimble.h>

#define NIMBLE_WHOLE 1000u

u64 demeter_nimble_share(u64 pages, u64 permille)
{
	u64 left = demeter_mul_div(pages, NIMBLE_WHOLE - demeter_min(permille, NIMBLE_WHOLE),
				   NIMBLE_WHOLE);

	return pages - left;
}

static u64 nimble_whole(u64 pages, u64 huge)
{
	return div64_u64(pages, huge) * huge;
}

struct demeter_nimble_plan demeter_nimble_plan(const struct demeter_nimble_lists *lists)
{
	struct demeter_nimble_plan plan;
	u64 hot_huge;

	plan.fill_huge = nimble_whole(demeter_min(lists->hot_huge, lists->room), lists->huge);
	plan.fill_base = demeter_min(lists->hot_base, lists->room - plan.fill_huge);
	hot_huge = lists->hot_huge - plan.fill_huge;
	plan.exchange = nimble_whole(demeter_min(hot_huge, lists->cold_huge), lists->huge);
	plan.trade = demeter_min(lists->hot_base - plan.fill_base, lists->cold_base);
	return plan;
}
