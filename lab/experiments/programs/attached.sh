#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: attached.sh COMMAND… PROCESS is where its number stands
# A debugger or tracer is attached to a program that runs, and leaves it or sees its end.
set -euo pipefail

perl -e '
	my @n = map { "x" x ($_ % 90) . $_ } 1 .. 400_000;
	open my $ready, ">", "ready"; close $ready;
	select(undef, undef, undef, 0.05) until -e "seen";
	my $sum = 0;
	for my $turn (1 .. 2) { $sum += $turn * length for @n }
	print "$sum\n";' &
program=$!
until [ -e ready ]; do sleep 0.1; done
"${@//PROCESS/$program}" >&2 &
tracer=$!
until grep -q '^TracerPid:.*[1-9]' "/proc/$program/status" || ! kill -0 "$tracer" 2>/dev/null; do
	sleep 0.05
done
: >seen
wait "$program"
wait "$tracer"
