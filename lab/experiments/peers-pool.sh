#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/peers-pool.sh [OUT]
# Hypervisors whose FMEM is one pool for several guests: three guests with hot sets of 20, 90 and 4 MiB,
# 64 MiB of FMEM for each, against equal parts that stay (first touch; tpp-h one guest at a time); and two
# guests live and simulated: docs/results/peers.md, "One pool for several guests". What is complete in OUT
# is kept.
set -euo pipefail

cd "$(dirname "$0")/../.."
out=${1:-out/peers-pool}
testbed/build-modules.sh 7.x
mkdir -p "$out"
cat >"$out/gups.sh" <<'GUEST'
case $DEMETER_VM in 0) hot=20M ;; 1) hot=90M ;; *) hot=4M ;; esac
exec /demeter/workloads gups --footprint 280M --hot $hot --updates 12000000 --pages huge
GUEST
guest=(--roi self --kernel 7.x --fmem 64M --smem 288M --copy "$out/gups.sh:/tmp/gups.sh")

# run NAME VMS ROW [OPTION…]: guests side by side
run() {
	local name=$1 vms=$2 row=$3
	shift 3
	[ -e "$out/$name/summary.json" ] ||
		target/release/demeter vm run --vms "$vms" --tmm "$row" --out "$out/$name" "${guest[@]}" "$@" -- \
			sh /tmp/gups.sh >/dev/null
	jq -r --arg name "$name" '.guests[] |
		[$name, .name, (.row.time_s * 1000 | round | tostring) + " ms",
		 "last quarter " + (.row.updates_per_s_last_quarter / 1e5 | round / 10 | tostring) + " M/s",
		 "FMEM at the end " + (.fmem.last_bytes / 1048576 | round | tostring) + " MiB",
		 "promoted " + (.row.promoted_pages | tostring),
		 "whole flushes " + (.row.hypervisor.flushes_done // 0 | tostring),
		 "violations " + (.row.hypervisor.violations // 0 | tostring),
		 "host " + ((.row.hypervisor.host_s // 0) * 1000 | round | tostring) + " ms"] | join(", ")' \
		"$out/$name/summary.json"
}

# alone NAME INDEX ROW [OPTION…]: the guest of that number with its equal part
alone() {
	local name=$1 index=$2 row=$3
	shift 3
	[ -e "$out/$name/summary.json" ] ||
		target/release/demeter vm run --tmm "$row" --out "$out/$name" "${guest[@]}" --env "DEMETER_VM=$index" "$@" -- \
			sh /tmp/gups.sh >/dev/null
	jq -r --arg name "$name" '[$name, (.whole.time_s * 1000 | round | tostring) + " ms",
		"last quarter " + (.last_quarter.work_per_s / 1e5 | round / 10 | tostring) + " M/s"] | join(", ")' \
		"$out/$name/summary.json"
}

for slow in pmem cxl; do
	run "$slow-none" 3 none --policy static --slow $slow
	for index in 0 1 2; do
		alone "$slow-tpp-h-alone-$index" $index tpp-h --slow $slow
	done
	for row in tpp-h tpp-h-2m raminate vtmm; do
		run "$slow-$row" 3 $row --slow $slow
	done
done

for index in 0 1; do
	[ -e "$out/record-$index/summary.json" ] ||
		target/release/demeter vm record "$out/record-$index" "${guest[@]}" --machine ept_2m=0 \
			--env "DEMETER_VM=$index" -- sh /tmp/gups.sh >/dev/null
done
for row in tpp-h heteroos; do
	run "two-$row" 2 $row
	target/release/demeter sim "$out/record-0" "$out/record-1" --tmm $row --fmem-pool 128M --json |
		jq -r --arg row $row '(.guests | to_entries[] |
			["simulated " + $row, "vm" + (.key | tostring), (.value.time_s * 1000 | round | tostring) + " ms"] | join(", ")),
			(["simulated " + $row, "promoted " + (.promoted_pages | tostring),
			  "whole flushes " + (.hypervisor.flushes_done | tostring),
			  "violations " + (.hypervisor.violations | tostring),
			  "host " + (.hypervisor.host_s * 1000 | round | tostring) + " ms"] | join(", "))'
done
