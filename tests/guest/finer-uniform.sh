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
looked=$(cat $demeter/stats/finer/looked_epochs)
promoted=$(cat $demeter/stats/promoted_pages)
echo "divided $divisions granules in $looked epochs of looking, promoted $promoted pages"
[ "$divisions" = 0 ] && [ "$looked" -gt 0 ] && [ "$promoted" -gt 0 ] || exit 1
for value in 3 x -1; do
	if echo "$value" >$demeter/params/finer; then
		echo "finer took '$value'" >&2
		exit 1
	fi
done 2>/dev/null
for value in 0 2 1; do
	echo "$value" >$demeter/params/finer || exit 1
done
