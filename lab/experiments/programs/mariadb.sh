#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# MariaDB over a socket: rows.csv loaded, multiplied, indexed, grouped and sorted. Needs root.
set -euo pipefail

home=$(mktemp -d "$PWD/mariadb.XXXXXX")
# shellcheck source=/dev/null
. "${0%/*}/server.sh"
# By --rpm it leaves the system's files alone.
mariadb-install-db --no-defaults --rpm --user=root --datadir="$home/data" --skip-test-db \
	--auth-root-authentication-method=normal >"$home/log" 2>&1
mariadbd --no-defaults --user=root --datadir="$home/data" --skip-networking \
	--socket="$home/s" --innodb-buffer-pool-size=48M --local-infile=1 >>"$home/log" 2>&1 &
server=$!
ask() { mariadb --no-defaults --local-infile=1 -u root -S "$home/s" -N "$@"; }
until ask -e 'select 1' >/dev/null 2>&1; do
	kill -0 "$server"
	sleep 0.2
done
ask <<SQL
create database d; use d;
create table t(i int, n varchar(20), x double, key k(n, x)) engine=innodb;
load data local infile '$PWD/rows.csv' into table t fields terminated by ',';
insert into t select i + 60000 * seq, n, x + seq from t, seq_1_to_4;
select n, count(*), sum(i) from t group by n order by n;
select i from t order by x, i limit 2000;
SQL
kill -TERM "$server"
wait "$server"
server=
