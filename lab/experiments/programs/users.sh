#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Programs that are started as root and run as somebody else: by runuser, su, setpriv, chroot,
# in a namespace of users, and by setuid and fork in one.
set -euo pipefail

folder=$(mktemp -d /var/tmp/demeter-users.XXXXXX)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
sorted='id -u; sort -S 200M --parallel=1 | sha256sum'
runuser -u nobody -- sh -c "$sorted" <text
su -s /bin/sh nobody -c "$sorted" <text
setpriv --reuid=65534 --regid=65534 --clear-groups sh -c "$sorted" <text
chroot --userspec=65534:65534 / sh -c "$sorted" <text
unshare -Ur sh -c "$sorted" <text
perl -e '$> = $< = 65534; my $child = fork; die "fork: $!" unless defined $child;
	exec "sh", "-c", $ARGV[0] unless $child; waitpid $child, 0; exit $? >> 8' "$sorted" <text
