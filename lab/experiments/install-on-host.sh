#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/install-on-host.sh PACKAGE…
# Packages of Debian, for what is measured on the host itself. No service is started by it.
# Needs root. Status 1 if one of them cannot be installed; the others are.
set -euo pipefail

echo "experiments: installing on this host: $*" >&2
rule=/usr/sbin/policy-rc.d
if [ ! -e "$rule" ]; then
	trap 'rm -f "$rule"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$rule"
	chmod +x "$rule"
fi
install() {
	DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "$@" >&2
}
apt-get -q update >&2 || true
if install "$@"; then
	exit 0
fi
status=0
for package in "$@"; do
	install "$package" || {
		echo "experiments: apt-get cannot install $package; see its words above" >&2
		status=1
	}
done
exit "$status"
