#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest of the testbed: a process whose memory an MMU besides the CPU's uses,
# as KVM's does on a host of guests, fills most of FMEM; GUPS has its hot memory in
# SMEM. A PMU sees nothing of the former, which does not mean that it is cold.
set -eu

sysfs=/sys/kernel/mm/demeter
stats=$sysfs/stats

fail() {
	echo "not ok - $1"
	head -n 100 $stats/* $stats/refused/* 2>/dev/null | grep -v '^$' || true
	dmesg | tail -n 20
	exit 1
}

# fmem_pages PID: its pages on node 0
fmem_pages() {
	sed -n 's/.* N0=\([0-9]*\).*kernelpagesize_kB=\([0-9]*\).*/\1 \2/p' "/proc/$1/numa_maps" |
		awk '{ pages += $1 * $2 / 4 } END { print pages + 0 }'
}

insmod /tmp/demeter_hammer.ko || fail "insmod demeter_hammer.ko"
/tmp/secondary 24 >/tmp/said &
neighbour=$!
until grep -q ready /tmp/said; do
	kill -0 $neighbour || fail "the neighbour has ended"
	sleep 0.1
done
before=$(fmem_pages $neighbour)
[ "$before" -ge 4096 ] || fail "only $before pages of the neighbour are in FMEM"
insmod /tmp/demeter.ko sample_period=509 epoch_ms=20 split_samples=8 latency_threshold_ns=64 ||
	fail "insmod demeter.ko"
echo /command >$sysfs/targets/cgroup
echo 1 >$sysfs/enabled || fail "cannot be enabled"
/demeter/workloads gups --footprint 64M --hot 4M --updates 3000000 >/dev/null || fail "gups"
sampler=$(cat $sysfs/sampler)
kill -0 $neighbour || fail "the neighbour has ended"
after=$(fmem_pages $neighbour)
promoted=$(cat $stats/promoted_pages)
[ "$promoted" -ge 512 ] || fail "only $promoted pages were promoted"
[ "$after" = "$before" ] || fail "$((before - after)) of $before pages of the neighbour were taken out of FMEM"
kill $neighbour
echo "ok - $sampler: $promoted pages promoted, none for the $before of whom nothing is known"
echo 0 >$sysfs/enabled
rmmod demeter || fail "rmmod demeter"
