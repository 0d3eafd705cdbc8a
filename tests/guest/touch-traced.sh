#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A tracer that reads the program's memory at a function that touch calls under its lock: it
# finds armed pages, which fault, and the CPU would wait for a lock that it holds itself.
# 30 granules of 2 MiB beside the one that is touched are read each time.
set -u
tracing=/sys/kernel/tracing
fail() {
	echo "not ok - $1"
	exit 1
}
/demeter/workloads gups --footprint 256M --hot 64M --pages huge --updates 4000000000 >/dev/null &
gups=$!
sleep 1
reads='' at=0
while [ $((at += 1)) -le 30 ]; do
	reads="$reads a$at=+u$((at * 2097152))(\$arg2):u64"
done
# Only of a string it is told that it could not be read.
reads="$reads armed=+u2097152(\$arg2):string"
printf 'p:looks demeter_touch_granule_of%s\n' "$reads" >$tracing/kprobe_events || fail "no probe"
echo 1 >$tracing/events/kprobes/looks/enable
samples=$(cat /sys/kernel/mm/demeter/stats/samples)
for _ in 1 2 3 4 5 6; do
	sleep 0.5
	looked=$(grep -c looks: $tracing/trace)
	[ "$looked" -lt 100 ] || break
done
faults=$(grep -c 'armed=(fault)' $tracing/trace)
echo 0 >$tracing/events/kprobes/looks/enable
echo >$tracing/kprobe_events
kill -0 "$gups" || fail "the program has ended"
kill "$gups"
[ "$looked" -ge 100 ] || fail "the tracer has looked $looked times"
[ "$(cat /sys/kernel/mm/demeter/stats/samples)" -gt "$samples" ] || fail "no sample while it looked"
[ "$faults" -ge 10 ] || fail "of $looked looks $faults met an armed page"
echo "ok - a tracer that reads memory under the lock: $looked times, at an armed page $faults times"
