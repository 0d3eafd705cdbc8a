#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest: /tmp/demeter_nomad.ko moves the pages of /tmp/nomad_hammer, which checks
# every write. Then no page may be missing, and the kernel log be clean.
# usage: nomad.sh [SECONDS [QUIET_MS]]: for so long, pages left alone for so long at a time
set -eu

sysfs=/sys/kernel/mm/demeter_peer
stats=$sysfs/stats

fail() {
	echo "not ok - $1"
	grep . $stats/* 2>/dev/null || true
	dmesg | tail -n 40
	exit 1
}

get() {
	cat $stats/"$1"
}

# Free memory in KiB, with what CPUs keep for themselves, once what is being freed has been.
free_kib() {
	echo 3 >/proc/sys/vm/drop_caches
	sleep 0.5
	awk '/^MemFree:/ { kib += $2 } $1 == "count:" { kib += 4 * $2 } END { print kib }' /proc/meminfo /proc/zoneinfo
}

echo n >/sys/kernel/mm/lru_gen/enabled
echo never >/sys/kernel/mm/transparent_hugepage/enabled
echo 1 >/sys/kernel/mm/numa/demotion_enabled
echo 2 >/proc/sys/kernel/numa_balancing
cd /sys/kernel/debug/sched/numa_balancing
echo 0 >scan_delay_ms
echo 20 >scan_period_min_ms
echo 20 >scan_period_max_ms
cd /
dmesg -c >/dev/null # Busybox has no -C.
/tmp/nomad_hammer 16 1 1000 >/dev/null # What it takes for good, the kernel has then.
insmod /tmp/demeter_nomad.ko
rmmod demeter_nomad
before_kib=$(free_kib)

insmod /tmp/demeter_nomad.ko
echo 1 >$sysfs/params/wake_ms
echo 1 >$sysfs/enabled || fail "not enabled"
/tmp/nomad_hammer "${HAMMER_MIB:-44}" "${1:-12}" "${2:-8000}" >/tmp/hammer.log 2>&1 &
hammer=$!
most=0 offs=0
reclaim=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.reclaim
[ -w "$reclaim" ] || fail "no $reclaim"
while kill -0 $hammer 2>/dev/null; do
	sleep 0.5
	# Something else wants FMEM, now and then.
	dd if=/dev/zero of=/dev/null bs=8M count=1 2>/dev/null
	# Once kswapd has found nothing 16 times Linux wakes it no more, until anybody reclaims
	# something: whether it comes to that hangs on where pages happen to lie.
	echo 256K 2>/dev/null >"$reclaim" || true
	shadows=$(get shadows)
	[ "$shadows" -le "$most" ] || most=$shadows
	# Taken away and back under it, shadows and all, now and then.
	if [ "$most" -gt 0 ] && [ $offs -lt 2 ] && [ "$(get shadow_demotions)" -gt $((offs * 20)) ]; then
		echo 0 >$sysfs/enabled
		[ "$(get shadows)" = 0 ] || fail "shadows are left when it is off"
		echo 1 >$sysfs/enabled
		offs=$((offs + 1))
	fi
done
wait $hammer || {
	cat /tmp/hammer.log
	fail "the program found a wrong byte"
}
cat /tmp/hammer.log
echo 0 >$sysfs/enabled
grep . $stats/* | sed "s|$stats/||"
for counter in transactions_committed shadow_demotions shadows_written shadows_dropped; do
	[ "$(get $counter)" -gt 0 ] || fail "$counter is 0: the test showed nothing"
done
[ "$offs" -gt 0 ] || fail "it was never switched off with shadows"
[ "$(get shadows)" = 0 ] || fail "shadows are left"
echo "ok - $(get transactions_committed) transactions, $(get shadow_demotions) demotions to a shadow, at most $most shadows seen; off under it $offs times"
rmmod demeter_nomad
after_kib=$(free_kib)
# The log of this test, slabs and the like.
[ "$after_kib" -ge $((before_kib - 1024)) ] || {
	cat /proc/meminfo
	fail "$before_kib KiB were free, $after_kib are"
}
if dmesg | grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace'; then
	fail "the kernel log is not clean"
fi
echo "ok - no page is missing ($before_kib KiB free before, $after_kib after), and the kernel log is clean"
