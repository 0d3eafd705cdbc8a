// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What HeMem decides: see <demeter/peers/hemem.h>.
 *
 * Counts are halved by a clock: that of a page is brought up to that of all when the page is
 * sampled or looked at, so that a halving costs nothing at once.
 */
#include <demeter/math.h>
#include <demeter/peers/hemem.h>

/* A count of 32 bits is nothing after so many halvings. */
#define HEMEM_MAX_HALVINGS 31u

static struct demeter_hemem_list *hemem_list(struct demeter_hemem *hemem,
					     const struct demeter_hemem_page *page)
{
	return &hemem->lists[page->tier][page->hot];
}

static void hemem_push_last(struct demeter_hemem *hemem, struct demeter_hemem_page *page)
{
	struct demeter_hemem_list *list = hemem_list(hemem, page);

	page->after = NULL;
	page->before = list->last;
	if (list->last)
		list->last->after = page;
	else
		list->first = page;
	list->last = page;
	list->pages++;
}

static void hemem_push_first(struct demeter_hemem *hemem, struct demeter_hemem_page *page)
{
	struct demeter_hemem_list *list = hemem_list(hemem, page);

	page->before = NULL;
	page->after = list->first;
	if (list->first)
		list->first->before = page;
	else
		list->last = page;
	list->first = page;
	list->pages++;
}

static void hemem_unlink(struct demeter_hemem *hemem, struct demeter_hemem_page *page)
{
	struct demeter_hemem_list *list = hemem_list(hemem, page);

	if (hemem->cooling[page->tier] == page)
		hemem->cooling[page->tier] = page->after;
	if (page->before)
		page->before->after = page->after;
	else
		list->first = page->after;
	if (page->after)
		page->after->before = page->before;
	else
		list->last = page->before;
	list->pages--;
}

/* Halve as often as all others were. */
static void hemem_catch_up(const struct demeter_hemem *hemem, struct demeter_hemem_page *page)
{
	u32 halvings = (u32)demeter_min(hemem->clock - page->clock, HEMEM_MAX_HALVINGS);

	page->reads >>= halvings;
	page->writes >>= halvings;
	page->clock = hemem->clock;
}

static bool hemem_written(const struct demeter_hemem *hemem, const struct demeter_hemem_page *page)
{
	return page->writes >= hemem->rules.hot_writes;
}

static bool hemem_is_hot(const struct demeter_hemem *hemem, const struct demeter_hemem_page *page)
{
	return page->reads >= hemem->rules.hot_reads || hemem_written(hemem, page);
}

/* Into the list that its counts say, if it is in the other. */
static void hemem_sort(struct demeter_hemem *hemem, struct demeter_hemem_page *page)
{
	bool hot = hemem_is_hot(hemem, page);

	if (hot == page->hot)
		return;
	hemem_unlink(hemem, page);
	page->hot = hot;
	if (hot && hemem->rules.writes_first && hemem_written(hemem, page))
		hemem_push_first(hemem, page);
	else
		hemem_push_last(hemem, page);
}

void demeter_hemem_add(struct demeter_hemem *hemem, struct demeter_hemem_page *page,
		       enum demeter_tier tier)
{
	*page = (struct demeter_hemem_page){ .clock = hemem->clock, .tier = tier };
	hemem_push_last(hemem, page);
}

void demeter_hemem_remove(struct demeter_hemem *hemem, struct demeter_hemem_page *page)
{
	hemem_unlink(hemem, page);
}

bool demeter_hemem_count(struct demeter_hemem *hemem, struct demeter_hemem_page *page, bool write)
{
	u32 *count = write ? &page->writes : &page->reads;
	u32 tier;

	hemem_catch_up(hemem, page);
	*count = (u32)demeter_min((u64)*count + 1, ~0U);
	hemem_sort(hemem, page);
	if (*count <= hemem->rules.cooling_samples)
		return false;
	hemem->clock++;
	for (tier = 0; tier < DEMETER_TIERS; tier++)
		hemem->cooling[tier] = hemem->lists[tier][true].first;
	return true;
}

static u64 hemem_cool_tier(struct demeter_hemem *hemem, enum demeter_tier tier, u64 *pages)
{
	u64 cooled = 0;

	while (*pages && hemem->cooling[tier]) {
		struct demeter_hemem_page *page = hemem->cooling[tier];

		(*pages)--;
		hemem->cooling[tier] = page->after;
		hemem_catch_up(hemem, page);
		hemem_sort(hemem, page);
		cooled += !page->hot;
	}
	return cooled;
}

u64 demeter_hemem_cool(struct demeter_hemem *hemem, u64 pages)
{
	u64 cooled = hemem_cool_tier(hemem, DEMETER_FMEM, &pages);

	return cooled + hemem_cool_tier(hemem, DEMETER_SMEM, &pages);
}

bool demeter_hemem_choose(const struct demeter_hemem *hemem, bool room,
			  struct demeter_hemem_move *move)
{
	move->up = hemem->lists[DEMETER_SMEM][true].first;
	move->down = room ? NULL : hemem->lists[DEMETER_FMEM][false].first;
	return move->up && (room || move->down);
}

void demeter_hemem_moved(struct demeter_hemem *hemem, struct demeter_hemem_page *page,
			 enum demeter_tier tier)
{
	hemem_unlink(hemem, page);
	page->tier = tier;
	hemem_push_last(hemem, page);
}
