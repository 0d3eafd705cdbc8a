#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# MariaDB over a socket: rows.csv loaded, indexed and grouped.
set -euo pipefail

home=$(mktemp -d /var/tmp/demeter-mariadb.XXXXXX)
trap 'rm -rf "$home"' EXIT
mariadb-install-db --no-defaults --user=root --datadir="$home/data" --skip-test-db \
	--auth-root-authentication-method=normal >"$home/install.log" 2>&1
mariadbd --no-defaults --user=root --datadir="$home/data" --skip-networking \
	--socket="$home/s" --innodb-buffer-pool-size=48M --local-infile=1 >"$home/log" 2>&1 &
server=$!
ask() { mariadb --no-defaults --local-infile=1 -u root -S "$home/s" -N "$@"; }
for _ in $(seq 300); do
	ask -e 'select 1' >/dev/null 2>&1 && break
	sleep 0.2
done
ask <<SQL
create database d; use d;
create table t(i int, n varchar(20), x double, key k(n, x)) engine=innodb;
load data local infile '$PWD/rows.csv' into table t fields terminated by ',';
select n, count(*), sum(i) from t group by n order by n;
select i from t order by x limit 2000;
SQL
kill -TERM "$server"
wait "$server"
