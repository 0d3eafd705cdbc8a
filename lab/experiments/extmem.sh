#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/extmem.sh [--quick] [--runs N] [--only NAME]… [--out DIR] [--swap DIR] …
# The user-space pager against Linux swap at its best setting, slices in turn in one
# run: table on standard output, out/extmem/{summary.json,series.csv,manifest.json,
# table.md,*.svg}. Needs root (control group, swap file); about half an hour whole.
# Everything it changes on the machine is put back, also when it is interrupted.
set -euo pipefail

cd "$(dirname "$0")/../.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
if [ "$(id -u)" != 0 ]; then
	echo "experiments: error: control groups and swap need root; next: run it as root" >&2
	exit 2
fi
PYTHONPATH=lab exec "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli extmem bench "$@"
