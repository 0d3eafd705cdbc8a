#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/extmem-locality.sh [--only NAME]… [--rounds N] [--swap DIR]
# A sort, compressors, hash tables and redis under `demeter extmem` and under Linux swap at its
# best, in turns: the table of docs/results/extmem.md; an hour, quiet. Needs root (control
# group, swap file). Everything it changes on the machine is put back but what it installs.
set -euo pipefail

cd "$(dirname "$0")/../.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
if [ "$(id -u)" != 0 ]; then
	echo "experiments: error: control groups and swap need root; next: run it as root" >&2
	exit 2
fi
missing=()
for program in xz:xz-utils zstd:zstd perl:perl redis-server:redis-server; do
	command -v "${program%:*}" >/dev/null || missing+=("${program#*:}")
done
if [ "${#missing[@]}" -gt 0 ]; then
	lab/experiments/install-on-host.sh "${missing[@]}" || exit 2
fi
PYTHONPATH=lab exec "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli extmem locality "$@"
