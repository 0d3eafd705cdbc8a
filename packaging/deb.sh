#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: [REVISION=+1] packaging/deb.sh [OUT]
# Makes the Debian packages demeter-dkms, demeter-balloon-dkms, demeterd and demeter in OUT
# (out/deb) of what `make build` built, and has lintian look at them. REVISION goes behind
# the version, for packages of a tree between two versions.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'deb: %s\n' "$*"; }
die() {
	printf 'deb: error: %s; next: %s\n' "$1" "$2" >&2
	exit 1
}

out=$(realpath -m "${1:-out/deb}")
built=$PWD/target/release
for program in demeter demeterd libdemeter_extmem.so; do
	[ -e "$built/$program" ] || die "$built/$program is missing" "make build"
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
packaged=$(sed -n '1s/.*(\(.*\)).*/\1/p' packaging/debian/changelog)
[ "$version" = "$packaged" ] ||
	die "packaging/debian/changelog is of $packaged, the project of $version" "add an entry for $version"

missing=
for package in debhelper dh-dkms help2man lintian; do
	dpkg-query -Wf '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
	[ "$(id -u)" = 0 ] || die "these packages are missing:$missing" "install them, or run this as root"
	say "installing on this host:$missing"
	# shellcheck disable=SC2086 # a word list
	DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $missing >/dev/null
fi

rm -rf "$out"
tree=$out/demeter-$version
mkdir -p "$tree"
# What git knows, as it lies here: nothing that was built, nothing forgotten in a corner.
comm -z -23 <(git ls-files -z --cached --others --exclude-standard | sort -z) <(git ls-files -z --deleted | sort -z) |
	xargs -0 cp --parents -P -t "$tree"
cp -r packaging/debian "$tree/debian"
sed -i "1s/($version)/($version${REVISION-})/" "$tree/debian/changelog"
say "building in $tree"
(cd "$tree" && DEMETER_BUILT=$built dpkg-buildpackage -b -us -uc >"$out/build.log" 2>&1) || {
	tail -n 20 "$out/build.log" >&2
	die "dpkg-buildpackage failed, as said above" "read $out/build.log"
}
rm -rf "$tree"
lintian --fail-on error,warning --tag-display-limit 0 --info --allow-root "$out"/*.changes ||
	die "lintian objects, as said above" "mend packaging/debian"
ls -1 "$out"/*.deb
