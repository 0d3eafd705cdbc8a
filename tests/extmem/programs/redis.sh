#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: redis.sh FOLDER
# redis-server: redis's own benchmark of SET and GET; then 60000 values set, some
# changed and deleted, all read back; a snapshot by a forked child. Printed are
# digests of what was read back and of the whole data set.
set -euo pipefail
folder=$(mktemp -d "$1/redis.XXXXXX")
socket=$folder/socket
redis-server --port 0 --unixsocket "$socket" --dir "$folder" --save '' --daemonize no \
	--enable-debug-command yes --logfile "$folder/log" --activedefrag no &
server=$!
# shellcheck disable=SC2317 # called by the trap
end() {
	kill -9 "$server" 2>/dev/null || true
	rm -rf "$folder"
}
trap end EXIT
client() {
	env -u LD_PRELOAD redis-cli -s "$socket" "$@"
}
for _ in $(seq 300); do
	client ping 2>/dev/null | grep -q PONG && break
	kill -0 "$server" 2>/dev/null || break
	sleep 0.2
done
load() {
	awk 'BEGIN { pad = sprintf("%1400s", ""); gsub(/ /, "x", pad)
		for (i = 0; i < 60000; i++) printf "SET key:%d %d:%s\r\n", i, i * 7919 % 100003, pad
		for (i = 0; i < 60000; i += 5) printf "APPEND key:%d :more%d\r\n", i, i
		for (i = 0; i < 60000; i += 7) printf "DEL key:%d\r\n", i }'
}
# Which keys redis's own benchmark takes differs from run to run, so it comes first.
env -u LD_PRELOAD redis-benchmark -s "$socket" -t set,get -n 20000 -r 10000 -d 700 --csv -q |
	sed -n 's/^"\([A-Z]*\)".*/\1 done/p'
client flushall | tr -d '\r'
load | client --pipe | grep -o 'errors: 0'
awk 'BEGIN { for (i = 0; i < 60000; i++) print "GET key:" i }' | client | sha256sum
client debug digest
client bgsave >/dev/null
for _ in $(seq 600); do
	client info persistence | grep -q '^rdb_bgsave_in_progress:0' && break
	sleep 0.1
done
client info persistence | tr -d '\r' | grep '^rdb_last_bgsave_status'
env -u LD_PRELOAD redis-check-rdb "$folder/dump.rdb" | grep -o 'Checksum OK'
client debug digest
client shutdown nosave >/dev/null 2>&1 || true
wait "$server"
