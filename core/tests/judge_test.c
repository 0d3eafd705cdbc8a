// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Judge: what pays goes on, what does not is stopped, longer each time. */
#include <demeter/judge.h>
#include <demeter/math.h>

#include "harness.h"

#define JT_EPOCH_NS   50000000ULL
#define JT_HORIZON_NS 10000000000ULL
#define JT_COST_NS    30000000ULL

/*
 * A machine in which a step is taken every @every epochs while that is allowed; each
 * saves @gain_ns an epoch for @good epochs, and nothing later.
 */
struct jt_machine {
	struct demeter_judge judge;
	struct demeter_placement step[256];
	u64 taken_ns[256];
	u64 now_ns;
	u64 epoch;
	u64 lost_ns;
	u64 saved_ns;
	u32 nr;
};

static void jt_take(struct jt_machine *m, u64 cost_ns)
{
	struct demeter_placement *p = &m->step[m->nr % 256];

	memset(p, 0, sizeof(*p));
	p->pages = 1;
	p->lasts_ns = JT_HORIZON_NS;
	p->cost_ns = cost_ns;
	m->taken_ns[m->nr % 256] = m->now_ns;
	m->lost_ns += cost_ns;
	m->nr++;
}

static u32 jt_run(struct jt_machine *m, u32 epochs, u32 every, s64 gain_ns, u32 good, u64 cost_ns)
{
	u32 stops = 0, end, i;

	for (end = epochs; end; end--) {
		m->now_ns += JT_EPOCH_NS;
		m->epoch++;
		for (i = 0; i < 256 && i < m->nr; i++) {
			struct demeter_placement *p = &m->step[i];
			s64 ns = p->age_ns < good * JT_EPOCH_NS ? gain_ns : 0;

			if (!demeter_placement_is_open(p))
				continue;
			p->realised_ns += ns;
			p->recent_ns += ns;
			m->saved_ns += (u64)ns;
			demeter_placement_age(p, JT_EPOCH_NS);
			demeter_placement_forget(p, JT_EPOCH_NS);
			if (demeter_placement_is_open(p))
				demeter_judge_hear(&m->judge, p, m->taken_ns[i], JT_EPOCH_NS,
						   JT_HORIZON_NS);
			else
				demeter_judge_settle(&m->judge, p, m->taken_ns[i]);
		}
		stops += demeter_judge_epoch(&m->judge, m->now_ns, JT_EPOCH_NS, JT_HORIZON_NS);
		if (m->epoch % every == 0 && !demeter_judge_is_stopped(&m->judge, m->now_ns))
			jt_take(m, cost_ns);
	}
	return stops;
}

static struct jt_machine *jt_new(void)
{
	struct jt_machine *m = test_alloc(sizeof(*m));

	memset(m, 0, sizeof(*m));
	return m;
}

/* So many steps that each is given up after two epochs: they are heard nevertheless. */
static void jt_test_crowd(struct test_tally *tally)
{
	struct demeter_placement p = { .pages = 1, .lasts_ns = JT_HORIZON_NS };
	u64 now_ns = 0;
	u32 epoch, step;
	s64 saves_ns;

	for (saves_ns = 5000; saves_ns >= 0; saves_ns -= 5000) {
		struct demeter_judge judge = {};
		u32 stops = 0;

		for (epoch = 0; epoch < 200; epoch++) {
			now_ns += JT_EPOCH_NS;
			for (step = 0; step < 500; step++) {
				p.cost_ns = 200000;
				p.age_ns = 2 * JT_EPOCH_NS;
				p.recent_age_ns = p.age_ns;
				p.realised_ns = 2 * saves_ns;
				p.recent_ns = p.realised_ns;
				demeter_judge_conclude(&judge, &p, now_ns);
				/* One that nobody has seen yet proves nothing. */
				p.age_ns = 0;
				p.realised_ns = 0;
				p.cost_ns = JT_HORIZON_NS;
				demeter_judge_conclude(&judge, &p, now_ns);
			}
			stops += demeter_judge_epoch(&judge, now_ns, JT_EPOCH_NS, JT_HORIZON_NS);
		}
		CHECK_EQ(stops > 0, !saves_ns);
	}
}

/*
 * Stages of a program, each with a part of its memory of its own that is hot for three
 * epochs: what a step saves in them is known soon after, and is all.
 */
static void jt_test_bursts(struct test_tally *tally)
{
	struct jt_machine *m = jt_new();

	CHECK_EQ(jt_run(m, 60, 20, (s64)(JT_COST_NS / 6), 3, JT_COST_NS), 1);
	CHECK(m->nr <= 2);
	test_free(m);
	/* Had they saved what they cost, they would go on. */
	m = jt_new();
	CHECK_EQ(jt_run(m, 400, 20, (s64)(JT_COST_NS / 2), 3, JT_COST_NS), 0);
	test_free(m);
}

/* A step a second that saves what it cost within a tenth of its time, and goes on. */
static void jt_test_pays(struct test_tally *tally)
{
	struct jt_machine *m = jt_new();

	CHECK_EQ(jt_run(m, 4000, 20, 1500000, 1000, JT_COST_NS), 0);
	CHECK(m->saved_ns > m->lost_ns);
	/* Phases that flip every second and are caught early pay, too. */
	CHECK_EQ(jt_run(m, 4000, 20, 4000000, 15, JT_COST_NS), 0);
	test_free(m);
}

/* Caught late, they do not: the loss is bounded by ever rarer chances. */
static void jt_test_stops(struct test_tally *tally)
{
	struct jt_machine *m = jt_new();
	u32 stops = jt_run(m, 20000, 20, 4000000, 2, JT_COST_NS);
	u64 lost_ns;

	/* A thousand seconds: 10, 20 ... 640 s of stop, and chances between. */
	CHECK(stops >= 5 && stops <= 7);
	lost_ns = m->lost_ns - m->saved_ns;
	CHECK(lost_ns < 20000 * JT_EPOCH_NS / 500);
	/* Unstopped it would be 2.2 % of the time. */
	CHECK(lost_ns * 10 < 1000 * (JT_COST_NS - 8000000));
	/* A change of phase gets its chance, and clears the record. */
	CHECK_EQ(jt_run(m, 20000, 20, 4000000, 1000, JT_COST_NS), 0);
	CHECK_EQ(m->judge.stops, 0);
	test_free(m);
}

/* One step paid a hundredfold: that is no credit for what comes after it. */
static void jt_test_credit(struct test_tally *tally)
{
	struct demeter_placement p = { .pages = 1, .lasts_ns = JT_HORIZON_NS };
	struct jt_machine *m = jt_new();

	p.cost_ns = JT_COST_NS;
	p.realised_ns = 100 * JT_COST_NS;
	demeter_judge_settle(&m->judge, &p, 0);
	CHECK(jt_run(m, 200, 20, 0, 0, JT_COST_NS) > 0);
	CHECK(m->nr <= 7);
	test_free(m);
}

/* What makes things worse is a loss, too. */
static void jt_test_harm(struct test_tally *tally)
{
	struct jt_machine *m = jt_new();

	CHECK(jt_run(m, 100, 20, -1000000, 1000, JT_COST_NS) > 0);
	CHECK(demeter_judge_is_stopped(&m->judge, m->now_ns));
	CHECK(!demeter_judge_is_stopped(&m->judge, m->now_ns + JT_HORIZON_NS));
	test_free(m);
}

/* What only loses saves no more from the first epoch on: but it goes on losing. */
static void jt_test_loses(struct test_tally *tally)
{
	struct demeter_placement p = { .pages = 1, .lasts_ns = JT_HORIZON_NS };
	struct jt_machine *m = jt_new();

	/* One that has paid well, so that what was lost by now is no reason to stop. */
	p.cost_ns = JT_COST_NS;
	p.realised_ns = 4 * JT_COST_NS;
	demeter_judge_settle(&m->judge, &p, 0);
	/* Not while its epochs are few: chance may have it. */
	CHECK_EQ(jt_run(m, 31, 20, -1000000, 1000, JT_COST_NS), 0);
	CHECK_EQ(jt_run(m, 8, 20, -1000000, 1000, JT_COST_NS), 1);
	CHECK_EQ(m->nr, 1);
	test_free(m);
}

/* A part in five thousand of the time is small change. */
static void jt_test_small(struct test_tally *tally)
{
	struct jt_machine *m = jt_new();

	CHECK_EQ(jt_run(m, 20000, 200, 0, 0, 2000000), 0);
	test_free(m);
}

/* Of what went before a stop as much comes back as went, where it is wanted back. */
static void jt_test_return(struct test_tally *tally)
{
	struct demeter_judge judge;
	struct demeter_placement p;

	memset(&judge, 0, sizeof(judge));
	memset(&p, 0, sizeof(p));
	judge.since_ns = 100;
	p.cold.start = 4096;
	p.cold.end = 8192;
	p.pages = 512;
	p.recent_ns = -1;
	CHECK(demeter_judge_may_return(&judge, &p, 99, 0));
	CHECK(demeter_judge_may_return(&judge, &p, 99, 511));
	CHECK(!demeter_judge_may_return(&judge, &p, 99, 512));
	CHECK(!demeter_judge_may_return(&judge, &p, 100, 0));
	p.recent_ns = 0;
	CHECK(!demeter_judge_may_return(&judge, &p, 99, 0));
	p.recent_ns = -1;
	p.cold.part = 1;
	CHECK(!demeter_judge_may_return(&judge, &p, 99, 0));
	p.cold.part = 0;
	p.cold.end = 0;
	CHECK(!demeter_judge_may_return(&judge, &p, 99, 0));
}

static void jt_test_nasty(struct test_tally *tally)
{
	struct demeter_judge judge;
	u64 seed = 5, now_ns = 0;
	u32 round;

	memset(&judge, 0, sizeof(judge));
	for (round = 0; round < TEST_ROUNDS(20000); round++) {
		struct demeter_placement p;
		u64 horizon_ns = test_nasty(&seed), epoch_ns = test_nasty(&seed);

		memset(&p, 0, sizeof(p));
		p.pages = 1;
		p.cost_ns = test_nasty(&seed);
		p.realised_ns = (s64)(test_nasty(&seed) >> 1) * (round & 1 ? 1 : -1);
		p.recent_ns = (s64)(test_nasty(&seed) >> 1) * (round & 2 ? 1 : -1);
		p.recent_age_ns = test_nasty(&seed);
		p.lasts_ns = test_nasty(&seed);
		p.age_ns = test_nasty(&seed);
		p.grown_age_ns = test_nasty(&seed);
		p.quiet_ns = test_nasty(&seed);
		now_ns = demeter_max(now_ns, test_nasty(&seed) >> 8);
		if (round & 4)
			demeter_judge_hear(&judge, &p, now_ns, epoch_ns, horizon_ns);
		else
			demeter_judge_settle(&judge, &p, now_ns);
		demeter_judge_epoch(&judge, now_ns, epoch_ns, horizon_ns);
		CHECK(judge.stops <= DEMETER_JUDGE_MAX_STOPS);
		CHECK(judge.cost_ns <= DEMETER_U64_MAX >> 1);
	}
}

static const struct test_case judge_tests[] = {
	{ "judge: what pays goes on", jt_test_pays },
	{ "judge: what was hot for a while is heard soon after", jt_test_bursts },
	{ "judge: steps that are too many to be followed are heard", jt_test_crowd },
	{ "judge: what does not is stopped, longer each time", jt_test_stops },
	{ "judge: what does harm is stopped", jt_test_harm },
	{ "judge: what loses is held to what it will lose", jt_test_loses },
	{ "judge: no step pays for others", jt_test_credit },
	{ "judge: small change is let be", jt_test_small },
	{ "judge: no more returns than went", jt_test_return },
	{ "judge: any numbers at all", jt_test_nasty },
};
