#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Redis over a socket: 200,000 keys written and saved by a fork; all of them read back from the
# first server, and from a second one that has them from the file.
set -euo pipefail

home=$(mktemp -d "$PWD/redis.XXXXXX")
# shellcheck source=/dev/null
. "${0%/*}/server.sh"
ask() { redis-cli -s "$home/s" "$@"; }
serve() {
	redis-server --port 0 --unixsocket "$home/s" --dir "$home" --save '' >>"$home/log" &
	server=$!
	until [ "$(ask ping 2>&1)" = PONG ]; do
		kill -0 "$server"
		sleep 0.2
	done
}
end() {
	ask shutdown nosave
	wait "$server"
	server=
}
read_all() { seq 200000 | sed 's/.*/GET key:&/' | ask | sha256sum; }
is_saving() { [[ $(ask info persistence) == *rdb_bgsave_in_progress:1* ]]; }

serve
seq 200000 | sed 's/.*/SET key:& value-of-&-&-&-&-&-&-&-&/' | ask --pipe >"$home/pipe"
ask bgsave >/dev/null
while is_saving; do sleep 0.1; done
read_all
end
serve
ask dbsize
read_all
end
