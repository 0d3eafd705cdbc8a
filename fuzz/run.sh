#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: fuzz/run.sh SECONDS [TARGET…]
# Builds the fuzz targets with this repository's compiler, instrumented for coverage, and
# runs each for so long, beginning with its seeds. What was found is kept in FUZZ_CORPUS
# (out/fuzz/corpus/) for the next time; an input that breaks something is written to
# out/fuzz/, and the end is 1.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?"usage: fuzz/run.sh SECONDS [TARGET…]"}
shift
mapfile -t targets < <(sed -n 's/^path = "targets\/\(.*\)\.rs"/\1/p' fuzz/Cargo.toml)
[ $# -eq 0 ] || targets=("$@")
# The flags of `cargo fuzz`, without those that a nightly compiler takes only: no sanitizer,
# which safe code has little use for.
host=$(rustc -vV | sed -n 's/^host: //p')
flags="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares"
# --target keeps the flags from programs that run while building.
RUSTFLAGS=$flags cargo build --release --locked --manifest-path fuzz/Cargo.toml --target "$host" \
	--target-dir target/fuzz
passed=0 failed=0
mkdir -p out/fuzz
for target in "${targets[@]}"; do
	seeds=fuzz/seeds/$target corpus=${FUZZ_CORPUS:-out/fuzz/corpus}/$target log=out/fuzz/$target.log
	[ -d "$seeds" ] || {
		echo "fuzz: error: no target '$target'; next: choose from: $(ls fuzz/seeds)" >&2
		exit 2
	}
	mkdir -p "$corpus"
	options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=1024 -max_len=2048
		-artifact_prefix="out/fuzz/$target-" -print_final_stats=1)
	[ ! -e "fuzz/dictionaries/$target" ] || options+=(-dict="fuzz/dictionaries/$target")
	status=0
	"target/fuzz/$host/release/$target" "${options[@]}" "$corpus" "$seeds" >"$log" 2>&1 || status=$?
	# Edges that the seeds reach, and those at the end: guided by nothing, both were 0.
	edges=$(sed -n 's/.*INITED cov: \([0-9]*\).*/\1/p' "$log")
	reached=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
	runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
	# Of these, what was there before: seeds and corpus, which are loaded whatever the time is.
	loaded=$(sed -n 's/^#\([0-9]*\)[^0-9].*INITED.*/\1/p' "$log")
	echo "$target: ${runs:-?} inputs, ${edges:-0} edges by seeds, ${reached:-0} at the end"
	if [ "$status" = 0 ] && [ "${edges:-0}" -gt 50 ] && [ "${runs:-0}" -gt "${loaded:-0}" ]; then
		passed=$((passed + 1))
	elif [ "$status" = 0 ]; then
		failed=$((failed + 1))
		echo "fuzz: error: $target tried nothing of its own (${runs:-no} inputs, ${loaded:-none} of them loaded); next: give it more seconds, or read $log" >&2
	else
		failed=$((failed + 1))
		echo "fuzz: error: $target ended with $status; next: put its input ($(find out/fuzz -maxdepth 1 -name "$target-*")) into $seeds, mend, and read $log" >&2
		tail -n 20 "$log" >&2
	fi
done
echo "fuzz: $passed passed, $failed failed"
[ "$failed" = 0 ]
