#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# usage: tests/debug/splats.sh LOG…
# Prints the lines of kernel logs in which a kernel reports a mistake, and exits with 1 if
# there are any, or with 2 if a log is not that of a kernel that looks for them. What the
# kernel says of itself without our modules is listed, with the reason, in stock-splats:
# lines that hold such a text are left out, and so is the report that follows them.
set -euo pipefail
here=$(dirname "$0")

# First words of reports, not of what the kernel says of its settings at boot.
reports='BUG[: ]|WARNING: |KASAN: |UBSAN: |ODEBUG: |INFO: (trying|task|lockdep|rcu|possible|suspicious)'
reports+='|possible (circular|recursive|irq|unsafe|deadlock)|suspicious RCU|inconsistent lock state|Invalid wait context'
reports+='|held lock freed|bad unlock balance|lock held when returning|locks held|turning off the locking'
reports+='|sleeping function|scheduling while atomic|preempt_count|voluntary context switch|bad contention'
reports+='|Bad page|bad pmd|bad pte|Bad rss|rss-counter|page dumped because: VM_|page_table_check|VM_BUG|vm_bug'
reports+='|list_(add|del) corruption|refcount_t: |corrupt'
reports+='|general protection|unable to handle|Oops|Call Trace:|Kernel panic|invalid opcode|stack guard'
reports+='|rcu.*stall|soft lockup|hard LOCKUP|blocked for more than|workqueue lockup'

[ $# -gt 0 ] || {
	sed -n '/^# usage:/,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
	exit 2
}
stock=$(sed -n 's/^text: //p' "$here/stock-splats")
found=0
for log; do
	if ! grep -aqE 'Linux version [^ ]*-debug ' "$log"; then
		echo "splats: error: $log does not begin with the boot of a debug kernel; next: see how that guest was started" >&2
		exit 2
	fi
	# A report of the stock kernel ends with the line "end trace", or with its stack.
	if tr -d '\r' <"$log" | awk -v reports="$reports" -v stock="$stock" '
		BEGIN { listed = split(stock, text, "\n") }
		{
			for (i = 1; i <= listed; i++)
				if (text[i] != "" && index($0, text[i]))
					skipping = 200
			if (skipping > 0) {
				skipping--
				if ($0 ~ /---\[ end trace/)
					skipping = 0
				next
			}
		}
		$0 ~ reports { print; found = 1 }
		END { exit found }'; then
		continue
	fi
	found=1
done
[ "$found" = 0 ]
