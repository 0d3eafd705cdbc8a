#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: tree.sh FOLDER
# make with four jobs at a time, each of 48 MB that it goes through at random, and a
# pipeline of programs; what they find is the output. The four are full at the same time, for
# a while, however slowly one after another starts: who looks from outside can see it.
set -euo pipefail
rm -f "$1"/tree.full.*
cat >"$1/tree.py" <<'END'
import pathlib
import random
import sys
import time

pages = [bytearray(4096) for _ in range(12000)]
chance = random.Random(int(sys.argv[1]))
full = pathlib.Path(sys.argv[0]).with_name("tree.full." + sys.argv[1])
full.touch()
until = time.monotonic() + 30
while len(list(full.parent.glob("tree.full.*"))) < 4 and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.5)
for _ in range(40000):
    page = pages[chance.randrange(len(pages))]
    page[17] = (page[17] + 1) % 256
print(sys.argv[1], sum(at * page[17] for at, page in enumerate(pages)))
END
printf 'all: 1 2 3 4\n1 2 3 4:\n\t@/usr/bin/python3 %s $@ >%s.$@\n' "$1/tree.py" "$1/tree" >"$1/tree.mk"
make -s -j4 -f "$1/tree.mk"
cat "$1"/tree.[1-4]
seq 1 200000 | sort -R --random-source=/dev/zero | sort -n | sha256sum
