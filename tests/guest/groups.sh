#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest of the testbed: two cgroups, of which one runs GUPS hotter than the
# other, share 48 MiB of FMEM: by rank alone, under a floor, under a cap; processes
# move between them, cgroups come and go, and wrong input is refused.
# shellcheck disable=SC2016 # conditions are expanded each time that one looks
set -eu

sysfs=/sys/kernel/mm/demeter
groups=$sysfs/groups
cgroups=/sys/fs/cgroup
mib=1048576
passed=0
pids=

fail() {
	echo "not ok - $1"
	head -n 100 $groups/*/* $sysfs/stats/* $sysfs/stats/refused/* 2>/dev/null | grep -v '^$' || true
	dmesg | tail -n 30
	exit 1
}

pass() {
	echo "ok - $1"
	passed=$((passed + 1))
}

# of GROUP FILE
of() {
	cat "$groups/$1/$2"
}

# mib_of GROUP: whole MiB of FMEM that it has
mib_of() {
	echo $(($(of "$1" fmem_bytes) / mib))
}

# in_fmem PID: whole MiB of its memory that are in FMEM, by the kernel's word
in_fmem() {
	awk '/anon=/ { for (i = 1; i <= NF; i++) if (sub(/^N0=/, "", $i)) pages += $i }
		END { print int(pages / 256) }' "/proc/$1/numa_maps"
}

# wait_for WORDS TEST...: within eight seconds the test holds
wait_for() {
	words=$1
	shift
	for _ in $(seq 80); do
		if eval "$*"; then
			return
		fi
		sleep 0.1
	done
	fail "never $words"
}

# hold WORDS TEST...: for a second it does each time that one looks
hold() {
	words=$1
	shift
	for _ in $(seq 10); do
		eval "$*" || fail "not $words any more"
		sleep 0.1
	done
}

# refuses ERROR FILE VALUE: writing fails with it, and the kernel log says what to do
refuses() {
	dmesg -C
	if /bin/echo "$3" 2>/tmp/error >"$groups/$2"; then
		fail "$2 took \"$3\""
	fi
	grep -q "$1" /tmp/error || fail "$2 \"$3\": $(cat /tmp/error)"
	case $1 in
	"Invalid argument" | "Numerical result out of range") ;;
	*) dmesg | grep -q '; next: ' || fail "$2 \"$3\": the kernel log does not say what to do" ;;
	esac
}

# run CGROUP NICE FOOTPRINT: GUPS in a cgroup, all of its array alike, for ever; its PID in $ran
run() {
	sh -c 'echo $$ >'"$cgroups/$1/cgroup.procs"' && exec nice -n '"$2"' \
		/demeter/workloads gups --footprint '"$3"' --hot 1M --hot-permille 0 --updates 1000000000000' >/dev/null &
	ran=$!
	pids="$pids $ran"
}

# Stock 6.12 warns once when its multi-generation LRU ages a DAX mapping: not ours.
echo n >/sys/kernel/mm/lru_gen/enabled
mkdir $cgroups/cool $cgroups/hot
insmod /tmp/demeter.ko sample_period=509 epoch_ms=20 split_samples=8 latency_threshold_ns=64 ||
	fail "insmod"

for name in "" a/b "two words" .hidden -x add remove "$(head -c 32 /dev/zero | tr '\0' x)"; do
	refuses "Invalid argument" add "$name"
done
refuses "No such file" remove nobody
refuses "No such file" remove ""
echo cool >$groups/add
echo hot >$groups/add
refuses "File exists" add cool
refuses "No such file" cool/cgroup /nowhere
refuses "No such file" cool/cgroup ../..
[ "$(of cool state) $(of cool cgroup)" = "none " ] || fail "a path that does not exist was kept"
echo /cool >$groups/cool/cgroup
echo /hot/ >$groups/hot/cgroup
[ "$(of hot cgroup) $(of hot state)" = "/hot present" ] || fail "the cgroup of hot is $(of hot cgroup)"
refuses "File exists" hot/cgroup /cool
refuses "Invalid argument" cool/floor_bytes many
refuses "Invalid argument" cool/floor_bytes -1
refuses "Invalid argument" cool/cap_bytes ""
refuses "No space left" cool/floor_bytes 1099511627776
refuses "No space left" cool/floor_bytes 18446744073709551615
node=$(awk '/MemTotal/ { print $4 * 1024 }' /sys/devices/system/node/node0/meminfo)
echo $((node * 3 / 4)) >$groups/cool/floor_bytes
refuses "No space left" hot/floor_bytes $((node * 3 / 4))
refuses "Invalid argument" cool/cap_bytes $((node / 2))
dmesg -C
echo 0 >$groups/cool/floor_bytes
echo $((node / 2)) >$groups/cool/cap_bytes
refuses "Invalid argument" cool/floor_bytes $((node * 3 / 4))
echo max >$groups/cool/cap_bytes
[ "$(of cool cap_bytes) $(of cool floor_bytes)" = "max 0" ] || fail "limits are not what they were set to"
for n in $(seq 3 32); do
	echo "g$n" >$groups/add || fail "a group number $n"
done
refuses "No space left" add g33
for n in $(seq 3 32); do
	echo "g$n" >$groups/remove
done
[ "$(find $groups -mindepth 1 -type d | wc -l)" = 2 ] || fail "there are $(ls $groups)"
pass "wrong input is refused, and it is said why"

# The cool one comes first, and has FMEM to begin with.
run cool 10 24M
cool=$ran
sleep 0.5
run hot 0 64M
hot=$ran
echo 1 >$sysfs/enabled || fail "cannot be enabled"
wait_for "both managed" '[ "$(of cool processes) $(of hot processes)" = "1 1" ]'
wait_for "ranked together" '[ "$(mib_of cool)" -lt 6 ] && [ "$(mib_of hot)" -ge 24 ]'
pass "without limits the hotter group has FMEM: $(mib_of hot) MiB, the other $(mib_of cool)"

echo $((16 * mib)) >$groups/cool/floor_bytes
wait_for "the floor" '[ "$(mib_of cool)" -ge 14 ]'
hold "the floor" '[ "$(mib_of cool)" -ge 13 ] && [ "$(mib_of cool)" -le 18 ]'
[ "$(in_fmem "$cool")" -ge 13 ] || fail "the kernel says $(in_fmem "$cool") MiB"
[ "$(of cool due_bytes)" = $((16 * mib)) ] || fail "$(of cool due_bytes) bytes are due"
pass "a floor of 16 MiB is taken back from hotter memory and held: $(mib_of cool) MiB"
echo "--- status"
/tmp/demeter status | tee /tmp/status
grep -q '^cool .*/cool  *1 .*16 .*-' /tmp/status || fail "status does not show the groups"
/tmp/demeter metrics | grep demeter_guest_group >/tmp/metrics
grep -qx 'demeter_guest_group_floor_bytes{group="cool"} 16777216' /tmp/metrics ||
	fail "the metrics are $(cat /tmp/metrics)"

kill -STOP "$cool"
wait_for "given up by the idle" '[ "$(mib_of cool)" -lt 4 ]'
kill -CONT "$cool"
wait_for "taken back" '[ "$(mib_of cool)" -ge 14 ]'
pass "what an idle group is guaranteed others may use, until it is busy again"

echo $((12 * mib)) >$groups/hot/cap_bytes
wait_for "brought down" '[ "$(of hot fmem_bytes)" -le $((12 * mib)) ]'
hold "below the cap" '[ "$(of hot fmem_bytes)" -le $((12 * mib)) ]'
[ "$(in_fmem "$hot")" -le 13 ] || fail "the kernel says $(in_fmem "$hot") MiB"
[ "$(mib_of hot)" -ge 8 ] || fail "hot has only $(mib_of hot) MiB of 12"
wait_for "used by the other" '[ "$(mib_of cool)" -ge 17 ]'
pass "a cap of 12 MiB is kept: $(mib_of hot) MiB; the other group has $(mib_of cool)"

echo 0 >$groups/cool/floor_bytes
echo "$cool" >$cgroups/hot/cgroup.procs
wait_for "moved" '[ "$(of cool processes) $(of hot processes)" = "0 2" ]'
[ "$(of cool fmem_bytes)" = 0 ] || fail "cool has $(of cool fmem_bytes) bytes of nobody"
wait_for "both under the cap" '[ "$(of hot fmem_bytes)" -le $((12 * mib)) ]'
hold "both below the cap" '[ "$(of hot fmem_bytes)" -le $((12 * mib)) ]'
[ $(($(in_fmem "$hot") + $(in_fmem "$cool"))) -le 13 ] || fail "the kernel says more"
pass "a process that is moved counts where it is"

mkdir $cgroups/hot/inner
echo inner >$groups/add
echo /hot/inner >$groups/inner/cgroup
echo "$cool" >$cgroups/hot/inner/cgroup.procs
wait_for "in the inner one" '[ "$(of inner processes) $(of hot processes)" = "1 1" ]'
echo inner >$groups/remove
wait_for "back" '[ "$(of hot processes)" = 2 ]'
echo "$cool" >$cgroups/cgroup.procs
wait_for "given up" '[ "$(of hot processes) $(cat $sysfs/stats/targets)" = "1 1" ]'
rmdir $cgroups/hot/inner
pass "the innermost group counts; who leaves all is given up"

rmdir $cgroups/cool
wait_for "gone" '[ "$(of cool state)" = gone ]'
mkdir $cgroups/cool
wait_for "back again" '[ "$(of cool state)" = present ]'
echo "$cool" >$cgroups/cool/cgroup.procs
wait_for "managed again" '[ "$(of cool processes) $(cat $sysfs/stats/targets)" = "1 2" ]'
pass "a cgroup that is removed and made again is taken up"

# Chosen and given up while the worker looks for processes: nobody is left over.
for _ in $(seq 40); do
	echo cool >$groups/remove
	echo cool >$groups/add
	echo /cool >$groups/cool/cgroup
done
echo cool >$groups/remove
sleep 0.2
[ "$(cat $sysfs/stats/targets)" = 1 ] || fail "$(cat $sysfs/stats/targets) targets are left"
[ ! -e $groups/cool ] || fail "the directory is left"
echo /cool >$sysfs/targets/cgroup
wait_for "managed without a group" '[ "$(cat $sysfs/stats/targets) $(of hot processes)" = "2 1" ]'
echo >$sysfs/targets/cgroup
[ "$(cat $sysfs/stats/targets)" = 1 ] || fail "an empty path gives nobody up"
pass "groups come and go under load"

# Sums over the accounts are the module's totals, demotions included.
echo 0 >$sysfs/enabled
/tmp/demeter why "$hot" --json --last 0 >/tmp/why.json
grep -q '"imbalance": \[\]' /tmp/why.json || fail "$(sed -n '/"imbalance"/,/\]/p' /tmp/why.json)"
pass "the books balance"

echo 1 >$sysfs/enabled
sleep 0.2
rmmod demeter || fail "rmmod with a group"
# shellcheck disable=SC2086 # one word for each process
kill -KILL $pids
if dmesg | grep -E 'BUG|WARNING|Oops|Call Trace|duplicate'; then
	fail "the kernel log is not clean"
fi
insmod /tmp/demeter.ko || fail "insmod"
[ "$(find $groups -mindepth 1 -type d | wc -l)" = 0 ] || fail "groups of before: $(ls $groups)"
rmmod demeter || fail "rmmod"
rmdir $cgroups/hot 2>/dev/null || sleep 1
pass "unloading takes all along"
echo "groups: $passed passed, 0 failed"
