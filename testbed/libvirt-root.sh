#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: libvirt-root.sh
# Makes libvirt-root in the cache: Debian 13 with its libvirt, and the QEMU of backports that the
# testbed has, for the test that starts a guest as libvirt's users do. Some 0.6 GB.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

packages="libvirt-daemon,libvirt-daemon-driver-qemu,libvirt-clients,qemu-system-x86"
name=libvirt-root
key=$(stamp_key "$0" -- "$TESTBED_LAYOUT" "$(cat "$APT_DIR/updated" 2>/dev/null)")
if stamp_ok "$name" "$key" && [ -d "$CACHE/$name" ]; then
	exit 0
fi
need_root
need_space 2500
apt_state keep
work_dir "$name"
say "$name: installing Debian 13 with ${packages//,/ }"
mkdir "$WORK/root"
# mmdebstrap runs an apt of its own: give it the proxy settings of this host.
apt-config dump | grep -E '^Acquire::(http|https|ftp)::Proxy|^Acquire::Check-' >"$WORK/apt.conf" || true
# What QEMU needs of backports comes from there as well.
# apt reads no list with a plus in its name.
cp "$APT_DIR/trixie+backports.list" "$WORK/mirrors.list"
cat >"$WORK/preferences" <<'PIN'
Package: qemu-* seabios
Pin: release n=trixie-backports
Pin-Priority: 900
PIN
mmdebstrap --quiet --variant=minbase --mode=root --format=directory --include="$packages" \
	--setup-hook="mkdir -p \"\$1/etc/apt/preferences.d\" && cp '$WORK/preferences' \"\$1/etc/apt/preferences.d/qemu\"" \
	--aptopt="$WORK/apt.conf" --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
	--dpkgopt=force-unsafe-io trixie "$WORK/root" "$WORK/mirrors.list" >"$WORK/log" 2>&1 ||
	die "mmdebstrap failed ($(grep -m1 -E '^E:' "$WORK/log" || tail -n 1 "$WORK/log"))" \
		"check the network and the free space, then try again"
rm -rf "$WORK"/root/var/cache/apt/archives/*.deb "$WORK"/root/usr/share/{doc,man,locale}
publish "$WORK/root" "$CACHE/$name"
stamp_set "$name" "$key"
say "$name: ready"
