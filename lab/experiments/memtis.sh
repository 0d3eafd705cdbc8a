#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/memtis.sh [OUT]
# Memtis as a module against what is published of it, in small guests: promotions against
# TPP's, CPU time of samples, splitting of huge pages with and without reason, and cooling.
# What is complete in OUT is kept.
set -euo pipefail

cd "$(dirname "$0")/../.."
out=${1:-out/memtis}
hot=(/demeter/workloads gups --footprint 64M --hot 16M --hot-permille 1000)
# Few hot base pages in each huge page. The caches are made small for that: else they hold them all.
huge=(--fmem 64M --smem 256M --thp always --machine l2_bytes=32768 --machine llc_bytes=131072)
wide=(/demeter/workloads gups --footprint 192M --pages huge)

# run NAME ROW [OPTION…] -- COMMAND…
run() {
	local name=$1 row=$2
	shift 2
	[ -e "$out/$name/summary.json" ] ||
		target/release/demeter vm run --roi self --tmm "$row" --out "$out/$name" "$@" >/dev/null
	jq -r --arg name "$name" '
		def stat($name): .manager_files["stats/" + $name] // "-" | rtrimstr("\n");
		[$name, (.whole.time_s * 1000 | round | tostring) + " ms",
		 "last quarter " + (.last_quarter.time_s * 1000 | round | tostring) + " ms",
		 "promoted " + (.promoted_pages | tostring), "samples " + stat("samples"),
		 "period " + stat("period"), "CPU " + stat("ksampled_permille") + " permille",
		 "cooled " + stat("coolings"), "split " + stat("split_huge_pages")] | join(", ")' \
		"$out/$name/summary.json"
}

mkdir -p "$out"
small=(--fmem 32M --smem 64M --thp never)
for row in none tpp memtis memtis-unscaled; do
	run "$row" "$row" "${small[@]}" -- "${hot[@]}" --updates 6000000
done
run quota-1-percent memtis "${small[@]}" --peer-set memtis.quota_permille=10 \
	--peer-set memtis.quota_ms=100 -- "${hot[@]}" --updates 6000000
for samples in 2000 2000000; do
	run "cooling-$samples" memtis "${small[@]}" --peer-set "memtis.cooling_samples=$samples" -- \
		"${hot[@]}" --phase-updates 3000000 --phase-places 2 --updates 12000000
done
for split in 1 0; do
	run "skewed-split-$split" memtis "${huge[@]}" --peer-set "memtis.split=$split" -- \
		"${wide[@]}" --hot 1M --place scattered --hot-permille 1000 --updates 30000000
done
run uniform memtis "${huge[@]}" -- "${wide[@]}" --hot 96M --hot-permille 500 --updates 15000000
