#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: kernels.sh 6.1|6.12|7.x
# Puts one stock Debian kernel into the cache: kernels/<release>/vmlinuz, vmlinux (the
# same kernel decompressed) and, in kernels/<release>/modules/, the few modules the guest
# needs, decompressed, with load-order (dependencies first). Writes kernels/<name> = the
# release.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

kernel=${1-}
case $kernel in
6.1) suite=bookworm ;;
6.12) suite=trixie ;;
7.x) suite=trixie-backports ;;
*) die "unknown kernel '$kernel'" "use 6.1, 6.12 or 7.x" ;;
esac

# Loaded at boot, in this order where dependencies leave a choice. Some are built
# in on some kernels; crc32c is asked for by name, so no dependency leads to it.
boot_modules="virtio_pci crc32c_generic virtio_pmem nd_pmem erofs overlay"
# At hand for runs that ask for them.
spare_modules="virtio_balloon virtio_mem zram msr"
# The parts of the package that can hold them and what they depend on.
trees="drivers/virtio drivers/nvdimm drivers/dax drivers/block/zram drivers/net/net_failover* net/core
	fs/erofs fs/overlayfs fs/netfs fs/fscache fs/cachefiles lib crypto mm arch/x86/crypto arch/x86/kernel arch/x86/lib"

name=kernel-$kernel
key=$(stamp_key "$0" -- "$TESTBED_LAYOUT" "$(known_series)")
if stamp_ok "$name" "$key" && [ -f "$CACHE/kernels/$(cat "$CACHE/kernels/$kernel" 2>/dev/null)/vmlinux" ]; then
	exit 0
fi
apt_state keep
release=$(kernel_release "$suite")
image=linux-image-$release
list=$suite
[ "$suite" != trixie-backports ] || list=trixie+backports
v=$(apt_newest "$suite" "$image")
apt_fetch "$name" "$list" "kmod initramfs-tools linux-base linux-base-amd64=$v" "$image"

work_dir "$name"
say "$name: unpacking $release"
patterns=()
for t in $trees; do
	patterns+=("*/modules/$release/kernel/$t")
done
while read -r deb; do
	dpkg-deb --fsys-tarfile "$deb" |
		tar -C "$WORK" -xf - --wildcards "./boot/vmlinuz-*" "./boot/config-*" \
			"*/modules/$release/modules.*" "*/modules/$release/vmlinuz" "*/modules/$release/config" "${patterns[@]}" 2>"$WORK/tar.log" || {
		# tar fails when one pattern matches nothing, which is usual; anything else is real.
		! grep -v -e 'Not found in archive' -e 'Exiting with failure' "$WORK/tar.log" >"$WORK/tar.errors" ||
			die "unpacking $deb failed ($(head -n 1 "$WORK/tar.errors"))" "check the free disk space, then run testbed/setup.sh again"
	}
done <"$APT_DIR/$name.debs"
[ ! -d "$WORK/usr/lib/modules" ] || { mkdir -p "$WORK/lib" && mv "$WORK/usr/lib/modules" "$WORK/lib/"; }
out=$WORK/out
mkdir -p "$out/modules"
# /boot up to 6.12, beside the modules from 7.x on
for f in vmlinuz config; do
	if [ -f "$WORK/boot/$f-$release" ]; then
		mv "$WORK/boot/$f-$release" "$out/$f"
	else
		mv "$WORK/lib/modules/$release/$f" "$out/$f" ||
			die "package $image holds no $f" "its layout has changed; adapt $0"
	fi
done
# A guest under TCG needs more than a second to decompress its kernel, each time. QEMU
# starts an ELF file with a PVH note as it is: take it out of the bzImage once, as the
# boot protocol (Documentation/arch/x86/boot.rst) says where it lies.
grep -qx CONFIG_PVH=y "$out/config" || die "kernel $release has no PVH entry" "QEMU cannot start it decompressed; report it"
number() { # number OFFSET BYTES: little-endian, in the bzImage
	od -An -v -t "u$2" -j "$1" -N "$2" "$out/vmlinuz" | tr -d ' '
}
payload=$((($(number 0x1f1 1) + 1) * 512 + $(number 0x248 4)))
bytes=$(($(number 0x24c 4) - 4)) # the size of what comes out follows it
case $(number "$payload" 4) in
4247762216) unpack="zstd -qdc" ;;
1484404733) unpack="xz -dc" ;;
*) die "the compression of kernel $release is unknown" "adapt $0" ;;
esac
head -c $((payload + bytes)) "$out/vmlinuz" | tail -c "$bytes" | $unpack >"$WORK/vmlinux" ||
	die "kernel $release cannot be decompressed" "check the free disk space, then run testbed/setup.sh again"
cp --sparse=always "$WORK/vmlinux" "$out/vmlinux"
depmod -b "$WORK" "$release" 2>"$WORK/depmod.log" ||
	die "depmod failed for $release ($(head -n 1 "$WORK/depmod.log"))" "check the free disk space, then run testbed/setup.sh again"

# collect MODULE...: copy with everything below it, dependencies first
collect() {
	local m verb path base
	for m; do
		# An unknown name is fine here: what must exist is checked below.
		{ modprobe -d "$WORK" -S "$release" --show-depends "$m" 2>/dev/null || true; } |
			while read -r verb path _; do
				[ "$verb" = insmod ] || continue
				base=${path##*/}
				base=${base%%.ko*}.ko
				[ ! -f "$out/modules/$base" ] || continue
				case $path in
				*.xz) xz -dc "$path" ;;
				*.zst) zstd -qdc "$path" ;;
				*) cat "$path" ;;
				esac >"$out/modules/$base"
				echo "$base"
			done
	done
}
# shellcheck disable=SC2086 # word lists
{
	collect $boot_modules >"$out/modules/load-order"
	collect $spare_modules >/dev/null
}
for m in virtio_pmem nd_pmem erofs overlay; do
	[ -f "$out/modules/$m.ko" ] || grep -q "/$m\.ko" "$WORK/lib/modules/$release/modules.builtin" ||
		die "kernel $release has no module $m" "this kernel cannot mount the guest root; report it"
done
mkdir -p "$CACHE/kernels"
publish "$out" "$CACHE/kernels/$release"
echo "$release" >"$CACHE/kernels/$kernel"
stamp_set "$name" "$key"
say "$name: $release ready"
