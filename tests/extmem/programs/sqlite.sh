#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: sqlite.sh FOLDER
# sqlite3 with its database in memory: filled, indexed, joined, updated, checked.
set -euo pipefail
exec sqlite3 :memory: <<'SQL'
PRAGMA cache_size = -400000;
CREATE TABLE item (id INTEGER PRIMARY KEY, part INTEGER, name TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 250000)
INSERT INTO item SELECT i, i * 7919 % 10007, printf('%064x', i * 2654435761 % 4294967296) FROM n;
CREATE INDEX by_part ON item (part, name);
UPDATE item SET name = name || part WHERE id % 3 = 0;
SELECT count(*), sum(part), sum(length(name)) FROM item;
SELECT part, count(*), min(name), max(name) FROM item GROUP BY part ORDER BY part LIMIT 2000;
SELECT count(*) FROM item a JOIN item b ON a.part = b.part AND a.id < b.id WHERE a.id < 20000;
PRAGMA integrity_check;
SQL
