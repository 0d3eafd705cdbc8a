#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: tests/run.sh [SUITE…]
# Runs the named suites, or all of them, TEST_JOBS at a time (one more than there are
# processors: suites sleep and wait for a fifth of their time); logs go to out/test/. Before them
# it builds all programs and tests and, beside these, the suite "modules" all modules.
# Ends with each suite's own summary lines and one line for all. Suites are in
# TEST_SUITES (tests/suites/), one executable a suite, exit 0 = passed; with other ones,
# logs go to TEST_LOGS. The first comment line after the licence says what a suite shows.
# A suite that outlives TEST_SUITE_LIMIT_S is ended and has failed; its log then says what it
# waited for. With TEST_UNTIL (seconds since 1970) no suite runs longer than that, and none
# begins after it: whoever ends the tests from outside would read nothing of that.
set -euo pipefail

cd "$(dirname "$0")/.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
export DEMETER_CACHE
folder=${TEST_SUITES:-tests/suites}
logs=${TEST_LOGS:-out/test}
jobs=${TEST_JOBS:-$(($(nproc) + 1))}
suite_limit_s=${TEST_SUITE_LIMIT_S:-2400}
until_s=${TEST_UNTIL:-}
case $until_s in *[!0-9]*)
	echo "test: error: TEST_UNTIL '$until_s' is no time; next: give seconds since 1970 (date +%s)" >&2
	exit 2
	;;
esac

if [ $# -gt 0 ]; then
	suites=("$@")
else
	# The longest go first, so that both processors have work until the end, and it is not one of
	# them that is waited for.
	mapfile -t suites < <(
		{
			[ "$folder" != tests/suites ] || printf '%s\n' vm plugin peers rust touch packages fuzz sampler extmem finer \
				layout evaluate epoch failures hammer lab pages kvm libvirt sockets
			find "$folder" -maxdepth 1 -type f -executable -printf '%f\n' | sort
		} | awk '!seen[$0]++'
	)
fi
for suite in "${suites[@]}"; do
	[ -x "$folder/$suite" ] || {
		echo "test: error: no suite '$suite'; next: choose from: $(find "$folder" -type f -executable -printf '%f ')" >&2
		exit 2
	}
done
mkdir -p "$logs"
# What a suite that was killed left mounted is not this test's to delete.
findmnt --noheadings --raw --output TARGET |
	awk -v under="$(realpath "$logs")/" 'index($0, under) == 1' | sort -r | xargs -r umount --lazy
rm -rf --one-file-system "$logs"
mkdir -p "$logs"

# What the processes of a session wait for: the evidence of a suite that hangs.
processes_of_session() {
	echo "---- still running after $2 s"
	ps -s "$1" -o pid,ppid,stat,time,wchan:32,args --forest | cut -c1-300
}

# Of all that this shell has waited for, in seconds: unlike the time it took, that says
# something on a machine that others use.
cpu_s() {
	times >"$logs/$1.times"
	tail -n 1 "$logs/$1.times" | tr 'ms' '  ' | awk '{ printf "%.0f s", $1 * 60 + $2 + $3 * 60 + $4 }'
}

# For how long a suite that begins now may run.
limit_s() {
	local left_s=$suite_limit_s
	[ -z "$until_s" ] || left_s=$((until_s - $(date +%s)))
	echo $((left_s < suite_limit_s ? left_s : suite_limit_s))
}

# Each suite has a session of its own, so that all of it can be ended.
# stdin is closed: no suite may wait for a person.
run_suite() {
	local suite=$1 began=$SECONDS status=0 pid watchdog cpu own_limit_s
	own_limit_s=$(limit_s)
	if [ "$own_limit_s" -le 0 ]; then
		echo "not begun: TEST_UNTIL had passed" >"$logs/$suite.log"
		echo "124 0" >"$logs/$suite.status"
		echo "FAILED $suite (not begun: TEST_UNTIL had passed)"
		return
	fi
	setsid "$folder/$suite" </dev/null >"$logs/$suite.log" 2>&1 &
	pid=$!
	echo "$pid" >"$logs/$suite.pid"
	(
		trap 'kill "$nap" 2>/dev/null; exit' TERM
		sleep "$own_limit_s" &
		nap=$!
		wait "$nap"
		processes_of_session "$pid" "$own_limit_s" >>"$logs/$suite.log"
		pkill -KILL -s "$pid"
	) &
	watchdog=$!
	wait "$pid" || status=$?
	kill "$watchdog" 2>/dev/null || true
	rm -f "$logs/$suite.pid"
	echo "$status $((SECONDS - began))" >"$logs/$suite.status"
	cpu_s "$suite" >"$logs/$suite.cpu"
	cpu=$(<"$logs/$suite.cpu")
	if [ "$status" = 0 ]; then
		echo "ok     $suite ($((SECONDS - began)) s, $cpu of a CPU, done at $SECONDS s)"
	else
		echo "FAILED $suite ($((SECONDS - began)) s, $cpu of a CPU, exit $status), log: $logs/$suite.log"
	fi
}

# Of all sessions of suites that run.
end_suites() {
	cat "$logs"/*.pid 2>/dev/null | while read -r pid; do pkill -KILL -s "$pid"; done || true
}

end_all() {
	trap - INT TERM
	end_suites
	kill 0
}
trap end_all INT TERM

began=$SECONDS
# Others load the modules, so they come before the others, but beside the programs: neither has
# work for all processors all the time.
others=() modules=''
for suite in "${suites[@]}"; do
	if [ "$suite" = modules ]; then modules=$suite; else others+=("$suite"); fi
done
[ -z "$modules" ] || run_suite modules &
# All programs and tests at once, with one choice of features: a suite that built some
# of them anew would exchange the command and the plugin under the guests of another.
# `make build` before it would compile half of them twice: tests ask for more features.
# In the background, as a trap waits for what is not.
cargo build --release --workspace --lib --bins --tests --examples -q &
status=0
wait "$!" || status=$?
if [ "$status" != 0 ]; then
	# The suite beside them may have just begun.
	while [ -n "$(jobs -rp)" ]; do
		end_suites
		sleep 0.1
	done
	echo "test: error: the programs do not build (status $status); next: see the compiler's words above" >&2
	exit "$status"
fi
echo "test: its programs are built at $SECONDS s"
wait

running=0
for suite in ${others[@]+"${others[@]}"}; do
	if [ "$running" -ge "$jobs" ]; then
		wait -n
		running=$((running - 1))
	fi
	run_suite "$suite" &
	running=$((running + 1))
done
wait

# Who reads only the last lines shall know what failed, and where: a log of many
# programs has it far above its end.
what_failed() {
	local told
	told=$(grep -E -A 12 '^(FAILED|FAIL|not ok|error|test: error)[: ]|^E  |panicked at |still running after' \
		"$logs/$1.log" | grep -v '^note: run with' | cut -c1-300 | head -n 40) || true
	echo "-- $1: ${told:-$(tail -n 5 "$logs/$1.log")}"
}

passed=0 failed=0 failures=()
echo
for suite in "${suites[@]}"; do
	# None was written where whoever watched the suite was ended.
	read -r status _ 2>/dev/null <"$logs/$suite.status" || status=125
	if [ "$status" = 0 ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		failures+=("$suite")
		echo "---- the end of $logs/$suite.log"
		tail -n 60 "$logs/$suite.log"
	fi
	echo "== $suite"
	grep -E '^(test result: .*|=*[ ]?[0-9]+ (passed|failed).* in .*|[a-z_-]+: [0-9]+ passed, [0-9]+ failed.*)$' \
		"$logs/$suite.log" || true
done
echo
for suite in ${failures[@]+"${failures[@]}"}; do
	what_failed "$suite"
done
echo "whole: $((SECONDS - began)) s"
echo "suites: $passed passed, $failed failed"
[ "$failed" = 0 ]
