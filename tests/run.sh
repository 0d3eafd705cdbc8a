#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: tests/run.sh [SUITE…]
# Runs the named suites, or all of them, two at a time; logs go to out/test/.
# Ends with each suite's own summary lines and one line for all. Suites are in
# tests/suites/, one executable a suite, exit 0 = passed. The first comment line
# after the licence says what a suite shows.
set -euo pipefail

cd "$(dirname "$0")/.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
export DEMETER_CACHE
logs=out/test
jobs=${TEST_JOBS:-2}

if [ $# -gt 0 ]; then
	suites=("$@")
else
	mapfile -t suites < <(find tests/suites -maxdepth 1 -type f -executable -printf '%f\n' | sort)
fi
for suite in "${suites[@]}"; do
	[ -x "tests/suites/$suite" ] || {
		echo "test: error: no suite '$suite'; next: choose from: $(find tests/suites -type f -executable -printf '%f ')" >&2
		exit 2
	}
done
rm -rf "$logs"
mkdir -p "$logs"

# stdin is closed: no suite may wait for a person.
run_suite() {
	local suite=$1 began=$SECONDS status=0
	"tests/suites/$suite" </dev/null >"$logs/$suite.log" 2>&1 || status=$?
	echo "$status $((SECONDS - began))" >"$logs/$suite.status"
	if [ "$status" = 0 ]; then
		echo "ok     $suite ($((SECONDS - began)) s)"
	else
		echo "FAILED $suite ($((SECONDS - began)) s, exit $status), log: $logs/$suite.log"
	fi
}

trap 'kill 0 2>/dev/null; wait' INT TERM
began=$SECONDS
running=0
for suite in "${suites[@]}"; do
	if [ "$running" -ge "$jobs" ]; then
		wait -n
		running=$((running - 1))
	fi
	run_suite "$suite" &
	running=$((running + 1))
done
wait

passed=0 failed=0
echo
for suite in "${suites[@]}"; do
	read -r status _ <"$logs/$suite.status"
	if [ "$status" = 0 ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "---- the end of $logs/$suite.log"
		tail -n 60 "$logs/$suite.log"
	fi
	echo "== $suite"
	grep -E '^(test result: .*|=*[ ]?[0-9]+ (passed|failed).* in .*|[a-z_-]+: [0-9]+ passed, [0-9]+ failed.*)$' \
		"$logs/$suite.log" || true
done
echo
echo "whole: $((SECONDS - began)) s"
echo "suites: $passed passed, $failed failed"
[ "$failed" = 0 ]
