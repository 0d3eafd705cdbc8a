#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: debug-kernel.sh [--jobs N]
# Builds a kernel that tells on us: Debian's own source of the testbed's 6.12, a small
# configuration (debug-kernel.config) with KASAN, lockdep, DEBUG_VM, DEBUG_ATOMIC_SLEEP,
# UBSAN. What comes out, $DEMETER_CACHE/debug, is a cache of the testbed with this one
# kernel in it: with DEMETER_CACHE set to it, every script and the command `demeter` run
# on it as they are (kernel 6.12). What is there and up to date is left alone; a build that
# was interrupted goes on where it was.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

jobs=$(nproc)
case ${1-} in
'') ;;
--jobs) jobs=${2-} ;;
*) die "unknown option '$1'" "debug-kernel.sh --help" ;;
esac
[[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs takes a number" "debug-kernel.sh --help"

name=debug-kernel
bed=$CACHE
fragment=$TESTBED_DIR/debug-kernel.config
# What a kernel build wants beyond build-root.sh's tools.
tools="make gcc libc6-dev flex bison bc libelf-dev bash dash coreutils sed grep mawk findutils diffutils gzip
	xz-utils cpio perl libc-bin base-files patch"
pretend="libasan8 liblsan0 libtsan2 libubsan1 libhwasan0 libgprofng0 libitm1 libquadmath0 libcc1-0
	debconf init-system-helpers"

need_root
stock=$(cat "$bed/kernels/6.12" 2>/dev/null || true)
if [ -z "$stock" ] || [ ! -f "$bed/testbed.json" ]; then
	die "kernel 6.12 is not in the cache" "run testbed/setup.sh"
fi
version=$(deb_version kernel-6.12 "linux-image-$stock")
[ -n "$version" ] || die "the version of the package of $stock is not known" "run testbed/setup.sh --refresh"
release=${stock%%+*}-debug

# From here on the cache is the one of this kernel; packages come from where all do.
CACHE=$bed/debug
root=$CACHE/build-root-trixie
source=/usr/src/linux-debug build=/usr/src/linux-debug-build
mkdir -p "$CACHE" 2>/dev/null || die "cannot create $CACHE" "set DEMETER_CACHE to a writable folder"
exec 7>>"$CACHE/build-root-trixie.lock"
flock -n 7 || {
	say "$name: another build is running, waiting for it"
	flock 7
}

# inside COMMAND...: in the build root, with the mounts that a build needs.
inside() {
	# shellcheck disable=SC2016 # expanded by the inner shell
	unshare -m bash -c 'set -eu
		root=$1
		shift
		mount --make-rprivate /
		mount --bind "$root" "$root"
		mount --bind /dev "$root/dev"
		mount -t proc proc "$root/proc"
		mount -t tmpfs tmp "$root/tmp"
		exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/root \
			KBUILD_BUILD_TIMESTAMP="2026-01-01" KBUILD_BUILD_USER=demeter KBUILD_BUILD_HOST=testbed "$@"' \
		inside "$root" "$@"
}

# ---- compiler and source ---------------------------------------------------

# Not of this script: a kernel is not to be built anew for a word in it. Raise the last
# number when a change here makes what is in the cache wrong.
root_key=$(stamp_key -- "$TESTBED_LAYOUT" "$version" "$tools $pretend" 2)
if ! stamp_ok build-root "$root_key" || [ ! -d "$root$source" ]; then
	need_space 4000
	apt_state keep
	apt_fetch debug-source trixie "binutils xz-utils" "linux-source-6.12=$version"
	# shellcheck disable=SC2086 # a word list
	apt_fetch debug-build-root trixie "$pretend" $tools
	work_dir build-root
	say "$name: unpacking the compiler"
	deb_unpack "$WORK" <"$APT_DIR/debug-build-root.debs"
	ln -sf mawk "$WORK/usr/bin/awk"
	mkdir -p "$WORK"/{dev,proc,tmp,demeter,root} "$WORK$source" "$WORK$build"
	say "$name: unpacking the source of $version"
	# The code of other machines and of devices that no guest has is two thirds of it.
	exclude=()
	for d in gpu net media staging infiniband scsi usb iio hwmon pinctrl clk; do
		exclude+=("--exclude=*/drivers/$d/*/*.[chS]")
	done
	for d in 'sound/*.[chS]' 'Documentation/*.rst' 'Documentation/*.yaml' 'Documentation/*.txt' 'tools/perf/*' 'tools/testing/*' \
		'arch/[a-wyz]*/*.[chS]' 'arch/[a-wyz]*/*.dts*'; do
		exclude+=("--exclude=linux-source-6.12/$d")
	done
	dpkg-deb --fsys-tarfile "$APT_DIR/archives/linux-source-6.12_${version}_all.deb" |
		tar -xO ./usr/src/linux-source-6.12.tar.xz | xz -dc -T 0 |
		tar -C "$WORK$source" --strip-components=1 "${exclude[@]}" -xf - ||
		die "the source cannot be unpacked" "check the free disk space, then run testbed/debug-kernel.sh again"
	mkdir -p "$WORK/lib/modules/$release"
	ln -sfn "$build" "$WORK/lib/modules/$release/build"
	chroot "$WORK" /bin/sh -c 'gcc --version >/dev/null && make --version >/dev/null && flex --version >/dev/null && bison --version >/dev/null' ||
		die "the compiler in $WORK does not start" "report it with the output above"
	publish "$WORK" "$root"
	stamp_set build-root "$root_key"
fi

# ---- configuration ---------------------------------------------------------

kernel_key=$(stamp_key "$fragment" -- "$root_key" 1)
out=$CACHE/kernels/$release
if ! stamp_ok kernel "$kernel_key" || [ ! -f "$out/vmlinuz" ]; then
	log=$CACHE/build.log
	cp "$fragment" "$root$build/fragment"
	inside make -C "$source" "O=$build" KCONFIG_ALLCONFIG="$build/fragment" allnoconfig >"$log" 2>&1 ||
		die "the configuration cannot be made ($(tail -n 1 "$log"))" "read $log"
	# An option that went away, or whose conditions are not met, is silently off.
	lost=$(grep -E '^CONFIG_' "$fragment" | grep -vxFf "$root$build/.config" | tr '\n' ' ' || true)
	[ -z "$lost" ] || die "the kernel does not take these options: $lost" "mend testbed/debug-kernel.config"

	say "$name: building $release with $jobs jobs, in some ten to forty minutes; log: $log"
	started=$(date +%s)
	inside nice -n 19 make -C "$source" "O=$build" -j "$jobs" bzImage modules >>"$log" 2>&1 ||
		die "the kernel does not build ($(grep -m 1 -E 'error|Error' "$log" || tail -n 1 "$log"))" \
			"read $log, then run testbed/debug-kernel.sh again: what is built stays"
	say "$name: built in $(($(date +%s) - started)) s"

	new=$CACHE/tmp/$release
	rm -rf "$new"
	mkdir -p "$new/modules"
	cp "$root$build/.config" "$new/config"
	# No vmlinux: its PVH entry compares strings before there is memory for KASAN, and dies.
	cp "$root$build/arch/x86/boot/bzImage" "$new/vmlinuz"
	: >"$new/modules/load-order" # what guests need is built in
	rm -rf "$CACHE/kernels" "$CACHE"/initrd-base-*.cpio # of an earlier release
	mkdir -p "$CACHE/kernels"
	publish "$new" "$out"
	echo "$release" >"$CACHE/kernels/6.12"
	stamp_set kernel "$kernel_key"
fi
exec 7>&-

# ---- the rest of a cache: what the testbed has -----------------------------

DEMETER_CACHE=$CACHE "$TESTBED_DIR/initrd.sh" 6.12
for f in qemu.json lab-venv guest-root.erofs; do
	ln -sfn "$bed/$f" "$CACHE/$f"
done
python3 - "$bed/testbed.json" "$CACHE" "$release" <<'PY'
import json, os, sys

bed, cache, release = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
bed["kernels"] = [
    {
        "name": "6.12",
        "release": release,
        "vmlinuz": f"{cache}/kernels/{release}/vmlinuz",
        "initrd_base": f"{cache}/initrd-base-{release}.cpio",
        "build_root": f"{cache}/build-root-trixie",
    }
]
with open(f"{cache}/testbed.json.new", "w") as out:
    json.dump(bed, out, indent=1)
os.replace(f"{cache}/testbed.json.new", f"{cache}/testbed.json")
PY
say "$name: $release is ready: DEMETER_CACHE=$CACHE"
