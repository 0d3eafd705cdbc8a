// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Ranges: what holds always, and what the paper promises. */
#include <demeter/ranges.h>

#include "harness.h"

#define RT_MIB	   BIT_ULL(20)
#define RT_GIB	   BIT_ULL(30)
#define RT_TIB	   BIT_ULL(40)
#define RT_GRANULE (2 * RT_MIB)

static const struct demeter_ranges_params rt_defaults = DEMETER_RANGES_PARAMS_DEFAULT;

/* Sorted, disjoint, on the granule, each area covered without a hole. */
static void rt_check_shape(struct test_tally *tally, const struct demeter_ranges *rs)
{
	u64 covered[DEMETER_MAX_AREAS] = { 0 };
	u32 i, k;

	CHECK(rs->nr <= rs->capacity);
	for (i = 0; i < rs->nr; i++) {
		const struct demeter_range *r = &rs->range[i];
		u64 sum = 0;

		CHECK(r->start < r->end);
		CHECK(((r->start | r->end) & (rs->params.granule_bytes - 1)) == 0);
		CHECK(i == 0 || r[-1].end <= r->start);
		CHECK(r->area < DEMETER_MAX_AREAS);
		CHECK(r->start >= rs->area[r->area].start && r->end <= rs->area[r->area].end);
		CHECK(i == 0 || r[-1].area != r->area || r[-1].end == r->start);
		for (k = 0; k < DEMETER_QUARTERS; k++)
			sum += r->quarter[k];
		CHECK(sum <= r->rate);
		covered[r->area] += r->end - r->start;
	}
	for (i = 0; i < DEMETER_MAX_AREAS; i++)
		CHECK_EQ(covered[i], rs->area[i].end - rs->area[i].start);
}

static u64 rt_hits(const struct demeter_ranges *rs)
{
	u64 sum = 0;
	u32 i, k;

	for (i = 0; i < rs->nr; i++)
		for (k = 0; k < DEMETER_QUARTERS; k++)
			sum += rs->range[i].hits[k];
	return sum;
}

static u64 rt_rate(const struct demeter_ranges *rs)
{
	u64 sum = 0;
	u32 i;

	for (i = 0; i < rs->nr; i++)
		sum += rs->range[i].rate;
	return sum;
}

static void rt_test_init(struct test_tally *tally)
{
	struct demeter_ranges_params p = rt_defaults;
	struct demeter_range one[1];
	struct demeter_ranges rs;

	CHECK_EQ(demeter_ranges_init(&rs, one, 1, &p), 0);
	CHECK(demeter_ranges_init(NULL, one, 1, &p) == -EINVAL);
	CHECK(demeter_ranges_init(&rs, NULL, 1, &p) == -EINVAL);
	CHECK(demeter_ranges_init(&rs, one, 0, &p) == -EINVAL);
	CHECK(demeter_ranges_init(&rs, one, 1, NULL) == -EINVAL);
#define RT_BAD(field, value)                                                                       \
	do {                                                                                       \
		p = rt_defaults;                                                                   \
		p.field = (value);                                                                 \
		CHECK(demeter_ranges_init(&rs, one, 1, &p) == -EINVAL);                            \
	} while (0)
	RT_BAD(split_samples, 0);
	RT_BAD(split_samples, ~0U);
	RT_BAD(significance, ~0U);
	RT_BAD(vcpus, 0);
	RT_BAD(vcpus, ~0U);
	RT_BAD(merge_epochs, 0);
	RT_BAD(granule_bytes, 0);
	RT_BAD(granule_bytes, 4095);
	RT_BAD(granule_bytes, 2048);
	RT_BAD(granule_bytes, 3 * RT_MIB);
	RT_BAD(granule_bytes, 1ULL << 63);
#undef RT_BAD
}

static void rt_test_areas(struct test_tally *tally)
{
	struct demeter_range memory[8];
	struct demeter_ranges rs;

	CHECK_EQ(demeter_ranges_init(&rs, memory, 8, &rt_defaults), 0);
	CHECK(demeter_ranges_sample(&rs, 0) == -ENOENT);
	CHECK(demeter_ranges_set_area(&rs, DEMETER_MAX_AREAS, 0, RT_GIB) == -EINVAL);
	CHECK(demeter_ranges_set_area(&rs, 0, RT_GIB, 0) == -EINVAL);

	/* Rounded outwards. */
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, RT_GIB + 1, RT_GIB + 4 * RT_MIB + 1), 0);
	CHECK_EQ(rs.range[0].start, RT_GIB);
	CHECK_EQ(rs.range[0].end, RT_GIB + 6 * RT_MIB);
	CHECK(demeter_ranges_set_area(&rs, 1, RT_GIB + 5 * RT_MIB, 2 * RT_GIB) == -EINVAL);
	CHECK_EQ(demeter_ranges_set_area(&rs, 1, 8 * RT_GIB, 9 * RT_GIB), 0);
	CHECK_EQ(rs.nr, 2);
	rt_check_shape(tally, &rs);

	/* An idle heap that grows stays one range, a busy one gets a second. */
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, RT_GIB, RT_GIB + 64 * RT_MIB), 0);
	CHECK_EQ(rs.nr, 2);
	CHECK_EQ(demeter_ranges_sample(&rs, RT_GIB + 5), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, RT_GIB, RT_GIB + 128 * RT_MIB), 0);
	CHECK_EQ(rs.nr, 3);
	CHECK_EQ(rt_hits(&rs), 1);
	rt_check_shape(tally, &rs);

	/* Several at once count as many, here and outside, and never wrap. */
	{
		u64 samples = rs.samples, strays = rs.strays;
		struct demeter_range *r = demeter_ranges_find(&rs, RT_GIB + 5);

		CHECK_EQ(demeter_ranges_samples(&rs, RT_GIB + 5, 255), 0);
		CHECK_EQ(rt_hits(&rs), 256);
		CHECK(demeter_ranges_samples(&rs, 0, 7) == -ENOENT);
		CHECK_EQ(rs.samples, samples + 255);
		CHECK_EQ(rs.strays, strays + 7);
		CHECK_EQ(demeter_ranges_samples(&rs, RT_GIB + 5, ~0U), 0);
		CHECK_EQ(r->hits[0], ~0U);
		r->hits[0] = 1;
	}

	/* The mmap area grows down. */
	CHECK_EQ(demeter_ranges_sample(&rs, 8 * RT_GIB), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 1, 7 * RT_GIB, 9 * RT_GIB), 0);
	CHECK_EQ(rs.nr, 4);
	CHECK_EQ(rs.range[2].start, 7 * RT_GIB);
	rt_check_shape(tally, &rs);

	/* Shrinking at both ends cuts, samples outside go. */
	CHECK_EQ(demeter_ranges_set_area(&rs, 1, 7 * RT_GIB + 512 * RT_MIB,
					 8 * RT_GIB + 512 * RT_MIB),
		 0);
	rt_check_shape(tally, &rs);
	CHECK_EQ(rt_hits(&rs), 2);
	CHECK_EQ(demeter_ranges_set_area(&rs, 1, 7 * RT_GIB + 512 * RT_MIB, 8 * RT_GIB), 0);
	CHECK_EQ(rt_hits(&rs), 1);
	rt_check_shape(tally, &rs);

	/* Moved away: nothing of the past remains; then removed. */
	CHECK_EQ(demeter_ranges_set_area(&rs, 1, 20 * RT_GIB, 21 * RT_GIB), 0);
	CHECK(!demeter_ranges_find(&rs, 8 * RT_GIB - 1));
	rt_check_shape(tally, &rs);
	CHECK_EQ(demeter_ranges_set_area(&rs, 1, 5, 5), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, 0, 0), 0);
	CHECK_EQ(rs.nr, 0);
	demeter_ranges_end_epoch(&rs, NULL);
}

static void rt_test_extremes(struct test_tally *tally)
{
	struct demeter_ranges_params p = rt_defaults;
	struct demeter_range memory[4];
	struct demeter_ranges rs;
	u32 i;

	/* The whole address space but its last granule. */
	CHECK_EQ(demeter_ranges_init(&rs, memory, 4, &p), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, 0, ~0ULL), 0);
	CHECK_EQ(rs.range[0].end, 0 - RT_GRANULE);
	CHECK_EQ(demeter_ranges_sample(&rs, 0), 0);
	CHECK(demeter_ranges_sample(&rs, ~0ULL) == -ENOENT);
	for (i = 0; i < 1000; i++)
		CHECK_EQ(demeter_ranges_sample(&rs, 0 - RT_GRANULE - 1), 0);
	demeter_ranges_end_epoch(&rs, NULL);
	CHECK_EQ(rs.nr, 3);
	rt_check_shape(tally, &rs);
	CHECK(demeter_ranges_set_area(&rs, 1, ~0ULL - 5, ~0ULL) == -EINVAL);

	/* The largest granule: an area of three, the finest: the whole space. */
	p.granule_bytes = 1ULL << 62;
	CHECK_EQ(demeter_ranges_init(&rs, memory, 4, &p), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, 5, ~0ULL), 0);
	for (i = 0; i < 100; i++)
		CHECK_EQ(demeter_ranges_sample(&rs, 1ULL << 63), 0);
	demeter_ranges_end_epoch(&rs, NULL);
	CHECK_EQ(rs.nr, 3);
	rt_check_shape(tally, &rs);
	p.granule_bytes = DEMETER_PAGE_BYTES;
	CHECK_EQ(demeter_ranges_set_params(&rs, &p), 0);
	demeter_ranges_end_epoch(&rs, NULL);
	rt_check_shape(tally, &rs);
	p.granule_bytes = 1ULL << 62;
	CHECK_EQ(demeter_ranges_set_params(&rs, &p), 0);

	/* Counters that would wrap stop instead. */
	rs.range[0].hits[3] = ~0U;
	CHECK_EQ(demeter_ranges_sample(&rs, 0), 0);
	CHECK_EQ(rs.range[0].hits[3], ~0U);
	for (i = 0; i < 70; i++) {
		rs.range[0].hits[3] = ~0U;
		demeter_ranges_end_epoch(&rs, NULL);
		rt_check_shape(tally, &rs);
	}

	/* Epochs wrap, ages go on. */
	rs.epoch = ~0U;
	rs.range[0].born_epoch = ~0U - 1;
	demeter_ranges_end_epoch(&rs, NULL);
	CHECK_EQ(rs.epoch, 0);
	CHECK_EQ(rs.epoch - rs.range[0].born_epoch, 2);
}

static void rt_test_capacity_one(struct test_tally *tally)
{
	struct demeter_range one[1];
	struct demeter_ranges rs;
	u32 epoch, i;

	CHECK_EQ(demeter_ranges_init(&rs, one, 1, &rt_defaults), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, RT_GIB, 2 * RT_GIB), 0);
	CHECK(demeter_ranges_set_area(&rs, 1, 4 * RT_GIB, 5 * RT_GIB) == -ENOSPC);
	for (epoch = 0; epoch < 20; epoch++) {
		for (i = 0; i < 100; i++)
			demeter_ranges_sample(&rs, RT_GIB + i);
		demeter_ranges_end_epoch(&rs, NULL);
	}
	CHECK_EQ(rs.nr, 1);
	CHECK_EQ(rs.splits, 0);
	CHECK(rs.denied_splits >= 20);
	/* Busy and full: growth widens the range there is. */
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, 512 * RT_MIB, 3 * RT_GIB), 0);
	CHECK_EQ(rs.nr, 1);
	rt_check_shape(tally, &rs);
}

/* Spray areas, growth, shrinkage and samples at random; nothing may break. */
static void rt_test_random(struct test_tally *tally)
{
	u32 capacity = 64, round, i;
	struct demeter_range *memory = test_alloc(capacity * sizeof(*memory));
	struct demeter_ranges rs;
	u64 seed = 7;

	for (round = 0; round < TEST_ROUNDS(200); round++) {
		struct demeter_ranges_params p = rt_defaults;
		u64 samples = 0, strays = 0;

		p.granule_bytes = 4096ULL << (test_random(&seed) % 14);
		p.merge_epochs = 1 + test_random(&seed) % 4;
		p.split_samples = 1 + test_random(&seed) % 20;
		p.significance = test_random(&seed) % 4;
		CHECK_EQ(demeter_ranges_init(&rs, memory, 1 + test_random(&seed) % capacity, &p),
			 0);
		for (i = 0; i < 400; i++) {
			u64 op = test_random(&seed), base = (op >> 32) % 64 * RT_MIB;
			struct demeter_ranges_epoch done;
			u64 before, after;
			u32 n;

			switch (op % 8) {
			case 0:
				demeter_ranges_set_area(&rs, op / 8 % 5, base,
							base + (op >> 20) % (32 * RT_MIB));
				break;
			case 1:
				demeter_ranges_set_area(&rs, op / 8 % 5, test_nasty(&seed),
							test_nasty(&seed));
				break;
			case 2:
				before = rt_hits(&rs);
				after = rt_rate(&rs) / 2;
				demeter_ranges_end_epoch(&rs, &done);
				CHECK_EQ(rt_hits(&rs), 0);
				/* Halving rounds each quarter down, by 1/512 sample. */
				CHECK(rt_rate(&rs) <= after + (before << 8));
				CHECK(rt_rate(&rs) + 5 * (u64)capacity >= after + (before << 8));
				break;
			case 3:
				p.granule_bytes = 4096ULL << (test_random(&seed) % 14);
				before = rt_hits(&rs);
				demeter_ranges_set_params(&rs, &p);
				CHECK_EQ(rt_hits(&rs), before);
				break;
			default:
				for (n = 0; n < 20; n++) {
					u64 gva =
						op & 8 ? base : test_random(&seed) % (96 * RT_MIB);

					if (demeter_ranges_sample(&rs, gva))
						strays++;
					else
						samples++;
				}
			}
			rt_check_shape(tally, &rs);
		}
		CHECK_EQ(rs.samples, samples);
		CHECK_EQ(rs.strays, strays);
		test_yield();
	}
	test_free(memory);
}

/* A hot granule anywhere in a range of few granules is singled out. */
static void rt_test_small(struct test_tally *tally)
{
	static struct demeter_range memory[32];
	struct demeter_ranges rs;
	u64 granules, hot, i;
	u32 epoch;

	for (granules = 1; granules <= 17; granules++) {
		for (hot = 0; hot < granules; hot++) {
			struct demeter_range *r;

			CHECK_EQ(demeter_ranges_init(&rs, memory, 32, &rt_defaults), 0);
			CHECK_EQ(demeter_ranges_set_area(&rs, 0, RT_GIB,
							 RT_GIB + granules * RT_GRANULE),
				 0);
			for (epoch = 0; epoch < 12; epoch++) {
				for (i = 0; i < 30; i++)
					demeter_ranges_sample(&rs, RT_GIB + hot * RT_GRANULE +
									   i * 65536);
				demeter_ranges_end_epoch(&rs, NULL);
				rt_check_shape(tally, &rs);
			}
			r = demeter_ranges_find(&rs, RT_GIB + hot * RT_GRANULE);
			CHECK(r && r->end - r->start == RT_GRANULE);
			/* No split without a reason: a path down a binary tree. */
			CHECK(rs.nr <= 7);
		}
	}
}

/* A hot spot across the middle: equal halves, but unequal to the outside. */
static void rt_test_straddle(struct test_tally *tally)
{
	static struct demeter_range memory[16];
	struct demeter_ranges rs;
	u64 i;

	CHECK_EQ(demeter_ranges_init(&rs, memory, 16, &rt_defaults), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, 0, 64 * RT_MIB), 0);
	for (i = 0; i < 100; i++)
		demeter_ranges_sample(&rs, 31 * RT_MIB + (i & 1) * RT_MIB);
	demeter_ranges_end_epoch(&rs, NULL);
	CHECK_EQ(rs.nr, 4); /* both halves split once more at once */
	CHECK_EQ(rs.splits, 3);
	rt_check_shape(tally, &rs);
}

/* What was counted in epochs that held more samples is worth as much less, all of it. */
static void rt_test_thin(struct test_tally *tally)
{
	static struct demeter_range memory[16];
	struct demeter_ranges rs;
	u32 thin, i;

	for (thin = 0; thin <= 3; thin++) {
		CHECK_EQ(demeter_ranges_init(&rs, memory, 16, &rt_defaults), 0);
		CHECK_EQ(demeter_ranges_set_area(&rs, 0, 0, 64 * RT_MIB), 0);
		for (i = 0; i < 320; i++)
			demeter_ranges_sample(&rs, (u64)(i % 4) * 16 * RT_MIB);
		demeter_ranges_end_epoch(&rs, NULL);
		CHECK_EQ(rs.range[0].rate, 320ULL << DEMETER_RATE_SHIFT);
		/* Some of it with no known place. */
		rs.range[0].rate += 160ULL << DEMETER_RATE_SHIFT;
		/* After a break nothing counts of the epoch that was broken off. */
		for (i = 0; i < 100; i++)
			demeter_ranges_sample(&rs, (u64)(i % 4) * 16 * RT_MIB);
		demeter_ranges_resume(&rs, thin);
		for (i = 0; i < 4; i++)
			demeter_ranges_sample(&rs, (u64)i * 16 * RT_MIB);
		demeter_ranges_end_epoch(&rs, NULL);
		CHECK_EQ(rs.nr, 1);
		CHECK_EQ(rs.range[0].rate, ((240ULL >> thin) + 4) << DEMETER_RATE_SHIFT);
		for (i = 0; i < DEMETER_QUARTERS; i++)
			CHECK_EQ(rs.range[0].quarter[i], ((40ULL >> thin) + 1)
								 << DEMETER_RATE_SHIFT);
	}
}

/* tau: fewer samples than it never split; scaled by vCPUs. */
static void rt_test_threshold(struct test_tally *tally)
{
	struct demeter_ranges_params p = rt_defaults;
	static struct demeter_range memory[16];
	struct demeter_ranges rs;
	u32 i;

	for (p.vcpus = 1; p.vcpus <= 8; p.vcpus *= 2) {
		CHECK_EQ(demeter_ranges_init(&rs, memory, 16, &p), 0);
		CHECK_EQ(demeter_ranges_set_area(&rs, 0, 0, RT_GIB), 0);
		for (i = 0; i < 15 * p.vcpus - 1; i++)
			demeter_ranges_sample(&rs, 0);
		demeter_ranges_end_epoch(&rs, NULL);
		CHECK_EQ(rs.nr, 1);
		for (i = 0; i < 15 * p.vcpus; i++)
			demeter_ranges_sample(&rs, 0);
		demeter_ranges_end_epoch(&rs, NULL);
		CHECK(rs.nr > 1);
	}
}

/* A hot spot that goes away leaves one range after a while. */
static void rt_test_merge(struct test_tally *tally)
{
	static struct demeter_range memory[64];
	struct demeter_ranges rs;
	u32 epoch, i, most = 0;

	CHECK_EQ(demeter_ranges_init(&rs, memory, 64, &rt_defaults), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, 0, RT_TIB), 0);
	for (epoch = 0; epoch < 20; epoch++) {
		for (i = 0; i < 100; i++)
			demeter_ranges_sample(&rs, 700 * RT_GIB + i * 4096);
		demeter_ranges_end_epoch(&rs, NULL);
		most = rs.nr > most ? rs.nr : most;
	}
	CHECK(most >= 15);
	/* While it is hot nothing is taken back. */
	CHECK_EQ(demeter_ranges_find(&rs, 700 * RT_GIB)->end -
			 demeter_ranges_find(&rs, 700 * RT_GIB)->start,
		 RT_GRANULE);
	for (epoch = 0; epoch < 40; epoch++)
		demeter_ranges_end_epoch(&rs, NULL);
	CHECK_EQ(rs.nr, 1);
	CHECK_EQ(rs.splits, rs.merges);
	rt_check_shape(tally, &rs);
}

/* Full of a past hot spot: the coldest alike pairs make room for a new one. */
static void rt_test_make_room(struct test_tally *tally)
{
	struct demeter_ranges_params p = rt_defaults;
	static struct demeter_range memory[12];
	struct demeter_ranges rs;
	struct demeter_range *r;
	u32 epoch, i;

	p.merge_epochs = 1000; /* never by itself in this test */
	CHECK_EQ(demeter_ranges_init(&rs, memory, 12, &p), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, 0, RT_GIB), 0);
	for (epoch = 0; epoch < 20; epoch++) {
		for (i = 0; i < 100; i++)
			demeter_ranges_sample(&rs, 5 * RT_MIB);
		demeter_ranges_end_epoch(&rs, NULL);
	}
	CHECK(rs.nr >= 9);
	p.merge_epochs = 20;
	CHECK_EQ(demeter_ranges_set_params(&rs, &p), 0);
	for (epoch = 0; epoch < 40; epoch++) {
		for (i = 0; i < 100; i++)
			demeter_ranges_sample(&rs, 900 * RT_MIB);
		demeter_ranges_end_epoch(&rs, NULL);
		rt_check_shape(tally, &rs);
	}
	r = demeter_ranges_find(&rs, 900 * RT_MIB);
	CHECK_EQ(r->end - r->start, RT_GRANULE);
}

/*
 * The paper: in 64 TiB a hot 2 MiB is found with about 24 splits and fewer than
 * 50 ranges. 9 of 10 samples are hot here, the rest is everywhere.
 */
static void rt_test_64_tib(struct test_tally *tally)
{
	struct demeter_range *memory = test_alloc(256 * sizeof(*memory));
	u32 most = 0, most_splits = 0, most_epochs = 0, trial, epoch, i;
	struct demeter_ranges rs;
	u64 seed = 64;

	for (trial = 0; trial < TEST_ROUNDS(50); trial++) {
		u64 base = 1ULL << 46;
		u64 hot = base + test_random(&seed) % (1ULL << 25) * RT_GRANULE;
		bool found = false;

		CHECK_EQ(demeter_ranges_init(&rs, memory, 256, &rt_defaults), 0);
		CHECK_EQ(demeter_ranges_set_area(&rs, 0, base, base + 64 * RT_TIB), 0);
		for (epoch = 1; epoch <= 100; epoch++) {
			struct demeter_range *r;

			for (i = 0; i < 200; i++) {
				u64 x = test_random(&seed);

				demeter_ranges_sample(&rs, i % 10 ? hot + x % RT_GRANULE
								  : base + x % (64 * RT_TIB));
			}
			demeter_ranges_end_epoch(&rs, NULL);
			most = rs.nr > most ? rs.nr : most;
			r = demeter_ranges_find(&rs, hot);
			if (!found && r->end - r->start == RT_GRANULE) {
				found = true;
				most_epochs = epoch > most_epochs ? epoch : most_epochs;
				most_splits = rs.splits > most_splits ? rs.splits : most_splits;
			}
		}
		CHECK(found);
		rt_check_shape(tally, &rs);
		test_yield();
	}
	CHECK(most < 50);
	CHECK(most_splits <= 32);
	test_print("# 64 TiB: at most %u splits and %u epochs to find 2 MiB, %u ranges\n",
		   most_splits, most_epochs, most);
	test_free(memory);
}

/* Even access: noise splits now and then, and merging keeps it at that. */
static void rt_test_uniform_bounded(struct test_tally *tally)
{
	struct demeter_range *memory = test_alloc(1024 * sizeof(*memory));
	struct demeter_ranges rs;
	u32 epoch, i, per_epoch, most;
	u64 seed = 5, sum;

	for (per_epoch = 30; per_epoch <= 30000; per_epoch *= 10) {
		CHECK_EQ(demeter_ranges_init(&rs, memory, 1024, &rt_defaults), 0);
		CHECK_EQ(demeter_ranges_set_area(&rs, 0, 0, 4 * RT_GIB), 0);
		most = 0;
		sum = 0;
		for (epoch = 0; epoch < TEST_ROUNDS(500); epoch++) {
			for (i = 0; i < per_epoch; i++)
				demeter_ranges_sample(&rs, test_random(&seed) % (4 * RT_GIB));
			demeter_ranges_end_epoch(&rs, NULL);
			most = rs.nr > most ? rs.nr : most;
			sum += rs.nr;
		}
		CHECK(most <= 200);
		test_print("# uniform, %u samples an epoch: %llu ranges on average, at most %u\n",
			   per_epoch, (test_ull)(sum / epoch), most);
		test_yield();
	}
	test_free(memory);
}

static const struct test_case ranges_tests[] = {
	{ "ranges: absurd parameters are refused", rt_test_init },
	{ "ranges: areas grow, shrink, move and go", rt_test_areas },
	{ "ranges: extremes of address, count and epoch", rt_test_extremes },
	{ "ranges: capacity of one", rt_test_capacity_one },
	{ "ranges: invariants hold under random use", rt_test_random },
	{ "ranges: a hot granule in a small range", rt_test_small },
	{ "ranges: a hot spot across the middle", rt_test_straddle },
	{ "ranges: tau scales with vCPUs", rt_test_threshold },
	{ "ranges: as sparse as samples become", rt_test_thin },
	{ "ranges: a hot spot that left is merged away", rt_test_merge },
	{ "ranges: a full array makes room", rt_test_make_room },
	{ "ranges: 2 MiB in 64 TiB", rt_test_64_tib },
	{ "ranges: even access stays bounded", rt_test_uniform_bounded },
};
