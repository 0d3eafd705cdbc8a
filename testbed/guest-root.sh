#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: guest-root.sh
# Makes guest-root.erofs in the cache: Debian 13 user space, uncompressed, for use
# with DAX over virtio-pmem (see README.md). Also guest-root.packages: what is in it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

packages="bash,coreutils,procps,util-linux,kmod,numactl,redis-server,redis-tools,liblinear-tools,python3-minimal"
# Left out: nothing in the guest reads them, and each 4 KiB of the image costs the
# guest 64 bytes of memory map.
drop="usr/share/doc usr/share/man usr/share/locale usr/share/info usr/share/lintian usr/share/bug
	usr/share/i18n usr/share/bash-completion usr/share/zsh var/lib/apt/lists var/cache/apt var/cache/debconf var/log boot"
uuid=64656d65-7465-4765-8e73-726f6f740001

key=$(stamp_key "$0" -- "$TESTBED_LAYOUT")
if stamp_ok guest-root "$key" && [ -f "$CACHE/guest-root.erofs" ]; then
	exit 0
fi
need_root
apt_state keep
work_dir guest-root
root=$WORK/root
say "guest-root: installing Debian 13 with ${packages//,/ }"
# mmdebstrap runs an apt of its own: give it the proxy settings of this host.
apt-config dump | grep -E '^Acquire::(http|https|ftp)::Proxy|^Acquire::Check-' >"$WORK/apt.conf" || true
mmdebstrap --quiet --variant=minbase --mode=root --format=directory --include="$packages" \
	--aptopt="$WORK/apt.conf" --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
	--dpkgopt=force-unsafe-io trixie "$root" "$APT_DIR/trixie.list" >"$WORK/log" 2>&1 ||
	die "mmdebstrap failed ($(grep -m1 -E '^E:' "$WORK/log" || tail -n 1 "$WORK/log"))" \
		"check the network and the free space, then run testbed/setup.sh again"
# shellcheck disable=SC2016 # dpkg-query's own format
dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${Package} ${Version}\n' >"$WORK/packages"
for d in $drop; do
	rm -rf "${root:?}/$d"
	mkdir -p "$root/$d"
done
mkdir -p "$root"/{demeter,proc,sys,dev,tmp,run}
find "$root/dev" -mindepth 1 -delete
echo demeter >"$root/etc/hostname"
echo '127.0.0.1 localhost demeter' >"$root/etc/hosts"

say "guest-root: writing the image"
# Uncompressed and without inlined tails: only such files can be mapped with DAX.
mkfs.erofs --quiet -x-1 -T"$SOURCE_DATE_EPOCH" -U"$uuid" -Enoinline_data "$WORK/image" "$root" >>"$WORK/log" 2>&1 ||
	die "mkfs.erofs failed ($(tail -n 1 "$WORK/log"))" "check the free space and that erofs-utils is 1.5 or newer"
# virtio-pmem wants whole 2 MiB pages.
size=$(stat -c %s "$WORK/image")
truncate -s $(((size + 2097151) / 2097152 * 2097152)) "$WORK/image"
mv "$WORK/packages" "$CACHE/guest-root.packages"
mv "$WORK/image" "$CACHE/guest-root.erofs"
stamp_set guest-root "$key"
say "guest-root: $((size / 1048576)) MiB ready"
