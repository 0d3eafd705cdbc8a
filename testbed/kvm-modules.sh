#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: kvm-modules.sh 6.1|6.12|7.x
# Makes kvm-modules/<release>/ in the cache: the modules with which a guest of the
# testbed can host guests itself (QEMU emulates AMD's SVM), decompressed, with
# load-order (dependencies first). They come out of the kernel's package, which
# kernels.sh has downloaded; guests that host nobody are spared them.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

kernel=${1-}
release=$(cat "$CACHE/kernels/$kernel" 2>/dev/null) ||
	die "kernel '$kernel' is not in the cache" "run testbed/setup.sh"
name=kvm-modules-$kernel
exec 9>"$CACHE/$name.lock"
flock 9
key=$(stamp_key "$0" -- "$TESTBED_LAYOUT" "$release")
out=$CACHE/kvm-modules/$release
if stamp_ok "$name" "$key" && [ -f "$out/load-order" ]; then
	exit 0
fi
work_dir "$name"
while read -r deb; do
	[ -f "$deb" ] || die "$deb is gone" "run testbed/setup.sh --refresh, which downloads it again"
	# The package of the image alone has no modules from 7.x on: tar then matches nothing.
	dpkg-deb --fsys-tarfile "$deb" | tar -C "$WORK" -xf - --wildcards "*/modules/$release/modules.*" \
		"*/modules/$release/kernel/arch/x86/kvm" "*/modules/$release/kernel/virt" \
		"*/modules/$release/kernel/drivers/crypto/ccp" \
		"*/modules/$release/kernel/drivers/char/hw_random" 2>>"$WORK/tar.log" || true
done <"$APT_DIR/kernel-$kernel.debs"
[ ! -d "$WORK/usr/lib/modules" ] || { mkdir -p "$WORK/lib" && mv "$WORK/usr/lib/modules" "$WORK/lib/"; }
depmod -b "$WORK" "$release" 2>"$WORK/depmod.log" ||
	die "depmod failed for $release ($(head -n 1 "$WORK/depmod.log"))" "check the free disk space, then try again"
mkdir -p "$WORK/out"
modprobe -d "$WORK" -S "$release" --show-depends kvm_amd >"$WORK/depends" 2>&1 ||
	die "kernel $release has no module kvm_amd ($(head -n 1 "$WORK/depends"))" "its package has changed; adapt $0"
while read -r verb path _; do
	[ "$verb" = insmod ] || continue
	base=${path##*/}
	base=${base%%.ko*}.ko
	case $path in
	*.xz) xz -dc "$path" ;;
	*.zst) zstd -qdc "$path" ;;
	*) cat "$path" ;;
	esac >"$WORK/out/$base"
	strip --strip-debug "$WORK/out/$base"
	echo "$base" >>"$WORK/out/load-order"
done <"$WORK/depends"
mkdir -p "$CACHE/kvm-modules"
publish "$WORK/out" "$out"
stamp_set "$name" "$key"
say "$name: $(tr '\n' ' ' <"$out/load-order")ready"
