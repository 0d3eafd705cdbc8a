# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The double balloon and a managed program on a kernel that watches itself.

The guests are those of the suite ``balloon``, larger: a debug kernel takes an eighth of
all memory for itself. What counts is what the kernel says; ``tests/debug/splats.sh``
reads it.
"""

import argparse
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demeter_lab.balloon.checks import (
    DRIVER,
    Checks,
    counts_agree,
    intact,
    put_data,
    size_at,
)
from demeter_lab.balloon.daemon import Daemon
from demeter_lab.balloon.guest import (
    TREE,
    Guest,
    Settings,
    end_on_sigterm,
    modules,
)
from demeter_lab.balloon.started import own_directory
from demeter_lab.balloon.suite import (
    FAULT,
    MANAGER,
    check_end_of_grace,
    check_manager,
    check_module,
    check_pause,
    check_reset,
    check_suspension,
)

#: FMEM that a managed program finds free: not enough for it, so that there is what to move.
FMEM_LEFT_MIB = 24
#: Plays an MMU besides the CPU's.
HAMMER = "demeter_hammer.ko"
#: One of each kind, in an order in which none hides those after it: lockdep stops
#: after its first report, and after those of others that say that memory is damaged.
MISTAKES = {
    "locks": "possible circular locking",
    "sleep": "sleeping function",
    "shift": "UBSAN: shift-out-of-bounds",
    "vm": "WARNING: ",
    "object": "ODEBUG: ",
    "list": "list_del corruption",
    "kmalloc": "KASAN: slab-out-of-bounds",
    "vmalloc": "KASAN: vmalloc-out-of-bounds",
}


def splats(console: Path) -> tuple[int, str]:
    """Return the status and the words of the reader of logs."""
    done = subprocess.run(
        [TREE / "tests/debug/splats.sh", console], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@contextmanager
def watched(checks: Checks, guest: Guest, kept: Path) -> Iterator[None]:
    """Run a guest; its kernel looks on until the end, and says nothing."""
    try:
        with guest:
            yield
            on, _ = guest.run("grep -q '^ debug_locks: *1$' /proc/lockdep_stats")
            checks.that("lockdep looked on until the end", on == 0)
    finally:
        kept.mkdir(parents=True, exist_ok=True)
        console = kept / f"{guest.name}.console"
        console.write_text(guest.console())
        status, said = splats(console)
        checks.that("the kernel reports nothing", status == 0, said)


def check_rounds(checks: Checks, daemon: Daemon, guest: Guest, rounds: int, seed: int) -> None:
    """Shrink and grow both tiers at once, and kill the daemon now and then."""
    numbers = random.Random(seed)
    wrong = ""
    for number in range(rounds):
        wanted = [
            size_at(guest, node, numbers.uniform(*[(0.6, 1), (0.3, 1)][node])) for node in (0, 1)
        ]
        for node in range(2):
            daemon.resize(guest.name, node, wanted[node], wait_ms=0)
        if number % 4 == 3:
            daemon.kill()
            daemon.start()
            daemon.replug(guest)
        view = daemon.wait_still(guest.name)
        sizes = [tier["size_bytes"] for tier in view["tiers"]]
        if sizes != wanted:
            wrong = wrong or f"round {number}: {sizes}, not {wanted}"
    checks.that(f"{rounds} rounds of both sizes, to the page", not wrong, wrong)
    checks.that("counts agree", not (words := counts_agree(daemon, guest.name)), words)
    checks.that("data intact", intact(guest))


def balloon(checks: Checks, directory: Path, kept: Path, kernel: str, rounds: int) -> None:
    """Run what an honest guest with a double balloon goes through."""
    daemon = Daemon(directory, ["balloon"])
    files = {name: modules(kernel) / name for name in (DRIVER, MANAGER, FAULT)}
    made = Settings(
        kernel=kernel,
        node_mib=(1024, 512),
        files=files,
        balloon_socket=daemon.socket("balloon"),
    )
    guest = Guest("balloon", directory, made)
    with daemon, watched(checks, guest, kept):
        guest.must(f"insmod /balloon/{DRIVER}")
        daemon.wait_stage("balloon", "driven")
        put_data(guest)
        with checks.part("rounds"):
            check_rounds(checks, daemon, guest, rounds, 1)
        with checks.part("module"):
            check_module(checks, daemon, guest)
        with checks.part("manager"):
            check_manager(checks, daemon, guest)
        with checks.part("pause"):
            check_pause(checks, daemon, guest)
        # Before the suspension, which waits for the short grace that this leaves.
        with checks.part("end of grace"):
            check_end_of_grace(checks, daemon, guest)
        with checks.part("suspension"):
            check_suspension(checks, daemon, guest)
        with checks.part("reset"):
            check_reset(checks, daemon, guest)


def managed(checks: Checks, directory: Path, kept: Path, kernel: str, loads: int) -> None:
    """Let demeter.ko manage by touch what does to its memory whatever it can."""
    programs = {name: directory / name for name in ("touch_torture", "secondary")}
    for name, program in programs.items():
        sources = sorted((TREE / "tests/guest").glob(f"{name}*.c"))
        words = ["gcc", "-O2", "-Wall", "-Wextra", "-static", "-pthread", "-o", program]
        subprocess.run([*words, *sources], check=True)
    made = Settings(
        kernel=kernel,
        node_mib=(512, 512),
        files={
            MANAGER: modules(kernel) / MANAGER,
            HAMMER: modules(kernel) / HAMMER,
            **programs,
            "touch.sh": TREE / "tests/guest/touch.sh",
        },
    )
    guest = Guest("managed", directory, made)
    with watched(checks, guest, kept):
        guest.must(
            f"cd /balloon; cp {MANAGER} {HAMMER} touch_torture secondary /tmp"
            "; chmod +x /tmp/touch_torture /tmp/secondary"
        )
        # Nobody can move or swap what is in a ramfs.
        guest.must(
            "mkdir /full; mount -t ramfs full /full; dd if=/dev/zero of=/full/x bs=1M count="
            "$(awk '/MemFree/{print int($4 / 1024)"
            f" - {FMEM_LEFT_MIB}}}' /sys/devices/system/node/node0/meminfo)"
        )
        # The suite's own limit is the one that counts.
        status, said = guest.run(f"LOADS={loads} sh /balloon/touch.sh", limit_s=1000)
        print(said, flush=True)
        checks.that("a managed program", status == 0, f"(status {status})")


def detector(checks: Checks, directory: Path, kept: Path, kernel: str) -> None:
    """Make mistakes on purpose: the kernel finds each, and the reader of its log."""
    name = "demeter_splat.ko"
    made = Settings(
        kernel=kernel,
        node_mib=(512, 512),
        append="kasan_multi_shot",
        files={name: modules(kernel) / name},
    )
    guest = Guest("detector", directory, made)
    kept.mkdir(parents=True, exist_ok=True)
    with guest:
        before = guest.console()
        (kept / "clean.console").write_text(before)
        status, said = splats(kept / "clean.console")
        checks.that("a boot without mistakes reports nothing", status == 0, said)
        boot = next(line for line in before.splitlines() if "Linux version" in line)
        for mistake, report in MISTAKES.items():
            seen = len(guest.console())
            guest.must(f"insmod /balloon/{name} mistake={mistake}; rmmod demeter_splat; sleep 1")
            log = kept / f"{mistake}.console"
            log.write_text(boot + "\n" + guest.console()[seen:])
            status, said = splats(log)
            found = status == 1 and report in said
            checks.that(f"found: {mistake}", found, "" if found else said)
    (kept / "other.console").write_text("Linux version 6.12.1-amd64\n")
    checks.that("no log of another kernel passes", splats(kept / "other.console")[0] == 2)


def main() -> int:
    """Run one part; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["balloon", "managed", "detector"])
    parser.add_argument("--kernel", default="6.12")
    parser.add_argument("--rounds", type=int, default=20, help="of sizes")
    parser.add_argument("--loads", type=int, default=20, help="of demeter.ko, under the program")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm/demeter-watched"))
    parser.add_argument("--kept", type=Path, default=Path("out/test-debug"), help="for consoles")
    arguments = parser.parse_args()
    end_on_sigterm()
    checks = Checks()
    with own_directory(arguments.directory) as directory, checks.part(arguments.part):
        if arguments.part == "balloon":
            balloon(checks, directory, arguments.kept, arguments.kernel, arguments.rounds)
        elif arguments.part == "managed":
            managed(checks, directory, arguments.kept, arguments.kernel, arguments.loads)
        else:
            detector(checks, directory, arguments.kept, arguments.kernel)
    print(f"{arguments.part}: {checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
