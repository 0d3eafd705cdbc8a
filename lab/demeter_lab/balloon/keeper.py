# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guest's program that keeps memory and checks every word of it, seen from outside."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from demeter_lab.balloon.checks import BAD_WORDS
from demeter_lab.balloon.guest import PATIENCE, TREE, Guest, GuestError

NAME = "keep_pages"
#: What it keeps of each node.
KEPT_MIB = (6, 6)


def compiled(directory: Path, name: str = NAME) -> Path:
    """Build it, or another one of the guest's programs; return that."""
    directory.mkdir(parents=True, exist_ok=True)
    source = TREE / f"tests/guest/balloon/{name}.c"
    made = directory / name
    words = ["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", str(made), str(source)]
    subprocess.run(words, check=True)
    return made


def wait_for(what: str, holds: Callable[[], bool], limit_s: float, pause_s: float = 0.1) -> None:
    """Wait until that holds."""
    limit = time.monotonic() + limit_s * PATIENCE
    while not holds():
        if time.monotonic() > limit:
            raise GuestError(f"{what}: not within {limit_s * PATIENCE:.0f} s")
        time.sleep(pause_s)


def keep(guest: Guest, mib: tuple[int, int]) -> None:
    """Start it in a guest, with so much of each node."""
    guest.must("rm -f /tmp/kept /tmp/wrong")
    words = " ".join(str(part) for part in mib)
    guest.must(f"chmod +x /balloon/{NAME}; (/balloon/{NAME} {words} 2>/tmp/keeper &)")
    wait_for(f"{guest.name} checks its memory", lambda: rounds(guest) > 0, 120)


def rounds(guest: Guest) -> int:
    """Return how often a guest has checked its memory since it was booted."""
    status, text = guest.run("cat /tmp/kept")
    return int(text) if status == 0 else 0


def complaint(guest: Guest) -> str:
    """Return what is wrong inside a guest, or nothing: contents, kernel, a dead program."""
    # In this order: before it ends it says why.
    line = (
        f"pidof {NAME} >/dev/null || echo its program is gone; cat /tmp/wrong 2>/dev/null;"
        f" dmesg | grep -E '{BAD_WORDS}' | head -n 20"
    )
    return guest.run(line)[1].strip()


def must_be_well(guest: Guest) -> None:
    """Insist that nothing has gone wrong inside a guest up to now."""
    if words := complaint(guest):
        raise GuestError(f"{guest.name}: {words}")


def wait_checked(guest: Guest) -> None:
    """Wait until a guest has checked all of its memory once more, from now on."""
    # The round that is under way began earlier.
    wanted = rounds(guest) + 2

    def checked() -> bool:
        must_be_well(guest)
        return rounds(guest) >= wanted

    wait_for(f"{guest.name} checks its memory again", checked, 120, 0.2)
