#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# PostgreSQL, started as root and run as its own user, over a socket: rows.csv loaded, sorted,
# grouped and joined; then the fast shutdown that SIGINT asks for.
set -euo pipefail

binaries=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
home=$(mktemp -d /var/tmp/demeter-postgres.XXXXXX)
trap 'rm -rf "$home"' EXIT
cp rows.csv "$home"
chown -R postgres "$home"
cd "$home"
as_postgres() { runuser -u postgres -- "$@"; }
as_postgres "$binaries/initdb" -D "$home/data" -A trust -E UTF8 --no-locale >initdb.log
as_postgres "$binaries/postgres" -D "$home/data" -c listen_addresses= -k "$home" \
	-c shared_buffers=24MB -c work_mem=16MB >server.log 2>&1 &
server=$!
for _ in $(seq 300); do
	as_postgres "$binaries/pg_isready" -q -h "$home" && break
	sleep 0.2
done
as_postgres "$binaries/psql" -q -h "$home" -d postgres -At <<SQL
create table t(i int, n text, x float8);
\copy t from '$home/rows.csv' csv
create index k on t(n, x);
select n, count(*), sum(i) from t group by n order by n;
select count(*), sum(a.i - b.i) from t a join t b on a.n = b.n;
select i from t order by x limit 2000;
SQL
postmaster=$(head -n 1 data/postmaster.pid)
kill -INT "$postmaster"
wait "$server"
grep -c 'received fast shutdown request' server.log
