// SPDX-License-Identifier: GPL-2.0-only
/*
 * Dump: the heat map and the ledger as binary files, layouts in
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

/* Protects the snapshots. Taken before demeter_lock. */
static DEFINE_MUTEX(dump_lock);

static void record_fill(struct demeter_dump_record *record, struct demeter_target *target,
			const struct demeter_range *range)
{
	const struct demeter_count *count = demeter_target_count(target, range->start);

	*record = (struct demeter_dump_record){
		.space = target->space,
		.pid = target->pid,
		.start = range->start,
		.end = range->end,
		.rate = range->rate,
		.age_epochs = target->ranges.epoch - range->born_epoch,
		.area = range->area,
	};
	/* Split or merged since the last count: not known yet. */
	if (count && count->end == range->end) {
		record->fmem_pages = count->pages[DEMETER_FMEM];
		record->smem_pages = count->pages[DEMETER_SMEM];
	}
}

static int ranges_take(void **snapshot, size_t *snapshot_bytes)
{
	struct demeter_dump_header *header;
	struct demeter_dump_record *record;
	struct demeter_target *target;
	u32 space = 0, nr = 0, i;
	int ret = -ENOMEM;
	size_t bytes;

	mutex_lock(&demeter_lock);
	while ((target = demeter_target_next(&space)))
		nr += target->ranges.nr;
	bytes = sizeof(*header) + nr * sizeof(*record);
	header = kvzalloc(bytes, GFP_KERNEL);
	if (!header)
		goto unlock;
	header->magic = DEMETER_DUMP_MAGIC;
	header->version = DEMETER_DUMP_VERSION;
	header->header_bytes = sizeof(*header);
	header->record_bytes = sizeof(*record);
	header->nr_records = nr;
	header->epochs = demeter_stats.epochs;
	header->time_ns = ktime_get_ns();
	header->rate_shift = DEMETER_RATE_SHIFT;
	header->fmem_node = demeter_params.fmem_node;
	header->smem_node = demeter_params.smem_node;
	record = (void *)(header + 1);
	space = 0;
	while ((target = demeter_target_next(&space))) {
		for (i = 0; i < target->ranges.nr; i++)
			record_fill(record++, target, &target->ranges.range[i]);
	}
	*snapshot = header;
	*snapshot_bytes = bytes;
	ret = 0;
unlock:
	mutex_unlock(&demeter_lock);
	return ret;
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
