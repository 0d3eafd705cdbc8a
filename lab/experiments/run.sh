#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/run.sh seven|seven-cxl|draws|touch|redis|liblinear|uniform|loss|loss-touch|spread|vcpus|sensitivity|sensitivity-cxl [OUT]
# The comparisons of the README beside the demo, each a table on standard output
# and a results directory. DEMETER_CACHE names the cache if it is not the default.
set -euo pipefail

cd "$(dirname "$0")/../.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
experiment=${1:?usage: lab/experiments/run.sh seven|seven-cxl|draws|touch|redis|liblinear|uniform|loss|loss-touch|spread|vcpus|sensitivity|sensitivity-cxl [OUT]}
out=${2:-out/$experiment}
demeter=target/release/demeter
managers=none,nbt-default,nbt,damon,demeter,ideal,fast

# Half of the machine's use is reading, so only that is measured. redis OUT OPTION...
redis() {
	"$demeter" vm compare --fmem 96M --smem 384M --roi self --out "$@" \
		--env KEYS=300000 --env REQUESTS=600000 \
		--copy lab/experiments/redis-latest.sh:/tmp/redis.sh -- sh /tmp/redis.sh
}

# What the guests that come next are made of. inputs FILE
inputs() {
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli inputs "$1"
}

case $experiment in
seven)
	# The evaluation's workloads; what is complete in OUT is kept.
	testbed/build-modules.sh 7.x
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli seven --out "$out"
	;;
seven-cxl)
	# The same with the nearer slow memory.
	testbed/build-modules.sh 7.x
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli seven \
		--guest "--slow cxl" --out "$out"
	;;
draws)
	# pagerank with 4 MiB of FMEM less to 3 more: what first touch finds room for there
	# hangs on the last MiB.
	testbed/build-modules.sh 7.x
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli draws --out "$out"
	;;
touch)
	# Demeter's sampler without a PMU beside PEBS; what is complete in OUT is kept. Of one
	# build: the seven's plan says which, and a file beside the demo's and redis' folders.
	testbed/build-modules.sh 6.12
	testbed/build-modules.sh 7.x
	for pair in pebs:icelake touch:none; do
		place=$out/${pair%:*} pmu=${pair#*:}
		PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli seven \
			--guest "--pmu $pmu" --managers demeter --out "$place/seven" >&2
		if [ ! -e "$place/demo/summary.json" ]; then
			inputs "$place/demo.json"
			"$demeter" vm demo --tmm demeter --pmu "$pmu" --out "$place/demo" >&2
		fi
		if [ ! -e "$place/redis/compare.json" ]; then
			inputs "$place/redis.json"
			redis "$place/redis" --tmm demeter --pmu "$pmu" >&2
		fi
	done
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli touch "$out"
	;;
redis)
	redis "$out" --tmm "$managers"
	;;
liblinear)
	data=out/data
	if [ ! -e "$data/train.libsvm" ]; then
		mkdir -p "$data"
		PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli libsvm \
			--out "$data/train.libsvm"
	fi
	# Linux turns huge pages off below 512 MiB: the reserve keeps them on.
	"$demeter" vm compare --tmm "$managers" --fmem 32M --smem 128M --kernel-reserve 320M \
		--data "$data" --out "$out" \
		--copy lab/experiments/liblinear.sh:/tmp/liblinear.sh -- sh /tmp/liblinear.sh
	;;
uniform)
	# A fourteenth of the accesses to a fourteenth of the memory.
	"$demeter" vm demo --tmm none,demeter --hot-permille 71 --updates 30000000 --out "$out"
	;;
loss)
	# Uniform access, a scan, hot memory that is well placed, scattered, or flips.
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli loss --out "$out"
	;;
loss-touch)
	# The same without a PMU.
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli loss --guest "--pmu none" --out "$out"
	;;
spread)
	# The demo's main rows with three sequences of accesses.
	for seed in 1 2 3; do
		"$demeter" vm demo --tmm none,nbt,demeter,oracle --seed "$seed" --out "$out/$seed"
	done
	;;
vcpus)
	# The demo's program with a thread on each of 1, 4 and 8 vCPUs, so long that the last
	# quarter shows what was learned (UPDATES for less).
	for vcpus in 1 4 8; do
		"$demeter" vm compare --vcpus "$vcpus" --tmm none,demeter,ideal --roi self --out "$out/$vcpus" -- \
			/demeter/workloads gups --updates "${UPDATES:-60000000}" --threads "$vcpus" >&2
	done
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli vcpus "$out"
	;;
sensitivity)
	# Demeter's parameters, one at a time, on records; and Demeter live beside the simulator.
	testbed/build-modules.sh 7.x
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli sensitivity --out "$out"
	;;
sensitivity-cxl)
	# The same records with the nearer slow memory: no guests but those that record. The
	# records are `sensitivity`'s, if these are there.
	testbed/build-modules.sh 7.x
	PYTHONPATH=lab "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli sensitivity \
		--no-live --replay "--slow cxl" --table table-cxl.txt --out "${2:-out/sensitivity}"
	;;
*)
	echo "experiments: error: no experiment '$experiment'; next: seven, seven-cxl, draws, touch, redis, liblinear, uniform, loss, loss-touch, spread, vcpus, sensitivity or sensitivity-cxl" >&2
	exit 2
	;;
esac
