#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest: replaces kernel functions from the modules in /tmp, and takes
# that back under callers that run and that sleep.
set -eu

sysfs=/sys/kernel/mm/demeter_peer
rounds=${ROUNDS:-2}

fail() {
	echo "not ok - $1"
	dmesg | tail -n 40
	exit 1
}

echo n >/sys/kernel/mm/lru_gen/enabled
dmesg -C

# A replacement under load: put in place and taken back while others call it.
insmod /tmp/demeter_replace_test.ko
insmod /tmp/demeter_example.ko 2>/dev/null && fail "a second manager was loaded"
while :; do cat /proc/uptime; sleep 0.02; done >/tmp/uptimes 2>&1 &
caller=$!
round=0
while [ $round -lt "$rounds" ]; do
	round=$((round + 1))
	echo 1 >$sysfs/enabled || fail "round $round: not replaced"
	[ "$(cat /proc/uptime)" = replaced ] || fail "round $round: the kernel's own ran"
	sleep 0.3 # for the other caller
	echo 0 >$sysfs/enabled
	grep -q '\.' /proc/uptime || fail "round $round: still replaced"
done
kill $caller
wait $caller 2>/dev/null || true
grep -q replaced /tmp/uptimes || fail "no caller was ever in the replacement"
grep -qv -e replaced -e '^[0-9.]* [0-9.]*$' /tmp/uptimes && fail "a caller saw something else"
echo "ok - a function replaced and restored $rounds times under a caller, which got $(grep -c replaced /tmp/uptimes) answers of ours"

# A caller that sleeps in the replacement keeps it, and can finish.
echo 70000 >$sysfs/params/sleep_ms 2>/dev/null && fail "a parameter out of bounds was taken"
dmesg | grep -q "sleep_ms=70000 is refused; next: " || fail "and the log does not say why"
echo 1500 >$sysfs/params/sleep_ms
echo 1 >$sysfs/enabled
echo 0 >$sysfs/params/sleep_ms 2>/dev/null && fail "a parameter was changed in mid-run"
rmmod demeter_replace_test 2>/dev/null && fail "unloaded while enabled"
cat /proc/uptime >/tmp/slept &
sleeper=$!
sleep 0.3
began=$(date +%s%N)
echo 0 >$sysfs/enabled
took_ms=$((($(date +%s%N) - began) / 1000000))
rmmod demeter_replace_test || fail "rmmod"
wait $sleeper
[ "$(cat /tmp/slept)" = replaced ] || fail "the sleeper got: $(cat /tmp/slept)"
[ $took_ms -ge 800 ] || fail "the replacement was taken back after $took_ms ms, under a sleeper"
[ ! -e $sysfs ] || fail "sysfs files are left"
echo "ok - a sleeping caller was waited for"

# Managers come and go under a program whose pages they place.
echo 1 >/sys/kernel/mm/numa/demotion_enabled
echo 2 >/proc/sys/kernel/numa_balancing
cd /sys/kernel/debug/sched/numa_balancing
echo 0 >scan_delay_ms
echo 20 >scan_period_min_ms
echo 20 >scan_period_max_ms
cd /
/demeter/workloads gups --footprint 128M --hot 16M --updates 4000000000 >/dev/null &
gups=$!
sleep 1
for manager in example tpp; do
	faults=0
	round=0
	while [ $round -lt "$rounds" ]; do
		round=$((round + 1))
		insmod "/tmp/demeter_$manager.ko" || fail "$manager, round $round: insmod"
		[ "$(cat $sysfs/name)" = $manager ] || fail "$manager calls itself $(cat $sysfs/name)"
		if [ $manager = tpp ]; then
			echo $((round % 2)) >$sysfs/params/stages
		fi
		echo 1 >$sysfs/enabled || fail "$manager, round $round: enabled"
		sleep 0.$((round * 3))
		echo 0 >$sysfs/enabled
		faults=$((faults + $(cat $sysfs/stats/hint_faults)))
		rmmod "demeter_$manager" || fail "$manager, round $round: rmmod"
		kill -0 $gups || fail "$manager, round $round: the program died"
	done
	[ $faults -gt 0 ] || fail "$manager saw no hint fault: the test showed nothing"
	echo "ok - $manager came and went $rounds times under load and was asked $faults times"
done
kill $gups
wait $gups 2>/dev/null || true

# It says why it cannot work.
echo y >/sys/kernel/mm/lru_gen/enabled
insmod /tmp/demeter_tpp.ko
echo 1 >$sysfs/enabled 2>/dev/null && fail "tpp was started without an active list"
dmesg | grep -q "which has no active list; next: " || fail "and the log does not say why"
rmmod demeter_tpp
if dmesg | grep -E 'BUG|Bad page|WARNING|rss-counter|Oops|Call Trace'; then
	fail "the kernel log is not clean"
fi
echo "ok - nothing is left, and the kernel log is clean"
