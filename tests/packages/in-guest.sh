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

# What the doctor finds of something: "ok demeter.ko loaded, version …".
doctor() { demeter doctor "$1" | tr -s ' ' | sed -n "s/^ \([a-z]* $2 .*\)/\1/p"; }
check doctor_unloaded "$(doctor guest demeter.ko)"
check doctor_stopped "$(doctor host daemon)"

# The guest's side: load, manage, see, unload.
systemctl start demeter-tmm || journalctl -u demeter-tmm --no-pager | tail
check tmm "$(systemctl is-active demeter-tmm)"
check enabled "$(cat $sysfs/enabled)"
check doctor_loaded "$(doctor guest demeter.ko); $(doctor guest 'NUMA balancing')"
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

# The host's side. A machine of 4 + 4 MiB, and a daemon of its own for another one.
export MACHINE=/dev/shm/web MACHINE_SOCKET=/run/demeter/web.sock
mkdir "$MACHINE" /dev/shm/alone
truncate -s 4M "$MACHINE/fmem" "$MACHINE/smem" /dev/shm/alone/fmem /dev/shm/alone/smem
cat >/etc/demeter/demeterd.toml <<TOML
[[vm]]
name = "web"
socket = "$MACHINE_SOCKET"
fmem = "$MACHINE/fmem"
smem = "$MACHINE/smem"
qmp = "$MACHINE/qmp"
TOML
printf 'FMEM=/dev/shm/alone/fmem\nSMEM=/dev/shm/alone/smem\n' >/etc/demeter/alone.conf
# What the machine says of itself.
state() { sed -n "s/^$1=//p" "$MACHINE/state"; }
state_is() { [ "$(state served) $(state added)" = "$1" ]; }
holds() { [ "$(state fmem_balloon_kib)" = "$1" ]; }
# Waits for a condition, not for a time.
soon() {
	for _ in $(seq 300); do
		"$@" && return
		sleep 0.2
	done
	echo "not so in time: $*"
	return 1
}
pid() { systemctl show -P MainPID "$1"; }
systemctl start demeterd
for _ in $(seq 30); do
	demeter balloon get >/tmp/guests 2>&1 && break
	sleep 1
done
check daemon "$(systemctl is-active demeterd)"
[ "$(systemctl is-active demeterd)" = active ] || journalctl -u demeterd --no-pager | tail
check doctor_runs "$(doctor host daemon)"
check listed "$(grep -c '^web' /tmp/guests)"
grep -q '^web' /tmp/guests || cat /tmp/guests
# A monitor of another user, in the sockets' group, reaches them.
check mode "$(stat -Lc %a /run/demeter)"

# Only with PACKAGES_UPGRADE (see the suite).
if [ -x /root/machine ]; then
	# A guest is served while packages change below it.
	/root/machine --ignored --exact machine >/tmp/machine.log 2>&1 &
	guest=$!
	soon state_is "1 0"
	check served "$(state served)"
	check deaths "$(journalctl -u demeterd | grep -c 'its worker died')"
	journalctl -u demeterd --no-pager | grep 'its worker died' || true
	demeter balloon set web fmem=2M
	soon holds 2048
	check resized "$(state fmem_balloon_kib)"
	systemctl start demeterd@alone
	check instance "$(systemctl is-active demeterd@alone)"

	old=$(pid demeterd) old_instance=$(pid demeterd@alone)
	DEBIAN_FRONTEND=noninteractive apt-get -y --no-install-recommends install /newest/demeterd.deb /newest/demeter.deb >/tmp/upgrade.log 2>&1 ||
		tail -n 20 /tmp/upgrade.log
	# shellcheck disable=SC2016 # dpkg-query's own format
	check upgraded "$(dpkg-query -Wf '${Version}' demeterd)"
	[ "$(pid demeterd)" != "$old" ] && check restarted 1
	check runs "$(readlink "/proc/$(pid demeterd)/exe")"
	[ "$(pid demeterd@alone)" = "$old_instance" ] && check instance_left 1
	check instance_told "$(grep -c 'still of the version before: demeterd@alone.service ; next:' /tmp/upgrade.log)"
	soon state_is "1 1" || journalctl -u demeterd --no-pager | tail
	check taken_over "$(state added)"
	check size_kept "$(state fmem_balloon_kib)"
	demeter balloon set web fmem=3M
	soon holds 1024
	check resized_again "$(state fmem_balloon_kib)"

	apt-get -y remove demeterd >/tmp/remove.log 2>&1 || tail -n 20 /tmp/remove.log
	check removed "$(systemctl is-active demeterd demeterd@alone | tr '\n' ' ')$(pgrep -c -x demeterd)"
	soon state_is "0 1"
	check alone "$(state served) $(state fmem_balloon_kib)"
	apt-get -y --no-install-recommends install /newest/demeterd.deb >/tmp/again.log 2>&1 || tail -n 20 /tmp/again.log
	soon state_is "1 2" || journalctl -u demeterd --no-pager | tail
	check back "$(state served)"
	check size_back "$(state fmem_balloon_kib)"
	check intact "$(state intact)"
	kill "$guest" || cat /tmp/machine.log

	mkdir /var/lib/demeter-images
	apt-get -y purge demeterd >/tmp/purge.log 2>&1 || tail -n 20 /tmp/purge.log
	rmdir /var/lib/demeter-images && check others_stay 1
	# What the administrator wrote stays.
	check rest "$( (
		find /var/lib /var/lib/private /run -maxdepth 1 -name 'demeter*' ! -name demeter-tmm
		find /var/lib/systemd /etc /usr -name '*demeterd*' ! -name demeterd.toml
	) | tr '\n' ' ')"
else
	systemctl stop demeterd
	# Metrics and page, as their drop-ins say; without them the service has no network.
	cat >>/etc/demeter/demeterd.toml <<-TOML
		[metrics]
		listen = "127.0.0.1:9464"
		[web]
		listen = "127.0.0.1:9465"
		token-file = "/run/credentials/demeterd.service/web-token"
	TOML
	(umask 077 && head -c 32 /dev/urandom | base64 >/etc/demeter/web-token)
	mkdir -p /etc/systemd/system/demeterd.service.d
	cp /usr/share/doc/demeterd/monitoring/demeterd-*.conf /etc/systemd/system/demeterd.service.d
	systemctl daemon-reload
	systemctl start demeterd || journalctl -u demeterd --no-pager | tail
	# The status of an answer, or what was got of a body.
	status() { # status PORT PATH [TOKEN]
		perl -MIO::Socket::INET -e '
			my $to = IO::Socket::INET->new("127.0.0.1:$ARGV[0]") or die "$ARGV[0]: $!\n";
			print $to "GET $ARGV[1] HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
				$ARGV[2] ? "Authorization: Bearer $ARGV[2]\r\n" : "", "\r\n";
			my ($first) = <$to> =~ / (\d+)/; my $named = grep { /\{[^}]*vm="web"|"name": ?"web"/ } <$to>;
			print "$first ", $named > 0 ? "told" : "silent"' "$@" 2>&1
	}
	check metrics "$(status 9464 /metrics) $(status 9464 /v1/vms)"
	check page "$(status 9465 /v1/vms) $(status 9465 /v1/vms "$(printf %032d 0)") $(status 9465 /v1/vms "$(cat /etc/demeter/web-token)")"
	rm -r /etc/systemd/system/demeterd.service.d
	sed -i '/^\[metrics\]/,$d' /etc/demeter/demeterd.toml
	systemctl daemon-reload
	systemctl stop demeterd
	# systemd holds the control interface: a call starts the daemon, waits for one that is restarted,
	# and for one that was killed.
	listed() { demeter balloon get 2>&1 | tee /tmp/guests | grep -c '^web'; }
	systemctl start demeterd.socket
	check socket "$(systemctl is-active demeterd.socket demeterd | tr '\n' ' ')$(stat -c %a /run/demeterd.sock)"
	check socket_starts "$(listed) $(systemctl is-active demeterd)"
	old=$(pid demeterd)
	systemctl restart demeterd &
	check socket_waits "$(listed)"
	wait $!
	[ "$(pid demeterd)" != "$old" ] && check socket_restarted 1
	kill -9 "$(pid demeterd)"
	check socket_survives "$(listed)"
	cat /tmp/guests
	systemctl stop demeterd.socket demeterd
	[ ! -e /run/demeterd.sock ] && check socket_gone 1
fi

# One program.
# shellcheck disable=SC2016 # of perl
check extmem "$(demeter extmem run --dram 64M --swap /var/tmp -- perl -e 'my $n = 64 << 20; my $held = "x" x $n; print length $held' 2>/tmp/extmem.log)"
cat /tmp/extmem.log
check badlog "$(dmesg | grep -cE 'BUG:|Bad page|rss-counter|\[demeter')"
check failed "$(systemctl --failed --no-legend | grep -c demeter)"
check end 1
systemctl poweroff
