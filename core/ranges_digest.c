// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The digest of an address space's ranges: see <demeter/digest.h>. */
#include <demeter/digest.h>
#include <demeter/ranges.h>

/**
 * demeter_ranges_digest - one number for all that was decided
 * @rs: the ranges
 * @seed: 0, or a digest to continue
 *
 * Return: the digest; equal for equal samples and parameters, in every build.
 */
u64 demeter_ranges_digest(const struct demeter_ranges *rs, u64 seed)
{
	u64 digest = demeter_digest_start(seed);
	u32 i, k;

	digest = demeter_digest_add(digest, rs->epoch);
	digest = demeter_digest_add(digest, rs->nr);
	digest = demeter_digest_add(digest, rs->splits);
	digest = demeter_digest_add(digest, rs->merges);
	digest = demeter_digest_add(digest, rs->samples);
	digest = demeter_digest_add(digest, rs->strays);
	digest = demeter_digest_add(digest, rs->denied_splits);
	for (i = 0; i < rs->nr; i++) {
		const struct demeter_range *r = &rs->range[i];

		digest = demeter_digest_add(digest, r->start);
		digest = demeter_digest_add(digest, r->end);
		digest = demeter_digest_add(digest, r->rate);
		for (k = 0; k < DEMETER_QUARTERS; k++) {
			digest = demeter_digest_add(digest, r->quarter[k]);
			digest = demeter_digest_add(digest, r->hits[k]);
		}
		digest = demeter_digest_add(digest, r->born_epoch);
		digest = demeter_digest_add(digest, r->alike_epochs);
		digest = demeter_digest_add(digest, r->area);
	}
	return digest;
}
