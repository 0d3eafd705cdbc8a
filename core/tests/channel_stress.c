// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Channel under real threads: nothing lost uncounted, nothing twice, each
 * producer's samples in order. User space only; also built with the thread
 * sanitizer.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include <demeter/channel.h>

#define PRODUCERS 4
#define SLOTS	  256

static struct demeter_channel channel;
static struct demeter_channel_slot slots[SLOTS];
static u64 pushed[PRODUCERS], refused[PRODUCERS], refused_with_more[PRODUCERS];
static u64 per_producer;
static int running = PRODUCERS;

static void *produce(void *argument)
{
	u32 me = (u32)(size_t)argument;
	u64 i;

	for (i = 0; i < per_producer; i++) {
		struct demeter_sample s = { .gva = i, .space = me, .tier = (u8)~i, .more = (u8)i };

		if (demeter_channel_push(&channel, &s)) {
			pushed[me]++;
		} else {
			refused[me]++;
			refused_with_more[me] += 1 + (u64)s.more;
			sched_yield();
		}
	}
	__atomic_fetch_sub(&running, 1, __ATOMIC_RELEASE);
	return NULL;
}

int main(int argc, char **argv)
{
	u64 got[PRODUCERS] = { 0 }, next[PRODUCERS] = { 0 }, lost = 0, with_more = 0;
	pthread_t thread[PRODUCERS];
	struct demeter_sample s;
	size_t i;

	per_producer = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
	if (demeter_channel_init(&channel, slots, SLOTS))
		return 1;
	for (i = 0; i < PRODUCERS; i++)
		if (pthread_create(&thread[i], NULL, produce, (void *)i))
			return 1;
	for (;;) {
		int last = __atomic_load_n(&running, __ATOMIC_ACQUIRE) == 0;

		while (demeter_channel_pop(&channel, &s)) {
			if (s.space >= PRODUCERS || s.gva < next[s.space] || s.tier != (u8)~s.gva ||
			    s.more != (u8)s.gva) {
				printf("not ok - channel: torn, repeated or out of order\n");
				return 1;
			}
			next[s.space] = s.gva + 1;
			got[s.space]++;
		}
		if (last)
			break;
	}
	for (i = 0; i < PRODUCERS; i++) {
		pthread_join(thread[i], NULL);
		lost += refused[i];
		with_more += refused_with_more[i];
		if (got[i] != pushed[i] || pushed[i] + refused[i] != per_producer) {
			printf("not ok - channel: samples vanished\n");
			return 1;
		}
	}
	if (demeter_channel_lost(&channel) != with_more) {
		printf("not ok - channel: losses miscounted\n");
		return 1;
	}
	printf("ok - channel: %d threads, %llu samples, %llu refused and counted\n", PRODUCERS,
	       (unsigned long long)(PRODUCERS * per_producer), (unsigned long long)lost);
	return 0;
}
