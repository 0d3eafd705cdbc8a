# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the balloon's suites ask of real guests, and how they count the answers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from demeter_lab.balloon.daemon import Daemon
from demeter_lab.balloon.guest import PAGE, PATIENCE, Guest, GuestError, Settings, modules

DRIVER = "demeter_balloon.ko"
#: Data that must stay intact, on each node.
DATA_MIB = 8
#: What a kernel says when something is wrong in it.
BAD_WORDS = "BUG:|WARNING:|Bad page|Oops|Call Trace|rss-counter|Out of memory|page allocation fail"


class Checks:
    """Counts what holds and what does not."""

    def __init__(self) -> None:
        """Nothing checked yet."""
        self.passed = 0
        self.failed = 0

    def that(self, what: str, holds: bool, detail: object = "") -> None:
        """Note one fact."""
        if holds:
            self.passed += 1
        else:
            self.failed += 1
        print(f"{'ok    ' if holds else 'FAILED'} {what} {detail}".rstrip(), flush=True)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a part; what stops it counts as one failure."""
        began = time.monotonic()
        try:
            yield
        except (GuestError, OSError) as error:
            self.that(name, False, f"({error})")
        print(f"       {name}: {time.monotonic() - began:.0f} s", flush=True)


def settings(kernel: str, daemon: Daemon, name: str, node_mib: tuple[int, int]) -> Settings:
    """Return a guest with the driver in it and its balloon attached."""
    return Settings(
        kernel=kernel,
        node_mib=node_mib,
        files={DRIVER: modules(kernel) / DRIVER},
        balloon_socket=daemon.socket(name),
    )


def put_data(guest: Guest) -> None:
    """Write data to both nodes, and remember its sums."""
    for node in range(2):
        guest.must(
            f"mkdir -p /data{node} && mount -t tmpfs -o size=512m,mpol=bind:{node} data /data{node}"
            f" && dd if=/dev/urandom of=/data{node}/x bs=1M count={DATA_MIB}"
        )
    guest.must("md5sum /data0/x /data1/x > /tmp/sums")


def intact(guest: Guest) -> bool:
    """Tell whether the data is what was written."""
    return guest.run("md5sum -c -s /tmp/sums")[0] == 0


def log_is_clean(guest: Guest) -> str:
    """Return the kernel's complaints."""
    return guest.run(f"dmesg | grep -E '{BAD_WORDS}'")[1].strip()


def counts_agree(daemon: Daemon, name: str, limit_s: float = 20) -> str:
    """Compare host and guest; return the difference in words, or nothing."""
    limit = time.monotonic() + limit_s * PATIENCE
    while True:
        daemon.call("POST", f"/v1/vms/{name}/statistics")
        time.sleep(0.3)
        view = daemon.view(name)
        guest = [node["balloon_pages"] for node in (view["statistics"] or {"nodes": []})["nodes"]]
        host = [tier["balloon_bytes"] // PAGE for tier in view["tiers"]]
        if guest == host:
            return ""
        if time.monotonic() > limit:
            return f"guest {guest}, host {host}"


def size_at(guest: Guest, node: int, share: float) -> int:
    """Return that share of a node in whole pages."""
    return int(guest.node_bytes(node) * share) // PAGE * PAGE
