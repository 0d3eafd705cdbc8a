#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/peers-pool.sh [OUT]
# Hypervisors whose FMEM is one pool for several guests: three guests with hot sets of 20, 90 and 4 MiB,
# 64 MiB of FMEM for each, beside each guest alone with its 64 MiB; equal guests beside one alone;
# two guests live and simulated: docs/results/peers.md, "One pool for several guests". The guest of 90 MiB
# ends first, so that it has nothing of those that left. What is complete in OUT is kept.
set -euo pipefail

cd "$(dirname "$0")/../.."
out=${1:-out/peers-pool}
testbed/build-modules.sh 7.x
mkdir -p "$out"
# With base pages where PAGES=base.
cat >"$out/gups.sh" <<'GUEST'
case $DEMETER_VM in
0) hot=20M updates=${LONG:-18}000000 ;;
1) hot=90M updates=12000000 ;;
*) hot=4M updates=${LONG:-32}000000 ;;
esac
[ "${PAGES:-}" = base ] || pages="--pages huge"
exec /demeter/workloads gups --footprint 280M --hot $hot --updates $updates ${pages:-}
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

for row in none tpp-h tpp-h-2m raminate vtmm; do
	for index in 0 1 2; do
		alone "pmem-$row-alone-$index" $index $row
	done
done
for row in tpp-h tpp-h-2m raminate vtmm; do
	run "pmem-$row" 3 $row
done
# vTMM sees one accessed bit for each page of the guest's: what is claimed of it needs base pages.
for slow in pmem cxl; do
	base=(--slow "$slow" --thp never --env PAGES=base)
	for row in none vtmm; do
		for index in 0 1 2; do
			alone "$slow-base-$row-alone-$index" $index $row "${base[@]}"
		done
	done
	run "$slow-base-vtmm" 3 vtmm "${base[@]}"
done

# LONG=12: as many updates for each.
for index in 0 1; do
	[ -e "$out/record-$index/summary.json" ] ||
		target/release/demeter vm record "$out/record-$index" "${guest[@]}" --machine ept_2m=0 \
			--env "DEMETER_VM=$index" --env LONG=12 -- sh /tmp/gups.sh >/dev/null
done
for row in tpp-h heteroos; do
	run "two-$row" 2 $row --env LONG=12
	target/release/demeter sim "$out/record-0" "$out/record-1" --tmm $row --fmem-pool 128M --json |
		jq -r --arg row $row '(.guests | to_entries[] |
			["simulated " + $row, "vm" + (.key | tostring), (.value.time_s * 1000 | round | tostring) + " ms"] | join(", ")),
			(["simulated " + $row, "promoted " + (.promoted_pages | tostring),
			  "whole flushes " + (.hypervisor.flushes_done | tostring),
			  "violations " + (.hypervisor.violations | tostring),
			  "host " + (.hypervisor.host_s * 1000 | round | tostring) + " ms"] | join(", "))'
done
[ -e "$out/record-long/summary.json" ] ||
	target/release/demeter vm record "$out/record-long" "${guest[@]}" --machine ept_2m=0 -- \
		/demeter/workloads gups --footprint 280M --hot 20M --updates 48000000 --pages huge >/dev/null
for guests in 1 2 4 8; do
	target/release/demeter sim "$out/record-long" --guests $guests --tmm tpp-h --json |
		jq -r --arg guests $guests '(.guests | length) as $count | [$guests + " equal guests",
			(.guests[0].time_s * 1000 | round | tostring) + " ms",
			"last quarter " + (.guests[0].fmem_share_last_quarter * 1000 | round / 10 | tostring) + " % from FMEM",
			"promoted by guest " + (.promoted_pages / $count | round | tostring),
			"threads of the host busy " + (.hypervisor.host_s / .time_s * 100 | round / 100 | tostring)] | join(", ")'
done
