#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest without a PMU: loads /tmp/demeter.ko, which has to take the
# sampler "touch" by itself, lets it manage and move a program that does to its
# memory whatever it can (/tmp/touch_torture), and unloads it again and again with
# pages armed. NUMA balancing is on all the time, and pages are swapped. What was
# armed is touched, retired, or counted as lost.
set -eu

sysfs=/sys/kernel/mm/demeter
stats=$sysfs/stats
seconds=${SECONDS_OF_TORTURE:-6}
passed=0

fail() {
	echo "not ok - $1"
	head -n 100 $stats/* $stats/touch/* 2>/dev/null | grep -v '^$' || true
	dmesg | tail -n 40
	exit 1
}

get() {
	cat "$stats/$1"
}

ok() {
	echo "ok - $1"
	passed=$((passed + 1))
}

# Stock 6.12 warns once when MGLRU ages a DAX mapping, which the guest root is.
echo n >/sys/kernel/mm/lru_gen/enabled
for module in zsmalloc lz4_compress lz4hc_compress zram; do
	[ ! -f /tmp/$module.ko ] || insmod /tmp/$module.ko 2>/dev/null || true
done
if [ -e /sys/block/zram0 ]; then
	echo 100663296 >/sys/block/zram0/disksize
	/tmp/touch_torture swapon /dev/zram0
fi
dmesg -c >/dev/null # Busybox has no -C.
echo 2 >/proc/sys/kernel/numa_balancing
echo 1 >/sys/kernel/mm/transparent_hugepage/khugepaged/defrag 2>/dev/null || true

/tmp/touch_torture 32 "$seconds" >/tmp/torture.log 2>&1 &
torture=$!
sleep 1
round=0 touched=0 moved=0 lost=0 unclaimed=0
while kill -0 $torture 2>/dev/null; do
	round=$((round + 1))
	insmod /tmp/demeter.ko rate_pages_per_s=0 hysteresis_permille=0 horizon_ms=600000 \
		2>/dev/null || fail "round $round: insmod"
	echo 20 >$sysfs/params/epoch_ms
	echo 0 >$sysfs/params/significance
	echo $torture >$sysfs/targets/pid_add 2>/dev/null || {
		rmmod demeter
		break
	}
	echo 1 >$sysfs/enabled || fail "round $round: cannot be enabled"
	[ "$(cat $sysfs/sampler)" = touch ] || fail "the sampler is $(cat $sysfs/sampler)"
	[ "$(cat $sysfs/sampler_delivery)" = fault ] || fail "the delivery is not fault"
	sleep 0.$((10 + round * 7 % 80))
	if [ $((round % 4)) = 1 ]; then
		# Unloaded with pages armed.
		touched=$((touched + $(get touch/touched)))
		moved=$((moved + $(get promoted_pages)))
		rmmod demeter || fail "round $round: rmmod while enabled"
		continue
	fi
	sleep 0.3
	echo 0 >$sysfs/enabled
	armed=$(get touch/armed)
	ended=$(($(get touch/touched) + $(get touch/retired) + $(get touch/lost_marks)))
	[ "$armed" = "$ended" ] || fail "round $round: $armed pages were armed, $ended accounted for"
	touched=$((touched + $(get touch/touched)))
	lost=$((lost + $(get touch/lost_marks)))
	unclaimed=$((unclaimed + $(get touch/unclaimed)))
	moved=$((moved + $(get promoted_pages)))
	rmmod demeter || fail "round $round: rmmod"
done
status=0
wait $torture || status=$?
cat /tmp/torture.log
[ $status = 0 ] || fail "the program ended with $status"
ok "a program in $round rounds: $touched touches, $lost marks lost, $unclaimed unclaimed, $moved pages moved"
[ $touched -gt 200 ] || fail "too little was touched to show anything"
[ $lost -gt 0 ] || fail "no mark was lost: nothing raced"
[ $moved -gt 0 ] || fail "no page was moved meanwhile"
if dmesg | grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace|unable to handle'; then
	fail "the kernel log is not clean"
fi
ok "the kernel log is clean"
echo 1 >/proc/sys/vm/stat_refresh # Each CPU holds a part back.
isolated=$(awk '/^nr_isolated_anon/{print $2}' /proc/vmstat)
[ "$isolated" = 0 ] || fail "$isolated pages are still isolated"
ok "no page is isolated"
echo "touch: $passed passed, 0 failed"
