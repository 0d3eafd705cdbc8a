#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest: loads /tmp/demeter.ko, lets it manage a running GUPS, and
# unloads it without waiting, ROUNDS times, after a part of a second and WHOLE_S seconds:
# a kernel that watches itself decides later.
set -eu

sysfs=/sys/kernel/mm/demeter
rounds=${ROUNDS:-20}
whole_s=${WHOLE_S:-0}

fail() {
	echo "not ok - $1"
	dmesg | tail -n 40
	exit 1
}

# Stock 6.12 warns once when its multi-generation LRU ages a DAX mapping, which
# the guest root is: not ours, and before us. Without it no such walk happens.
echo n >/sys/kernel/mm/lru_gen/enabled
dmesg -C

# A kernel that nobody has tried is refused, 6.1 for 6.12 as well, and what to do said.
case $(uname -r) in
6.1.*) others=6.12,7.3 ;;
*) others=6.1,5.14 ;;
esac
if insmod /tmp/demeter.ko kernels=$others 2>/dev/null; then
	fail "loaded on a kernel that is not in its list"
fi
dmesg | grep -q "is not known to work.*next:" || fail "the log does not say why it was refused"
series=$(uname -r | cut -d. -f1-2)
insmod /tmp/demeter.ko "kernels=$others,$series" || fail "refused on a kernel that was added"
rmmod demeter

/demeter/workloads gups --footprint 256M --hot 16M --updates 4000000000 >/dev/null &
gups=$!
sleep 1
round=0 moved=0
while [ $round -lt "$rounds" ]; do
	round=$((round + 1))
	insmod /tmp/demeter.ko || fail "round $round: insmod"
	echo auto >$sysfs/sampler
	echo 10 >$sysfs/params/epoch_ms
	echo 509 >$sysfs/params/sample_period
	echo $gups >$sysfs/targets/pid_add
	echo 1 >$sysfs/enabled
	# A different moment of the epoch in each round, some in mid-relocation.
	sleep "$whole_s.$((10 + round * 3))"
	moved=$((moved + $(cat $sysfs/stats/promoted_pages)))
	rmmod demeter || fail "round $round: rmmod"
	[ ! -e $sysfs ] || fail "round $round: sysfs files are left"
	kill -0 $gups || fail "round $round: the program died"
done
kill $gups
wait $gups 2>/dev/null || true
[ $moved -gt 0 ] || fail "no page was moved in $rounds rounds: the test showed nothing"
# The kernel's own compaction isolates as well, for a while.
isolated=
for _ in 1 2 3 4 5 6 7 8 9 10; do
	echo 1 >/proc/sys/vm/stat_refresh # Each CPU holds a part back.
	isolated=$(awk '/^nr_isolated_anon/{print $2}' /proc/vmstat)
	[ "$isolated" != 0 ] || break
	sleep 0.5
done
[ "$isolated" = 0 ] || fail "$isolated pages are still isolated"
if dmesg | grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace'; then
	fail "the kernel log is not clean"
fi
echo "ok - unknown kernels refused, $rounds loads and unloads under load, $moved pages promoted on the way"
