#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The guest half of tests/suites/packages: one "check NAME VALUE" line a fact, on the console,
# in a machine that was installed from packages and booted by systemd.
exec >/dev/ttyS0 2>&1
# A line of its own, whatever the console's login says.
check() { printf '\ncheck %s\n' "$*"; }
sysfs=/sys/kernel/mm/demeter

check kernel "$(uname -r)"
check nodes "$(find /sys/devices/system/node -maxdepth 1 -name 'node[0-9]*' | wc -l)"
check off_before "$(systemctl is-active demeter-tmm demeterd | tr '\n' ' ')"

# The guest's side: load, manage, see, unload.
systemctl start demeter-tmm || journalctl -u demeter-tmm --no-pager | tail
check tmm "$(systemctl is-active demeter-tmm)"
check enabled "$(cat $sysfs/enabled)"
check sampler "$(cat $sysfs/sampler)"
perl -e 'my $held = "x" x (192 << 20); $| = 1; print "held\n"; sleep 1000' >/tmp/held &
held=$!
for _ in $(seq 60); do
	demeter status --json | grep -q "\"pid\": *$held" && break
	sleep 1
done
demeter status --json | grep -q "\"pid\": *$held" && check managed 1
check numa_balancing "$(cat /proc/sys/kernel/numa_balancing)"
kill "$held"
systemctl stop demeter-tmm
check unloaded "$(grep -c '^demeter ' /proc/modules)"
check numa_balancing_again "$(cat /proc/sys/kernel/numa_balancing)"

# A parameter that is none is told, and nothing is managed.
cp /etc/demeter/tmm.conf /tmp/tmm.conf
echo 'nonsense 1' >>/etc/demeter/tmm.conf
systemctl start demeter-tmm && check started_with_nonsense 1
check refused "$(journalctl -u demeter-tmm --no-pager | grep -c "names 'nonsense', which demeter.ko does not have")"
cp /tmp/tmm.conf /etc/demeter/tmm.conf
systemctl reset-failed demeter-tmm
check unloaded "$(grep -c '^demeter ' /proc/modules)"

# The host's side.
truncate -s 64M /dev/shm/web.fmem /dev/shm/web.smem
cat >/etc/demeter/demeterd.toml <<'TOML'
[[vm]]
name = "web"
socket = "/run/demeter/web.sock"
fmem = "/dev/shm/web.fmem"
smem = "/dev/shm/web.smem"
TOML
systemctl start demeterd
for _ in $(seq 30); do
	demeter balloon get >/tmp/guests 2>&1 && break
	sleep 1
done
check daemon "$(systemctl is-active demeterd)"
[ "$(systemctl is-active demeterd)" = active ] || journalctl -u demeterd --no-pager | tail
check listed "$(grep -c '^web' /tmp/guests)"
grep -q '^web' /tmp/guests || cat /tmp/guests
# A monitor of another user, in the sockets' group, reaches them.
check mode "$(stat -Lc %a /run/demeter)"
systemctl stop demeterd

# One program.
# shellcheck disable=SC2016 # of perl
check extmem "$(demeter extmem run --dram 64M --swap /var/tmp -- perl -e 'my $n = 64 << 20; my $held = "x" x $n; print length $held' 2>/tmp/extmem.log)"
cat /tmp/extmem.log
check badlog "$(dmesg | grep -cE 'BUG:|Bad page|rss-counter|\[demeter')"
check failed "$(systemctl --failed --no-legend | grep -c demeter)"
check end 1
systemctl poweroff
