/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* All test bodies that run in user space and in the kernel. */
#ifndef DEMETER_TESTS_SUITE_H
#define DEMETER_TESTS_SUITE_H

#include "math_test.c"
#include "areas_test.c"
#include "ranges_test.c"
#include "room_test.c"
#include "resident_test.c"
#include "rank_test.c"
#include "plan_test.c"
#include "groups_test.c"
#include "finer_test.c"
#include "finer_gate_test.c"
#include "finer_budget_test.c"
#include "gain_test.c"
#include "judge_test.c"
#include "pace_test.c"
#include "delivery_test.c"
#include "channel_test.c"
#include "touch_test.c"
#include "memtis_test.c"
#include "hemem_test.c"
#include "nimble_test.c"
#include "golden_test.c"

static void suite_run(struct test_tally *tally)
{
	TEST_RUN(math_tests, tally);
	TEST_RUN(areas_tests, tally);
	TEST_RUN(ranges_tests, tally);
	TEST_RUN(room_tests, tally);
	TEST_RUN(resident_tests, tally);
	TEST_RUN(rank_tests, tally);
	TEST_RUN(plan_tests, tally);
	TEST_RUN(groups_tests, tally);
	TEST_RUN(finer_tests, tally);
	TEST_RUN(finer_gate_tests, tally);
	TEST_RUN(finer_budget_tests, tally);
	TEST_RUN(gain_tests, tally);
	TEST_RUN(judge_tests, tally);
	TEST_RUN(pace_tests, tally);
	TEST_RUN(delivery_tests, tally);
	TEST_RUN(channel_tests, tally);
	TEST_RUN(touch_tests, tally);
	TEST_RUN(memtis_tests, tally);
	TEST_RUN(hemem_tests, tally);
	TEST_RUN(nimble_tests, tally);
	TEST_RUN(golden_tests, tally);
}

#endif /* DEMETER_TESTS_SUITE_H */
