#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: sort.sh FOLDER
# sort(1) of lines that are made once; its buffer is larger than the file.
set -euo pipefail
file=$1/lines
if [ ! -e "$file" ]; then
	awk 'BEGIN { srand(7); for (i = 0; i < 250000; i++)
		printf "%08x%08x%08x%08x line %d of the file to be sorted\n",
			rand() * 2^32, rand() * 2^32, rand() * 2^32, rand() * 2^32, i }' >"$file.new"
	mv "$file.new" "$file"
fi
LC_ALL=C exec sort --buffer-size=160M "$file"
