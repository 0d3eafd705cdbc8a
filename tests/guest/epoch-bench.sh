#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: epoch-bench.sh PROCESSES GIB_EACH PLACES_EACH HOT_EACH ROUNDS
# What an epoch costs with large address spaces, and how long locks are held, as
# demeter.ko measures it itself. Fails above 50 ms of CPU or 1 ms of a lock.
set -u
stats=/sys/kernel/mm/demeter/stats
/tmp/sparse_spaces "$@" &
program=$!
most_targets=0 most_ranges=0
# Until what is resident has been walked once nothing can be moved, so that has no time to lose.
pass=before quick=0 slow=0
while kill -0 "$program" 2>/dev/null; do
	sleep 0.1
	read -r unwalked <$stats/epoch/unwalked_bytes
	read -r ticks <$stats/pace/ticks_per_epoch
	case $pass in
	before) [ "$unwalked" = 0 ] || pass=first ;;
	first) if [ "$unwalked" = 0 ]; then pass=over; elif [ "$ticks" = 1 ]; then
		quick=$((quick + 1))
	else
		slow=$((slow + 1))
	fi ;;
	esac
	targets=$(cat $stats/targets) ranges=$(cat $stats/ranges)
	[ "$targets" -le "$most_targets" ] || most_targets=$targets
	[ "$ranges" -le "$most_ranges" ] || most_ranges=$ranges
done
wait "$program" || { echo "not ok - the program failed"; exit 1; }
epochs=$(cat $stats/epochs)
scan=$(cat $stats/time_ns/scan) classify=$(cat $stats/time_ns/classify) rank=$(cat $stats/time_ns/rank)
echo "$1 processes of $2 GiB, $3 pages each: at most $most_targets targets, $most_ranges ranges; $epochs epochs"
echo "mean of an epoch, us: scan $((scan / epochs / 1000)), classify $((classify / epochs / 1000)), rank $((rank / epochs / 1000))"
for file in samples stray_samples lost_samples promoted_pages demoted_pages; do
	echo "$file $(cat $stats/$file)"
done
for file in "$stats"/epoch/*; do
	echo "${file##*/} $(cat "$file")"
done
status=0
check() {
	if [ "$(cat "$stats/epoch/$1")" -le "$2" ]; then
		echo "ok - $1 is at most $2"
	else
		echo "not ok - $1 is above $2"
		status=1
	fi
}
# Nothing is quick and holds no lock where nothing is managed.
manages() {
	if [ "$2" -ge "$3" ]; then
		echo "ok - $1: $2"
	else
		echo "not ok - $1: $2, fewer than $3"
		status=1
	fi
}
# Processes begin and end one after the other.
manages targets "$most_targets" $(($1 * 9 / 10))
manages samples "$(cat $stats/samples)" 300
manages "page-table entries walked" "$(cat $stats/epoch/walked_entries)" 1
if [ "$pass" = over ] && [ "$quick" -gt 0 ] && [ "$slow" = 0 ]; then
	echo "ok - the first walk is at full pace: $quick looks"
else
	echo "not ok - the first walk: $pass, $slow looks of $((quick + slow)) at a slower pace"
	status=1
fi
check cpu_max_ns 50000000
check lock_held_max_ns 1000000
check mmap_lock_held_max_ns 1000000
exit $status
