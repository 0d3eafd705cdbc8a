#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest: /tmp/demeter looks at /tmp/demeter.ko before it is loaded,
# while it manages a running GUPS, when its process has ended, when it is unloaded
# in the middle, and where there is no room for the metrics.
set -eu

demeter=/tmp/demeter
sysfs=/sys/kernel/mm/demeter
stats=$sysfs/stats
work=/run/observe
mkdir -p $work

fail() {
	echo "not ok - $1"
	dmesg | tail -n 20
	exit 1
}

# refused WORDS ARGUMENTS...: one line with these words, and a status that says so.
refused() {
	words=$1
	shift
	if $demeter "$@" >$work/out 2>$work/error; then
		fail "demeter $* succeeded"
	fi
	[ ! -s $work/out ] || fail "demeter $* printed data: $(cat $work/out)"
	grep -q "^demeter: error: .*$words.*; next: " $work/error || fail "demeter $*: $(cat $work/error)"
	[ "$(wc -l <$work/error)" = 1 ] || fail "demeter $*: more than a line: $(cat $work/error)"
}

# balanced PID: no sum over the accounts differs from the module's totals.
balanced() {
	$demeter why "$1" --json >$work/why.json || fail "why $1"
	grep -q '"imbalance": \[\]' $work/why.json ||
		fail "the books do not balance: $(sed -n '/"imbalance"/,/\]/p' $work/why.json)"
	# The same by hand: the totals of the text are those of the files.
	$demeter metrics >$work/metrics || fail metrics
	for name in promoted demoted filled; do
		pages=$(cat $stats/${name}_pages)
		grep -qx "demeter_guest_${name}_bytes_total $((pages * 4096))" $work/metrics ||
			fail "$name is $pages pages, not $(grep "guest_${name}_bytes_total" $work/metrics)"
	done
	sum=0
	for kind in open settled dropped empty; do
		sum=$((sum + $(cat $stats/gain/${kind}_decisions)))
	done
	[ "$sum" = "$(cat $stats/gain/decisions)" ] ||
		fail "$sum decisions stand somewhere, $(cat $stats/gain/decisions) were taken"
}

# Stock 6.12 warns once when its multi-generation LRU ages a DAX mapping, which
# the guest root is: not ours, and before us. Without it no such walk happens.
echo n >/sys/kernel/mm/lru_gen/enabled
dmesg -C

# traced EVENT EXPRESSION: it fired, and all of its lines are such
traced() {
	sed -n "s/^.* $1: //p" $work/trace >$work/lines
	[ -s $work/lines ] || fail "no $1 was traced"
	if grep -vxE "$2" $work/lines >$work/odd; then
		fail "$1 cannot be read: $(head -n 3 $work/odd)"
	fi
	echo "$1 fired $(wc -l <$work/lines) times: $(head -n 1 $work/lines)"
}

refused "is not loaded" status
refused "is not loaded" why 1
refused "is not loaded" metrics
refused "is not loaded" top --once
refused "is not loaded" metrics --file $work/none
[ ! -e $work/none ] || fail "a file without metrics was made"
refused "cannot reach" status --socket $work/none
echo "ok - without the module each verb says so"

insmod /tmp/demeter.ko
tracing=/sys/kernel/tracing
events=$tracing/events/demeter
mountpoint -q $tracing || mount -t tracefs tracefs $tracing
echo 8192 >$tracing/buffer_size_kb
# The handbook lists each event, and its examples use fields that are there.
for event in "$events"/demeter_*; do
	grep -qx "${event##*/}" /tmp/tracepoints || fail "docs/observing.md lists no ${event##*/}"
done
fields=0
while read -r event field; do
	[ -e "$events/$event" ] || fail "there is no event $event"
	[ -n "$field" ] || continue
	grep -qE "field:.*[ *]$field;" "$events/$event/format" || fail "$event has no field $field"
	fields=$((fields + 1))
done </tmp/tracepoints
[ $fields -ge 12 ] || fail "only $fields fields of examples were found"
echo "ok - docs/observing.md lists the tracepoints; $fields fields of its examples are there"
echo auto >$sysfs/sampler
echo 20 >$sysfs/params/epoch_ms
echo 509 >$sysfs/params/sample_period
echo 1000 >$sysfs/params/horizon_ms
: >$tracing/trace
echo 1 >$events/enable
$demeter status | grep -q "nothing is managed" || fail "status of nothing"
refused "process 1 is not managed" why 1
/demeter/workloads gups --footprint 256M --hot 16M --updates 4000000000 >/dev/null &
gups=$!
sleep 1
echo $gups >$sysfs/targets/pid_add
echo 1 >$sysfs/enabled
$demeter metrics --listen $work/socket 2>$work/listen.log &
server=$!
$demeter top --once --looks 12 --interval 0.25 --size 100x36 >$work/top || fail "top"
echo "--- top"
cat $work/top
$demeter top --once --json >$work/top.json || fail "top --json"
grep -q '"realised_gain_share"' $work/top.json || fail "no rates in $(cut -c1-300 $work/top.json)"
$demeter status --socket $work/socket --json >$work/status.json || fail "status over the socket"
grep -q "\"pid\": $gups" $work/status.json || fail "GUPS is not in the status over the socket"
refused "another one listens" metrics --listen $work/socket
refused "can be reached from other machines" metrics --listen 0.0.0.0:9400
kill $server
wait $server 2>/dev/null || true
[ ! -e $work/socket ] || fail "the socket is left"
[ "$(cat $stats/promoted_pages)" -gt 0 ] || fail "nothing was promoted: the test shows nothing"
[ "$(cat $stats/gain/realised_ns)" != 0 ] || fail "nothing was gained or lost: the test shows nothing"

echo 0 >$sysfs/enabled
echo "--- status"
$demeter status
echo "--- why"
$demeter why $gups --last 12
balanced $gups
grep -q '"source": "pebs"' $work/why.json || fail "no decision says what sampled for it"
$demeter why $gups --last 1 | grep -qE "^ *[0-9]+ +[0-9.]+ +pebs " || fail "why does not tell the source"
echo "ok - accounts of a managed process add up to the module's totals"

cat $work/metrics >$work/shown
if setpriv --reuid 65534 --clear-groups $demeter status >/dev/null 2>$work/error; then
	fail "anybody may read the dumps"
fi
grep -q "may only be read by root" $work/error || fail "as nobody: $(cat $work/error)"

mkdir -p $work/full
mount -t tmpfs -o size=8k tmpfs $work/full
$demeter metrics --file $work/metrics.prom || fail "metrics --file"
cp $work/metrics.prom $work/before
echo old >$work/full/metrics.prom
head -c 8192 /dev/zero >$work/full/filler 2>/dev/null || true
refused "No space left" metrics --file $work/full/metrics.prom
[ "$(cat $work/full/metrics.prom)" = old ] || fail "a full disk cost the old metrics"
[ "$(find $work/full -type f | wc -l)" = 2 ] || fail "a part of a file is left: $(ls $work/full)"
umount $work/full
echo "ok - a full disk keeps the old file and leaves nothing behind"

kill $gups
wait $gups 2>/dev/null || true
echo 1 >$sysfs/enabled
sleep 0.2
echo 0 >$sysfs/enabled
balanced $gups
grep -q '"accounts": \[\]' $work/why.json || fail "GUPS has an account and is gone"
$demeter why $gups | grep -q "is not managed any more" || fail "why of a process that is gone"
[ "$(cat $stats/gain/open_decisions)" = 0 ] || fail "decisions of a process that is gone are open"
echo "ok - what was done for a process that is gone still adds up"

echo 0 >$events/enable
cat $tracing/trace >$work/trace
grep -q 'entries-in-buffer/entries-written: \([0-9]*\)/\1 ' $work/trace || fail "the trace has overflown"
n='[0-9]+' range='[0-9]+:[0-9a-f]+-[0-9a-f]+ density=[0-9]+'
traced demeter_target "(add|remove) space=$n pid=$n by=pid"
grep -q "^remove " $work/lines || fail "nobody was traced to go"
traced demeter_classify "epoch=$n space=$n samples=$n splits=$n merges=$n ranges=$n"
traced demeter_plan "epoch=$n steps=$n fill_pages=$n swap_pages=$n end=(done|no_gain|no_tokens|full)"
traced demeter_step "(fill|swap) pages=$n hot=$range cold=$range"
traced demeter_exchange "wanted_pages=$n moved_pages=$n ns=$n"
# Pages are not refused in every run: then there are no lines, and the count is 0.
[ "$(cat $stats/refused_pages)" = 0 ] || traced demeter_refused "reason=$n pages=$n"
pages=$(sed -n 's/^.* demeter_refused: .* pages=//p' $work/trace | awk '{ sum += $1 } END { print sum + 0 }')
[ "$pages" = "$(cat $stats/refused_pages)" ] || fail "of refused pages $pages were traced"
traced demeter_settled "decision=$n space=$n pages=$n predicted_ns=$n realised_ns=-?$n"
# Each as often as the module counts it. What does not come here: demeter_fill (there is no
# free FMEM), demeter_demote (no group), demeter_stopped (it pays).
[ "$(wc -l <$work/lines)" = "$(cat $stats/gain/settled_decisions)" ] || fail "not each settled decision was traced"
echo "ok - tracepoints fire and can be read"

$demeter top --json --interval 0.05 >$work/lines 2>$work/error &
top=$!
sleep 0.5
rmmod demeter
if wait $top; then
	fail "top did not notice that the module is gone"
fi
grep -qE "was unloaded|is not loaded" $work/error || fail "unloaded: $(cat $work/error)"
[ "$(wc -l <$work/lines)" -gt 1 ] || fail "top had no look before"
echo "ok - a module unloaded in the middle is said to be"
if dmesg | grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace'; then
	fail "the kernel log is not clean"
fi
echo "--- metrics"
cat $work/shown
