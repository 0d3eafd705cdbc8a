#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/rivals.sh [OUT [NAME-PATTERN]]
# Every manager of the guest as a module against what its own paper claims of it, in small
# guests: a hot set that fits FMEM, one that nearly does, one that does not; what a fork's and a
# paper's thresholds make of HeMem; what exchanging is worth to Nimble. The table of
# docs/results/peers.md is from these runs. What is complete in OUT is kept.
set -euo pipefail

cd "$(dirname "$0")/../.."
out=${1:-out/rivals} only=${2:-*}

# run NAME ROW [OPTION…] -- COMMAND…
run() {
	local name=$1 row=$2
	shift 2
	# shellcheck disable=SC2254 # a pattern
	case $name in
	$only) ;;
	*) return 0 ;;
	esac
	[ -e "$out/$name/summary.json" ] ||
		target/release/demeter vm run --roi self --tmm "$row" --out "$out/$name" "$@" >/dev/null
	jq -r --arg name "$name" '
		def stat($name): .manager_files["stats/" + $name] // "-" | rtrimstr("\n");
		def ms: . * 1000 | round | tostring + " ms";
		[$name, (.whole.time_s | ms), "last quarter " + (.last_quarter.time_s | ms),
		 "FMEM served " + (.last_quarter.fmem_share * 100 | round | tostring) + " %",
		 "promoted " + (.promoted_pages | tostring), "demoted " + (.demoted_pages | tostring),
		 "migrating " + ((.stage_ns.migrate // 0) / 1000000 | round | tostring) + " ms",
		 "samples " + stat("samples"), "copying " + stat("copy_ns") + " ns",
		 "burnt " + stat("burnt_ns") + " ns", "committed " + stat("transactions_committed"),
		 "aborted " + stat("transactions_aborted"), "shadows " + stat("shadows")] | join(", ")' \
		"$out/$name/summary.json"
}

mkdir -p "$out"
small=(--fmem 32M --smem 64M --thp never)
gups=(/demeter/workloads gups --footprint 64M --hot-permille 1000)
for row in none fast tpp nomad memtis hemem hemem-paper nimble; do
	run "fits-$row" "$row" "${small[@]}" -- "${gups[@]}" --hot 16M --updates 6000000
done
for row in none tpp nomad memtis hemem nimble; do
	run "near-$row" "$row" "${small[@]}" -- "${gups[@]}" --hot 26M --updates 8000000
done
for row in none fast tpp nomad memtis hemem nimble; do
	run "exceeds-$row" "$row" "${small[@]}" -- "${gups[@]}" --hot 60M --updates 10000000
done
# A second has two of Nimble's rounds; here it has more.
run fits-nimble-often nimble "${small[@]}" --peer-set nimble.period_ms=100 -- "${gups[@]}" --hot 16M \
	--updates 6000000
# Huge pages on both sides, which Nimble exchanges, or moves out and then in. The kernel takes
# them from the near node only: what is hot is bound to SMEM, which Nimble does not look at.
huge=(--fmem 64M --smem 160M --thp always)
gups=(/demeter/workloads gups --footprint 96M --pages huge --hot 24M --hot-permille 1000 --bind-hot 1)
for row in none nimble; do
	run "huge-$row" "$row" "${huge[@]}" -- "${gups[@]}" --updates 8000000
done
run huge-nimble-moves nimble "${huge[@]}" --peer-set nimble.exchange=0 -- "${gups[@]}" --updates 8000000
