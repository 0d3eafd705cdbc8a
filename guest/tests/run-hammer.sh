#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# usage: run-hammer.sh 6.1|6.12|7.x [--seconds N] [--exchanges N] [--only PHASE] [--timeout N]
#	[--phase-limit SECONDS] [--console FILE]
# Boots a kernel of the testbed with demeter_hammer.ko and the hammer program and
# prints what it finds. Exit status: 0 all passed, 1 something failed, 2 could not
# run. The console is kept under out/hammer/ when it did not pass; with --console it
# has all that the kernel says, and is kept in FILE as well, passed or not.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
project=$(cd "$here/../.." && pwd)
cache=${DEMETER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/demeter}

die() { # die CAUSE NEXT-STEP
	printf 'hammer: error: %s; next: %s\n' "$1" "$2" >&2
	exit 2
}
usage() { sed -n '/^# usage:/,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; }

kernel=
seconds=${HAMMER_SECONDS:-60} exchanges=${HAMMER_EXCHANGES:-200000} only=${HAMMER_ONLY:-}
limit=${HAMMER_TIMEOUT:-}
phase_limit=
console=
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help) usage && exit 0 ;;
	--seconds) seconds=${2-} && shift ;;
	--exchanges) exchanges=${2-} && shift ;;
	--only) only=${2-} && shift ;;
	--timeout) limit=${2-} && shift ;;
	--phase-limit) phase_limit=${2-} && shift ;;
	--console) console=${2-} && shift ;;
	-*) die "unknown option '$1'" "run-hammer.sh --help" ;;
	*) kernel=$1 ;;
	esac
	shift
done
[ -n "$kernel" ] || die "no kernel named" "name one of 6.1, 6.12 and 7.x"
phase_limit=${phase_limit:-$((120 + 3 * seconds))}
[[ $seconds =~ ^[0-9]+$ && $exchanges =~ ^[0-9]+$ && $phase_limit =~ ^[0-9]+$ ]] ||
	die "--seconds, --exchanges and --phase-limit take whole numbers" "run-hammer.sh --help"
# Booting and the phases that take as long as they take come on top.
limit=${limit:-$((480 + 12 * seconds))}
[ -f "$cache/testbed.json" ] || die "there is no $cache/testbed.json" "run testbed/setup.sh"
for tool in python3 cpio gcc timeout; do
	command -v "$tool" >/dev/null || die "$tool is missing" "apt-get install $tool"
done

# One value a line: release, vmlinuz, QEMU_MODULE_DIR, then the words of QEMU's argv.
mapfile -t bed < <(python3 - "$cache/testbed.json" "$kernel" <<'PY'
import json, sys
bed = json.load(open(sys.argv[1]))
for k in bed["kernels"]:
    if k["name"] == sys.argv[2]:
        print(k["release"], k["vmlinuz"], bed["qemu"]["env"].get("QEMU_MODULE_DIR", ""),
              *bed["qemu"]["argv"], sep="\n")
PY
)
[ "${#bed[@]}" -gt 3 ] || die "the testbed has no kernel '$kernel'" "name one of 6.1, 6.12 and 7.x, or run testbed/setup.sh"
release=${bed[0]} vmlinuz=${bed[1]} qemu_modules=${bed[2]}
qemu=("${bed[@]:3}")

module=${HAMMER_MODULE:-$project/build/modules/$release/demeter_hammer.ko}
if [ -z "${HAMMER_MODULE-}" ]; then
	"$project/testbed/build-modules.sh" "$kernel" DIR=guest/tests >&2 ||
		die "the modules do not build for $kernel" "mend what the compiler says above"
fi
[ -f "$module" ] || die "there is no $module" "run testbed/build-modules.sh $kernel"

work=$(mktemp -d /tmp/hammer.XXXXXX)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{dev,modules,proc,sys}
gcc -O2 -Wall -Wextra -Wno-format -static -pthread -o "$root/init" "$here"/user/*.c ||
	die "the hammer program does not build" "install libc6-dev, or mend what gcc says above"
cp "$module" "$root/modules/"
for m in zsmalloc lz4_compress lz4hc_compress zram; do
	[ ! -f "$cache/kernels/$release/modules/$m.ko" ] ||
		cp "$cache/kernels/$release/modules/$m.ko" "$root/modules/"
done
if [ "$only" = kvm ]; then
	"$project/testbed/kvm-modules.sh" "$kernel" || die "there is no KVM for $kernel" "see above"
	cp "$cache/kvm-modules/$release"/*.ko "$root/modules/"
	cp "$cache/kvm-modules/$release/load-order" "$root/modules/kvm-load-order"
	[ -n "${DEMETER_MODULE-}" ] || "$project/testbed/build-modules.sh" "$kernel" DIR=guest/tmm >&2 ||
		die "demeter.ko does not build for $kernel" "mend what the compiler says above"
	cp "${DEMETER_MODULE:-$project/build/modules/$release/demeter.ko}" "$root/modules/demeter.ko"
fi
mknod "$root/dev/console" c 5 1 2>/dev/null || true	# else the kernel has its own
(cd "$root" && find . | cpio --quiet -o -H newc) >"$work/initrd"

# On a starved host the boot test of the timer interrupt fails and a virtual CPU
# stands still for longer than 20 s: leave the one out, look for two minutes.
append="console=ttyS0 panic=-1 oops=panic nokaslr mitigations=off nopti no5lvl tsc=reliable no_timer_check watchdog_thresh=60"
append+=" loglevel=4 numa_balancing=disable rdinit=/init"
[ -z "$console" ] || append+=" loglevel=8"
append+=" HAMMER_SECONDS=$seconds HAMMER_EXCHANGES=$exchanges HAMMER_ONLY=$only HAMMER_PHASE_LIMIT=$phase_limit"
# Two CPUs that really run at the same time: this is about races, not about time.
status=0
QEMU_MODULE_DIR=$qemu_modules timeout --kill-after=5 "$limit" nice -n "${HAMMER_NICE:-10}" "${qemu[@]}" \
	-machine q35,usb=off -accel tcg,thread=multi -smp 2 -cpu max,la57=off -m 896M \
	-object memory-backend-ram,id=fmem,size=384M -object memory-backend-ram,id=smem,size=512M \
	-numa node,nodeid=0,memdev=fmem,cpus=0-1 -numa node,nodeid=1,memdev=smem \
	-nodefaults -display none -no-reboot -serial "file:$work/console" \
	-kernel "$vmlinuz" -initrd "$work/initrd" -append "$append" >"$work/qemu" 2>&1 &
pid=$!
trap 'kill "$pid" 2>/dev/null; rm -rf "$work"' INT TERM
wait "$pid" || status=$?

[ -z "$console" ] || cp "$work/console" "$console"
verdict=$(tr -d '\r' <"$work/console" 2>/dev/null | grep -a '^hammer: ' | tail -n 1 || true)
tr -d '\r' <"$work/console" 2>/dev/null | grep -aE '^(ok|not ok|# |hammer: )' || true
if [[ $verdict =~ ^hammer:\ [1-9][0-9]*\ passed,\ 0\ failed$ ]] && [ "$status" = 0 ]; then
	exit 0
fi
mkdir -p "$project/out/hammer"
cp "$work/console" "$project/out/hammer/console-$release.txt" 2>/dev/null || true
cat "$work/qemu" >&2
if [ "$status" = 124 ] || [ "$status" = 137 ]; then
	echo "hammer: error: no verdict within $limit s; next: read out/hammer/console-$release.txt" >&2
elif [ -z "$verdict" ]; then
	echo "hammer: error: the guest died without a verdict (QEMU status $status); next: read out/hammer/console-$release.txt" >&2
else
	echo "hammer: error: failed on $release; next: read out/hammer/console-$release.txt" >&2
fi
exit 1
