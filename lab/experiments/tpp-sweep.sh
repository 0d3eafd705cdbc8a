#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/tpp-sweep.sh [OUT]
# What TPP can do on the demo's GUPS: page sizes and knobs, one guest each, two at
# a time, best last. The winner's knobs belong into TPP_TUNED, crates/demeter/src/vm/tmm.rs.
set -euo pipefail

cd "$(dirname "$0")/../.."
out=${1:-out/tpp-sweep}
mkdir -p "$out"

one() { # one OUT PAGES KNOB=VALUE…
	local out=$1 pages=$2 knob
	shift 2
	local name=$pages arguments=()
	for knob; do
		arguments+=(--tpp-set "$knob")
		name+=,$knob
	done
	target/release/demeter vm run --tmm tpp --roi self --fmem 128M --smem 512M --json \
		--out "$out/$name" "${arguments[@]}" -- /demeter/workloads gups --footprint 560M \
		--hot 40M --hot-permille 900 --updates 30000000 --pages "$pages" >/dev/null
	python3 - "$out/$name/summary.json" "$pages" "$@" <<-'P'
		import json, sys
		run = json.load(open(sys.argv[1]))
		whole, last = run["whole"], run["last_quarter"]
		print(f"{whole['time_s']:.3f} s, last quarter {last['work_per_s'] / 1e6:.3f} M/s,"
		      f" FMEM {100 * last['fmem_share']:.1f} %, promoted {run['promoted_pages']}:",
		      *sys.argv[2:])
	P
}
export -f one

{
	echo "huge"
	echo "system"
	for pages in huge system; do
		for period_ms in 25 50 100 200; do
			for threshold_ms in 50 100 300 1000; do
				echo "$pages scan_delay_ms=0 scan_period_min_ms=$period_ms scan_size_mb=256" \
					"scan_period_max_ms=$period_ms hot_threshold_ms=$threshold_ms" \
					"watermark_scale_factor=200"
			done
		done
	done
} | xargs -P 2 -I{} bash -c "one '$out' {}" | tee "$out/all.txt"
echo
sort -rn "$out/all.txt" | tail -n 5
