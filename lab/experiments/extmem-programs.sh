#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: lab/experiments/extmem-programs.sh [--only NAME]… [--swap DIR] [--out FILE]
# Some hundred commands as they are and under `demeter extmem` with half of the memory they
# take; what they write is compared. The table of docs/extmem-programs.md; some 20 minutes. As
# root it installs those of the programs that Debian has, and with pip, apart from all else,
# those that are libraries of Python; what is missing is named under the table. Status 1 if a
# row is neither the same nor refused.
set -euo pipefail

cd "$(dirname "$0")/../.."
: "${DEMETER_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/demeter}"
PATH=$PATH:/usr/sbin:/sbin
declare -A package_of=([fio]=fio [stress-ng]=stress-ng [rg]=ripgrep [R]=r-base-core [ffmpeg]=ffmpeg
	[musl-gcc]=musl-tools [/usr/bin/convert]=imagemagick [mariadbd]=mariadb-server-core
	[mariadb]=mariadb-client-core [redis-server]=redis-server [redis-cli]=redis-tools
	[memcached]=memcached [jq]=jq [lz4]=lz4 [zip]=zip [unzip]=unzip [gdb]=gdb [strace]=strace
	[tclsh]=tcl [groff]=groff [valgrind]=valgrind [busybox]=busybox-static [vim]=vim [xxd]=xxd
	[mawk]=mawk [bc]=bc [sqlite3]=sqlite3 [cpio]=cpio [patch]=patch [perl]=perl [zstd]=zstd
	[xz]=xz-utils [bzip2]=bzip2 [openssl]=openssl [git]=git [gcc]=gcc [g++]=g++ [make]=make
	[ld]=binutils [javac]=default-jdk-headless [node]=nodejs [go]=golang-go [rustc]=rustc
	[mkfs.ext4]=e2fsprogs [diff]=diffutils [chromium]=chromium)
missing=()
for program in "${!package_of[@]}"; do
	command -v "$program" >/dev/null || missing+=("${package_of[$program]}")
done
for file in '/usr/lib/postgresql/*/bin/postgres:postgresql' '/usr/lib32/crt1.o:gcc-multilib' \
	'/usr/include/boost/context/fiber.hpp:libboost-context-dev'; do
	compgen -G "${file%:*}" >/dev/null || missing+=("${file#*:}")
done
if [ "${#missing[@]}" -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "experiments: servers that are installed now are started by Debian with the machine" >&2
	lab/experiments/install-on-host.sh "${missing[@]}" || true
fi
# The name is made last: a python of this name has them all.
venv=$DEMETER_CACHE/programs-venv
packages=(pandas polars scikit-learn igraph)
if [ ! -e "$venv/bin/data-python" ]; then
	echo "experiments: installing with pip into $venv: ${packages[*]}" >&2
	if python3 -m venv "$venv" && "$venv/bin/pip" install -q "${packages[@]}" >&2; then
		ln -s python3 "$venv/bin/data-python"
	else
		echo "experiments: pip cannot install them; their rows are left out" >&2
	fi
fi
PATH=$PATH:$venv/bin
PYTHONPATH=lab exec nice -n 10 "$DEMETER_CACHE/lab-venv/bin/python" -m demeter_lab.cli extmem programs "$@"
