#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# For the scripts beside it, which keep a server in a folder ($home): it is ended, and its
# log is shown, if the script fails. Who starts one keeps its process in $server.
finish() {
	local status=$?
	[ -z "${server:-}" ] || kill -KILL "$server" 2>/dev/null || true
	[ "$status" = 0 ] || cat "${home:?}/log" >&2
	exit "$status"
}
trap finish EXIT
