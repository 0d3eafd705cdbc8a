#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: chromium.sh OPTION… : a page that makes and sorts a table, as text, by a browser.
set -euo pipefail

cat >page.html <<'PAGE'
<!doctype html><title>table</title><table id="t"></table><p id="sum"></p><script>
const rows = [];
for (let i = 1; i <= 300000; i++) rows.push({ key: (i * 7919) % 300007, name: "n" + i });
rows.sort((a, b) => a.key - b.key);
let sum = 0;
rows.forEach((row, i) => { sum = (sum * 31 + row.key * i) % 1000000007; });
document.getElementById("sum").textContent = sum;
document.getElementById("t").innerHTML = rows.slice(0, 4000)
  .map((row) => `<tr><td>${row.key}<td>${row.name}`).join("");
</script>
PAGE
chromium --headless --disable-gpu --disable-dev-shm-usage --user-data-dir="$PWD/profile" "$@" \
	--dump-dom "file://$PWD/page.html"
