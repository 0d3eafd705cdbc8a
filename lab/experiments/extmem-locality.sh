#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/extmem-locality.sh [--only NAME]… [--rounds N] [--swap DIR]
# A sort, compressors, hash tables and redis under `demeter extmem` and under Linux swap at its
# best, in turns: the table of docs/results/extmem.md; half an hour, quiet. Needs root
# (control group, swap file). Everything it changes on the machine is put back.
set -euo pipefail

cd "$(dirname "$0")/../.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
PYTHONPATH=lab exec "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli extmem locality "$@"
