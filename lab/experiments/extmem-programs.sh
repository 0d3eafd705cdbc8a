#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/extmem-programs.sh [--only NAME]… [--swap DIR] [--out FILE]
# Some sixty real programs as they are and under `demeter extmem` with half of the memory
# they take; their output is compared. The table of docs/extmem-programs.md; some minutes.
set -euo pipefail

cd "$(dirname "$0")/../.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
PYTHONPATH=lab exec nice -n 10 "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli extmem programs "$@"
