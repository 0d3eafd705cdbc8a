// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the ledger shows as text: stats/gain/ and stats/plans/.
 */
#include <linux/kobject.h>
#include <linux/sysfs.h>

#include "ledger.h"

static struct demeter_ledger_totals totals_now(void)
{
	struct demeter_ledger_totals totals;

	demeter_ledger_totals(&totals);
	return totals;
}

#define TOTAL(_name, _format, _value)                                                              \
	static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)  \
	{                                                                                          \
		return sysfs_emit(buf, _format "\n", totals_now()._value);                         \
	}                                                                                          \
	static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

TOTAL(decisions, "%llu", decisions);
TOTAL(open_decisions, "%llu", open);
TOTAL(settled_decisions, "%llu", settled);
TOTAL(dropped_decisions, "%llu", dropped);
TOTAL(empty_decisions, "%llu", empty);
TOTAL(predicted_ns, "%llu", predicted_ns);
TOTAL(realised_ns, "%lld", realised_ns);
TOTAL(settled_predicted_ns, "%llu", settled_predicted_ns);
TOTAL(settled_realised_ns, "%lld", settled_realised_ns);
TOTAL(stops, "%llu", stops);
TOTAL(stopped_targets, "%u", stopped_targets);

static struct attribute *gain_attrs[] = {
	&decisions_attr.attr,		&open_decisions_attr.attr,
	&settled_decisions_attr.attr,	&dropped_decisions_attr.attr,
	&empty_decisions_attr.attr,	&predicted_ns_attr.attr,
	&realised_ns_attr.attr,		&settled_predicted_ns_attr.attr,
	&settled_realised_ns_attr.attr, &stops_attr.attr,
	&stopped_targets_attr.attr,	NULL,
};

static const struct attribute_group gain_group = { .name = "gain", .attrs = gain_attrs };

TOTAL(done, "%llu", plans[DEMETER_PLAN_DONE]);
TOTAL(no_gain, "%llu", plans[DEMETER_PLAN_NO_GAIN]);
TOTAL(no_tokens, "%llu", plans[DEMETER_PLAN_NO_TOKENS]);
TOTAL(full, "%llu", plans[DEMETER_PLAN_FULL]);

static struct attribute *plans_attrs[] = {
	&done_attr.attr, &no_gain_attr.attr, &no_tokens_attr.attr, &full_attr.attr, NULL,
};

static const struct attribute_group plans_group = { .name = "plans", .attrs = plans_attrs };

/**
 * demeter_ledger_sysfs_init() - make stats/gain/ and stats/plans/
 * @stats: the directory stats, with which they go
 *
 * Return: 0 or a negative errno.
 */
int demeter_ledger_sysfs_init(struct kobject *stats)
{
	return sysfs_create_group(stats, &gain_group) ?: sysfs_create_group(stats, &plans_group);
}
