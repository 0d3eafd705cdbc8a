#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# For the scripts beside it: a folder of its own for a server ($home), which is ended, and whose
# log is shown, if the script fails. Whoever starts one keeps its process in $server.
home=$(mktemp -d "$PWD/server.XXXXXX")
finish() {
	local status=$?
	[ -z "${server:-}" ] || kill -KILL "$server" 2>/dev/null || true
	[ "$status" = 0 ] || cat "$home/log" >&2
	exit "$status"
}
trap finish EXIT
