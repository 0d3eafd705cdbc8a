#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: finer-uniform.sh WORKLOAD ARGUMENT...
# Runs a workload whose hot memory is hot all over: it must be promoted, and no huge
# page divided; parameters are checked.
set -u
demeter=/sys/kernel/mm/demeter
[ "$(cat $demeter/params/finer)" = 1 ] || exit 1
/demeter/workloads "$@" || exit 1
divisions=$(cat $demeter/stats/finer/divisions)
promoted=$(cat $demeter/stats/promoted_pages)
echo "divided $divisions granules, promoted $promoted pages"
[ "$divisions" = 0 ] && [ "$promoted" -gt 0 ] || exit 1
for value in 2 x -1; do
	if echo "$value" >$demeter/params/finer; then
		echo "finer took '$value'" >&2
		exit 1
	fi
done 2>/dev/null
echo 0 >$demeter/params/finer && echo 1 >$demeter/params/finer
