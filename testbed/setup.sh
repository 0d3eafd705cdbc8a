#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: setup.sh [--check | --refresh]
# Makes everything the testbed needs, in $DEMETER_CACHE (default
# ~/.cache/demeter), and names what it installs on the host. What is there and
# up to date is left alone; then no network is needed.
#   --check    change nothing; say what is missing, exit 1 if anything is
#   --refresh  fetch new package lists first, so that components that are made
#              anew get today's versions
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

mode=${1-}
case $mode in
'' | --check | --refresh) ;;
*) die "unknown option '$mode'" "setup.sh --help" ;;
esac

# COMMAND=PACKAGE of this host: what set-up, build, lint and tests call.
host_tools="mmdebstrap=mmdebstrap mkfs.erofs=erofs-utils busybox=busybox-static cpio=cpio depmod=kmod xz=xz-utils zstd=zstd
	gcc=gcc g++=g++ make=make nm=binutils flock=util-linux git=git python3=python3 curl=curl
	clang-format=clang-format sparse=sparse shellcheck=shellcheck"
cargo_minor=90
kernels="6.12 6.1 7.x"
result=$CACHE/testbed.json

[ "$(uname -sm)" = "Linux x86_64" ] || die "this host is $(uname -sm)" "use an x86-64 Linux host"
key=$(cd "$TESTBED_DIR" && cat setup.sh lib.sh qemu.sh kernels.sh build-root.sh guest-root.sh initrd.sh initrd/init.c ../guest/compat/known_kernels.h |
	sha256sum | cut -c1-32)

# Edition 2024 and the dependencies want this; Debian 12's plain cargo is older.
cargo_is_new() {
	local cargo version
	cargo=$(command -v cargo || echo "$HOME/.cargo/bin/cargo")
	version=$("$cargo" --version 2>/dev/null | sed -n 's/^cargo \([0-9]*\.[0-9]*\).*/\1/p')
	[ -n "$version" ] && [ "${version%.*}" -ge 1 ] && [ "${version#*.}" -ge "$cargo_minor" ]
}

host_missing() {
	local t
	for t in $host_tools; do
		command -v "${t%%=*}" >/dev/null 2>&1 || printf '%s ' "${t#*=}"
	done
	ldd "$(command -v busybox)" >/dev/null 2>&1 && printf 'busybox-static '
	cargo_is_new || printf 'rustc-web cargo-web '
	return 0
}

missing=$(host_missing)
complete=
if [ -z "$missing" ] && stamp_ok setup "$key" && [ -f "$result" ]; then
	complete=1
fi
if [ "$mode" = --check ]; then
	[ -z "$missing" ] || say "missing on this host: $missing"
	if [ -n "$complete" ]; then
		say "complete: $result"
		exit 0
	fi
	say "incomplete; next: testbed/setup.sh"
	exit 1
fi
if [ -n "$complete" ] && [ "$mode" != --refresh ]; then
	say "up to date: $result"
	exit 0
fi

need_root
mkdir -p "$CACHE" 2>/dev/null || die "cannot create $CACHE" "set DEMETER_CACHE to a writable folder"
exec 9>"$CACHE/setup.lock"
flock -n 9 || {
	say "another set-up is running, waiting for it"
	flock 9
	[ "$mode" = --refresh ] || exec "$0" # it may have done all there is to do
}
started=$(date +%s)

if [ -n "$missing" ]; then
	say "installing on this host: $missing"
	# shellcheck disable=SC2086 # a word list
	DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $missing >"$CACHE/host-apt.log" 2>&1 || {
		apt-get -q update >>"$CACHE/host-apt.log" 2>&1 || true
		DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $missing >>"$CACHE/host-apt.log" 2>&1 ||
			die "apt-get cannot install: $missing($(grep -E '^E:' "$CACHE/host-apt.log" | tail -n 1))" \
				"check the network and the apt configuration; log: $CACHE/host-apt.log"
	}
fi
case " $missing" in
*cargo-web*)
	say "no cargo 1.$cargo_minor or newer was found: installed Debian's rustc-web and cargo-web"
	cargo_is_new || die "cargo-web is older than 1.$cargo_minor" "install a newer cargo, for example with rustup"
	;;
esac
if [ ! -f "$result" ]; then
	need_space 3500
else
	need_space 1500
fi

if [ "$mode" = --refresh ]; then
	apt_state refresh
	rm -f "$CACHE"/stamps/{kernel-*,build-root-*,qemu,guest-root}
else
	apt_state keep
fi

# Downloads take turns, unpacking does not wait for them: one job each.
jobs=()
job() { # job COMMAND...
	bash "$TESTBED_DIR/$1" "${@:2}" &
	jobs+=($!)
}
trap 'kill "${jobs[@]}" 2>/dev/null; wait; exit 130' INT TERM
job build-root.sh trixie
job qemu.sh
job guest-root.sh
for k in $kernels; do
	job kernels.sh "$k"
done
job build-root.sh bookworm
failed=0
for j in "${jobs[@]}"; do
	wait "$j" || failed=1
done
[ $failed = 0 ] || die "a component failed, see above ($(df -Pm "$CACHE" | awk 'NR==2 {print $4}') MiB are free)" "mend that and run testbed/setup.sh again; what is done is kept"
for k in $kernels; do
	bash "$TESTBED_DIR/initrd.sh" "$k"
done

{
	printf '{"format":1,"qemu":%s,\n "kernels":[' "$(cat "$CACHE/qemu.json")"
	sep=
	for k in $kernels; do
		r=$(cat "$CACHE/kernels/$k")
		case $k in 6.1) root=bookworm ;; *) root=trixie ;; esac
		printf '%s\n  {"name":"%s","release":"%s","vmlinuz":"%s","vmlinux":"%s","initrd_base":"%s","build_root":"%s"}' "$sep" "$k" "$r" \
			"$CACHE/kernels/$r/vmlinuz" "$CACHE/kernels/$r/vmlinux" "$CACHE/initrd-base-$r.cpio" "$CACHE/build-root-$root"
		sep=,
	done
	printf '],\n "guest_root":"%s",\n "guest_root_packages":{' "$CACHE/guest-root.erofs"
	awk '{printf "%s\"%s\":\"%s\"", sep, $1, $2; sep=","}' "$CACHE/guest-root.packages"
	printf '}}\n'
} >"$result.new"
mv "$result.new" "$result"
# Kernels of an earlier refresh.
for d in "$CACHE"/kernels/*/; do
	r=$(basename "$d")
	grep -q "\"$r\"" "$result" || rm -rf "$d" "$CACHE/initrd-base-$r.cpio" "$CACHE/stamps/initrd-base-$r"
done
stamp_set setup "$key"
say "ready in $(($(date +%s) - started)) s, $(du -sm "$CACHE" | cut -f1) MiB: $result"
