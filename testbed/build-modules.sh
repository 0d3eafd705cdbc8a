#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: build-modules.sh 6.1|6.12|7.x|all [W=1] [C=1] [FORCE=1] [DIR=guest/tests]
# Builds every folder with a Kbuild file under guest/ and core/tests/kernel/ for a
# guest kernel, out of a fresh copy of the sources, and puts the modules into
# build/modules/<release>/. Nothing is written beside the sources. Kernels whose
# sources have not changed are skipped. Warnings go to stderr; with W= or C= (the
# lint build) they also make the exit status 1. DIR builds that folder only (or
# the one above it that holds its Kbuild file).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

kernel=${1-}
shift || true
make_args=() force='' only=''
for a; do
	case $a in
	W=[123] | C=[12]) make_args+=("$a") ;;
	FORCE=1) force=1 ;;
	DIR=*) only=${a#DIR=} ;;
	*) die "unknown argument '$a'" "build-modules.sh --help" ;;
	esac
done
case $kernel in
all)
	rc=0
	for k in 6.12 6.1 7.x; do
		"$0" "$k" ${make_args[@]+"${make_args[@]}"} ${force:+FORCE=1} ${only:+"DIR=$only"} || rc=1
	done
	exit $rc
	;;
6.1) suite=bookworm ;;
6.12 | 7.x) suite=trixie ;;
*) die "unknown kernel '$kernel'" "use 6.1, 6.12, 7.x or all" ;;
esac

if ! release=$(cat "$CACHE/kernels/$kernel" 2>/dev/null) || [ ! -d "$CACHE/build-root-$suite" ]; then
	die "kernel $kernel is not in the cache" "run testbed/setup.sh"
fi
need_root
root=$CACHE/build-root-$suite
exec 7>>"$CACHE/build-root-$suite.lock"
flock -s 7
project=$(dirname "$TESTBED_DIR")
out=$project/build/modules/$release
tree=$project/build/kbuild/$release

sources=()
for d in core uapi guest; do
	[ ! -d "$project/$d" ] || sources+=("$d")
done
source_key() {
	(cd "$project" && find "${sources[@]}" -type f \( -name '*.[chS]' -o -name '*.inc' -o -name 'Kbuild*' -o -name 'Makefile' -o -name '*.tbl' \) -print0 |
		sort -z | xargs -0 sha256sum)
	echo "$release"
	sha256sum <"$0"
}
mkdir -p "$project/build"
exec 9>"$project/build/.modules-$release.lock"
flock 9
key=$(source_key | sha256sum | cut -c1-32)
# One stamp a kind of build: one with more checks also serves as one with fewer, not the reverse.
stamp() { echo "$out/.sources${*:+-}$(printf '%s' "$@")"; }
is_built() { [ "$(cat "$1" 2>/dev/null)" = "$key" ]; }
lint_stamp=$(stamp ${make_args[@]+"${make_args[@]}"})
if [ -z "$force" ]; then
	! is_built "$lint_stamp" || exit 0
	[ "${make_args[*]-}" != W=1 ] || ! is_built "$(stamp W=1 C=1)" || exit 0
fi

rm -rf "$tree"
mkdir -p "$tree"
(cd "$project" && tar --exclude='*.o' --exclude='*.ko' --exclude='.*.cmd' --exclude='target' -cf - "${sources[@]}") | tar -C "$tree" -xf -
if [ -n "$only" ]; then
	while [ ! -f "$tree/$only/Kbuild" ]; do
		case $only in
		*/*) only=${only%/*} ;;
		*) die "there is no Kbuild file in that folder or above it" "name a folder of modules, for example guest/tests" ;;
		esac
	done
	dirs=$only
else
	# A folder below another one with a Kbuild file belongs to that one if it says so.
	dirs=$(cd "$tree" && find guest core/tests -name Kbuild 2>/dev/null | sed 's|/Kbuild$||' | sort |
		while read -r d; do
			up=$(dirname "$d")
			grep -qs "$(basename "$d")/" "$up/Kbuild" || echo "$d"
		done)
fi
[ -n "$dirs" ] || die "there is no Kbuild file under guest/ or core/tests/" "this checkout has no kernel modules yet"

# A mount namespace of its own: the copy appears as /src in the build root and
# every mount goes away with the process.
# shellcheck disable=SC2016 # expanded by the inner shell
inside='set -eu
	root=$1 tree=$2 release=$3 dir=$4
	shift 4
	mount --make-rprivate /
	mount --bind "$root" "$root"
	mount --bind "$tree" "$root/demeter"
	mount --bind /dev "$root/dev"
	mount -t proc proc "$root/proc"
	mount -t tmpfs tmp "$root/tmp"
	exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/root \
		KBUILD_BUILD_TIMESTAMP="2026-01-01" KBUILD_BUILD_USER=demeter KBUILD_BUILD_HOST=testbed \
		make -C "/lib/modules/$release/build" M="/demeter/$dir" -j "$(nproc)" "$@" modules'
# take FOLDER: the modules as a machine has them. What debuggers read is ten times as much,
# stays in build/kbuild and would lie in a small guest's FMEM.
take() {
	find "$tree" -name '*.ko' -exec cp -t "$1" {} +
	find "$1" -name '*.ko' -exec strip --strip-debug {} +
}
# quiet LOG: without the lines of a build that goes well. BTF needs a vmlinux that
# no package has.
quiet() {
	grep -v -E '^ +(AS|CC|LD|AR|MODPOST|BTF|CHECK|DESCEND|OBJCOPY|HOSTCC)|^make(\[|:).*(Entering|Leaving)|Skipping BTF|^$' "$1" |
		sed 's|/demeter/||g' >&2 || true
}
warned='' failed=''
for dir in $dirs; do
	say "$release: $dir"
	log=$tree/make.log
	nice unshare -m bash -c "$inside" build "$root" "$tree" "$release" "$dir" \
		${make_args[@]+"${make_args[@]}"} >"$log" 2>&1 || failed="$failed $dir"
	! grep -q 'warning: ' "$log" || warned="$warned $dir"
	quiet "$log"
done
[ -z "$failed" ] || die "these do not build for $release:$failed" "mend what the compiler says above"
if [ -n "$only" ]; then
	mkdir -p "$out"
	rm -f "$out"/.sources*
	take "$out"
else
	new=$out.new
	rm -rf "$new"
	mkdir -p "$new"
	take "$new"
	# A lint build with warnings is not remembered, so that it says so again.
	echo "$key" >"$new/.sources"
	[ -n "$warned" ] || echo "$key" >"$new/${lint_stamp##*/}"
	publish "$new" "$out"
fi
if [ -n "$warned" ] && [ ${#make_args[@]} -gt 0 ]; then
	die "the lint build for $release has warnings in:$warned" "mend what the compiler says above"
fi
