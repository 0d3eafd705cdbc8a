#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest, with a PMU: hemem and nimble come and go under a program, while others end,
# and say why they cannot work.
set -eu

sysfs=/sys/kernel/mm/demeter_peer

fail() {
	echo "not ok - $1"
	dmesg | tail -n 40
	exit 1
}

# It says what it needs.
echo y >/sys/kernel/mm/lru_gen/enabled
dmesg -C
insmod /tmp/demeter_nimble.ko
echo 1 >$sysfs/enabled 2>/dev/null && fail "nimble was started without an active list"
dmesg | grep -q "which has no active list; next: " || fail "and the log does not say why"
echo 0 >$sysfs/params/batch 2>/dev/null && fail "a batch of nothing was taken"
dmesg | grep -q "batch=0 is refused; next: " || fail "and the log does not say so"
rmmod demeter_nimble
echo n >/sys/kernel/mm/lru_gen/enabled
dmesg -C

# What is hot moves on, so that each manager has something to promote, whatever the last one left.
/demeter/workloads gups --footprint 64M --hot 16M --hot-permille 1000 --updates 4000000000 \
	--phase-updates 2000000 --phase-places 4 >/dev/null &
gups=$!
sleep 0.5
for manager in hemem nimble hemem nimble; do
	insmod "/tmp/demeter_$manager.ko" || fail "$manager: insmod"
	if [ $manager = hemem ]; then
		echo 997 >$sysfs/params/period
		echo 997 >$sysfs/params/store_period
		echo $((8 << 20)) >$sysfs/params/least_mapping_bytes
		stats="samples coolings burnt_ns"
	else
		echo 20 >$sysfs/params/period_ms
		stats="scanned_pages activated_pages rounds"
	fi
	echo 1 >$sysfs/enabled || fail "$manager: enabled"
	rmmod "demeter_$manager" 2>/dev/null && fail "$manager: unloaded while enabled"
	sleep 0.3
	/demeter/workloads gups --footprint 8M --hot 2M --updates 20000 >/dev/null
	/demeter/workloads gups --footprint 16M --hot 2M --updates 4000000000 >/dev/null &
	sleep 0.1
	kill -9 $!
	wait $! 2>/dev/null || true
	sleep 0.1
	for stat in $stats; do
		[ "$(cat "$sysfs/stats/$stat")" -gt 0 ] || fail "$manager: no $stat"
	done
	echo 0 >$sysfs/enabled
	[ "$(cat $sysfs/stats/promoted_pages)" -gt 0 ] || fail "$manager: nothing was promoted"
	rmmod "demeter_$manager" || fail "$manager: rmmod"
	kill -0 $gups || fail "$manager: the program died"
done
kill $gups
wait $gups 2>/dev/null || true
if dmesg | grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace'; then
	fail "the kernel log is not clean"
fi
echo "ok - hemem and nimble came and went under load, and the kernel log is clean"
