#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/monitoring/setup.sh CACHE
# Debian's prometheus and promtool in CACHE/prometheus: unpacked, not installed, so that no
# service of this host is started. Needs no network when they are there.
set -euo pipefail

cache=${1:?usage: lab/monitoring/setup.sh CACHE}
place=$cache/prometheus

fail() {
	echo "monitoring: error: $1; next: $2" >&2
	exit 1
}

[ -x "$place/usr/bin/prometheus" ] && exit 0

echo "monitoring: downloading with apt into $place: prometheus (20 MB)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq prometheus 2>"$work/log" || {
	apt-get update -qq
	apt-get download -qq prometheus 2>"$work/log" ||
		fail "prometheus could not be downloaded ($(tail -n 1 "$work/log"))" "check the network and apt's sources"
}
dpkg-deb -x prometheus_*.deb "$work/root" ||
	fail "the package could not be unpacked" "check the free space under ${TMPDIR:-/tmp}"
rm -rf "$place"
mkdir -p "$cache"
mv "$work/root" "$place"
