// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A loadable policy in C: a random page leaves. Nothing to learn, nothing to be
 * fooled by; a fair baseline for programs without any order.
 *
 *   cc -O2 -fPIC -shared -I crates/extmem/include \
 *      crates/extmem/examples/policy_random.c -o policy_random.so
 *   demeter extmem run --policy ./policy_random.so:seed=7 ...
 */
#include <demeter_extmem_policy.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct policy {
	uint64_t random;
	uint32_t count; /* pages in DRAM */
	demeter_extmem_page *in; /* they, in no order */
	uint32_t *place; /* where a page is in `in`, plus one; 0: nowhere */
};

/* Room for the structure and two tables of all pages; only what is touched of
 * them takes DRAM. */
static uint64_t memory_bytes(const struct demeter_extmem_host *host,
			     const char *options)
{
	if (*options && strncmp(options, "seed=", 5) != 0)
		return 0;
	return sizeof(struct policy) + 8ull * host->arena_pages;
}

static void *start(void *memory, const struct demeter_extmem_host *host,
		   const char *options)
{
	struct policy *policy = memory;

	policy->random = *options ? strtoull(options + 5, NULL, 10) : 1;
	policy->random = policy->random * 2 + 1;
	policy->in = (demeter_extmem_page *)(policy + 1);
	policy->place = policy->in + host->arena_pages;
	return policy;
}

static void forget(struct policy *policy, demeter_extmem_page page)
{
	uint32_t place = policy->place[page];
	demeter_extmem_page last;

	if (!place)
		return;
	last = policy->in[--policy->count];
	policy->in[place - 1] = last;
	policy->place[last] = place;
	policy->place[page] = 0;
}

static void unmapped(void *state, demeter_extmem_page first, uint32_t pages)
{
	for (uint32_t i = 0; i < pages; i++)
		forget(state, first + i);
}

static void add(struct policy *policy, demeter_extmem_page page)
{
	if (policy->place[page])
		return;
	policy->in[policy->count++] = page;
	policy->place[page] = policy->count;
}

static void arrived(void *state, const struct demeter_extmem_arrival *arrivals,
		    uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		add(state, arrivals[i].page);
}

static uint32_t choose(void *state, demeter_extmem_page *victims, uint32_t want)
{
	struct policy *policy = state;
	uint32_t named = 0;

	while (named < want && policy->count) {
		policy->random ^= policy->random << 13;
		policy->random ^= policy->random >> 7;
		policy->random ^= policy->random << 17;
		victims[named] = policy->in[policy->random % policy->count];
		forget(policy, victims[named++]);
	}
	return named;
}

static void returned(void *state, const demeter_extmem_page *pages,
		     uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		add(state, pages[i]);
}

static const struct demeter_extmem_policy policy_random = {
	.abi = DEMETER_EXTMEM_POLICY_ABI,
	.size = sizeof(struct demeter_extmem_policy),
	.name = "random",
	.memory_bytes = memory_bytes,
	.start = start,
	.unmapped = unmapped,
	.arrived = arrived,
	.choose = choose,
	.returned = returned,
};

const struct demeter_extmem_policy *demeter_extmem_policy(uint32_t host_abi)
{
	return host_abi == DEMETER_EXTMEM_POLICY_ABI ? &policy_random : NULL;
}
