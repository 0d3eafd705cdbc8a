#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Redis over a socket: 200,000 keys written, a fork that saves them, all of them read back.
set -euo pipefail

home=$(mktemp -d /var/tmp/demeter-redis.XXXXXX)
trap 'rm -rf "$home"' EXIT
redis-server --port 0 --unixsocket "$home/s" --dir "$home" --save '' >"$home/log" &
server=$!
ask() { redis-cli -s "$home/s" "$@"; }
for _ in $(seq 300); do
	ask ping >/dev/null 2>&1 && break
	sleep 0.2
done
seq 200000 | sed 's/.*/SET key:& value-of-&-&-&-&-&-&-&-&/' | ask --pipe >"$home/pipe"
ask bgsave >/dev/null
while ask info persistence | grep -q '^rdb_bgsave_in_progress:1'; do sleep 0.1; done
ask info persistence | grep -o '^rdb_last_bgsave_status:[a-z]*'
seq 200000 | sed 's/.*/GET key:&/' | ask
ask shutdown nosave || true
wait "$server"
