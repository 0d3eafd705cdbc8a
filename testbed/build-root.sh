#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: build-root.sh trixie|bookworm
# Makes build-root-<suite> in the cache: compiler, make, sparse and the headers
# of the guest kernels of that suite. It is only ever entered by build-modules.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

suite=${1-}
# Run-time libraries of sanitizers and profilers: large, and of no use to a kernel module.
pretend="libasan8 liblsan0 libtsan2 libubsan1 libhwasan0 libgprofng0 libitm1 libquadmath0 libcc1-0
	linux-base openssl-provider-legacy libsystemd0 debconf init-system-helpers"
tools="make sparse gcc bash dash coreutils sed grep mawk findutils diffutils gzip xz-utils cpio perl libc-bin base-files patch"
case $suite in
trixie) metas="trixie trixie-backports" list=trixie+backports ;;
bookworm) metas=bookworm list=bookworm ;;
*) die "unknown suite '$suite'" "use trixie or bookworm" ;;
esac

name=build-root-$suite
key=$(stamp_key "$0" -- "$TESTBED_LAYOUT" "$(known_series)")
if stamp_ok "$name" "$key" && [ -d "$CACHE/$name" ]; then
	exit 0
fi
apt_state keep
headers=
for m in $metas; do
	h=linux-headers-$(kernel_release "$m" quiet)
	headers="$headers $h"
	v=$(apt_newest "$m" "$h")
	[ -n "$v" ] || die "there is no package $h in $m" "run testbed/setup.sh --refresh"
	pretend="$pretend ${h/headers/image}=$v ${h/headers/base}=$v"
done
# shellcheck disable=SC2086 # word lists
apt_fetch "$name" "$list" "$pretend" $headers $tools
work_dir "$name"
say "$name: unpacking ($headers )"
deb_unpack "$WORK" <"$APT_DIR/$name.debs"
# What maintainer scripts would have made, as far as a build needs it.
ln -sf mawk "$WORK/usr/bin/awk"
mkdir -p "$WORK"/{dev,proc,tmp,demeter,root}
for r in "$WORK"/usr/src/linux-headers-*-amd64; do
	v=${r##*/linux-headers-}
	mkdir -p "$WORK/lib/modules/$v"
	ln -sfn "/usr/src/linux-headers-$v" "$WORK/lib/modules/$v/build"
done
chroot "$WORK" /bin/sh -c 'gcc --version >/dev/null && make --version >/dev/null' ||
	die "the compiler in $name does not start" "report it with the output above"
# Not under the feet of a build: build-modules.sh holds this lock while it is inside.
exec 7>>"$CACHE/$name.lock"
flock 7
publish "$WORK" "$CACHE/$name"
exec 7>&-
stamp_set "$name" "$key"
say "$name: ready"
