#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: boot-check.sh [6.1|6.12|7.x|all]
# Boots guest kernels with a trivial agent and checks the ground that every run
# stands on: DAX on the guest root, no page cache for its programs, two NUMA nodes,
# two memory tiers (kernels that have tiers), a clean kernel log, a clean power-off.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
usage_check "$@"

limit_s=240
fmem_mib=256 smem_mib=768
case ${1-all} in
all) kernels="6.12 6.1 7.x" ;;
6.1 | 6.12 | 7.x) kernels=$1 ;;
*) die "unknown kernel '$1'" "use 6.1, 6.12, 7.x or all" ;;
esac
[ -f "$CACHE/testbed.json" ] || die "the cache is not complete" "run testbed/setup.sh"

# The QEMU command line as it stands in qemu.json, one word a line.
mapfile -t qemu < <(python3 -c 'import json,sys; print("\n".join(json.load(open(sys.argv[1]))["argv"]))' "$CACHE/qemu.json")
QEMU_MODULE_DIR=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["env"]["QEMU_MODULE_DIR"])' "$CACHE/qemu.json")
export QEMU_MODULE_DIR

scratch=/dev/shm/demeter-boot-check.$$
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$scratch/run/demeter"

cat >"$scratch/run/demeter/agent" <<'EOF'
#!/bin/bash
# The guest half of boot-check.sh: one "check NAME VALUE" line per fact.
check() { echo "check $*"; }
cached() { awk '/^(Cached|Shmem):/ {n = $1 == "Cached:" ? n + $2 : n - $2} END {print n}' /proc/meminfo; }
check kernel "$(uname -r)"
before=$(cached)
# Read programs and a library through mappings and through read().
python3 -c 'print(sum(range(10)))' >/dev/null
redis-server --version >/dev/null
cat /usr/bin/python3* /usr/lib/x86_64-linux-gnu/libcrypto.so.3 >/dev/null
check page_cache_kib $(($(cached) - before))
check nodes "$(find /sys/devices/system/node -maxdepth 1 -name 'node[0-9]*' | wc -l)"
check tiers $(find /sys/devices/virtual/memory_tiering -maxdepth 1 -name 'memory_tier[0-9]*' -exec basename {} \; 2>/dev/null | sort)
for n in /sys/devices/system/node/node[0-9]*; do
	check "$(basename "$n")_total_kib" "$(awk '/MemTotal/ {print $4}' "$n/meminfo")"
	check "$(basename "$n")_free_kib" "$(awk '/MemFree/ {print $4}' "$n/meminfo")"
done
check thp "$(cat /sys/kernel/mm/transparent_hugepage/enabled)"
check programs "$(for p in redis-server redis-benchmark liblinear-train numactl python3; do command -v $p >/dev/null && echo -n "$p "; done)"
check tmp "$(echo written >/tmp/x && echo written >/root/x && cat /tmp/x)"
check uptime "$(cut -d' ' -f1 /proc/uptime)"
dmesg | grep -E 'BUG|WARNING|Bad page|Call Trace|rss-counter' | sed 's/^/check badlog /'
check end 1
echo o >/proc/sysrq-trigger
sleep 60
EOF
chmod 755 "$scratch/run/demeter/agent"
(cd "$scratch/run" && find demeter | cpio --quiet -o -H newc -R 0:0) >"$scratch/run.cpio"

# boot KERNEL: writes $scratch/console
boot() {
	local release total=$((fmem_mib + smem_mib)) image_size
	release=$(cat "$CACHE/kernels/$1")
	cat "$CACHE/initrd-base-$release.cpio" "$scratch/run.cpio" >"$scratch/initrd"
	rm -f "$scratch"/node[01]
	image_size=$(stat -c %s "$CACHE/guest-root.erofs")
	timeout -k 5 "$limit_s" "${qemu[@]}" -machine q35,usb=off,hmat=on -accel tcg,thread=single -icount shift=0,sleep=off \
		-smp 1 -cpu max,la57=off,-rdrand,-rdseed,-monitor,-erms,-fsrm -seed 42 -rtc base=2026-01-01,clock=vm \
		-nodefaults -display none -no-reboot -m "${total}M,slots=1,maxmem=$((total + 4096))M" \
		-object "memory-backend-file,id=m0,size=${fmem_mib}M,mem-path=$scratch/node0,share=on" \
		-object "memory-backend-file,id=m1,size=${smem_mib}M,mem-path=$scratch/node1,share=on" \
		-numa node,nodeid=0,cpus=0,memdev=m0,initiator=0 -numa node,nodeid=1,memdev=m1,initiator=0 \
		-numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-latency,latency=69 \
		-numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-bandwidth,bandwidth=20G \
		-numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=177 \
		-numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-bandwidth,bandwidth=5G \
		-numa dist,src=0,dst=1,val=30 \
		-object "memory-backend-file,id=root,size=$image_size,mem-path=$CACHE/guest-root.erofs,share=off,readonly=on,rom=off" \
		-device virtio-pmem-pci,memdev=root \
		-serial "file:$scratch/console" -bios qboot.rom -kernel "$CACHE/kernels/$release/vmlinux" -initrd "$scratch/initrd" \
		-append "console=ttyS0 panic=-1 nokaslr norandmaps mitigations=off nopti nopcid no5lvl idle=halt tsc=reliable clocksource=tsc random.trust_cpu=off numa_balancing=disable tsc_early_khz=1000000 no_timer_check cryptomgr.notests noreplace-smp initcall_blacklist=hpet_late_init,init_acpi_pm_clocksource,jent_mod_init,load_system_certificate_list,ftrace_check_for_weak_functions,trace_eval_init ${APPEND-}" \
		>"$scratch/qemu.log" 2>&1
}

fact() { tr -d '\r' <"$scratch/console" | sed -n "s/^check $1 //p" | head -n 1; }

bad=0
want() { # want NAME TEST... : TEST is a [ expression about the fact
	local name=$1
	shift
	if ! [ "$@" ]; then
		echo "FAILED $k: $name (wanted: $*)"
		bad=1
	fi
}

for k in $kernels; do
	started=$(date +%s)
	rc=0
	boot "$k" || rc=$?
	want "power-off within $limit_s s" "$rc" = 0
	want "guest kernel" "$(fact kernel)" = "$(cat "$CACHE/kernels/$k")"
	want "DAX mount" "$(grep -c 'demeter-init: guest root mounted, dax=always' "$scratch/console")" = 1
	want "page cache filled by programs, KiB" "$(fact page_cache_kib)" -lt 2048
	want "NUMA nodes" "$(fact nodes)" = 2
	[ "$k" = 6.1 ] || want "memory tiers" "$(fact tiers | wc -w)" = 2
	want "programs" "$(fact programs | wc -w)" = 5
	want "kernel log" -z "$(fact badlog)"
	want "last line" "$(fact end)" = 1
	if [ $bad = 0 ]; then
		echo "ok     $k: $(fact kernel), tiers: $(fact tiers), page cache +$(fact page_cache_kib) KiB, free FMEM $(fact node0_free_kib) KiB, guest $(fact uptime) s, host $(($(date +%s) - started)) s"
	else
		kept=${TMPDIR:-/tmp}/demeter-boot-$k.log
		tr -d '\r' <"$scratch/console" >"$kept" || true
		cat "$scratch/qemu.log" >>"$kept"
		die "kernel $k fails the boot check ($(grep -m1 -E 'demeter-init: error|Kernel panic|qemu-system' "$kept" || echo 'see above'))" "read $kept"
	fi
done
