#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: STAGE=$(tests/stage.sh)
# Names the program that is a real daemon with modelled guests (crates/demeterd/tests/stage.rs),
# for suites that look at one from outside.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --release --workspace --test stage --no-run --message-format=json 2>/dev/null |
	python3 -c '
import json, sys
lines = map(json.loads, sys.stdin)
made = [line["executable"] for line in lines if line.get("target", {}).get("name") == "stage"]
sys.exit("stage: error: crates/demeterd/tests/stage.rs was not built; next: make build") if not made else print(made[-1])
'
