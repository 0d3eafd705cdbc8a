#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest with two CPUs and a modelled PMU: CPU 1 goes and comes back under
# /tmp/demeter.ko, and then samples as before, by records of the length that perf
# takes them for.
set -eu

sysfs=/sys/kernel/mm/demeter
stats=$sysfs/stats

fail() {
	echo "not ok - $1"
	head -n 100 $stats/* $stats/sampler/* 2>/dev/null | grep -v '^$' || true
	dmesg | tail -n 40
	exit 1
}

records() {
	echo $(($(cat $stats/sampler/traced_records) + $(cat $stats/sampler/handled_records)))
}

# MGLRU of Linux 6.12 warns of mappings of the DAX root when it ages them.
echo n >/sys/kernel/mm/lru_gen/enabled
dmesg -C
taskset 2 /demeter/workloads gups --footprint 256M --hot 16M --updates 4000000000 >/dev/null &
gups=$!
trap 'kill $gups 2>/dev/null || true' EXIT
insmod /tmp/demeter.ko sampler=pebs sample_period=101 epoch_ms=50 latency_threshold_ns=1 rate_pages_per_s=1 || fail "insmod"
echo $gups >$sysfs/targets/pid_add
echo 1 >$sysfs/enabled || fail "cannot be enabled"
sleep 0.3
for time in once twice; do
	echo 0 >/sys/devices/system/cpu/cpu1/online || fail "CPU 1 cannot be taken down"
	echo 1 >/sys/devices/system/cpu/cpu1/online || fail "CPU 1 does not come up"
	# Its only CPU went: the kernel let the program run elsewhere.
	taskset -p 2 $gups >/dev/null || fail "GUPS cannot be kept on CPU 1"
	sleep 0.1
	before=$(records) unused=$(cat $stats/sampler/unused_records) lost=$(cat $stats/sampler/lost_records)
	sleep 0.3
	seen=$(($(records) - before)) unused=$(($(cat $stats/sampler/unused_records) - unused))
	lost=$(($(cat $stats/sampler/lost_records) - lost))
	[ "$seen" -gt 1000 ] || fail "CPU 1 came up $time and gave $seen records in 0.3 s"
	# Records that began in the middle of one have no address, or perf finds none.
	[ $((unused + lost)) -le $((seen / 100)) ] ||
		fail "CPU 1 came up $time: of $seen records $unused have no address, $lost are no records"
	echo "ok - CPU 1 came up $time: $seen records, $unused unused, $lost lost"
done
rmmod demeter || fail "rmmod"
if dmesg | grep -E 'BUG|WARNING|Oops|PEBS record'; then
	fail "the kernel log is not clean"
fi
echo "sampler: 1 passed, 0 failed"
