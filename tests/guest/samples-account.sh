#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: samples-account.sh WORKLOAD ARGUMENT...
# Runs a workload, then switches Demeter off: every record of the sampler must be
# a sample, stray, unused or counted as lost.
set -u
demeter=/sys/kernel/mm/demeter
stats=$demeter/stats
line=$(/demeter/workloads "$@") || exit 1
echo "updates_per_s $(echo "$line" | sed 's/.*"updates_per_s":\([0-9.]*\).*/\1/')"
echo 0 >$demeter/enabled
value() {
	cat "$stats/$1"
}
records=$(($(value sampler/traced_records) + $(value sampler/handled_records)))
told=$(($(value samples) + $(value stray_samples) + $(value sampler/unused_records) + \
	$(value lost_samples) - $(value sampler/lost_records)))
echo "records $records, accounted for $told: samples $(value samples), stray $(value stray_samples)," \
	"unused $(value sampler/unused_records), lost $(value lost_samples);" \
	"promoted_pages $(value promoted_pages), ranges $(value ranges)"
[ "$records" -gt 0 ] && [ "$records" = "$told" ]
