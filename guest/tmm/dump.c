// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dump: the heat map of the last epoch and the ledger as binary files, layouts in
 * uapi/demeter_dump.h and uapi/demeter_ledger.h.
 *
 * Reading from the start takes a snapshot, reading on continues it, so that one
 * reader gets one consistent picture. Readers at the same time may cut each
 * other's short; the header tells them how much to expect.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <demeter_dump.h>

#include "bin_attribute.h"
#include "ledger.h"
#include "tmm.h"

/**
 * struct dump - one of the files
 * @attr: the file
 * @take: makes a snapshot, to be freed by kvfree()
 * @snapshot: the latest
 * @bytes: its length
 */
struct dump {
	struct bin_attribute attr;
	int (*take)(void **snapshot, size_t *bytes);
	void *snapshot;
	size_t bytes;
};

/* Protects the snapshots. Taken before a target's lock and the ledger's. */
static DEFINE_MUTEX(dump_lock);

static void record_fill(struct demeter_dump_record *record, const struct demeter_target *target,
			const struct demeter_count *count)
{
	*record = (struct demeter_dump_record){
		.space = target->space,
		.pid = target->pid,
		.start = count->start,
		.end = count->end,
		.rate = count->rate,
		.age_epochs = target->count_epoch - count->born_epoch,
		.area = count->area,
		.fmem_pages = count->pages[DEMETER_FMEM],
		.smem_pages = count->pages[DEMETER_SMEM],
	};
}

static u32 count_records(void)
{
	struct demeter_target *target;
	u32 space = 0, nr = 0;

	while ((target = demeter_target_next(&space)))
		nr += READ_ONCE(target->nr_counts);
	return nr;
}

/* At most @room records: what was published since they were counted may be more. */
static u32 records_fill(struct demeter_dump_record *record, u32 room)
{
	struct demeter_target *target;
	u32 space = 0, nr = 0, i;

	while ((target = demeter_target_next(&space))) {
		u64 since_ns = demeter_target_lock(target);

		for (i = 0; i < target->nr_counts && nr < room; i++, nr++)
			record_fill(&record[nr], target, &target->count[i]);
		demeter_target_unlock(target, since_ns);
	}
	return nr;
}

/* The nodes of a tier that 64 bits have room for. */
static u64 low_nodes(enum demeter_tier tier)
{
	u64 bits = 0;
	int nid;

	for_each_node_mask(nid, demeter_tiers.nodes[tier])
		bits |= nid < 64 ? BIT_ULL(nid) : 0;
	return bits;
}

static u32 lowest_node(enum demeter_tier tier)
{
	const nodemask_t *nodes = &demeter_tiers.nodes[tier];

	return nodes_empty(*nodes) ? DEMETER_DUMP_NO_NODE : first_node(*nodes);
}

static int ranges_take(void **snapshot, size_t *snapshot_bytes)
{
	struct demeter_dump_header *header;
	int index = demeter_targets_read_lock();
	u32 room = count_records() + 64;

	header = kvzalloc(sizeof(*header) + room * sizeof(struct demeter_dump_record), GFP_KERNEL);
	if (!header) {
		demeter_targets_read_unlock(index);
		return -ENOMEM;
	}
	header->magic = DEMETER_DUMP_MAGIC;
	header->version = DEMETER_DUMP_VERSION;
	header->header_bytes = sizeof(*header);
	header->record_bytes = sizeof(struct demeter_dump_record);
	header->nr_records = records_fill((void *)(header + 1), room);
	header->epochs = READ_ONCE(demeter_stats.epochs);
	header->time_ns = ktime_get_ns();
	header->rate_shift = DEMETER_RATE_SHIFT;
	header->fmem_node = lowest_node(DEMETER_FMEM);
	header->smem_node = lowest_node(DEMETER_SMEM);
	header->fmem_nodes = low_nodes(DEMETER_FMEM);
	header->smem_nodes = low_nodes(DEMETER_SMEM);
	demeter_targets_read_unlock(index);
	*snapshot = header;
	*snapshot_bytes = sizeof(*header) + header->nr_records * sizeof(struct demeter_dump_record);
	return 0;
}

static ssize_t dump_read(struct file *file, struct kobject *kobj,
			 DEMETER_COMPAT_BIN_ATTRIBUTE *attr, char *buf, loff_t offset, size_t count)
{
	struct dump *dump = attr->private;
	void *snapshot;
	ssize_t ret = 0;

	mutex_lock(&dump_lock);
	if (!offset) {
		ret = dump->take(&snapshot, &dump->bytes);
		if (!ret) {
			kvfree(dump->snapshot);
			dump->snapshot = snapshot;
		}
	}
	if (!ret)
		ret = memory_read_from_buffer(buf, count, &offset, dump->snapshot, dump->bytes);
	mutex_unlock(&dump_lock);
	return ret;
}

static struct dump dumps[] = {
	{
		.attr.attr = { .name = "ranges", .mode = 0400 },
		.attr.read = dump_read,
		.take = ranges_take,
	},
	{
		.attr.attr = { .name = "ledger", .mode = 0400 },
		.attr.read = dump_read,
		.take = demeter_ledger_snapshot,
	},
};

/**
 * demeter_dump_init() - make the files "ranges" and "ledger"
 * @parent: their directory
 *
 * Return: 0 or a negative errno.
 */
int demeter_dump_init(struct kobject *parent)
{
	int i, ret = 0;

	for (i = 0; i < ARRAY_SIZE(dumps) && !ret; i++) {
		sysfs_bin_attr_init(&dumps[i].attr);
		dumps[i].attr.private = &dumps[i];
		ret = sysfs_create_bin_file(parent, &dumps[i].attr);
	}
	return ret;
}

/**
 * demeter_dump_exit() - remove them
 * @parent: their directory
 */
void demeter_dump_exit(struct kobject *parent)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(dumps); i++) {
		sysfs_remove_bin_file(parent, &dumps[i].attr);
		kvfree(dumps[i].snapshot);
		dumps[i].snapshot = NULL;
		dumps[i].bytes = 0;
	}
}
