#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest of two memory nodes, the second without CPUs: programs that outgrow their DRAM
# swap to the memory of node 1, which has all of it back when they end; a node that others fill
# is passed over, and nobody is killed for it.
set -eu

export DEMETER_LIBEXEC=/tmp
passed=0

fail() {
	echo "not ok - $1"
	cat /tmp/said 2>/dev/null
	grep -hE 'MemFree|Shmem:' /sys/devices/system/node/node*/meminfo
	dmesg | tail -n 20
	exit 1
}

ok() {
	echo "ok - $1"
	passed=$((passed + 1))
}

# kib NODE FIELD: of its memory
kib() {
	sed -n "s/^Node $1 $2: *\([0-9]*\) kB/\1/p" "/sys/devices/system/node/node$1/meminfo"
}

# refused WORDS OPTION...: status 2 and one line that says so
refused() {
	words=$1 status=0
	shift
	/tmp/demeter extmem run --dram 16M "$@" -- true >/tmp/said 2>&1 || status=$?
	[ "$status" = 2 ] || fail "$* ends with $status"
	[ "$(grep -c '^' /tmp/said)" = 1 ] || fail "$* is refused in more than a line"
	grep -q "^demeter: error: swap place node:.*$words.*; next: " /tmp/said || fail "$* is not refused by: $words"
}

# bench SIZE: touches all of it in several orders, and looks whether each word is its own
cat >/tmp/steps <<EOF
first-touch 1 0.3
random-write 1 0.3
random-read 1 0.3
EOF
cat >/tmp/bench <<'EOF'
#!/bin/sh
exec /demeter/workloads mmapbench --steps --check --size "$1" --entropy 100 </tmp/steps
EOF

# Guests of the testbed do without, and then a program that is started has its C library where that of
# the one that starts it was, whose filter is still in force: docs/extmem-internals.md.
echo 2 >/proc/sys/kernel/randomize_va_space

refused "the program's own memory lies on that node" --swap node:0
refused "there is no such node" --swap node:2
refused "room for .* where 2 GiB are needed" --swap node:1 --swap-size 2G
refused "names no memory node" --swap node:1-2
groups=/sys/fs/cgroup
was=$groups$(sed -n 's/^0:://p' /proc/self/cgroup)
echo +cpuset +memory >$groups/cgroup.subtree_control || fail "no cpuset controller"
mkdir $groups/few $groups/little
echo 0 >$groups/few/cpuset.mems
echo 64M >$groups/little/memory.max
echo $$ >$groups/few/cgroup.procs
refused "may not use memory of that node" --swap node:1
echo $$ >$groups/little/cgroup.procs
refused "counts as memory of this cgroup" --swap node:1 --swap-size 64M
echo $$ >"$was/cgroup.procs"
ok "nodes that make no sense, or are not to be used, are refused"

# What CPUs keep for themselves is not counted as free: up to an eighth, if they may.
echo 1000 >/proc/sys/vm/percpu_pagelist_high_fraction
# The most that either node has while the program runs.
free=$(kib 1 MemFree) here=$(kib 0 Shmem) there=$(kib 1 Shmem) most=0 most_here=0
/tmp/demeter extmem run --dram 16M --compress off --swap node:1 --swap-size 96M --stats /tmp/board --json /tmp/summary.json -- \
	sh /tmp/bench 40M >/tmp/said 2>&1 &
runner=$!
while kill -0 $runner 2>/dev/null; do
	now=$(($(kib 1 Shmem) - there))
	[ $now -le $most ] || most=$now
	now=$(($(kib 0 Shmem) - here))
	[ $now -le $most_here ] || most_here=$now
	sleep 0.1
done
wait $runner || fail "a program with its swap on node 1 ends with $?"
! grep -q '"wrong_words":[1-9]' /tmp/said || fail "wrong words"
[ $most -ge $((20 << 10)) ] || fail "only $most KiB came to node 1"
# The board, what is told, tables that forks share.
[ $most_here -le $((4 << 10)) ] || fail "$most_here KiB of shared memory came to node 0"
[ $(($(kib 1 Shmem) - there)) -le 64 ] || fail "not all of node 1 was given back"
[ $((free - $(kib 1 MemFree))) -le $((2 << 10)) ] || fail "node 1 has less free than the $free KiB before"
grep -q '^demeter extmem: ' /tmp/said || fail "no summary"
ok "$((most >> 10)) MiB were swapped to node 1 and are given back, $((most_here >> 10)) MiB came to node 0"

# A directory in the memory of node 0 beside it: both are timed.
mkdir /dev/shm/swap /tmp/filler
mount -t tmpfs -o mpol=bind:1 none /tmp/filler
# What is left of the node is less than the program needs, and it goes on elsewhere.
cat >/tmp/fill <<'EOF'
#!/bin/sh
free=$(sed -n 's/^Node 1 MemFree: *\([0-9]*\) kB/\1/p' /sys/devices/system/node/node1/meminfo)
fallocate -l $((free - (18 << 10)))K /tmp/filler/most || exit 9
exec sh /tmp/bench 40M
EOF
/tmp/demeter extmem run --dram 16M --compress off --swap node:1 --swap-size 96M --swap /dev/shm/swap --swap-order given \
	--stats /tmp/board2 -- sh /tmp/fill >/tmp/said 2>&1 || fail "a program whose node is full ends with $?"
! grep -q '"wrong_words":[1-9]' /tmp/said || fail "wrong words"
[ "$(kib 1 MemFree)" -ge $((12 << 10)) ] || fail "the node was not given back, or has no reserve"
rm /tmp/filler/most
status=0
/tmp/demeter extmem run --quiet --dram 16M --compress off --swap node:1 --swap-size 96M -- sh /tmp/fill >/tmp/said 2>&1 || status=$?
[ $status = 70 ] || fail "a program without room on its node ends with $status"
grep -q 'the memory node for swap is full while writing page 0x.*; next: ' /tmp/said || fail "it is not said that the node is full"
rm /tmp/filler/most
umount /tmp/filler
! dmesg | grep -i 'out of memory' || fail "somebody was killed"
ok "a node that is full is passed over or told, and nobody is killed"

/tmp/demeter extmem run --dram 16M --swap /dev/shm/swap --swap node:1 --swap-size 16M -- true 2>/tmp/said || fail "two places"
grep -Eq 'swap goes to .*node:1 \(a page in [0-9]+ us\)' /tmp/said || fail "the order is not measured"
/tmp/demeter extmem doctor >/tmp/said 2>&1 || true
cat /tmp/said
echo "extmem-node: $passed passed, 0 failed"
