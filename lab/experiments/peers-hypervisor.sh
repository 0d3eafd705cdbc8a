#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/peers-hypervisor.sh [OUT]
# The peers of the hypervisor against what is published of them, in small guests of one program
# whose hot quarter, as large as half of FMEM, was touched last: docs/results/peers.md, "Peers of the
# hypervisor". What is complete in OUT is kept.
set -euo pipefail

cd "$(dirname "$0")/../.."
out=${1:-out/peers-hypervisor}
gups=(/demeter/workloads gups --footprint 64M --hot 16M)
steady=("${gups[@]}" --hot-permille 1000 --updates 3000000)
mixed=("${gups[@]}" --hot-permille 900 --updates 8000000)
small=(--fmem 32M --smem 64M --thp never)

# run NAME ROW [OPTION…]
run() {
	local name=$1 row=$2
	shift 2
	[ -e "$out/$name/summary.json" ] ||
		target/release/demeter vm run --roi self --tmm "$row" --out "$out/$name" "${small[@]}" \
			"$@" -- "${command[@]}" >/dev/null
	jq -r --arg name "$name" '
		.whole.hypervisor as $host | .whole as $all |
		[$name, ($all.time_s * 1000 | round | tostring) + " ms",
		 "last quarter " + (.last_quarter.work_per_s / 1e5 | round / 10 | tostring) + " M/s",
		 "promoted " + (.promoted_pages | tostring), "demoted " + (.demoted_pages | tostring),
		 "guest flushes by vCPU-second " +
			(($all.tlb_full + $all.tlb_single) / $all.time_s | round | tostring)] +
		if $host then
			["host flushes by vCPU-second " + ($host.flushes_done / $all.time_s | round | tostring),
			 "exits " + ($host.tracking_exits | map(tostring) | join("+")),
			 "host " + ($host.host_s * 1000 | round | tostring) + " ms",
			 "SMEM store lines " + ($host.store_lines[1] | tostring)]
		else [] end | join(", ")' "$out/$name/summary.json"
}

mkdir -p "$out"
command=("${steady[@]}")
# vTMM: 50 to 140 % on persistent memory over what does not manage; here its own tracking alone, too.
run none none
run vtmm-watch vtmm --peer-set vtmm.interval_moves=0
run vtmm vtmm
# RAMinate: writes to slow memory less 70 %, counted alike where nothing moves.
run raminate-watch raminate --peer-set raminate.interval_moves=0
run raminate raminate
run heteroos heteroos
run tpp-h-2m tpp-h-2m
run tpp tpp

# Table 1: flushes H > G > D by vCPU-second. Where the hypervisor's scan begins is drawn.
command=("${mixed[@]}")
run mixed-none none
for seed in 0 1 2 3; do
	run "mixed-tpp-h-$seed" tpp-h --peer-set "tpp-h.scan_seed=$seed"
done
run mixed-tpp-h-noflush tpp-h-noflush --peer-set tpp-h-noflush.scan_seed=1
run mixed-tpp-h-2m tpp-h-2m --peer-set tpp-h-2m.scan_seed=1
run mixed-tpp tpp
run mixed-demeter demeter
run mixed-tpp-h-vcpus tpp-h --vcpus 2 --peer-set tpp-h.scan_seed=1
