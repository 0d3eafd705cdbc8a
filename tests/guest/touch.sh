#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest without a PMU: loads /tmp/demeter.ko, which has to take the
# sampler "touch" by itself, lets it manage and move a program that does to its
# memory whatever it can (/tmp/touch_torture), and unloads it again and again with
# pages armed. NUMA balancing is on all the time, and pages are swapped. Every other round
# MGLRU is on, and ages all pages again and again, and DAMON watches the program. What was
# armed is touched, retired, or counted as lost. The program runs for SECONDS_OF_TORTURE,
# or, with LOADS, until the module was loaded so many times: how many of those fit into
# a second is up to the host.
set -eu

sysfs=/sys/kernel/mm/demeter
stats=$sysfs/stats
loads=${LOADS:-0}
seconds=${SECONDS_OF_TORTURE:-6}
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

lru_gen=/sys/kernel/mm/lru_gen/enabled
kdamonds=/sys/kernel/mm/damon/admin/kdamonds
damon_looks=0 ageings=0

# log_is_clean WHEN. Stock 6.12 warns once when MGLRU ages a DAX mapping, which the guest
# root is: that report is left out, from where it is cut to the end of its trace.
log_is_clean() {
	if dmesg | awk '/cut here/ { held = ""; holding = 1 }
			holding { held = held $0 "\n"
				if (/end trace/) { holding = 0; if (held !~ /get_pte_pfn/) printf "%s", held }
				next }
			{ print }
			END { if (holding) printf "%s", held }' |
		grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace|unable to handle'; then
		fail "the kernel log is not clean $1"
	fi
	ok "the kernel log is clean $1"
}

# damon on|off: watch the program's address space, where this kernel can
damon() {
	[ -d $kdamonds ] || return 0
	if [ "$1" = on ]; then
		echo 1 >$kdamonds/nr_kdamonds
		echo 1 >$kdamonds/0/contexts/nr_contexts
		echo vaddr >$kdamonds/0/contexts/0/operations
		echo 1 >$kdamonds/0/contexts/0/targets/nr_targets
		echo $torture >$kdamonds/0/contexts/0/targets/0/pid_target
		echo 1000 >$kdamonds/0/contexts/0/monitoring_attrs/intervals/sample_us
		echo 10000 >$kdamonds/0/contexts/0/monitoring_attrs/intervals/aggr_us
		# A scheme that does nothing counts what was found.
		echo 1 >$kdamonds/0/contexts/0/schemes/nr_schemes
		echo stat >$kdamonds/0/contexts/0/schemes/0/action
		echo 18446744073709551615 >$kdamonds/0/contexts/0/schemes/0/access_pattern/sz/max
		echo 1 >$kdamonds/0/contexts/0/schemes/0/access_pattern/nr_accesses/min
		echo 1000000 >$kdamonds/0/contexts/0/schemes/0/access_pattern/nr_accesses/max
		echo 1000000 >$kdamonds/0/contexts/0/schemes/0/access_pattern/age/max
		echo on >$kdamonds/0/state || fail "DAMON cannot be started"
	elif [ -e $kdamonds/0/state ] && [ "$(cat $kdamonds/0/state)" = on ]; then
		echo update_schemes_stats >$kdamonds/0/state || true # It ends with the program.
		damon_looks=$((damon_looks + $(cat $kdamonds/0/contexts/0/schemes/0/stats/nr_tried)))
		echo off >$kdamonds/0/state || true
	fi
}

# age: all pages of all programs, through their page tables, on both nodes
age() {
	[ -e /sys/kernel/debug/lru_gen ] || mount -t debugfs debugfs /sys/kernel/debug ||
		fail "nothing can be aged: there is no debugfs"
	awk '$1 == "memcg" { memcg = $2 } $1 == "node" { node = $2; newest = "" }
		$1 ~ /^[0-9]+$/ && NF > 2 { newest = $1; last[memcg " " node] = newest }
		END { for (at in last) print "+ " at " " last[at] " 1 1" }' /sys/kernel/debug/lru_gen >/tmp/age
	while read -r line; do
		echo "$line" >/sys/kernel/debug/lru_gen 2>/dev/null && ageings=$((ageings + 1))
	done </tmp/age
	return 0
}

echo n >$lru_gen
for module in zsmalloc lz4_compress lz4hc_compress zram; do
	[ ! -f /tmp/$module.ko ] || insmod /tmp/$module.ko 2>/dev/null || true
done
[ -e /sys/block/zram0 ] || fail "there is no zram to swap to"
echo 100663296 >/sys/block/zram0/disksize
/tmp/touch_torture swapon /dev/zram0
dmesg -c >/dev/null # Busybox has no -C.
echo 2 >/proc/sys/kernel/numa_balancing
echo 1 >/sys/kernel/mm/transparent_hugepage/khugepaged/defrag 2>/dev/null || true

echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled
/tmp/touch_torture 32 "$seconds" >/tmp/torture.log 2>&1 &
torture=$!
sleep 1
# Who has shared memory with it.
shares=$(sed -n 's/^shared with //p' /tmp/torture.log)
round=0 touched=0 moved=0 lost=0 unclaimed=0 samples=0 tier_samples=0
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
	for pid in "$torture" "$shares"; do
		echo "$pid" >$sysfs/targets/pid_add 2>/dev/null || {
			rmmod demeter
			break 2
		}
	done
	echo 1 >$sysfs/enabled || fail "round $round: cannot be enabled"
	if [ $((round % 2)) = 1 ]; then
		echo y >$lru_gen
		damon on
	fi
	[ "$(cat $sysfs/sampler)" = touch ] || fail "the sampler is $(cat $sysfs/sampler)"
	[ "$(cat $sysfs/sampler_delivery)" = fault ] || fail "the delivery is not fault"
	sleep 0.$((10 + round * 7 % 80))
	[ $((round % 2)) = 0 ] || age
	if [ $((round % 4)) = 1 ]; then
		# Unloaded with pages armed.
		touched=$((touched + $(get touch/touched)))
		moved=$((moved + $(get promoted_pages)))
		rmmod demeter || fail "round $round: rmmod while enabled"
		damon off
		echo n >$lru_gen
		continue
	fi
	sleep 0.3
	[ $((round % 2)) = 0 ] || age
	echo 0 >$sysfs/enabled
	armed=$(get touch/armed)
	ended=$(($(get touch/touched) + $(get touch/retired) + $(get touch/lost_marks)))
	[ "$armed" = "$ended" ] || fail "round $round: $armed pages were armed, $ended accounted for"
	# Several go by one entry: they count alike everywhere.
	tiers=$(($(get fmem_samples) + $(get smem_samples)))
	[ "$tiers" -le "$(get samples)" ] || fail "round $round: $(get samples) samples, of tiers $tiers"
	samples=$((samples + $(get samples))) tier_samples=$((tier_samples + tiers))
	touched=$((touched + $(get touch/touched)))
	lost=$((lost + $(get touch/lost_marks)))
	unclaimed=$((unclaimed + $(get touch/unclaimed)))
	moved=$((moved + $(get promoted_pages)))
	damon off
	echo n >$lru_gen
	rmmod demeter || fail "round $round: rmmod"
done
damon off
status=0
wait $torture || status=$?
cat /tmp/torture.log
[ $status = 0 ] || fail "the program ended with $status"
ok "a program in $round rounds: $touched touches, $lost marks lost, $unclaimed unclaimed, $moved pages moved"
[ $touched -gt 150 ] || fail "too little was touched to show anything"
[ $lost -gt 0 ] || fail "no mark was lost: nothing raced"
[ $samples -gt 0 ] || fail "no sample was made"
[ $((tier_samples * 2)) -gt $samples ] || fail "of $samples samples only $tier_samples say their tier"
[ $moved -gt 0 ] || fail "no page was moved meanwhile"
if [ -d $kdamonds ]; then
	[ $damon_looks -gt 0 ] || fail "DAMON saw nothing of the program"
	[ $ageings -gt 0 ] || fail "MGLRU aged nothing"
fi
ok "beside MGLRU, which aged $ageings times, and DAMON, which saw $damon_looks regions"
log_is_clean "after it"
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
	sleep 1
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
# The busybox of small guests has no pgrep.
worker=$(grep -lx kdemeterd /proc/[0-9]*/comm)
worker=${worker%/comm}
spent=$(get touch/spent_ns)
# cpu_ns: of the worker; a kernel without SCHED_INFO tells hundredths of a second only.
cpu_ns() {
	if [ -e "$worker/schedstat" ]; then
		cut -d' ' -f1 "$worker/schedstat"
	else
		awk '{ printf "%.0f", ($14 + $15 + 1) * 10000000 }' "$worker/stat"
	fi
}
cpu=$(cpu_ns)
for _ in 1 2 3 4 5 6 7 8 9 10; do
	echo $neighbour >$sysfs/targets/pid_remove
	sleep 0.1
	echo $neighbour >$sysfs/targets/pid_add
	sleep 0.1
done
spent=$(($(get touch/spent_ns) - spent))
cpu=$(($(cpu_ns) - cpu))
# The ticks are of another thread.
[ $spent -lt $((cpu + 10000000)) ] || fail "$spent ns are said to be spent, where the worker had $cpu ns of a CPU"
give_up "sleeping"
ok "10 programs come and go: $spent ns spent, the worker had $cpu ns of a CPU"
log_is_clean "in the end"
echo "touch: $passed passed, 0 failed"
