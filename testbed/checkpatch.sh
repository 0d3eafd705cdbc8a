#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: checkpatch.sh
# Prints the path of the kernel's checkpatch.pl, fetching it first if need be. No
# small Debian package has it, so it comes out of linux-source (a large download),
# which is why set-up leaves it to the first `make lint`.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

key=$(stamp_key "$0" -- "$TESTBED_LAYOUT")
result=$CACHE/checkpatch/scripts
if ! stamp_ok checkpatch "$key" || [ ! -f "$result/checkpatch.pl" ]; then
	need_space 600
	apt_state keep
	source=$(apt_depends trixie linux-source '^linux-source-[0-9]')
	[ -n "$source" ] || die "no linux-source package in trixie" "run testbed/setup.sh --refresh"
	# Only the archive itself: what would build it is of no use here.
	apt_t trixie apt-get -qq --print-uris -o "Dir::Cache::archives=/nonexistent" download "$source" 2>/dev/null |
		sed "s/'//g" >"$APT_DIR/checkpatch.uris"
	read -r uri file _ hash <"$APT_DIR/checkpatch.uris" ||
		die "cannot find the archive of $source" "run testbed/setup.sh --refresh"
	work_dir checkpatch
	say "checkpatch: downloading $source"
	APT_CONFIG=$APT_DIR/apt.conf /usr/lib/apt/apt-helper download-file "$uri" "$WORK/$file" "$hash" >"$WORK/log" 2>&1 ||
		die "download of $source failed ($(grep -m1 -E '^[EW]:' "$WORK/log" || true))" "check the network, then try again"
	mkdir -p "$WORK/tree"
	dpkg-deb --fsys-tarfile "$WORK/$file" | tar -xO --wildcards '*/linux-source-*.tar.xz' | xz -dc -T0 |
		tar -C "$WORK/tree" -xf - --strip-components=1 --wildcards \
			'*/scripts/checkpatch.pl' '*/scripts/spelling.txt' '*/scripts/const_structs.checkpatch'
	publish "$WORK/tree" "$CACHE/checkpatch"
	stamp_set checkpatch "$key"
fi
echo "$result/checkpatch.pl"
