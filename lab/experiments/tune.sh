#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/tune.sh [ROW…]
# The best knobs of each row (nbt, damon, damon-auto, demeter) by one budget for all: 14
# guests (seven settings, the one in force among them), at most four knobs, page size among
# them, a short GUPS and a short silo with seed 1 in a guest of half the usual size. Then
# judged by five other seeds and by workloads that were not tuned for. Results and what they cost: out/tune/ROW/{best.json,runs.jsonl}. A search that
# was stopped goes on where it was. The winners' knobs belong into NBT_TUNED,
# DAMON_TUNED, … of crates/demeter/src/vm/tmm.rs.
# The evaluation's rivals (tpp, nomad, memtis, hemem, nimble, tpp-h, tpp-h-2m) have 24 guests each,
# in its quick guest; their winners belong into [tunings] of lab/evaluation/common.toml.
set -euo pipefail

cd "$(dirname "$0")/../.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
export DEMETER_CACHE
[ $# -gt 0 ] || set -- nbt damon damon-auto demeter
for row; do
	echo "== $row"
	case $row in
	nbt | damon | damon-auto | demeter) budget=(--budget 14 --judge) ;;
	*) budget=(--budget 24) ;;
	esac
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.tune --row "$row" \
		"${budget[@]}" --out "out/tune/$row"
done
