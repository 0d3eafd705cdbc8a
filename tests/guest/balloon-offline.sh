#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest whose balloons hold half of its memory: no block of memory with pages of
# a balloon can be set offline; it says so, and all stays as it was.
set -eu

balloon=/sys/module/demeter_balloon/node1/balloon_pages
held=$(cat $balloon)
refused=0 went=0 unfit=0

fail() {
	echo "not ok - $1"
	dmesg | tail -n 20
	exit 1
}

[ "$held" -gt 16384 ] || fail "only $held pages are in the balloon: the test shows nothing"
for block in /sys/devices/system/node/node1/memory[0-9]*; do
	state=$block/state
	[ "$(cat "$state")" = online ] || fail "$block is not online"
	# The shell's own says no more than "I/O error".
	if /bin/echo offline >"$state" 2>/tmp/error; then
		went=$((went + 1))
		echo online >"$state" || fail "$block does not come back"
	elif grep -q "Invalid argument" /tmp/error; then
		unfit=$((unfit + 1)) # It spans two nodes: never possible, with or without a balloon.
	else
		grep -q "busy" /tmp/error || fail "$block is refused otherwise: $(cat /tmp/error)"
		refused=$((refused + 1))
	fi
	[ "$(cat "$state")" = online ] || fail "$block does not stay online"
	[ "$(cat $balloon)" = "$held" ] || fail "$(cat $balloon) of $held pages are in the balloon"
done
[ $refused -gt 0 ] || fail "no block of $went was refused, with $held pages in the balloon"
if dmesg | grep -E 'BUG|Bad page|WARNING|Oops|Call Trace' | grep -v 'get_pte_pfn'; then
	fail "the kernel log is not clean"
fi
echo "ok - with $held pages in the balloon $refused blocks cannot be set offline, $went could, $unfit span two nodes"
