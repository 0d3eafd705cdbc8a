#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: killed.sh FOLDER
# A program that takes 48 MB and is killed, then another that takes 44 MB.
set -euo pipefail
rm -f "$1/full"
/usr/bin/python3 -c '
import pathlib, sys, time
pages = [bytes(4095) + b"x" for _ in range(12000)]
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)' "$1/full" &
while [ ! -e "$1/full" ]; do sleep 0.1; done
kill -9 $!
# What it had is free as soon as the runner has looked.
sleep 0.5
exec /usr/bin/python3 -c '
import os
pages = [os.urandom(4096) for _ in range(11000)]
print(len(pages))'
