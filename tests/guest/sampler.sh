#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest whose PMU is modelled: loads /tmp/demeter.ko, samples GUPS in
# every way that the sampler has, and balances its books: each record that it saw
# is a sample, a stray, unused, or a counted loss. With SAMPLER=ibs on an AMD CPU;
# /tmp/perf_neighbour, if it is there, uses perf at the same time; /tmp/demeter_fault.ko
# kills the kernel's tracing in the end.
set -eu

sysfs=/sys/kernel/mm/demeter
stats=$sysfs/stats
sampler=${SAMPLER:-pebs}
passed=0

fail() {
	echo "not ok - $1"
	head -n 100 $stats/* $stats/sampler/* 2>/dev/null | grep -v '^$' || true
	dmesg | tail -n 20
	exit 1
}

get() {
	cat "$stats/$1"
}

records() {
	echo $(($(get sampler/traced_records) + $(get sampler/handled_records)))
}

# start PARAMETER...: manage GUPS from a fresh load of the module; nothing moves, so
# that samples hit both tiers to the end
start() {
	insmod /tmp/demeter.ko sampler="$sampler" sample_period="${PERIOD:-509}" epoch_ms=50 \
		latency_threshold_ns=1 rate_pages_per_s=1 "$@" || fail "insmod $*"
	echo $gups >$sysfs/targets/pid_add
	echo 1 >$sysfs/enabled || fail "cannot be enabled"
}

# finish NAME: stop sampling; nothing may be unaccounted for
finish() {
	echo 0 >$sysfs/enabled
	seen=$(records)
	accounted=$(($(get samples) + $(get stray_samples) + $(get sampler/unused_records) + \
		$(get lost_samples) - $(get sampler/lost_records)))
	[ "$seen" -gt 100 ] || fail "$1: only $seen records"
	[ "$seen" = $accounted ] || fail "$1: $seen records seen, $accounted accounted for"
	[ "$(get fmem_samples)" -gt 0 ] || fail "$1: no sample says FMEM"
	[ "$(get smem_samples)" -gt 0 ] || fail "$1: no sample says SMEM"
	[ "$(get sampler/dead_cpus)" = 0 ] || fail "$1: a CPU is dead"
	echo "ok - $1: $seen records ($(get sampler/traced_records) traced), $(get samples) samples, $(get lost_samples) lost," \
		"FMEM $(get fmem_samples) SMEM $(get smem_samples), gap $(get latency_gap_ps) ps"
	rmmod demeter || fail "$1: rmmod"
	passed=$((passed + 1))
}

delivery() {
	[ "$(cat $sysfs/sampler_delivery)" = "$1" ] ||
		fail "delivery is $(cat $sysfs/sampler_delivery) and not $1"
}

# The fast tier is for programs: tables that an epoch looks at once are in the slow one, even
# while there is room in the fast one.
insmod /tmp/demeter.ko sampler="$sampler" || fail "insmod with nothing to sample"
echo 1 >$sysfs/enabled || fail "cannot be enabled with nothing to sample"
tables=$(grep '\[demeter\]' /proc/vmallocinfo) || fail "no table is in /proc/vmallocinfo"
[ "$(echo "$tables" | grep -c ' N1=')" -ge 3 ] || fail "tables are in the fast tier: $tables"
rmmod demeter || fail "rmmod with nothing to sample"

/demeter/workloads gups --footprint 256M --hot 16M --updates 4000000000 >/dev/null &
gups=$!
trap 'kill $gups 2>/dev/null || true' EXIT
sleep 0.5

start
if [ "$sampler" = pebs ]; then delivery trace; else delivery interrupt; fi
sleep 1
# 108000 is what is assumed until it is measured.
[ "$(get latency_gap_ps)" != 108000 ] || fail "the latency gap was not measured"
if [ "$sampler" = pebs ]; then
	[ "$(get sampler/traced_records)" -gt "$(get sampler/handled_records)" ] ||
		fail "most records cost an interrupt"
fi
finish "$sampler"

if [ "$sampler" = pebs ]; then
	start pebs_interrupts=1
	delivery interrupt
	sleep 0.2
	[ "$(get sampler/traced_records)" = 0 ] || fail "traced although it was told not to"
	finish "an interrupt for each record"

	# Linux 7.x does not let anybody switch it off.
	if echo 0 2>/dev/null >/proc/sys/kernel/ftrace_enabled; then
		start
		delivery interrupt
		dmesg | grep -q 'perf_event_output() cannot be traced.*next:' ||
			fail "the log does not say why"
		sleep 0.2
		finish "tracing is off"
		echo 1 >/proc/sys/kernel/ftrace_enabled
	fi

	start
	if echo 0 2>/dev/null >/proc/sys/kernel/ftrace_enabled; then
		fail "tracing could be switched off under the sampler"
	fi
	sleep 0.2
	finish "nobody can switch tracing off"
fi

if [ "$sampler" = pebs ] && [ -x /tmp/perf_neighbour ]; then
	# perf_neighbour THRESHOLD PINNED SECONDS: prints its samples
	start
	/tmp/perf_neighbour 3 0 1 >/tmp/neighbour || fail "the neighbour failed"
	finish "a neighbour with the same threshold"
	[ "$(cat /tmp/neighbour)" -gt 100 ] || fail "the neighbour got $(cat /tmp/neighbour) samples"

	# Pinned, and another threshold: there is only one register. It stays until it is ended:
	# how long the module takes to be loaded again is the kernel's affair (seconds, at times).
	/tmp/perf_neighbour 200 1 60 >/tmp/neighbour &
	neighbour=$!
	sleep 0.5
	start
	sleep 0.4
	[ "$(get sampler/dead_cpus)" -gt 0 ] || fail "a CPU that cannot sample is not reported"
	dmesg | grep -q 'does not sample.*next:' || fail "the log does not say that it cannot sample"
	kill $neighbour
	wait $neighbour || true
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		[ "$(get sampler/restarts)" = 0 ] || break
		sleep 0.1
	done
	[ "$(get sampler/restarts)" -gt 0 ] || fail "it was not started again"
	sleep 0.2
	finish "started again when the neighbour left"
fi
if [ "$sampler" = pebs ] && [ -f /tmp/demeter_fault.ko ]; then
	# Last: nothing is traced any more after this, and the module stays.
	start
	sleep 0.2
	insmod /tmp/demeter_fault.ko call=ftrace_kill || fail "cannot kill tracing"
	sleep 0.4
	dmesg | grep -q "tracing has died.*next:" || fail "the log does not say that tracing is dead"
	before=$(get sampler/traced_records)
	sleep 0.2
	[ "$(get sampler/traced_records)" -gt "$before" ] || fail "sampling ended with tracing"
	echo 0 >$sysfs/enabled
	if rmmod demeter 2>/dev/null; then fail "unloaded although the kernel still calls it"; fi
	echo 1 >$sysfs/enabled || fail "cannot be enabled without tracing"
	delivery interrupt
	before=$(get sampler/handled_records)
	sleep 0.2
	[ "$(get sampler/handled_records)" -gt "$before" ] || fail "no sample without tracing"
	echo 0 >$sysfs/enabled
	echo "ok - tracing died under it: said, survived, and done without"
	passed=$((passed + 1))
fi
# MGLRU of Linux 6.12 warns of mappings of the DAX root when it ages them, once a boot.
if dmesg | grep -E 'BUG|WARNING|Oops' | grep -v 'get_pte_pfn'; then
	fail "the kernel log is not clean"
fi
echo "sampler: $passed passed, 0 failed"
