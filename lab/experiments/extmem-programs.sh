#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/extmem-programs.sh [--only NAME]… [--swap DIR] [--out FILE]
# Some ninety real programs as they are and under `demeter extmem` with half of the memory
# they take; their output is compared. The table of docs/extmem-programs.md; some 40 minutes.
# As root it installs those of them that Debian has; what is missing is named under the table.
set -euo pipefail

cd "$(dirname "$0")/../.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
declare -A package_of=([fio]=fio [stress-ng]=stress-ng [rg]=ripgrep [R]=r-base-core [ffmpeg]=ffmpeg
	[musl-gcc]=musl-tools [/usr/bin/convert]=imagemagick [pg_lsclusters]=postgresql
	[mariadbd]=mariadb-server-core [mariadb]=mariadb-client-core [redis-server]=redis-server
	[redis-cli]=redis-tools [memcached]=memcached [jq]=jq [lz4]=lz4 [zip]=zip [gdb]=gdb
	[strace]=strace [tclsh]=tcl [groff]=groff [valgrind]=valgrind [busybox]=busybox-static
	[vim]=vim [mawk]=mawk [bc]=bc [sqlite3]=sqlite3 [cpio]=cpio [patch]=patch [perl]=perl)
missing=()
for program in "${!package_of[@]}"; do
	command -v "$program" >/dev/null || missing+=("${package_of[$program]}")
done
if [ "${#missing[@]}" -gt 0 ] && [ "$(id -u)" = 0 ]; then
	echo "extmem-programs: installing with apt: ${missing[*]}"
	# None of the servers among them is to run by itself.
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		trap 'rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
	apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
PYTHONPATH=lab nice -n 10 "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli extmem programs "$@"
