#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: gcc.sh FOLDER
# gcc compiling a large generated file; the assembly it writes is the output.
set -euo pipefail
file=$1/large.c
if [ ! -e "$file" ]; then
	{
		for i in $(seq 1 600); do
			echo "int f$i(int a, int b, const int *p) { int s = a * $i; for (int i = 0; i < b; i++) {" \
				"if (p[i] > $i) s += p[i] ^ (a << ($i % 7)); else s -= p[i] * b + $i;" \
				"switch (s % 5) { case 0: s += $i; break; case 1: s ^= a; break; case 2: s -= b; break;" \
				"case 3: s *= 3; break; default: s += p[b - i - 1]; } } return s + (int)sizeof(p); }"
		done
		echo "int all(int a, int b, const int *p) { int s = 0;"
		seq 1 600 | sed 's/.*/s += f&(a, b, p);/'
		echo "return s; }"
	} >"$file.new"
	mv "$file.new" "$file"
fi
# Keep what it has allocated: collecting often would only hide the need.
exec gcc -O1 -S -o - --param ggc-min-expand=500 --param ggc-min-heapsize=800000 "$file"
