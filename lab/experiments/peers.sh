#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/peers.sh [OUT]
# Published managers against what is published of them: TPP with a hot set that fits in
# FMEM and with one that is nearly twice FMEM, in small guests of 4 KiB pages. Only the hot set is
# used, as in the published measurement: in so small a guest a tenth of the updates touches
# every cold page each few ms, and kswapd finds nothing to demote. Prints the runs
# and each claim; what is complete in OUT is kept. JOBS guests at a time.
set -euo pipefail

cd "$(dirname "$0")/../.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
out=${1:-out/peers}
python=$DEMETER_CACHE/lab-venv/bin/python

# gups EXPERIMENT HOT UPDATES ROWS [OPTION…]
gups() {
	local place=$out/$1 hot=$2 updates=$3 rows=$4
	shift 4
	[ -e "$place/compare.json" ] || target/release/demeter vm compare --tmm "$rows" \
		--jobs "${JOBS:-2}" --fmem 32M --smem 64M --thp never --roi self --out "$place" "$@" -- \
		/demeter/workloads gups --footprint 64M --hot "$hot" --hot-permille 1000 --updates "$updates"
}

gups fits 16M 6000000 none,tpp,tpp-charged
gups exceeds 60M 20000000 none,tpp
gups stages 16M 6000000 tpp --peer-set tpp.stages=1
mkdir -p "$out/fits"
ln -sfn ../stages/tpp "$out/fits/tpp-stages"
PYTHONPATH=lab "$python" -m demeter_lab.cli peers "$out"
