#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest with two CPUs: whatever /tmp/demeter.ko calls while it is loaded,
# put to work and unloaded fails once, one call after the other, by
# /tmp/demeter_fault.ko. It may refuse then, and must leave nothing behind.
set -eu

sysfs=/sys/kernel/mm/demeter
fault=/sys/module/demeter_fault/parameters

fail() {
	echo "not ok - $1"
	dmesg | tail -n 40
	exit 1
}

# work: what can be refused at every step, with the sampler $sampler
work() {
	insmod /tmp/demeter.ko epoch_ms=10 sample_period=509 sampler=$sampler 2>/dev/null || return 0
	echo $gups >$sysfs/targets/pid_add || true
	if echo 1 >$sysfs/enabled; then
		sleep 0.05
		echo 0 >$sysfs/enabled || fail "cannot be disabled"
	fi
	cat $sysfs/ranges >/dev/null || true
	rmmod demeter || fail "cannot be unloaded"
}

# each ERROR FUNCTION...: every call of these fails once
each() {
	insmod /tmp/demeter_fault.ko caller=demeter error="$1" count=0 \
		functions="$(echo "$2" | tr ' ' ,)" || fail "no function of: $2"
	work
	calls=$(cat $fault/calls) nr=0 hits=0
	# What a running worker calls is always the same: some of it is enough.
	[ "$calls" -le 20 ] || calls=20
	echo 1 >$fault/count
	while [ $nr -lt "$calls" ]; do
		echo $nr >$fault/skip
		echo 0 >$fault/calls
		echo 0 >$fault/hits
		work 2>/dev/null
		hits=$((hits + $(cat $fault/hits)))
		nr=$((nr + 1))
		[ ! -e $sysfs ] || fail "call $nr of $2 failed: sysfs files are left"
	done
	rmmod demeter_fault
	[ $hits -gt 2 ] || fail "only $hits calls failed: the test showed nothing"
	echo "ok - $sampler: each of $hits calls fails once and returns $1"
}

echo n >/sys/kernel/mm/lru_gen/enabled
dmesg -C
/demeter/workloads gups --footprint 128M --hot 8M --updates 4000000000 >/dev/null &
gups=$!
trap 'kill $gups 2>/dev/null || true' EXIT
sleep 1

# By the names of all supported kernels; those that one lacks are left out.
memory="__kmalloc_cache_noprof kmalloc_trace __kmalloc_noprof __kmalloc __kvmalloc_node_noprof kvmalloc_node vzalloc_noprof vzalloc vmalloc_noprof vmalloc kobject_create_and_add"
for sampler in pebs touch; do
	each 0 "$memory alloc_workqueue_noprof alloc_workqueue"
	each -12 "kthread_create_on_node perf_event_create_kernel_counter __cpuhp_setup_state tracepoint_probe_register sysfs_create_group sysfs_create_bin_file register_ftrace_function"
done

# A CPU whose counter perf refuses comes up all the same, and samples a little later.
insmod /tmp/demeter.ko epoch_ms=200 enabled=1 || fail "insmod"
echo 0 >/sys/devices/system/cpu/cpu1/online || fail "CPU 1 cannot be taken down"
# The first counter of a CPU only has perf measure its records.
insmod /tmp/demeter_fault.ko caller=demeter error=-16 skip=1 functions=perf_event_create_kernel_counter
echo 1 >/sys/devices/system/cpu/cpu1/online || fail "the sampler kept CPU 1 from coming up"
[ "$(cat $fault/hits)" = 1 ] || fail "perf did not refuse"
dmesg | grep -q 'CPU 1 does not sample.*next:' || fail "the log does not say that CPU 1 does not sample"
sleep 1
[ "$(cat $sysfs/stats/sampler/dead_cpus)" = 0 ] || fail "CPU 1 was not tried again"
[ "$(cat $sysfs/stats/sampler/restarts)" -gt 0 ] || fail "it is not counted that it was tried again"
rmmod demeter_fault
rmmod demeter || fail "rmmod"
echo "ok - a CPU comes up although perf refuses its counter"

if dmesg | grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace'; then
	fail "the kernel log is not clean"
fi
