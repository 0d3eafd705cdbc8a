#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only OR MIT
# Pack the traces and their expected digests into a C array on stdout: the
# kernel module has no files to read them from.
#   pack.sh DIGESTS TRACE...        DIGESTS: lines "NAME HEX"
set -eu
digests=$1
shift
echo '/* SPDX-License-Identifier: GPL-2.0-only OR MIT */'
echo '/* Packed by golden/pack.sh from the traces beside it; do not edit. */'
echo 'static const struct golden_trace golden_traces[] = {'
for trace; do
	name=$(basename "$trace" .trace)
	digest=$(sed -n "s/^$name //p" "$digests")
	echo "	{ \"$name\","
	sed -e '/^#/d' -e '/^$/d' -e 's/.*/	  "&\\n"/' "$trace"
	echo "	  , 0x${digest:-0}ULL },"
done
echo '};'
