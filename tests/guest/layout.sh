#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest of the testbed: GUPS with its array in every kind of memory that
# programs have, hot part touched last and so in SMEM. What is hot must come to
# FMEM, wherever it lies, unless somebody bound it to another node.
set -eu

sysfs=/sys/kernel/mm/demeter
stats=$sysfs/stats
thp=/sys/kernel/mm/transparent_hugepage
passed=0

fail() {
	echo "not ok - $1"
	head -n 100 $stats/* $stats/refused/* 2>/dev/null | grep -v '^$' || true
	dmesg | tail -n 20
	exit 1
}

get() {
	cat "$stats/$1"
}

# measure PROGRAM...: what changes in the statistics while it runs
measure() {
	promoted=$(get promoted_pages) demoted=$(get demoted_pages) policy=$(get refused/policy)
	samples=$(get samples) strays=$(get stray_samples) refused=$(get refused_pages)
	fmem=$(get fmem_samples) smem=$(get smem_samples)
	"$@" >/tmp/said || fail "$*"
	promoted=$(($(get promoted_pages) - promoted))
	demoted=$(($(get demoted_pages) - demoted))
	policy=$(($(get refused/policy) - policy))
	refused=$(($(get refused_pages) - refused))
	samples=$(($(get samples) - samples))
	strays=$(($(get stray_samples) - strays))
	fmem=$(($(get fmem_samples) - fmem))
	smem=$(($(get smem_samples) - smem))
}

gups() {
	/demeter/workloads gups --footprint 96M --hot 8M --updates 3000000 "$@"
}

in_model() {
	/demeter/workloads roi on
	ended=0
	"$@" || ended=$?
	/demeter/workloads roi off
	return $ended
}

# comes NAME PROGRAM...: most samples say FMEM in the end; little is a stray
comes() {
	name=$1
	shift
	measure "$@"
	[ "$samples" -gt 200 ] || fail "$name: only $samples samples, $strays strays"
	# Until it is found: an epoch, and longer while others are moved.
	[ "$strays" -lt $((samples / 3)) ] || fail "$name: $strays strays of $samples samples"
	# Nothing but what came of itself: 2048 pages are hot.
	[ "$promoted" -ge 1536 ] || fail "$name: only $promoted pages were promoted, $refused refused"
	# While it is being found, its surroundings come along: up to twice as much.
	[ "$promoted" -lt 6144 ] || fail "$name: $promoted pages were promoted, and again"
	[ "$demoted" -ge $((promoted / 2)) ] || fail "$name: $demoted pages demoted for $promoted"
	[ "$fmem" -gt "$smem" ] || fail "$name: $fmem samples say FMEM, $smem SMEM"
	echo "ok - $name: $promoted promoted, $demoted demoted, $refused refused; samples: FMEM $fmem, SMEM $smem, strays $strays"
	passed=$((passed + 1))
}

# stays NAME PROGRAM...: not a page moves, and it is said why
stays() {
	name=$1
	shift
	measure "$@"
	[ "$samples" -gt 200 ] || fail "$name: only $samples samples, $strays strays"
	[ "$promoted" = 0 ] || fail "$name: $promoted pages were promoted"
	[ "$policy" -ge 512 ] || fail "$name: only $policy pages were refused for a policy"
	echo "ok - $name: $policy pages refused for a policy, none moved"
	passed=$((passed + 1))
}

# objects PROCESSES: each has shared memory of its own, and is compared with next to none
# of the others. Each time that one is looked at, it meets those whose objects happen to have
# the same hash: a few pairs at most, ten times or more. Everybody with everybody, once, is
# four times the bound.
objects() {
	compared=$(get epoch/compared_mappings) most=0
	/tmp/layouts objects "$1" 3000 &
	objects=$!
	while kill -0 $objects 2>/dev/null; do
		sleep 0.1
		[ "$(get targets)" -le "$most" ] || most=$(get targets)
	done
	wait $objects || fail "layouts objects"
	compared=$(($(get epoch/compared_mappings) - compared))
	[ "$most" -ge "$1" ] || fail "shared memory of many: only $most targets of $1 processes"
	[ $compared -lt $(($1 * $1 / 4)) ] || fail "shared memory of many: $compared comparisons for $1 processes"
	echo "ok - shared memory of $1 processes: $most targets, $compared comparisons"
	passed=$((passed + 1))
}

# clones ACCESSES: what private mappings of several read is moved for none of them
clones() {
	shared=$(get refused/shared)
	measure in_model /tmp/layouts clones "$1"
	shared=$(($(get refused/shared) - shared))
	[ "$samples" -gt 200 ] || fail "clones: only $samples samples, $strays strays"
	[ "$promoted" -lt 512 ] || fail "clones: $promoted pages were promoted"
	[ "$shared" -ge 512 ] || fail "clones: only $shared pages were refused as shared"
	echo "ok - private mappings of two: $shared pages refused as shared, $promoted promoted"
	passed=$((passed + 1))
}

insmod /tmp/demeter.ko sample_period=509 epoch_ms=20 split_samples=8 latency_threshold_ns=64 ||
	fail "insmod"
echo /command >$sysfs/targets/cgroup
echo 1 >$sysfs/enabled || fail "cannot be enabled"

# left_isolated: whatever was isolated is back
left_isolated() {
	# The kernel's own compaction isolates as well, for a while.
	isolated=
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		echo 1 >/proc/sys/vm/stat_refresh # Each CPU holds a part back.
		isolated=$(awk '/nr_isolated/ { sum += $2 } END { print sum }' /proc/vmstat)
		[ "$isolated" != 0 ] || break
		sleep 0.5
	done
	[ "$isolated" = 0 ] || fail "$isolated folios are left isolated"
}

# log_is_clean: MGLRU of Linux 6.12 warns of mappings of the DAX root when it ages them, once
# a boot.
log_is_clean() {
	if dmesg | grep -E 'BUG|WARNING|Oops' | grep -v 'get_pte_pfn'; then
		fail "the kernel log is not clean"
	fi
}

if [ "$(cat $sysfs/sampler)" = touch ]; then
	# shellcheck disable=SC1091 # In the guest.
	. /tmp/layout-touch.sh
	exit
fi

comes "anonymous" gups
comes "at 0x80000000" gups --memory low
comes "a static array" gups --memory bss
comes "a static array of 4 KiB pages" gups --memory bss --pages small
comes "shared memory" gups --memory shared
comes "shared memory that three map" gups --memory shared --sharers 2
[ "$(get epoch/compared_mappings)" -gt 0 ] || fail "nobody looked for who else has shared memory"
objects 48
comes "shared memory mapped twice, the first view used" in_model /tmp/layouts views first 9000000
comes "shared memory mapped twice, the last view used" in_model /tmp/layouts views last 9000000
comes "shared memory with half of it mapped again" in_model /tmp/layouts alias 9000000
clones 9000000

# A database has next to no memory but shared one: it is found by that.
echo >$sysfs/targets/cgroup
echo 67108864 >$sysfs/targets/auto_min_bytes
comes "shared memory of a process found by its size" gups --memory shared
echo 0 >$sysfs/targets/auto_min_bytes
echo /command >$sysfs/targets/cgroup

# A block device is the only file here that the page cache keeps.
comes "a mapped file" in_model /tmp/layouts file /dev/pmem0 9000000
echo 1 >/proc/sys/vm/drop_caches # It fills FMEM, and nobody maps it any more.

stays "bound by mbind()" gups --bind 1
stays "bound by mbind(), shared memory" gups --memory shared --bind 1
echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control || fail "no cpusets"
echo 1 >/sys/fs/cgroup/command/cpuset.mems
sleep 1 # Filling pauses where it has just failed.
stays "bound by cpuset.mems" gups
echo 0-1 >/sys/fs/cgroup/command/cpuset.mems

# Folios between a page and a THP (Linux 6.8 and newer).
if [ -e $thp/hugepages-64kB/enabled ]; then
	echo never >$thp/hugepages-2048kB/enabled
	echo always >$thp/hugepages-64kB/enabled
	comes "folios of 64 KiB" gups --pages huge
	[ "$(cat $thp/hugepages-64kB/stats/anon_fault_alloc)" -gt 1000 ] || fail "there were none of 64 KiB"
	echo never >$thp/hugepages-64kB/enabled
	echo inherit >$thp/hugepages-2048kB/enabled
fi

# As many mappings as there may be: the worker never holds mmap_lock for long.
tracing=/sys/kernel/tracing
mountpoint -q $tracing || mount -t tracefs tracefs $tracing
echo 16384 >$tracing/buffer_size_kb
worker=$(pgrep kdemeterd)
echo "common_pid == $worker" >$tracing/events/mmap_lock/filter
echo "prev_pid == $worker" >$tracing/events/sched/sched_switch/filter
: >$tracing/trace
echo 1 >$tracing/events/mmap_lock/enable
echo 1 >$tracing/events/sched/sched_switch/enable
measure in_model /tmp/layouts mappings 2000000
echo 0 >$tracing/events/mmap_lock/enable
echo 0 >$tracing/events/sched/sched_switch/enable
read -r mappings </tmp/said
[ "$mappings" -ge 65000 ] || fail "only $mappings mappings could be made"
# Linux 7.x may switch to another task in between: how long that runs is not asked.
awk '/sched_switch/ { since = 0 }
	/mmap_lock_acquire_returned.*success=true/ { since = $4 }
	/mmap_lock_released/ && since { held = $4 - since; since = 0; if (held > most) most = held; nr++ }
	END { printf "%d %d\n", nr, most * 1e6 }' <$tracing/trace >/tmp/held
read -r nr most_us </tmp/held
[ "$nr" -gt $((mappings / 256)) ] || fail "mmap_lock was taken $nr times only"
[ "$most_us" -lt 1000 ] || fail "mmap_lock was held for $most_us us"
[ "$samples" -gt "$strays" ] || fail "$mappings mappings: $samples samples, $strays strays"
echo "ok - $mappings mappings: mmap_lock held $nr times, $most_us us at most; $samples samples, $strays strays"
passed=$((passed + 1))

log_is_clean
echo 0 >$sysfs/enabled
rmmod demeter || fail "rmmod"
left_isolated
echo "layout: $passed passed, 0 failed"
