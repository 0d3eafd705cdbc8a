#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest without a PMU: loads /tmp/demeter.ko, which has to take the
# sampler "touch" by itself, lets it manage and move a program that does to its
# memory whatever it can (/tmp/touch_torture), and unloads it again and again with
# pages armed. NUMA balancing is on all the time, and pages are swapped. What was
# armed is touched, retired, or counted as lost. The program runs for SECONDS_OF_TORTURE,
# or, with LOADS, until the module was loaded so many times: how many of those fit into
# a second is up to the host.
set -eu

sysfs=/sys/kernel/mm/demeter
stats=$sysfs/stats
loads=${LOADS:-0}
seconds=${SECONDS_OF_TORTURE:-9}
[ "$loads" = 0 ] || seconds=86400
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
[ -e /sys/block/zram0 ] || fail "there is no zram to swap to"
echo 100663296 >/sys/block/zram0/disksize
/tmp/touch_torture swapon /dev/zram0
dmesg -c >/dev/null # Busybox has no -C.
echo 2 >/proc/sys/kernel/numa_balancing
echo 1 >/sys/kernel/mm/transparent_hugepage/khugepaged/defrag 2>/dev/null || true

/tmp/touch_torture 32 "$seconds" >/tmp/torture.log 2>&1 &
torture=$!
sleep 1
round=0 touched=0 moved=0 lost=0 unclaimed=0
while kill -0 $torture 2>/dev/null; do
	if [ "$loads" != 0 ] && [ $round -ge "$loads" ]; then
		kill -USR1 $torture
		break
	fi
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
[ $touched -gt 150 ] || fail "too little was touched to show anything"
[ $lost -gt 0 ] || fail "no mark was lost: nothing raced"
[ $moved -gt 0 ] || fail "no page was moved meanwhile"
if dmesg | grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace|unable to handle'; then
	fail "the kernel log is not clean"
fi
ok "the kernel log is clean"
# The kernel's own compaction isolates as well, for a while.
isolated=
for _ in 1 2 3 4 5 6 7 8 9 10; do
	echo 1 >/proc/sys/vm/stat_refresh # Each CPU holds a part back.
	isolated=$(awk '/^nr_isolated_anon/{print $2}' /proc/vmstat)
	[ "$isolated" != 0 ] || break
	sleep 0.5
done
[ "$isolated" = 0 ] || fail "$isolated pages are still isolated"
ok "no page is isolated"

# manage KIND [busy]: a program of 16 MiB in $neighbour, managed by touch
manage() {
	/tmp/secondary 16 "$@" >/tmp/said &
	neighbour=$!
	until grep -q ready /tmp/said; do
		kill -0 $neighbour || fail "the program with $* has ended"
		sleep 0.1
	done
	insmod /tmp/demeter.ko rate_pages_per_s=0 epoch_ms=20 || fail "$*: insmod"
	echo $neighbour >$sysfs/targets/pid_add
	echo 1 >$sysfs/enabled || fail "$*: cannot be enabled"
}

give_up() {
	rmmod demeter || fail "$1: rmmod"
	kill $neighbour
	wait $neighbour 2>/dev/null || true
}

# What an MMU that is not KVM's uses is left alone: its driver may stop a GPU for each page.
insmod /tmp/demeter_hammer.ko || fail "insmod demeter_hammer.ko"
for kind in none notifier interval; do
	manage $kind busy
	sleep 2
	armed=$(get touch/armed) skipped=$(get touch/skipped_spaces)
	case $kind:$armed:$skipped in
	none:??*:0 | notifier:0:1 | interval:0:1) ;;
	*) fail "$kind: $armed pages were armed, $skipped programs skipped" ;;
	esac
	echo 0 >$sysfs/enabled
	give_up $kind
done
ok "programs whose memory others than KVM use are left alone"

now_ms() {
	awk '{ printf "%d", $1 * 1000 }' /proc/uptime
}

# Somebody sits on the mmap_lock: nobody waits for it, and the marks are left to the kernel.
manage none busy
sleep 0.4
kill -USR1 $neighbour
sleep 0.1
[ "$(get touch/armed)" -gt 0 ] || fail "nothing was armed"
began=$(now_ms)
echo 0 >$sysfs/enabled
took=$(($(now_ms) - began))
[ $took -lt 2500 ] || fail "disabling waited $took ms for an mmap_lock"
armed=$(get touch/armed) lost=$(get touch/lost_marks)
ended=$(($(get touch/touched) + $(get touch/retired) + lost))
[ "$armed" = "$ended" ] || fail "$armed pages were armed, $ended accounted for"
[ "$lost" -gt 0 ] || fail "no mark was left behind: somebody had the mmap_lock"
# Its pages are reached again, marked or not.
sleep 4.2
kill -0 $neighbour || fail "the program whose marks were left has ended"
give_up "mmap_lock"
ok "an mmap_lock that is kept for 4 s: disabled in $took ms, $lost marks left behind"

# Time in which others run, or nobody does, is not spent: a grace period for each that ends.
manage none
worker=$(pgrep kdemeterd)
spent=$(get touch/spent_ns)
cpu=$(cut -d' ' -f1 /proc/"$worker"/schedstat)
for _ in 1 2 3 4 5 6 7 8 9 10; do
	echo $neighbour >$sysfs/targets/pid_remove
	sleep 0.1
	echo $neighbour >$sysfs/targets/pid_add
	sleep 0.1
done
spent=$(($(get touch/spent_ns) - spent))
cpu=$(($(cut -d' ' -f1 /proc/"$worker"/schedstat) - cpu))
# The ticks are of another thread.
[ $spent -lt $((cpu + 10000000)) ] || fail "$spent ns are said to be spent, where the worker had $cpu ns of a CPU"
give_up "sleeping"
ok "10 programs come and go: $spent ns spent, the worker had $cpu ns of a CPU"
if dmesg | grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace|unable to handle'; then
	fail "the kernel log is not clean in the end"
fi
echo "touch: $passed passed, 0 failed"
