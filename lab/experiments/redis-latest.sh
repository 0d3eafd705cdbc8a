#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs in the guest: redis-server loaded past FMEM, then read with the newest
# keys hot (the shape of YCSB's workload D): nine of ten connections read the
# newest tenth, one reads all. Both are redis-benchmark, nothing is ours.
# KEYS and REQUESTS size it.
set -eu

keys=${KEYS:-360000}
requests=${REQUESTS:-1000000}
hot=$((keys / 10))
workloads=/demeter/workloads

redis-server --port 6379 --save '' --appendonly no --daemonize yes --logfile /tmp/redis.log >/dev/null
tries=0
until [ "$(redis-cli ping 2>/dev/null)" = PONG ]; do
	tries=$((tries + 1))
	[ $tries -lt 100 ] || {
		echo "redis-server did not start:" >&2
		cat /tmp/redis.log >&2
		exit 1
	}
	sleep 0.1
done

# Highest number first, so that the low numbers, which redis-benchmark -r HOT
# draws from, are the newest.
redis-cli eval '
	for i = tonumber(ARGV[1]) - 1, 0, -1 do
		redis.call("SET", string.format("key:%012d", i), string.rep(string.char(97 + i % 26), 1000))
	end
	return redis.status_reply("loaded")' 0 "$keys"
redis-cli info memory | grep used_memory_human

$workloads roi on
redis-benchmark -q -c 9 -P 16 -n $((requests * 9 / 10)) -r "$hot" get key:__rand_int__ >/tmp/hot.txt &
redis-benchmark -q -c 1 -P 16 -n $((requests / 10)) -r "$keys" get key:__rand_int__ >/tmp/all.txt
wait
$workloads roi off
redis-cli info stats | grep -E 'keyspace_(hits|misses)'
redis-cli shutdown nosave
