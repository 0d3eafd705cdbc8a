#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/browser/setup.sh CACHE
# A browser and what drives it, for tests of pages alone: Chromium by apt,
# CACHE/browser-venv with lab/browser/requirements.txt. Needs no network when both are there.
set -euo pipefail

cache=${1:?usage: lab/browser/setup.sh CACHE}
here=$(cd "$(dirname "$0")" && pwd)

fail() {
	echo "browser: error: $1; next: $2" >&2
	exit 1
}

mkdir -p "$cache"
exec 8>"$cache/browser.lock"
flock 8
if ! command -v chromium >/dev/null; then
	[ "$(id -u)" = 0 ] || fail "chromium is not installed" "apt-get install chromium"
	echo "browser: installing with apt: chromium (some 300 MB with what it needs)"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		chromium fonts-dejavu-core >/dev/null ||
		fail "chromium could not be installed" "check the network, or apt-get install chromium"
fi
exec "$here/../venv.sh" "$cache" browser
