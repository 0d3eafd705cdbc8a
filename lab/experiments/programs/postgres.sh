#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# PostgreSQL, started as root and run as its own user, over a socket: rows.csv loaded, sorted,
# grouped and joined; then the fast shutdown that SIGINT asks for. Needs root.
set -euo pipefail

postgres=$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -V | tail -n 1)
binaries=$(dirname "$postgres")
home=$(mktemp -d "$PWD/postgres.XXXXXX")
finish() {
	local status=$?
	[ ! -e "$home/data/postmaster.pid" ] || kill -QUIT "$(head -n 1 "$home/data/postmaster.pid")" || true
	wait || true
	[ "$status" = 0 ] || cat "$home/server.log" >&2
	exit "$status"
}
trap finish EXIT
cp rows.csv "$home"
chown -R postgres "$home"
cd "$home"
as_postgres() { runuser -u postgres -- "$@"; }
as_postgres "$binaries/initdb" -D "$home/data" -A trust -E UTF8 --no-locale >initdb.log
as_postgres "$binaries/postgres" -D "$home/data" -c listen_addresses= -k "$home" \
	-c shared_buffers=24MB -c work_mem=64MB -c max_parallel_workers_per_gather=0 >server.log 2>&1 &
server=$!
until as_postgres "$binaries/pg_isready" -q -h "$home"; do
	kill -0 "$server"
	sleep 0.2
done
as_postgres "$binaries/psql" -X -v ON_ERROR_STOP=1 -q -h "$home" -d postgres -At <<SQL
create table t(i int, n text, x float8);
\copy t from '$home/rows.csv' csv
create index k on t(n, x);
select n, count(*), sum(i) from t group by n order by n;
select count(*), sum(abs(a.i - b.i)) from t a join t b on a.n = b.n;
select i from t order by x, i limit 2000;
select md5(string_agg(i::text, ',' order by x, i, g)) from t, generate_series(1, 8) g;
SQL
kill -INT "$(head -n 1 data/postmaster.pid)"
wait "$server"
grep -c 'received fast shutdown request' server.log
