// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reports that must be refused, each with its own status (DEV-10), and the few
 * that must be taken in between, or the refusals would prove nothing.
 */
#include <linux/kernel.h>
#include <linux/mm.h>

#include "hostile.h"

#define PAGE_BYTES BIT_ULL(VIRTIO_DEMETER_PAGE_SHIFT)
#define RQ(node)   (VIRTIO_DEMETER_VQ_REPORT + (node))

/* Send a report on node 0's queue, sized as its nr_ranges says, and judge. */
static void expect(struct hostile *h, const char *name, u32 nr_ranges, int want)
{
	size_t bytes = sizeof(*h->out) + nr_ranges * sizeof(struct virtio_demeter_range);

	hostile_verdict(h, name, want, hostile_exchange(h, RQ(0), bytes, sizeof(*h->ack)));
}

static void expect_range(struct hostile *h, const char *name, u16 op, u32 flags, u64 gpa,
			 u64 nr_pages, int want)
{
	hostile_report(h, op, 0, flags, 1);
	hostile_range(h, 0, gpa, nr_pages);
	expect(h, name, 1, want);
}

static void hello(struct hostile *h, const char *name, u32 flags, u64 kept_pages, int want)
{
	hostile_report(h, VIRTIO_DEMETER_HELLO, 0, flags, 0);
	h->out->current_pages = cpu_to_le64(kept_pages);
	expect(h, name, 0, want);
}

static void before_hello(struct hostile *h)
{
	expect_range(h, "DEV-4 INFLATED before HELLO", VIRTIO_DEMETER_INFLATED, 0,
		     hostile_own_gpa(h, 0), 1, VIRTIO_DEMETER_E_HELLO);
	hello(h, "DEV-6 HELLO keeps pages without the flag", 0, 1, VIRTIO_DEMETER_E_MALFORMED);
	hello(h, "DEV-6 HELLO has the flag without pages", VIRTIO_DEMETER_HELLO_RESYNC, 0,
	      VIRTIO_DEMETER_E_MALFORMED);
	hello(h, "DEV-6 HELLO keeps more than there is", VIRTIO_DEMETER_HELLO_RESYNC, ~0ULL,
	      VIRTIO_DEMETER_E_MALFORMED);
	hello(h, "HELLO", 0, 0, VIRTIO_DEMETER_OK);
}

static void malformed(struct hostile *h)
{
	size_t header = sizeof(*h->out), one = sizeof(struct virtio_demeter_range);
	u64 gpa = hostile_own_gpa(h, 0);
	unsigned int i;

	hostile_report(h, VIRTIO_DEMETER_INFLATED, 0, 0, 1);
	hostile_range(h, 0, gpa, 1);
	hostile_range(h, 1, gpa, 1);
	hostile_verdict(h, "DRV-12 half a header", VIRTIO_DEMETER_E_MALFORMED,
			hostile_exchange(h, RQ(0), header / 2, sizeof(*h->ack)));
	hostile_verdict(h, "DRV-12 nothing at all", VIRTIO_DEMETER_E_MALFORMED,
			hostile_exchange(h, RQ(0), 0, sizeof(*h->ack)));
	hostile_verdict(h, "DRV-12 half a range", VIRTIO_DEMETER_E_MALFORMED,
			hostile_exchange(h, RQ(0), header + one / 2, sizeof(*h->ack)));
	hostile_verdict(h, "DRV-12 more than it says", VIRTIO_DEMETER_E_MALFORMED,
			hostile_exchange(h, RQ(0), header + 2 * one, sizeof(*h->ack)));
	h->out->nr_ranges = cpu_to_le32(~0);
	expect(h, "DEV-12 4 G ranges in room for one", 1, VIRTIO_DEMETER_E_MALFORMED);
	h->out->nr_ranges = cpu_to_le32(0x10000001); /* times 16 is 16 in 32 bits */
	expect(h, "DEV-12 a count that wraps", 1, VIRTIO_DEMETER_E_MALFORMED);
	h->out->nr_ranges = 0;
	expect(h, "DRV-12 INFLATED of nothing", 0, VIRTIO_DEMETER_E_MALFORMED);
	hostile_report(h, VIRTIO_DEMETER_INFLATED, 0, 0, h->max_ranges + 1);
	for (i = 0; i <= h->max_ranges; i++)
		hostile_range(h, i, gpa, 1);
	expect(h, "DRV-12 one range too many", h->max_ranges + 1, VIRTIO_DEMETER_E_MALFORMED);

	expect_range(h, "DRV-12 unknown op", 77, 0, gpa, 1, VIRTIO_DEMETER_E_MALFORMED);
	expect_range(h, "DRV-12 op 0", 0, 0, gpa, 1, VIRTIO_DEMETER_E_MALFORMED);
	expect_range(h, "DRV-12 unknown flag", VIRTIO_DEMETER_INFLATED, 1u << 31, gpa, 1,
		     VIRTIO_DEMETER_E_MALFORMED);
	expect_range(h, "DRV-12 flag on DEFLATE", VIRTIO_DEMETER_DEFLATE, 1, gpa, 1,
		     VIRTIO_DEMETER_E_MALFORMED);
	expect_range(h, "DRV-12 DONE with a range", VIRTIO_DEMETER_DONE, 0, gpa, 1,
		     VIRTIO_DEMETER_E_MALFORMED);
	hostile_report(h, VIRTIO_DEMETER_INFLATED, 0, 0, 1);
	h->out->result = cpu_to_le32(1);
	hostile_range(h, 0, gpa, 1);
	expect(h, "DRV-12 result outside DONE", 1, VIRTIO_DEMETER_E_MALFORMED);

	hostile_report(h, VIRTIO_DEMETER_INFLATED, 1, 0, 1);
	hostile_range(h, 0, gpa, 1);
	expect(h, "DRV-12 another queue's node", 1, VIRTIO_DEMETER_E_NODE);
	hostile_report(h, VIRTIO_DEMETER_INFLATED, 0xffff, 0, 1);
	expect(h, "DRV-12 no node at all", 1, VIRTIO_DEMETER_E_NODE);
}

static void bad_ranges(struct hostile *h)
{
	u64 gpa = hostile_own_gpa(h, 0);
	const int refused = VIRTIO_DEMETER_E_RANGE;
	const u16 op = VIRTIO_DEMETER_INFLATED;

	expect_range(h, "DRV-14 outside guest memory", op, 0, 1ULL << 45, 1, refused);
	expect_range(h, "DRV-14 top of the address space", op, 0, ~(PAGE_BYTES - 1), 1, refused);
	expect_range(h, "DRV-14 address wraps", op, 0, ~(PAGE_BYTES - 1), 2, refused);
	expect_range(h, "DRV-14 length wraps", op, 0, gpa, ~0ULL, refused);
	expect_range(h, "DRV-14 bytes wrap to one page", op, 0, gpa, (1ULL << 52) + 1, refused);
	expect_range(h, "DRV-14 empty", op, 0, gpa, 0, refused);
	expect_range(h, "DRV-14 unaligned", op, 0, gpa + 8, 1, refused);
	expect_range(h, "DRV-14 beyond the end of memory", op, 0, gpa, 1ULL << 28, refused);
	expect_range(h, "DRV-14 DEFLATE outside memory", VIRTIO_DEMETER_DEFLATE, 0, 1ULL << 45, 1,
		     refused);
	if (h->own[1])
		expect_range(h, "DRV-14 memory of another tier", op, 0, hostile_own_gpa(h, 1), 1,
			     VIRTIO_DEMETER_E_TIER);

	expect_range(h, "DRV-14 DEFLATE of what is not inflated", VIRTIO_DEMETER_DEFLATE, 0, gpa, 1,
		     VIRTIO_DEMETER_E_STATE);
	hostile_report(h, op, 0, 0, 2);
	hostile_range(h, 0, gpa, 1);
	hostile_range(h, 1, gpa, 1);
	expect(h, "DRV-14 a page twice in one report", 2, VIRTIO_DEMETER_E_STATE);
	expect_range(h, "DRV-15 more than was asked for", op, 0, gpa, 1, VIRTIO_DEMETER_E_BUDGET);
}

/* The page that these inflate is this driver's own: nothing of the guest is hurt. */
static void resync(struct hostile *h)
{
	u64 gpa = hostile_own_gpa(h, 0);
	const u32 flag = VIRTIO_DEMETER_INFLATED_RESYNC;

	hello(h, "HELLO with one page kept", VIRTIO_DEMETER_HELLO_RESYNC, 1, VIRTIO_DEMETER_OK);
	expect_range(h, "DEV-6 more than HELLO kept", VIRTIO_DEMETER_INFLATED, flag, gpa, 2,
		     VIRTIO_DEMETER_E_BUDGET);
	expect_range(h, "the kept page", VIRTIO_DEMETER_INFLATED, flag, gpa, 1, VIRTIO_DEMETER_OK);
	expect_range(h, "DRV-14 inflated twice", VIRTIO_DEMETER_INFLATED, 0, gpa, 1,
		     VIRTIO_DEMETER_E_STATE);
	hostile_report(h, VIRTIO_DEMETER_DEFLATE, 0, 0, 2);
	hostile_range(h, 0, gpa, 1);
	hostile_range(h, 1, gpa, 1);
	expect(h, "DRV-14 deflated twice in one report", 2, VIRTIO_DEMETER_E_STATE);
	expect_range(h, "DEV-11 the page is still inflated, and deflates", VIRTIO_DEMETER_DEFLATE,
		     0, gpa, 1, VIRTIO_DEMETER_OK);
	expect_range(h, "DRV-5 RESYNC after the fact", VIRTIO_DEMETER_INFLATED, flag, gpa, 1,
		     VIRTIO_DEMETER_E_STATE);
}

static void no_room_for_an_answer(struct hostile *h)
{
	hostile_report(h, VIRTIO_DEMETER_DONE, 0, 0, 0);
	hostile_verdict(h, "DEV-17 no ack buffer", HOSTILE_EMPTY_USED,
			hostile_exchange(h, RQ(0), sizeof(*h->out), 0));
	hostile_verdict(h, "DEV-17 half an ack buffer", HOSTILE_EMPTY_USED,
			hostile_exchange(h, RQ(0), sizeof(*h->out), sizeof(*h->ack) / 2));
	hostile_verdict(h, "DEV-20 statistics of a wrong length", HOSTILE_EMPTY_USED,
			hostile_exchange(h, VIRTIO_DEMETER_VQ_STATISTICS, 13, 0));
	hello(h, "the device still works", 0, 0, VIRTIO_DEMETER_OK);
}

void hostile_reports(struct hostile *h)
{
	before_hello(h);
	malformed(h);
	bad_ranges(h);
	resync(h);
	no_room_for_an_answer(h);
}

/* DEV-18: violate until the device has had enough. */
void hostile_exhaust(struct hostile *h)
{
	int got = VIRTIO_DEMETER_E_RANGE;
	unsigned int i;

	for (i = 0; i < 10000 && got == VIRTIO_DEMETER_E_RANGE; i++) {
		hostile_report(h, VIRTIO_DEMETER_INFLATED, 0, 0, 1);
		hostile_range(h, 0, 1, 1);
		got = hostile_exchange(h, RQ(0),
				       sizeof(*h->out) + sizeof(struct virtio_demeter_range),
				       sizeof(*h->ack));
	}
	hostile_verdict(h, "DEV-18 disabled after repeated violations", VIRTIO_DEMETER_E_DISABLED,
			got);
	hello(h, "DEV-19 HELLO does not mend that", 0, 0, VIRTIO_DEMETER_E_DISABLED);
}
