#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Programs that are started as root and run as somebody else: by runuser, su, setpriv and chroot,
# in a namespace of users, and by setuid and fork with memory that has left DRAM. Needs root.
set -euo pipefail

head -n 120000 text >some
sorted='id -u; sort -S 200M --parallel=1 | sha256sum'
runuser -u nobody -- sh -c "$sorted" <some
su -s /bin/sh nobody -c "$sorted" <some
setpriv --reuid=65534 --regid=65534 --clear-groups sh -c "$sorted" <some
chroot --userspec=65534:65534 / sh -c "$sorted" <some
unshare -Ur sh -c "$sorted" <some
perl -MPOSIX -e '
	my @numbers = map { $_ * 7 } 1 .. 500_000;
	POSIX::setgid(65534) or die "setgid: $!";
	POSIX::setuid(65534) or die "setuid: $!";
	my $child = fork;
	die "fork: $!" unless defined $child;
	my $sum = 0;
	$sum += $_ for @numbers;
	print STDOUT $child ? "parent" : "child", " $< $sum\n" if !$child || waitpid($child, 0) && $? == 0;'
