#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/browser/setup.sh CACHE
# A browser and what drives it, for tests of the evaluation's pages alone: Chromium by apt,
# CACHE/browser-venv with lab/browser/requirements.txt. Needs no network when both are there.
set -euo pipefail

cache=${1:?usage: lab/browser/setup.sh CACHE}
here=$(cd "$(dirname "$0")" && pwd)
venv=$cache/browser-venv
stamp=$venv/.requirements

fail() {
	echo "browser: error: $1; next: $2" >&2
	exit 1
}

if ! command -v chromium >/dev/null; then
	[ "$(id -u)" = 0 ] || fail "chromium is not installed" "apt-get install chromium"
	echo "browser: installing with apt: chromium (some 300 MB with what it needs)"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		chromium fonts-dejavu-core >/dev/null ||
		fail "chromium could not be installed" "check the network, or apt-get install chromium"
fi
cmp -s "$here/requirements.txt" "$stamp" && exit 0

echo "browser: installing with pip into $venv: $(sed -n 's/==.*//p' "$here/requirements.txt" | paste -sd' ')"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install -q -r "$here/requirements.txt" ||
	fail "the packages of lab/browser/requirements.txt could not be installed" "check the network and run it again"
cp "$here/requirements.txt" "$stamp"
