#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: build-modules.sh 6.1|6.12|7.x|all [W=1] [C=1] [FORCE=1]
# Builds every folder with a Kbuild file under guest/ and core/tests/kernel/ for a
# guest kernel, out of a fresh copy of the sources, and puts the modules into
# build/modules/<release>/. Nothing is written beside the sources. Kernels whose
# sources have not changed are skipped. Warnings go to stderr.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

kernel=${1-}
shift || true
make_args=() force=
for a; do
	case $a in
	W=[123] | C=[12]) make_args+=("$a") ;;
	FORCE=1) force=1 ;;
	*) die "unknown argument '$a'" "build-modules.sh --help" ;;
	esac
done
case $kernel in
all)
	for k in 6.12 6.1 7.x; do
		"$0" "$k" ${make_args[@]+"${make_args[@]}"} ${force:+FORCE=1}
	done
	exit 0
	;;
6.1) suite=bookworm ;;
6.12 | 7.x) suite=trixie ;;
*) die "unknown kernel '$kernel'" "use 6.1, 6.12, 7.x or all" ;;
esac

release=$(cat "$CACHE/kernels/$kernel" 2>/dev/null) && [ -d "$CACHE/build-root-$suite" ] ||
	die "kernel $kernel is not in the cache" "run testbed/setup.sh"
need_root
root=$CACHE/build-root-$suite
project=$(dirname "$TESTBED_DIR")
out=$project/build/modules/$release
tree=$project/build/kbuild/$release

sources=()
for d in core uapi guest; do
	[ ! -d "$project/$d" ] || sources+=("$d")
done
source_key() {
	(cd "$project" && find "${sources[@]}" -type f \( -name '*.[chS]' -o -name 'Kbuild*' -o -name 'Makefile' -o -name '*.tbl' \) -print0 |
		sort -z | xargs -0 sha256sum)
	printf '%s\n' "$release" "${make_args[@]+"${make_args[@]}"}"
	sha256sum <"$0"
}
mkdir -p "$project/build"
exec 9>"$project/build/.modules-$release.lock"
flock 9
key=$(source_key | sha256sum | cut -c1-32)
if [ -z "$force" ] && [ "$(cat "$out/.sources" 2>/dev/null)" = "$key" ]; then
	exit 0
fi

rm -rf "$tree"
mkdir -p "$tree"
(cd "$project" && tar --exclude='*.o' --exclude='*.ko' --exclude='.*.cmd' --exclude='target' -cf - "${sources[@]}") | tar -C "$tree" -xf -
dirs=$(cd "$tree" && find guest core/tests -name Kbuild 2>/dev/null | sort | sed 's|/Kbuild$||')
[ -n "$dirs" ] || die "there is no Kbuild file under guest/ or core/tests/" "this checkout has no kernel modules yet"

# A mount namespace of its own: the copy appears as /src in the build root and
# every mount goes away with the process.
# shellcheck disable=SC2016 # expanded by the inner shell
inside='set -eu
	root=$1 tree=$2 release=$3 dir=$4
	shift 4
	mount --make-rprivate /
	mount --bind "$root" "$root"
	mount --bind "$tree" "$root/src"
	mount --bind /dev "$root/dev"
	mount -t proc proc "$root/proc"
	mount -t tmpfs tmp "$root/tmp"
	exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/root \
		KBUILD_BUILD_TIMESTAMP="2026-01-01" KBUILD_BUILD_USER=demeter KBUILD_BUILD_HOST=testbed \
		make -C "/lib/modules/$release/build" M="/src/$dir" -j "$(nproc)" "$@" modules'
for dir in $dirs; do
	say "$release: $dir"
	log=$tree/make.log
	if ! nice unshare -m bash -c "$inside" build "$root" "$tree" "$release" "$dir" \
		${make_args[@]+"${make_args[@]}"} >"$log" 2>&1; then
		sed "s|/src/||g" "$log" >&2
		die "$dir does not build for $release" "mend what the compiler says above"
	fi
	# Normal lines are commands ("  CC [M] ..."); BTF needs a vmlinux that no package has.
	grep -v -E '^ +(CC|LD|AR|MODPOST|BTF|CHECK|DESCEND|OBJCOPY|HOSTCC)|^make(\[|:)|Skipping BTF|warning: the compiler differs|The kernel was built by|You are using:|^$' "$log" |
		sed "s|/src/||g" >&2 || true
done
new=$out.new
rm -rf "$new"
mkdir -p "$new"
find "$tree" -name '*.ko' -exec cp -t "$new" {} +
echo "$key" >"$new/.sources"
publish "$new" "$out"
