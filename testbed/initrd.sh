#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: initrd.sh 6.1|6.12|7.x
# Makes initrd-base-<release>.cpio in the cache: initrd/init.c compiled, the boot modules
# of that kernel, and busybox for guests that bring an init script of their own (the
# balloon's tests). The run's own archive is appended to it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

kernel=${1-}
release=$(cat "$CACHE/kernels/$kernel" 2>/dev/null) ||
	die "kernel '$kernel' is not in the cache" "run testbed/kernels.sh $kernel"
busybox=$(command -v busybox) || die "busybox is missing" "apt-get install busybox-static"
! ldd "$busybox" >/dev/null 2>&1 || die "$busybox is not static" "apt-get install busybox-static"

name=initrd-base-$release
key=$(stamp_key "$0" "$TESTBED_DIR/initrd/init.c" "$busybox" "$CACHE/kernels/$release/modules/load-order")
if stamp_ok "$name" "$key" && [ -f "$CACHE/$name.cpio" ]; then
	exit 0
fi
work_dir "$name"
tree=$WORK/tree
mkdir -p "$tree"/{bin,modules,dev}
cp "$busybox" "$tree/bin/busybox"
ln -s busybox "$tree/bin/sh"
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -s -Wl,--build-id=none -o "$tree/init" "$TESTBED_DIR/initrd/init.c" ||
	die "initrd/init.c cannot be compiled statically" "apt-get install libc6-dev, or see the compiler's words above"
modules=$CACHE/kernels/$release/modules
cp "$modules/load-order" "$tree/modules/"
# Without type information, which nobody reads here, and so without the signature that
# follows the module: guests load no certificate to check it with (vm/qemu.rs).
while read -r m; do
	strip --strip-debug --remove-section=.BTF -o "$tree/modules/$m" "$modules/$m"
done <"$modules/load-order"
find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
(cd "$tree" && find . -print0 | sort -z |
	cpio -0 --quiet -o -H newc -R 0:0 --reproducible --device-independent) >"$WORK/out.cpio"
mv "$WORK/out.cpio" "$CACHE/$name.cpio"
stamp_set "$name" "$key"
say "$name: ready"
