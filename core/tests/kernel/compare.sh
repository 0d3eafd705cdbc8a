#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only OR MIT
# Did a kernel take the decisions on record?
#   compare.sh KERNEL_LOG           exit 0 when it passed and all digests agree
set -eu
here=$(dirname "$0")
if [ $# -ne 1 ] || [ ! -r "$1" ]; then
	echo "usage: compare.sh KERNEL_LOG" >&2
	exit 2
fi

found=$(tr -d '\r' < "$1" |
	sed -n 's/.*demeter_core_test: digest \([a-z_]* [0-9a-f]*\)$/\1/p' | grep -v '^all ' || :)
if ! grep -q 'demeter_core_test: ok [0-9]* passed' "$1"; then
	echo "core in the kernel: FAIL (no 'ok' line in $1)" >&2
	grep 'demeter_core_test: \(not ok\|FAIL\|#\)' "$1" >&2 || :
	exit 1
fi
if [ "$found" != "$(cat "$here/../golden/digests.txt")" ]; then
	echo "core in the kernel: FAIL (digests differ from golden/digests.txt)" >&2
	printf '%s\n' "$found" | diff - "$here/../golden/digests.txt" >&2 || :
	exit 1
fi
echo "core in the kernel: ok, $(printf '%s\n' "$found" | wc -l) digests equal to those of the user build"
