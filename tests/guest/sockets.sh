#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in a guest of two sockets, each with a vCPU, a node of FMEM (0 and 1, 32 MiB
# each) and one of SMEM (2 and 3). GUPS runs on either socket, its hot part touched
# last and so in the SMEM of that socket.
set -eu

sysfs=/sys/kernel/mm/demeter
stats=$sysfs/stats
nodes=$sysfs/nodes
passed=0

fail() {
	echo "not ok - $1"
	head -n 100 $sysfs/tiers/*/* $nodes/*/* $stats/* $stats/refused/* 2>/dev/null | grep -v '^$' || true
	dmesg | tail -n 30
	exit 1
}

ok() {
	echo "ok - $1"
	passed=$((passed + 1))
}

# is WHAT WORDS: a file says so
is() {
	[ "$(cat "$sysfs/$1")" = "$2" ] || fail "$1 is $(cat "$sysfs/$1"), not $2"
}

# refused WORDS FILE VALUE: the write fails, and the log says why and what to do
refused() {
	words=$1 file=$2 value=$3
	dmesg -C
	# In a process of its own: a failing echo may end the shell.
	if (echo "$value" >"$sysfs/$file") 2>/dev/null; then
		fail "$file took \"$value\""
	fi
	dmesg | grep -q "demeter: .*$words.*; next: " || fail "$file, \"$value\": the log does not say $words"
}

arrived() {
	cat "$nodes/node$1/arrived_pages"
}

# add FILE NAME...: the whole is the sum of its parts, files below nodes/. An epoch may
# end between two looks: it must be so once of many.
add() {
	whole=$1
	shift
	for _ in $(seq 50); do
		sum=0
		for part in "$@"; do
			sum=$((sum + $(cat "$nodes/$part")))
		done
		[ "$sum" != "$(cat "$sysfs/$whole")" ] || return 0
	done
	fail "$whole is not $sum, as $* are together"
}

# sums: what nodes say adds up to what tiers and totals say
sums() {
	add stats/promoted_pages node0/arrived_pages node1/arrived_pages
	add stats/demoted_pages node2/arrived_pages node3/arrived_pages
	for value in total_pages resident_pages; do
		add tiers/fmem/$value node0/$value node1/$value
		add tiers/smem/$value node2/$value node3/$value
	done
}

# on NODE ARGUMENTS...: GUPS with CPU and first touch there
on() {
	node=$1
	shift
	numactl --cpunodebind="$node" /demeter/workloads gups "$@"
}

before() {
	was0=$(arrived 0) was1=$(arrived 1) was2=$(arrived 2) was3=$(arrived 3)
}

after() {
	now0=$(($(arrived 0) - was0)) now1=$(($(arrived 1) - was1))
	now2=$(($(arrived 2) - was2)) now3=$(($(arrived 3) - was3))
}

insmod /tmp/demeter.ko sample_period=509 epoch_ms=20 split_samples=8 latency_threshold_ns=64 ||
	fail "insmod"
echo /command >$sysfs/targets/cgroup
is params/fmem_node auto
echo 1 >$sysfs/enabled || fail "cannot be enabled"
dmesg | grep 'demeter: tiers by'
is tiers/fmem/nodes 0-1
is tiers/smem/nodes 2-3
for pair in 0:fmem:2 1:fmem:3 2:smem:0 3:smem:1; do
	node=${pair%%:*} role=${pair#*:}
	is "nodes/node$node/tier" "${role%:*}"
	is "nodes/node$node/paired_with" "${role#*:}"
done
ok "the kernel has four nodes: two are fast, two slow, in pairs"

refused_busy() {
	if (echo 0 >$sysfs/params/fmem_node) 2>/dev/null; then
		fail "nodes can be changed while enabled"
	fi
}
refused_busy

# What is hot comes to the fast node of its own socket, and goes round in the pair.
for node in 0 1; do
	before
	# Nothing else is touched: what is lukewarm would fill the other socket's free FMEM.
	on $node --footprint 96M --hot 8M --hot-permille 1000 --updates 3000000 >/dev/null ||
		fail "gups on node $node"
	after
	sums
	other=$((1 - node))
	here=$now0 there=$now1 down=$now2 away=$now3
	[ "$node" = 0 ] || here=$now1 there=$now0 down=$now3 away=$now2
	[ "$here" -ge 1536 ] || fail "only $here pages came to node $node"
	[ "$there" -lt 256 ] || fail "$there pages came to node $other, of another socket"
	[ "$down" -ge $((here / 2)) ] || fail "$down pages went to node $((node + 2)) for $here"
	[ "$away" -lt 256 ] || fail "$away pages went to node $((other + 2)), of another socket"
	ok "hot on socket $node: $here pages promoted there, $there elsewhere; $down demoted there, $away elsewhere"
done

# Both at once, and looked at meanwhile.
before
on 0 --footprint 96M --hot 8M --updates 4000000 >/tmp/zero &
zero=$!
on 1 --footprint 96M --hot 8M --updates 4000000 >/tmp/one &
one=$!
sleep 0.1
/tmp/demeter status >/tmp/status || fail "status"
/tmp/demeter status --json >/tmp/status.json || fail "status --json"
wait $zero || fail "gups on node 0"
wait $one || fail "gups on node 1"
after
sums
[ "$now0" -ge 1536 ] || fail "together, only $now0 pages came to node 0"
[ "$now1" -ge 1536 ] || fail "together, only $now1 pages came to node 1"
cat /tmp/status
grep -q '^FMEM *0,1 ' /tmp/status || fail "status does not say the nodes of FMEM"
grep -q '^ *node 3 ' /tmp/status || fail "status does not say what node 3 has"
mib=$(awk '/MemTotal/ { sum += $4 } END { printf "%.0f", sum / 1024 }' /sys/devices/system/node/node[01]/meminfo)
grep -q "^FMEM *0,1 *$mib " /tmp/status || fail "status does not say that FMEM is $mib MiB"
ok "both sockets at once: $now0 and $now1 pages promoted, $now2 and $now3 demoted"

# More is hot than a socket has of FMEM. The other one's is free, and pays: 75 ns more
# where SMEM costs 108 ns more.
before
on 0 --footprint 80M --hot 56M --updates 6000000 >/dev/null || fail "gups on node 0"
after
sums
[ "$now1" -ge 1024 ] || fail "only $now1 pages came to the other socket, which was free"
ok "no room in the own socket: $now1 pages promoted to the other one, $now0 to the own one"

# It does not where SMEM costs only 50 ns more.
echo 50 >$sysfs/params/latency_gap_ns
before
on 0 --footprint 80M --hot 56M --updates 6000000 >/dev/null || fail "gups on node 0"
after
[ "$now1" = 0 ] || fail "$now1 pages came to the other socket, which does not pay"
ok "the other socket does not pay: none of $now0 pages promoted went there"
echo 0 >$sysfs/params/latency_gap_ns

# What makes no sense.
echo 0 >$sysfs/enabled
for tier in fmem smem; do
	file=params/${tier}_node
	refused "no list of nodes" "$file" two
	refused "no list of nodes" "$file" 1-
	refused "no list of nodes" "$file" ""
	refused "no list of nodes" "$file" 0,100000
	refused "node 9 has no memory" "$file" 0,9
	dmesg | grep -q "choose from 0-3" || fail "it is not said which nodes have memory"
	refused "node 5 has no memory" "$file" 5
	is "$file" auto
done
echo 0-2 >$sysfs/params/fmem_node
echo 2,3 >$sysfs/params/smem_node
refused "node 2 is in both tiers" enabled 1
echo 0-3 >$sysfs/params/fmem_node
echo auto >$sysfs/params/smem_node
refused "all memory .* is in one tier" enabled 1
ok "nodes that make no sense are refused, and it is said why"

# One node each, as ever: the others are left alone.
echo 0x1 >$sysfs/params/fmem_node
echo 3 >$sysfs/params/smem_node
echo 1 >$sysfs/enabled || fail "cannot be enabled with a node each"
is tiers/fmem/nodes 1
is tiers/smem/nodes 3
[ ! -e $nodes/node0 ] || fail "node 0 is still shown"
promoted=$(cat $stats/promoted_pages)
on 0 --footprint 96M --hot 8M --updates 3000000 >/dev/null || fail "gups on node 0"
[ "$(cat $stats/promoted_pages)" = "$promoted" ] || fail "pages of nodes that are not managed were moved"
on 1 --footprint 96M --hot 8M --updates 3000000 >/dev/null || fail "gups on node 1"
[ $(($(cat $stats/promoted_pages) - promoted)) -ge 1536 ] || fail "nothing came to node 1"
ok "one node a tier: the others are left alone"

# A fast node with two slow ones: both are nearest to it.
echo 0 >$sysfs/enabled
echo 0 >$sysfs/params/fmem_node
echo 2,3 >$sysfs/params/smem_node
echo 1 >$sysfs/enabled || fail "cannot be enabled with two slow nodes"
is nodes/node0/paired_with 2-3
is nodes/node3/paired_with 0
before=$(arrived 0)
on 1 --footprint 96M --hot 8M --updates 3000000 >/dev/null || fail "gups on node 1"
came=$(($(arrived 0) - before))
[ "$came" -ge 1536 ] || fail "only $came pages came from node 3 to node 0"
before=$(arrived 0)
on 1 --footprint 96M --hot 8M --updates 3000000 --bind 3 >/dev/null || fail "gups bound to node 3"
[ "$(arrived 0)" = "$before" ] || fail "what is bound to node 3 was moved"
ok "two slow nodes and a fast one: $came pages promoted, none of what is bound"

if dmesg | grep -E 'BUG|WARNING|Oops' | grep -v 'get_pte_pfn'; then
	fail "the kernel log is not clean"
fi
echo 0 >$sysfs/enabled
rmmod demeter || fail "rmmod"
for list in fmem_node=0,9 smem_node=x; do
	if insmod /tmp/demeter.ko $list 2>/dev/null; then
		fail "the module loads with $list"
	fi
done
insmod /tmp/demeter.ko fmem_node=0,1 smem_node=2-3 sampler=none enabled=1 || fail "insmod with lists"
is tiers/smem/nodes 2-3
rmmod demeter || fail "rmmod"
ok "lists at load time"
echo "sockets: $passed passed, 0 failed"
