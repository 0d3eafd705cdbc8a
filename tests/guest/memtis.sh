#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest, with a PMU: memtis comes and goes under a program, while others end.
set -eu

sysfs=/sys/kernel/mm/demeter_peer

fail() {
	echo "not ok - $1"
	dmesg | tail -n 40
	exit 1
}

echo n >/sys/kernel/mm/lru_gen/enabled
dmesg -C
/demeter/workloads gups --footprint 64M --hot 16M --updates 4000000000 >/dev/null &
gups=$!
sleep 0.5
for round in 1 2; do
	insmod /tmp/demeter_memtis.ko || fail "round $round: insmod"
	echo 1000 >$sysfs/params/cooling_samples
	echo 500 >$sysfs/params/adaptation_samples
	echo 10 >$sysfs/params/kmigrated_ms
	echo 1 >$sysfs/enabled || fail "round $round: enabled"
	rmmod demeter_memtis 2>/dev/null && fail "unloaded while enabled"
	sleep 0.3
	/demeter/workloads gups --footprint 8M --hot 2M --updates 20000 >/dev/null
	/demeter/workloads gups --footprint 16M --hot 2M --updates 4000000000 >/dev/null &
	sleep 0.1
	kill -9 $!
	for stat in samples coolings promoted_pages; do
		[ "$(cat $sysfs/stats/$stat)" -gt 0 ] || fail "round $round: no $stat"
	done
	echo 0 >$sysfs/enabled
	[ "$(cat $sysfs/stats/tracked_pages)" = 0 ] || fail "round $round: pages are left"
	rmmod demeter_memtis || fail "round $round: rmmod"
	kill -0 $gups || fail "round $round: the program died"
done
kill $gups
wait $gups 2>/dev/null || true
if dmesg | grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace'; then
	fail "the kernel log is not clean"
fi
echo "ok - memtis came and went under load, and the kernel log is clean"
