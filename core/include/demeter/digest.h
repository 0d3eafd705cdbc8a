/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Digest: FNV-1a, 64 bits, over the little-endian bytes of each value. It
 * proves that two builds of core/ took the same decisions; it is no defence
 * against somebody who wants a collision.
 */
#ifndef DEMETER_DIGEST_H
#define DEMETER_DIGEST_H

#include <demeter/deps.h>

#define DEMETER_DIGEST_BASIS 0xcbf29ce484222325ULL
#define DEMETER_DIGEST_PRIME 0x00000100000001b3ULL

/* A seed of 0 starts a new digest, any other continues an earlier one. */
static inline u64 demeter_digest_start(u64 seed)
{
	return seed ? seed : DEMETER_DIGEST_BASIS;
}

static inline u64 demeter_digest_add(u64 digest, u64 value)
{
	u32 byte;

	for (byte = 0; byte < 8; byte++) {
		digest ^= (value >> (8 * byte)) & 0xff;
		digest *= DEMETER_DIGEST_PRIME;
	}
	return digest;
}

#endif /* DEMETER_DIGEST_H */
