// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* HeMem: hot and cold lists, halving by a clock, and what is moved in which order. */
#include <demeter/peers/hemem.h>

#include "harness.h"

#define HM_PAGES 16u

static const struct demeter_hemem_rules hm_rules = {
	.hot_reads = 4,
	.hot_writes = 4,
	.cooling_samples = 10,
};

static void hm_count(struct demeter_hemem *hemem, struct demeter_hemem_page *page, bool write,
		     u32 times)
{
	while (times--)
		demeter_hemem_count(hemem, page, write);
}

/* Are all lists whole, and every page where its fields say? */
static bool hm_sound(const struct demeter_hemem *hemem, u64 pages)
{
	u64 seen = 0;
	u32 tier, hot;

	for (tier = 0; tier < DEMETER_TIERS; tier++) {
		for (hot = 0; hot < 2; hot++) {
			const struct demeter_hemem_list *list = &hemem->lists[tier][hot];
			const struct demeter_hemem_page *page, *before = NULL;
			u64 length = 0;

			for (page = list->first; page && length <= pages; page = page->after) {
				if (page->before != before || page->tier != tier ||
				    page->hot != hot)
					return false;
				before = page;
				length++;
			}
			if (length != list->pages || list->last != before)
				return false;
			seen += length;
		}
	}
	return seen == pages;
}

static void hm_test_thresholds(struct test_tally *tally)
{
	struct demeter_hemem hemem = { .rules = hm_rules };
	struct demeter_hemem_page read, written;

	demeter_hemem_add(&hemem, &read, DEMETER_SMEM);
	demeter_hemem_add(&hemem, &written, DEMETER_SMEM);
	hm_count(&hemem, &read, false, 3);
	/* Reads and writes are not added up. */
	hm_count(&hemem, &read, true, 3);
	CHECK(!read.hot);
	hm_count(&hemem, &read, false, 1);
	CHECK(read.hot);
	hm_count(&hemem, &written, true, 4);
	CHECK(written.hot);
	CHECK_EQ(hemem.lists[DEMETER_SMEM][true].pages, 2);
	CHECK(hm_sound(&hemem, 2));
	demeter_hemem_remove(&hemem, &read);
	CHECK(hm_sound(&hemem, 1));
}

static void hm_test_cooling(struct test_tally *tally)
{
	struct demeter_hemem hemem = { .rules = hm_rules };
	struct demeter_hemem_page pages[3];
	u32 i;

	for (i = 0; i < ARRAY_SIZE(pages); i++)
		demeter_hemem_add(&hemem, &pages[i], DEMETER_FMEM);
	hm_count(&hemem, &pages[1], false, 6);
	hm_count(&hemem, &pages[2], false, 8);
	hm_count(&hemem, &pages[0], false, 10);
	CHECK_EQ(hemem.clock, 0);
	CHECK_EQ(demeter_hemem_cool(&hemem, 100), 0);
	/* The eleventh sample halves all counts, but costs no look at any page. */
	CHECK(demeter_hemem_count(&hemem, &pages[0], false));
	CHECK_EQ(hemem.clock, 1);
	CHECK(pages[1].hot && pages[1].reads == 6);
	/* A pass goes on where it stopped. */
	CHECK_EQ(demeter_hemem_cool(&hemem, 1), 1);
	CHECK(!pages[1].hot && pages[1].reads == 3);
	CHECK_EQ(demeter_hemem_cool(&hemem, 1), 0);
	CHECK(pages[2].hot && pages[2].reads == 4);
	CHECK_EQ(demeter_hemem_cool(&hemem, 100), 0);
	CHECK_EQ(pages[0].reads, 5);
	/* Whoever was not looked at catches up when sampled. */
	hm_count(&hemem, &pages[0], false, 6);
	CHECK_EQ(hemem.clock, 2);
	hm_count(&hemem, &pages[2], false, 1);
	CHECK(!pages[2].hot && pages[2].reads == 3);
	CHECK(hm_sound(&hemem, 3));
}

static void hm_test_order(struct test_tally *tally)
{
	struct demeter_hemem hemem = { .rules = hm_rules };
	struct demeter_hemem_page up[2], down[2];
	struct demeter_hemem_move move;

	demeter_hemem_add(&hemem, &up[0], DEMETER_SMEM);
	demeter_hemem_add(&hemem, &up[1], DEMETER_SMEM);
	CHECK(!demeter_hemem_choose(&hemem, true, &move));
	hm_count(&hemem, &up[1], false, 4);
	hm_count(&hemem, &up[0], true, 4);
	CHECK(!demeter_hemem_choose(&hemem, false, &move));
	CHECK(demeter_hemem_choose(&hemem, true, &move));
	CHECK(move.up == &up[1] && !move.down);
	demeter_hemem_add(&hemem, &down[0], DEMETER_FMEM);
	demeter_hemem_add(&hemem, &down[1], DEMETER_FMEM);
	hm_count(&hemem, &down[0], false, 4);
	CHECK(demeter_hemem_choose(&hemem, false, &move));
	CHECK(move.up == &up[1] && move.down == &down[1]);
	demeter_hemem_moved(&hemem, move.down, DEMETER_SMEM);
	demeter_hemem_moved(&hemem, move.up, DEMETER_FMEM);
	CHECK(up[1].hot && up[1].tier == DEMETER_FMEM);
	/* All that is left in FMEM is hot. */
	CHECK(!demeter_hemem_choose(&hemem, false, &move));
	CHECK(hm_sound(&hemem, 4));

	/* What is written goes first, if it is to. */
	hemem = (struct demeter_hemem){ .rules = hm_rules };
	hemem.rules.writes_first = true;
	demeter_hemem_add(&hemem, &up[0], DEMETER_SMEM);
	demeter_hemem_add(&hemem, &up[1], DEMETER_SMEM);
	hm_count(&hemem, &up[1], false, 4);
	hm_count(&hemem, &up[0], true, 4);
	CHECK(demeter_hemem_choose(&hemem, true, &move) && move.up == &up[0]);
	CHECK(hm_sound(&hemem, 2));
}

static void hm_test_anything(struct test_tally *tally)
{
	struct demeter_hemem_page *pages = test_alloc(HM_PAGES * sizeof(*pages));
	struct demeter_hemem hemem = { .rules = hm_rules };
	u64 seed = 11, left = 0;
	u32 added = 0, round;

	for (round = 0; round < TEST_ROUNDS(20000); round++) {
		struct demeter_hemem_page *page = &pages[test_random(&seed) % HM_PAGES];
		bool known = added >> (page - pages) & 1;

		if (!known) {
			demeter_hemem_add(&hemem, page, test_random(&seed) % DEMETER_TIERS);
			added |= 1u << (page - pages);
			left++;
		} else if (test_random(&seed) % 32 == 0) {
			demeter_hemem_remove(&hemem, page);
			added &= ~(1u << (page - pages));
			left--;
		} else if (test_random(&seed) % 8 == 0) {
			demeter_hemem_moved(&hemem, page, test_random(&seed) % DEMETER_TIERS);
		} else {
			demeter_hemem_count(&hemem, page, test_random(&seed) & 1);
			demeter_hemem_cool(&hemem, test_random(&seed) % 4);
		}
		CHECK(page->reads <= hm_rules.cooling_samples + 1);
	}
	CHECK(hemem.clock > 0);
	CHECK(hm_sound(&hemem, left));
	/* Halved more often than a count has bits. */
	demeter_hemem_add(&hemem, &pages[0], DEMETER_FMEM);
	pages[0].reads = ~0U;
	hemem.clock += 1000;
	demeter_hemem_count(&hemem, &pages[0], true);
	CHECK_EQ(pages[0].reads, 1);
	test_free(pages);
}

static const struct test_case hemem_tests[] = {
	{ "hemem: hot by reads or by writes", hm_test_thresholds },
	{ "hemem: halves by a clock", hm_test_cooling },
	{ "hemem: first in, first out", hm_test_order },
	{ "hemem: lists stay whole", hm_test_anything },
};
