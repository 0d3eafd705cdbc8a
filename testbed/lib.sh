# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# What every testbed script needs: the cache path, messages, and Debian
# packages fetched and unpacked without installing them on the host.
# Sourced, never run.
# shellcheck disable=SC2034 # the variables are for those who source it

TESTBED_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${DEMETER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/demeter}
APT_DIR=$CACHE/apt
DEBIAN_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# Every image takes this as its only time, so that equal packages give equal bytes.
export SOURCE_DATE_EPOCH=1767225600
export LC_ALL=C
# Suites that the components choose from. A component names a subset, so that
# "the newest kernel of trixie" cannot silently become the one of backports.
TESTBED_LAYOUT=1 # raise it when a change here makes what is in the cache wrong
SUITES="bookworm trixie trixie-backports"

say() { printf 'testbed: %s\n' "$*" >&2; }

# die CAUSE NEXT-STEP: one line, then out.
die() {
	printf 'testbed: error: %s; next: %s\n' "$1" "$2" >&2
	exit 1
}

# Anything that fails without a message of its own gets one here.
on_err() {
	local free
	free=$(df -Pm "$CACHE" 2>/dev/null | awk 'NR==2 {print $4}') || true
	[ "$BASH_SUBSHELL" != 0 ] || printf 'testbed: error: %s failed at line %s (%s MiB free in %s); next: check the free space, then try again\n' \
		"${0##*/}" "$1" "${free:-0}" "$CACHE" >&2
}
set -E
trap 'on_err $LINENO' ERR

usage_check() { # usage_check "$@": answer --help with the header comment of the script
	case ${1-} in
	-h | --help)
		sed -n '/^# usage:/,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
		exit 0
		;;
	esac
}

need_root() {
	[ "$(id -u)" = 0 ] || die "root is needed (chroot, device nodes, package installation)" \
		"run it as root, for example: sudo make setup"
}

# need_space MIB: refuse before anything is written, not in the middle.
need_space() {
	local have
	mkdir -p "$CACHE" 2>/dev/null || die "cannot create $CACHE" "set DEMETER_CACHE to a writable folder"
	have=$(df -Pm "$CACHE" | awk 'NR==2 {print $4}')
	[ "$have" -ge "$1" ] || die "$CACHE has ${have} MiB free, ${1} MiB are needed" \
		"free some space or set DEMETER_CACHE to a larger disk"
}

# stamp_key FILE... -- WORD...: a hash of what defines a component.
stamp_key() {
	local f
	{
		while [ $# -gt 0 ] && [ "$1" != -- ]; do
			f=$1
			cat "$f"
			shift
		done
		printf '%s\n' "$@"
	} | sha256sum | cut -c1-32
}

stamp_ok() { # stamp_ok NAME KEY
	[ -f "$CACHE/stamps/$1" ] && [ "$(cat "$CACHE/stamps/$1")" = "$2" ]
}

stamp_set() {
	mkdir -p "$CACHE/stamps"
	printf '%s\n' "$2" >"$CACHE/stamps/$1.new"
	mv "$CACHE/stamps/$1.new" "$CACHE/stamps/$1"
}

# work_dir NAME: an empty folder beside the result, removed by cleanup().
work_dir() {
	WORK=$CACHE/tmp/$1
	rm -rf "${WORK:?}" "$WORK.unpack.log"
	mkdir -p "$WORK"
	trap 'rm -rf "${WORK:?}" "$WORK.unpack.log"' EXIT
	trap 'exit 130' INT TERM
}

# publish FROM TO: replace TO as a whole.
publish() {
	rm -rf "${2:?}.old"
	[ ! -e "$2" ] || mv "$2" "$2.old"
	mv "$1" "$2"
	rm -rf "${2:?}.old"
}

# ---- Debian packages -------------------------------------------------------

# The mirror that this host already uses; no host name is written anywhere here.
debian_mirror() {
	local uri
	uri=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' \
		'Created-By: Packages' 2>/dev/null |
		awk '$3 == "main" && $2 !~ /security|-/ && ($4 == "Debian" || $1 ~ /\/debian\/?$/) {print $1; exit}')
	[ -n "$uri" ] || die "no Debian mirror found in the apt configuration of this host" \
		"add one to /etc/apt/sources.list (the line of Debian 12 main is enough)"
	printf '%s\n' "${uri%/}"
}

apt_t() { # apt_t SUITES-LIST COMMAND...: apt with the testbed's own state
	local list=$1 cmd=$2
	shift 2
	APT_CONFIG=$APT_DIR/apt.conf "$cmd" -o "Dir::Etc::SourceList=$APT_DIR/$list.list" "$@"
}

# apt_state keep|refresh: make the private apt state. Package lists are fetched once:
# a cache that is complete needs no network, one that is being rebuilt stays on
# the same versions. `setup.sh --refresh` moves it.
apt_state() {
	local mirror s
	[ -f "$DEBIAN_KEYRING" ] || die "$DEBIAN_KEYRING is missing" "apt-get install debian-archive-keyring"
	mkdir -p "$APT_DIR/lists/partial" "$APT_DIR/archives/partial" "$APT_DIR/status"
	if [ ! -f "$APT_DIR/updated" ] || [ "$1" = refresh ]; then
		mirror=$(debian_mirror)
		: >"$APT_DIR/all.list"
		for s in $SUITES; do
			echo "deb [arch=amd64 signed-by=$DEBIAN_KEYRING] $mirror $s main" >"$APT_DIR/$s.list"
			cat "$APT_DIR/$s.list" >>"$APT_DIR/all.list"
		done
		cat "$APT_DIR/trixie.list" "$APT_DIR/trixie-backports.list" >"$APT_DIR/trixie+backports.list"
		cat >"$APT_DIR/apt.conf" <<-EOF
			Dir::Etc::SourceParts "/dev/null";
			Dir::State::Lists "$APT_DIR/lists";
			Dir::State::status "$APT_DIR/status/empty";
			Dir::Cache::archives "$APT_DIR/archives";
			Dir::Cache::pkgcache "";
			Dir::Cache::srcpkgcache "";
			APT::Architecture "amd64";
			APT::Architectures "amd64";
			APT::Sandbox::User "root";
			APT::Install-Recommends "false";
			Acquire::Languages "none";
			Acquire::ForceHash "SHA256";
			Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
			Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled "false";
			Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled "false";
			Acquire::IndexTargets::deb::DEP-11-icons-hidpi::DefaultEnabled "false";
			Acquire::IndexTargets::deb::CNF::DefaultEnabled "false";
			Acquire::Retries "3";
			Debug::NoLocking "true";
		EOF
		: >"$APT_DIR/status/empty"
		say "fetching the package lists of: $SUITES"
		apt_t all apt-get -q -o APT::Update::Error-Mode=any update >"$APT_DIR/update.log" 2>&1 ||
			die "cannot fetch the package lists ($(grep -m1 '^[EW]:' "$APT_DIR/update.log" || echo 'see the log'))" \
				"check the network and the apt proxy of this host; log: $APT_DIR/update.log"
		date -u +%F >"$APT_DIR/updated"
	fi
}

# apt_newest LIST PACKAGE: version of the candidate
apt_newest() {
	apt_t "$1" apt-cache show --no-all-versions "$2" 2>/dev/null | sed -n 's/^Version: //p' | head -n 1
}

# apt_depends LIST PACKAGE PATTERN: first dependency of PACKAGE that matches PATTERN (awk)
apt_depends() {
	apt_t "$1" apt-cache show --no-all-versions "$2" 2>/dev/null |
		sed -n 's/^Depends: //p' | sed 's/[,|]/\n/g' | awk -v p="$3" '$1 ~ p {print $1; exit}'
}

# Series of kernels that demeter.ko loads on, from where it has them itself.
known_series() {
	local header=$TESTBED_DIR/../guest/compat/known_kernels.h known
	known=$(sed -n 's/^#define DEMETER_KNOWN_KERNELS "\(.*\)"$/\1/p' "$header")
	[ -n "$known" ] || die "no list of kernels in $header" "check that it defines DEMETER_KNOWN_KERNELS"
	printf '%s\n' "${known//,/ }"
}

is_known_release() { # is_known_release RELEASE: as the module decides it (known_kernels.h)
	local series
	for series in $(known_series); do
		case $1 in "$series" | "$series"[!0-9]*) return 0 ;; esac
	done
	return 1
}

# kernel_release SUITE [quiet]: the newest kernel of SUITE that demeter.ko loads on.
# Debian's meta package goes on to the next series on a day that nobody here has chosen;
# the ones before stay in the suite for a while. Without any the newest is taken, so that
# all else can be used: then the module says on that kernel what is to be done.
kernel_release() {
	local newest release
	newest=$(apt_depends "$1" linux-image-amd64 '^linux-image-[0-9]')
	newest=${newest#linux-image-}
	[ -n "$newest" ] || die "no linux-image package in $1" "run testbed/setup.sh --refresh"
	if is_known_release "$newest"; then
		printf '%s\n' "$newest"
		return
	fi
	while read -r release; do
		# A name may be one that others only mention.
		if is_known_release "$release" && [ -n "$(apt_newest "$1" "linux-image-$release")" ] &&
			[ -n "$(apt_newest "$1" "linux-headers-$release")" ]; then
			[ -n "${2-}" ] || say "$1 has Linux $newest, and demeter.ko is only known to work on $(known_series): taking $release; next: to move on, add the series to guest/compat/known_kernels.h, then make test"
			printf '%s\n' "$release"
			return
		fi
	done < <(apt_t "$1" apt-cache pkgnames linux-image- |
		sed -n 's/^linux-image-\([0-9].*-amd64\)$/\1/p' | grep -v -E -- '-(cloud|rt|unsigned)-' | sort -rV)
	[ -n "${2-}" ] || say "$1 has Linux $newest and no kernel that demeter.ko is known to work on ($(known_series)): taking $newest, on which the module refuses to load and tests fail; next: add the series to guest/compat/known_kernels.h, then make test"
	printf '%s\n' "$newest"
}

# apt_fetch NAME LIST PRETEND PACKAGE...: download PACKAGEs and what they need,
# except the packages (NAME or NAME=VERSION) named in PRETEND, and write the files' paths to
# $APT_DIR/NAME.debs. Hashes come from the signed lists.
apt_fetch() {
	local name=$1 list=$2 pretend=$3 p version uri file size hash want=() out
	shift 3
	: >"$APT_DIR/status/$name"
	for p in $pretend; do
		case $p in *=*) version=${p#*=} ;; *) version=9999 ;; esac
		printf 'Package: %s\nStatus: install ok installed\nArchitecture: all\nMulti-Arch: foreign\nVersion: %s\nMaintainer: testbed\nDescription: left out\n\n' \
			"${p%%=*}" "$version" >>"$APT_DIR/status/$name"
	done
	out=$APT_DIR/$name.uris
	apt_t "$list" apt-get -q -y -o "Dir::State::status=$APT_DIR/status/$name" ${APT_TARGET:+-t "$APT_TARGET"} \
		-o "Dir::Cache::archives=/nonexistent" --print-uris install "$@" >"$out" 2>"$out.err" ||
		die "cannot choose packages for $name ($(tail -n 1 "$out.err"))" \
			"run testbed/setup.sh --refresh, or see $out.err"
	sed -i "/^'/!d; s/'//g" "$out"
	exec 8>"$APT_DIR/lock"
	flock 8 # one downloader: two components share many packages
	: >"$APT_DIR/$name.debs.new"
	while read -r uri file size hash; do
		echo "$APT_DIR/archives/$file" >>"$APT_DIR/$name.debs.new"
		[ "$(stat -c %s "$APT_DIR/archives/$file" 2>/dev/null)" = "$size" ] && continue
		want+=("$uri" "$APT_DIR/archives/partial/$file" "$hash")
	done <"$out"
	if [ ${#want[@]} -gt 0 ]; then
		say "$name: downloading $((${#want[@]} / 3)) packages"
		APT_CONFIG=$APT_DIR/apt.conf /usr/lib/apt/apt-helper download-file "${want[@]}" >"$APT_DIR/$name.log" 2>&1 ||
			die "download for $name failed ($(grep -m1 -E '^[EW]:' "$APT_DIR/$name.log" || true))" \
				"check the network, then run testbed/setup.sh again (or --refresh if files have moved); log: $APT_DIR/$name.log"
		while read -r uri file size hash; do
			[ ! -f "$APT_DIR/archives/partial/$file" ] || mv "$APT_DIR/archives/partial/$file" "$APT_DIR/archives/$file"
		done <"$out"
	fi
	exec 8>&-
	mv "$APT_DIR/$name.debs.new" "$APT_DIR/$name.debs"
}

# deb_unpack DIR < list of .deb files: a merged-/usr tree, no maintainer script run
deb_unpack() {
	local dir=$1 d log=$1.unpack.log
	for d in bin lib lib64 sbin; do
		mkdir -p "$dir/usr/$d"
		ln -sfn "usr/$d" "$dir/$d"
	done
	# shellcheck disable=SC2016 # expanded by the inner shell
	xargs -r -n 8 -P "$(nproc)" bash -c '
		set -euo pipefail
		dir=$0
		for deb; do
			dpkg-deb --fsys-tarfile "$deb" | tar -C "$dir" -xf - --keep-directory-symlink
		done' "$dir" 2>"$log" || die "unpacking into $dir failed ($(grep -m1 -E '^(tar|dpkg-deb): ' "$log" || true))" \
		"check the free disk space, then run testbed/setup.sh again"
	rm -f "$log"
}

# deb_versions NAME PACKAGE...: "package version" lines out of the fetched set
deb_version() {
	sed -n "s|.*/$2_\([^_]*\)_.*|\1|p" "$APT_DIR/$1.debs" | head -n 1 | sed 's/%3a/:/'
}
