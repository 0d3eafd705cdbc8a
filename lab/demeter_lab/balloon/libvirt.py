# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest of libvirt with a double balloon, as ``docs/balloon-vmms.md`` says that it is started.

Run by ``tests/suites/libvirt``, which mounts what it needs.
"""

import argparse
import os
import sys
from pathlib import Path

from demeter_lab.balloon import keeper
from demeter_lab.balloon.checks import DRIVER, Checks, counts_agree, log_is_clean
from demeter_lab.balloon.daemon import Daemon
from demeter_lab.balloon.domain import USER, Domain, Libvirt
from demeter_lab.balloon.guest import MIB, Settings, end_on_sigterm, modules

NAME = "web"
NODE_MIB = (144, 144)
#: What the document's description of the guest names.
SOCKETS = Path("/run/demeter")
QMP = Path("/run/demeter-qmp") / NAME
#: Of node 1, by the guest, before it gives it away.
USED_MIB = 90
#: Node, and the size that it gets, in MiB.
SIZES = ((0, 100), (1, 72), (0, 144), (1, 110))


def daemon_of(directory: Path, *options: str) -> Daemon:
    """Return a daemon that finds the tiers by address, as names of files change."""
    end = NODE_MIB[0] * MIB
    tiers = f"fmem=gpa:0x0-{end:#x},smem=gpa:{end:#x}-{end + NODE_MIB[1] * MIB:#x}"
    words = ["--vm", f"{NAME},socket={SOCKETS / NAME}.sock,{tiers}", *options]
    return Daemon(directory, [], *words)


def run(checks: Checks, libvirt: Libvirt, kernel: str) -> None:
    """All of it."""
    directory = libvirt.directory
    files = {DRIVER: modules(kernel) / DRIVER, keeper.NAME: keeper.compiled(directory)}
    settings = Settings(kernel=kernel, node_mib=NODE_MIB, vcpus=1, files=files)
    guest = Domain(libvirt, NAME, settings, QMP)
    user, group = libvirt.identity()
    with daemon_of(directory):
        told = libvirt.virsh("start", NAME).stderr
        checks.that("a socket of its owner's alone is refused", "Permission denied" in told, told)
    daemon = daemon_of(directory, "--socket-group", str(group))
    with daemon, guest:
        checks.that(f"QEMU runs as {USER}", Path(f"/proc/{guest.pid()}").stat().st_uid == user)
        checks.that(
            "connected", daemon.view(NAME)["stage"] == "connected", daemon.view(NAME)["stage"]
        )
        guest.must(f"insmod /balloon/{DRIVER}")
        daemon.wait_stage(NAME, "driven")
        keeper.keep(guest, keeper.KEPT_MIB)
        _sizes(checks, daemon, guest)
        _another_daemon(checks, daemon, guest)
        _saved(checks, guest)
        checks.that("the kernel is quiet", log_is_clean(guest) == "", log_is_clean(guest))
    with daemon, guest:
        guest.must(f"insmod /balloon/{DRIVER}")
        daemon.wait_stage(NAME, "driven")
        _resize(checks, daemon, 0, 100)


def _sizes(checks: Checks, daemon: Daemon, guest: Domain) -> None:
    # Used once and free again: the host keeps it until the guest says so.
    guest.must(
        f"mkdir /used && mount -t tmpfs -o size={USED_MIB}m,mpol=bind:1 used /used"
        f" && dd if=/dev/zero of=/used/x bs=1M count={USED_MIB} && umount /used"
    )
    before = guest.backing_bytes(1) // MIB
    checks.that("the host keeps what the guest has used", before >= USED_MIB, f"{before} MiB")
    for node, mib in SIZES:
        _resize(checks, daemon, node, mib)
        if node == 1 and mib < USED_MIB:
            now = guest.backing_bytes(1) // MIB
            checks.that("and has it back", now <= mib, f"{now} MiB")
    checks.that("guest and host count alike", (words := counts_agree(daemon, NAME)) == "", words)
    keeper.wait_checked(guest)


def _resize(checks: Checks, daemon: Daemon, node: int, mib: int) -> None:
    has = daemon.resize(NAME, node, mib * MIB)["size_bytes"]
    checks.that(f"node {node} gets {mib} MiB", has == mib * MIB, "" if has == mib * MIB else has)


def _another_daemon(checks: Checks, daemon: Daemon, guest: Domain) -> None:
    """End it; the next one is given the guest by the command socket beside libvirt's."""
    daemon.stop()
    daemon.start()
    guest.qmp.close()
    words = ("replug", "--qmp", str(QMP), "--socket", f"{SOCKETS / NAME}.sock")
    done = daemon.command(*words)
    guest.reconnect_qmp()
    checks.that("plugged in anew", done.returncode == 0, done.stderr.strip())
    daemon.wait_stage(NAME, "driven")
    sizes = [tier["size_bytes"] // MIB for tier in daemon.wait_still(NAME)["tiers"]]
    checks.that("the next daemon hears what the guest has", sizes == [144, 110], sizes)
    _resize(checks, daemon, 0, 100)
    checks.that("libvirt has seen nothing", guest.state() == "running", guest.state())
    keeper.wait_checked(guest)


def _saved(checks: Checks, guest: Domain) -> None:
    """Save it with the device in, which is refused; it goes on."""
    done = guest.libvirt.virsh("save", NAME, str(guest.directory / "saved"))
    checks.that("saving it is refused", done.returncode != 0, done.stderr.strip())
    checks.that("and it goes on", guest.state() == "running", guest.state())
    keeper.wait_checked(guest)


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="libvirt's root directory")
    parser.add_argument("--directory", type=Path, required=True, help="below /run, for all files")
    parser.add_argument("--kernel", default="6.12")
    arguments = parser.parse_args()
    end_on_sigterm()
    checks = Checks()
    os.umask(0o022)
    SOCKETS.mkdir(mode=0o755)
    with checks.part("libvirt"), Libvirt(arguments.root, arguments.directory) as libvirt:
        print(f"       libvirt {libvirt.must('version', '--daemon').splitlines()[-1].split()[-1]}")
        run(checks, libvirt, arguments.kernel)
    print(f"libvirt: {checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
