#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: qemu.sh
# Makes qemu-root in the cache: QEMU and its libraries from Debian 13 backports,
# unpacked and started through their own dynamic loader, then probed. Writes
# qemu.json (version, argv, env, plugin_api), which setup.sh puts in testbed.json.
# This is the only file that knows which QEMU versions are supported.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

supported="11.0 11.1" # major.minor with tested plugin hooks
plugin_api=7
# The plugin's clock and flush hooks call these; see crates/tcg-plugin.
symbols="icount_get object_class_by_name queue_tb_flush cpu_exit qemu_get_cpu qemu_plugin_register_vcpu_tb_trans_cb"
devices="ivshmem-plain virtio-pmem-pci vhost-user-test-device-pci"

key=$(stamp_key "$0" -- "$TESTBED_LAYOUT" "$CACHE")
if stamp_ok qemu "$key" && [ -f "$CACHE/qemu.json" ]; then
	exit 0
fi
apt_state keep
# Left out: the boot ROMs of network cards that the guest never has.
APT_TARGET=trixie-backports apt_fetch qemu trixie+backports \
	ipxe-qemu qemu-system-x86 libc6
work_dir qemu
say "qemu: unpacking"
deb_unpack "$WORK" <"$APT_DIR/qemu.debs"
rm -rf "$WORK"/usr/share/{doc,man,locale,lintian,bug}

lib=usr/lib/x86_64-linux-gnu
# start ROOT ARG...: as the run script does it
start() {
	local root=$1
	shift
	QEMU_MODULE_DIR=$root/$lib/qemu "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/$lib" \
		"$root/usr/bin/qemu-system-x86_64" -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
}
version=$(start "$WORK" --version 2>"$WORK/probe.log" | sed -n 's/^QEMU emulator version \([0-9.]*\).*/\1/p')
[ -n "$version" ] || die "the unpacked QEMU does not start ($(tail -n 1 "$WORK/probe.log"))" "report it"
case " $supported " in
*" ${version%.*} "*) ;;
*) die "QEMU $version is not one of the tested versions ($supported)" \
	"check the hooks of crates/tcg-plugin with it, then add it to 'supported' in $0" ;;
esac
nm -D --defined-only "$WORK/usr/bin/qemu-system-x86_64" | awk '{print $NF}' >"$WORK/exported"
for s in $symbols; do
	grep -qx "$s" "$WORK/exported" || {
		# TCG can be a loadable module with symbols of its own
		nm -D --defined-only "$WORK/$lib"/qemu/accel-tcg-*.so 2>/dev/null | awk '{print $NF}' | grep -qx "$s"
	} || die "QEMU $version does not export $s" "the machine plugin cannot hook this build; use another version"
done
start "$WORK" -device help >"$WORK/devices" 2>&1 || die "'-device help' of QEMU $version fails" "report it"
for d in $devices; do
	grep -q "name \"$d\"" "$WORK/devices" || die "QEMU $version has no device $d" "use another version"
done
# QEMU tells its plugin API range only when it refuses a plugin: show it two.
api_bound() { # api_bound VERSION WORDS: what the refusal of a plugin of that version names
	echo "int qemu_plugin_version = $1; int qemu_plugin_install(void) { return 1; }" |
		gcc -shared -fPIC -x c - -o "$WORK/probe.so"
	start "$WORK" -accel tcg -machine none -nodefaults -display none -plugin "$WORK/probe.so" 2>&1 </dev/null |
		sed -n "s/.*supports only $2 \([0-9]*\).*/\1/p"
}
api_min=$(api_bound 0 'a minimum version of' || true)
api_max=$(api_bound 10000 'up to version' || true)
if [ -z "$api_min" ] || [ -z "$api_max" ] || [ "$plugin_api" -lt "$api_min" ] || [ "$plugin_api" -gt "$api_max" ]; then
	die "QEMU $version speaks plugin API ${api_min:-?} to ${api_max:-?}, the machine plugin $plugin_api" \
		"use another version of QEMU or adapt crates/tcg-plugin"
fi
rm -f "$WORK"/{probe.log,probe.so,exported,devices}
publish "$WORK" "$CACHE/qemu-root"
q=$CACHE/qemu-root
cat >"$CACHE/qemu.json" <<EOF
{"version":"$version","argv":["$q/usr/lib64/ld-linux-x86-64.so.2","--library-path","$q/$lib","$q/usr/bin/qemu-system-x86_64","-L","$q/usr/share/qemu","-L","$q/usr/share/seabios"],"env":{"QEMU_MODULE_DIR":"$q/$lib/qemu"},"plugin_api":$plugin_api}
EOF
stamp_set qemu "$key"
say "qemu: $version ready (plugin API $api_min to $api_max)"
