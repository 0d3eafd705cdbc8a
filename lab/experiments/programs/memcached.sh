#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# memcached over a socket: 60,000 values written by name and read back in another order.
set -euo pipefail

home=$(mktemp -d "$PWD/memcached.XXXXXX")
# shellcheck source=/dev/null
. "${0%/*}/server.sh"
memcached -u "$(id -un)" -m 128 -t 2 -s "$home/s" >"$home/log" 2>&1 &
server=$!
python3 -I -S - "$home/s" "$server" <<'PYTHON'
import os, socket, sys, time
link = socket.socket(socket.AF_UNIX)
while True:
    try:
        link.connect(sys.argv[1])
        break
    except OSError:
        os.kill(int(sys.argv[2]), 0)
        time.sleep(0.2)
lines = link.makefile("rb")
values = {f"k{n}": (b"%d," % n) * 120 for n in range(60000)}
for name, value in values.items():
    link.sendall(b"set %s 0 0 %d noreply\r\n%s\r\n" % (name.encode(), len(value), value))
found = wrong = 0
for n in range(60000):
    name = f"k{n * 7919 % 60000}"
    link.sendall(b"get %s\r\n" % name.encode())
    if lines.readline() != b"END\r\n":
        found += 1
        wrong += lines.readline().rstrip() != values[name]
        lines.readline()
print(found, "found,", wrong, "wrong")
PYTHON
kill -TERM "$server"
wait "$server" || [ $? = 143 ]
server=
