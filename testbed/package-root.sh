#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: package-root.sh
# Makes package-root in the cache: Debian 13 as it is installed, with systemd, DKMS, a kernel
# and its headers, for tests that install the project's packages. Some 1.2 GB.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

packages="systemd-sysv,dbus,kmod,udev,apt,dkms,gcc,make,linux-image-amd64,linux-headers-amd64,procps,bash-completion"
name=package-root
key=$(stamp_key "$0" -- "$TESTBED_LAYOUT" "$(cat "$APT_DIR/updated" 2>/dev/null)")
if stamp_ok "$name" "$key" && [ -d "$CACHE/$name" ]; then
	exit 0
fi
need_root
need_space 4000
apt_state keep
work_dir "$name"
say "$name: installing Debian 13 with ${packages//,/ }"
mkdir "$WORK/root"
# mmdebstrap runs an apt of its own: give it the proxy settings of this host.
apt-config dump | grep -E '^Acquire::(http|https|ftp)::Proxy|^Acquire::Check-' >"$WORK/apt.conf" || true
mmdebstrap --quiet --variant=minbase --mode=root --format=directory --include="$packages" \
	--aptopt="$WORK/apt.conf" --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
	--dpkgopt=force-unsafe-io trixie "$WORK/root" "$APT_DIR/trixie.list" >"$WORK/log" 2>&1 ||
	die "mmdebstrap failed ($(grep -m1 -E '^E:' "$WORK/log" || tail -n 1 "$WORK/log"))" \
		"check the network and the free space, then try again"
echo demeter >"$WORK/root/etc/hostname"
publish "$WORK/root" "$CACHE/$name"
stamp_set "$name" "$key"
say "$name: ready"
