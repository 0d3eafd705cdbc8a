# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The double balloon in real guests: sizes, recovery, isolation.

Each check prints a line and is counted; the last line is the suite's summary.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from demeter_lab.balloon import keeper, lifecycle
from demeter_lab.balloon.checks import (
    DRIVER,
    Checks,
    counts_agree,
    intact,
    log_is_clean,
    put_data,
    settings,
    size_at,
)
from demeter_lab.balloon.daemon import Daemon
from demeter_lab.balloon.guest import (
    MIB,
    PAGE,
    PATIENCE,
    Guest,
    GuestError,
    end_on_sigterm,
    modules,
)
from demeter_lab.balloon.started import own_directory

HOSTILE = "demeter_balloon_hostile.ko"
MANAGER = "demeter.ko"
FAULT = "demeter_fault.ko"
#: What the driver calls to get its queues, when it is bound and when it resumes.
FIND_QUEUES = "vp_modern_find_vqs"
DRIVER_DIRECTORY = "/sys/bus/virtio/drivers/demeter_balloon"
#: What a machine goes through beside running.
LIFE = {
    "corrupted": lifecycle.corrupted_guest,
    "migrating": lifecycle.migrating_guest,
    "crashing": lifecycle.crashing_guest,
}
#: The same, only when it is asked for, or all is (`TEST_WHOLE=1`).
SLOW = {"hibernating": lifecycle.hibernating_guest}


def check_one_size(checks: Checks, daemon: Daemon, guest: Guest, node: int, share: float) -> None:
    """Shrink one tier; its file follows and the other's does not move."""
    other = 1 - node
    before = guest.backing_bytes(other)
    wanted = size_at(guest, node, share)
    tier = daemon.resize(guest.name, node, wanted)
    what = f"node {node} at {share:.0%}"
    checks.that(f"{what} to the page", tier["size_bytes"] == wanted, tier["last"])
    error = abs(guest.backing_bytes(node) - wanted) / guest.node_bytes(node)
    checks.that(f"{what}: allocated blocks follow", error < 0.01, f"({error:.2%} off)")
    # The guest itself writes while it works; the device must not.
    moved = before - guest.backing_bytes(other)
    checks.that(f"{what}: node {other} is left alone", moved <= 0, f"({moved} bytes)")


def check_sizes(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Resize both tiers independently; the host's memory follows."""
    name = guest.name
    check_one_size(checks, daemon, guest, 1, 0.2)
    tier = daemon.resize(name, 1, size_at(guest, 1, 0.8))
    checks.that("node 1 up to 80 %", tier["size_bytes"] == size_at(guest, 1, 0.8), tier["last"])
    check_one_size(checks, daemon, guest, 0, 0.2)
    checks.that("data intact in shrunk tiers", intact(guest))
    checks.that("counts agree", not (words := counts_agree(daemon, name)), words)
    for node in range(2):
        small = guest.backing_bytes(node)
        tier = daemon.resize(name, node, guest.node_bytes(node))
        back = tier["size_bytes"] == guest.node_bytes(node)
        checks.that(f"node {node} back to the page", back, tier["last"])
        mib = 160
        guest.must(f"dd if=/dev/zero of=/data{node}/fill bs=1M count={mib}")
        grown = guest.backing_bytes(node) - small
        # The rest was free in the shrunk tier.
        fits = grown >= 0.75 * mib * MIB
        checks.that(f"node {node}: what was given back is used again", fits, f"({grown >> 20} MiB)")
        guest.must(f"rm /data{node}/fill")
    checks.that("data intact", intact(guest))


def check_kills(checks: Checks, daemon: Daemon, guest: Guest, rounds: int, seed: int) -> None:
    """Kill the daemon at random moments of a resize, and then its worker; nothing is lost."""

    def restart() -> None:
        daemon.kill()
        daemon.start()

    killed(checks, daemon, guest, rounds, seed, ("", restart))
    end_worker = ("of a worker ", lambda: daemon.kill_worker(guest.name))
    killed(checks, daemon, guest, rounds, seed + 1, end_worker)


def killed(
    checks: Checks,
    daemon: Daemon,
    guest: Guest,
    rounds: int,
    seed: int,
    victim: tuple[str, Callable[[], None]],
) -> None:
    """Do that to one of them."""
    whose, kill = victim
    numbers = random.Random(seed)
    name = guest.name
    lost = ""
    for number in range(rounds):
        for node in range(2):
            share = numbers.uniform(0.25, 0.6) if number % 2 == 0 else numbers.uniform(0.7, 1.0)
            daemon.resize(name, node, size_at(guest, node, share), wait_ms=0)
        time.sleep(numbers.uniform(0, 0.25))
        kill()
        daemon.replug(guest)
        view = daemon.wait_still(name)
        for tier in view["tiers"]:
            # The sizes were asked for before the end, so they are wanted after it.
            if tier["size_bytes"] != tier["wanted_size_bytes"]:
                lost = f"round {number}: {tier}"
        lost = lost or counts_agree(daemon, name)
        if lost:
            break
    checks.that(f"{rounds} kills {whose}while resizing: all comes back", not lost, lost)
    checks.that(f"data intact after kills {whose}".rstrip(), intact(guest))
    for node in range(2):
        daemon.resize(name, node, guest.node_bytes(node))
    held = [tier["balloon_bytes"] for tier in daemon.view(name)["tiers"]]
    checks.that("no page is left in a balloon", held == [0, 0], held)


def check_command(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Do with ``demeter balloon`` what an operator does."""
    name = guest.name
    done = daemon.command("set", name, "smem=400M", "fmem=400M", "--json")
    sizes = [tier["size_bytes"] for tier in json.loads(done.stdout or "{}").get("tiers", [])]
    checks.that("demeter balloon set", done.returncode == 0 and sizes == [400 * MIB] * 2, sizes)
    done = daemon.command("set", name, "fmem=1M", "smem=1M", "--wait", "20")
    said = done.stderr.strip().splitlines()[-1:]
    one_line = bool(said) and "; next: " in said[0]
    checks.that("what cannot be is an error of one line", done.returncode == 1 and one_line, said)
    daemon.command("set", name, "fmem=400M", "smem=400M")
    daemon.kill()
    daemon.start()
    guest.qmp.close()
    done = daemon.command("replug", "--qmp", str(guest.directory / "qmp"))
    checks.that("demeter balloon replug", done.returncode == 0, done.stderr.strip())
    # As before a migration, with the daemon alive.
    daemon.wait_stage(name, "driven")
    done = daemon.command("unplug", "--qmp", str(guest.directory / "qmp"))
    checks.that("demeter balloon unplug", done.returncode == 0, done.stderr.strip())
    daemon.wait_stage(name, "waiting")
    done = daemon.command(*done.stdout.split()[2:])
    checks.that("what unplug printed puts it in", done.returncode == 0, done.stderr.strip())
    guest.reconnect_qmp()
    daemon.wait_stage(name, "driven")
    daemon.wait_still(name)
    done = daemon.command("get", name)
    checks.that("demeter balloon get", done.stdout.count("400.0") >= 4, done.stdout)
    check_top(checks, daemon, [name], "asked for 400.0 MiB")
    checks.that("data intact after the commands", intact(guest))


def check_top(checks: Checks, daemon: Daemon, names: list[str], told: str) -> None:
    """See a line for each guest that is driven, and ``told`` of the first one."""
    done = daemon.command("top", "--once", "--size", "120x40")
    lines = [line.split() for line in done.stdout.splitlines()]
    driven = [line[0] for line in lines if line[1:2] == ["driven"] and line[0] in names]
    holds = done.returncode == 0 and driven == sorted(names) and told in done.stdout
    shown = "" if holds else done.stdout + done.stderr
    checks.that(f"demeter balloon top: {told.strip()}", holds, shown)


def check_module(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Unload and load the driver with a full balloon."""
    name = guest.name
    wanted = size_at(guest, 1, 0.4)
    daemon.resize(name, 1, wanted)
    guest.must("rmmod demeter_balloon")
    held = [tier["balloon_bytes"] for tier in daemon.view(name)["tiers"]]
    checks.that("rmmod gives all back", held == [0, 0], held)
    guest.must(f"insmod /balloon/{DRIVER}")
    daemon.wait_stage(name, "driven")
    view = daemon.wait_still(name)
    size = view["tiers"][1]["size_bytes"]
    checks.that("insmod: the size is asked for anew", size == wanted, f"({size} of {wanted})")
    checks.that("data intact after rmmod", intact(guest))


def check_manager(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Load and unload demeter.ko beside the driver; neither needs the other."""
    name = guest.name

    def told(wanted: bool, limit_s: float = 20) -> bool:
        limit = time.monotonic() + limit_s * PATIENCE
        while True:
            daemon.call("POST", f"/v1/vms/{name}/statistics")
            time.sleep(0.5)
            statistics = daemon.view(name)["statistics"]
            if statistics and bool(statistics.get("has_tmm")) == wanted:
                return True
            if time.monotonic() > limit:
                return False

    checks.that("without demeter.ko nothing is told of it", told(False))
    # There are no samples in this guest: it has no PMU.
    guest.must(f"insmod /balloon/{MANAGER} sampler=none enabled=1")
    checks.that("with demeter.ko its statistics are valid", told(True))
    guest.must("rmmod demeter")
    checks.that("it unloads before the driver, and is told of no more", told(False))
    tier = daemon.resize(name, 1, size_at(guest, 1, 0.9))
    checks.that("sizes still change", tier["size_bytes"] == size_at(guest, 1, 0.9), tier["last"])


def usable_pages(guest: Guest, mark: str) -> list[int]:
    """Return for each node what is free above that mark of its zones, as the kernel shows it.

    With ``high``, also beyond what they keep for allocations that can use no zone above.
    """
    pages = [0, 0]
    node = free = kept = 0
    for line in guest.must("cat /proc/zoneinfo").splitlines():
        words = re.sub(r"[,():]", " ", line).split()
        if words[:1] == ["Node"]:
            node = int(words[1])
        elif words[:2] == ["pages", "free"]:
            free = int(words[2])
        elif len(words) == 2 and words[0] == mark and ":" not in line:
            kept = int(words[1])
        elif words[:1] == ["protection"]:
            protected = max(map(int, words[1:])) if mark == "high" else 0
            pages[node] += max(0, free - kept - protected)
    return pages


def told_anew(daemon: Daemon, guest: Guest, limit_s: float = 20) -> dict:
    """Return statistics of a guest that were gathered after this was called."""
    limit = time.monotonic() + limit_s * PATIENCE
    first = (daemon.view(guest.name)["statistics"] or {"sequence": 0})["sequence"]
    while time.monotonic() < limit:
        daemon.call("POST", f"/v1/vms/{guest.name}/statistics")
        statistics = daemon.view(guest.name)["statistics"]
        # The next one may have been under way.
        if statistics and statistics["sequence"] >= first + 2:
            return statistics
        time.sleep(0.1)
    raise GuestError(f"{guest.name} tells nothing for {limit_s} s")


def check_free(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Have the kernel keep more for itself: none of that is free."""
    marks = "/proc/sys/vm/min_free_kbytes"
    #: Of the zones above, what ZONE_DMA keeps from their users: all that it has, by that.
    ratio = "/proc/sys/vm/lowmem_reserve_ratio"
    before = [guest.must(f"cat {path}").split()[0] for path in (marks, ratio)]
    try:
        guest.must(f"echo 65536 >{marks}; echo 16 >{ratio}")
        told = [node["free_pages"] for node in told_anew(daemon, guest)["nodes"]]
        usable, whole = (usable_pages(guest, mark) for mark in ("high", "boost"))
    finally:
        guest.run(f"echo {before[0]} >{marks}; echo {before[1]} >{ratio}")
    # Both are of moments of their own, and a block may be set aside for atomic allocations.
    apart = 5 * MIB // PAGE
    holds = len(told) == 2 and all(
        abs(said - is_free) < apart for said, is_free in zip(told, usable, strict=True)
    )
    checks.that("free is what programs can have above the high marks", holds, (told, usable))
    kept = [all_free - free for all_free, free in zip(whole, usable, strict=True)]
    less = min(kept) > 2 * apart
    checks.that("which is less than all that is free", less, (whole, usable))


def check_bound(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Run out of one tier's memory while the other has room: that one's balloon helps nobody."""
    for node in range(2):
        daemon.resize(guest.name, node, size_at(guest, node, 0.6))
    before = [tier["balloon_bytes"] for tier in daemon.view(guest.name)["tiers"]]
    free_mib = usable_pages(guest, "boost")[0] * PAGE // MIB
    guest.must("mkdir /bound && mount -t tmpfs -o size=1g,mpol=bind:0 bound /bound")
    done = guest.run(f"dd if=/dev/zero of=/bound/x bs=1M count={free_mib + 32}")
    after = [tier["balloon_bytes"] for tier in daemon.view(guest.name)["tiers"]]
    given = [then - now for then, now in zip(before, after, strict=True)]
    holds = done[0] == 0 and given[0] >= 16 * MIB and given[1] == 0
    checks.that("who is bound to a tier is given that tier's memory", holds, (done, given))
    guest.must("rm /bound/x && umount /bound && rmdir /bound")


def check_limit(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Let the limit of a cgroup kill: the guest has not run out of memory for that."""

    def told() -> list[int]:
        statistics = told_anew(daemon, guest)
        return [statistics["oom_kills"], statistics["oom_deflated_pages"]]

    guest.must("mkdir -p /tmp/cg && mount -t cgroup2 cgroup2 /tmp/cg && mkdir -p /tmp/cg/small")
    guest.must("echo +memory >/tmp/cg/cgroup.subtree_control; echo 8M >/tmp/cg/small/memory.max")
    before = told()
    checks.that("kernel log is clean so far", not (words := log_is_clean(guest)), words)
    guest.run(
        "sh -c 'echo $$ >/tmp/cg/small/cgroup.procs; dd if=/dev/zero of=/dev/null bs=64M count=1'"
    )
    killed = int(guest.must("sed -n 's/^oom_kill //p' /tmp/cg/small/memory.events").strip())
    # The kernel tells it with a call trace, which is one of a mistake elsewhere.
    guest.must("dmesg -c >/dev/null")
    after = told()
    holds = killed > 0 and after == before
    checks.that("a limit of a cgroup is no want of memory", holds, (killed, before, after))
    guest.must("rmdir /tmp/cg/small && umount /tmp/cg")


def check_pause(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Stop and continue the machine in the middle of a resize."""
    name = guest.name
    hellos = sum(tier["traffic"]["hellos"] for tier in daemon.view(name)["tiers"])
    wanted = size_at(guest, 1, 0.8)
    daemon.resize(name, 1, wanted, wait_ms=0)
    guest.qmp("stop")
    time.sleep(0.3)
    guest.qmp("cont")
    view = daemon.wait_still(name)
    checks.that("stop and cont: resize ends", view["tiers"][1]["size_bytes"] == wanted)
    again = sum(tier["traffic"]["hellos"] for tier in view["tiers"])
    checks.that("without a new driver", again == hellos, f"({again - hellos} HELLOs)")
    checks.that("counts agree after a pause", not (words := counts_agree(daemon, name)), words)


def check_reset(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Reset the machine with a full balloon."""
    name = guest.name
    wanted = size_at(guest, 1, 0.5)
    daemon.resize(name, 1, wanted)
    checks.that("kernel log is clean", not (words := log_is_clean(guest)), words)
    guest.qmp("system_reset")
    guest.wait_ready()
    hellos = sum(tier["traffic"]["hellos"] for tier in daemon.view(name)["tiers"])
    guest.must(f"insmod /balloon/{DRIVER}")
    # The old pages stay counted until the new driver's HELLO.
    limit = time.monotonic() + 20 * PATIENCE
    while time.monotonic() < limit:
        time.sleep(0.2)
        if sum(tier["traffic"]["hellos"] for tier in daemon.view(name)["tiers"]) > hellos:
            break
    view = daemon.wait_still(name)
    size = view["tiers"][1]["size_bytes"]
    checks.that("reset: the size is asked for anew", size == wanted, f"({size} of {wanted})")
    checks.that("counts agree after a reset", not (words := counts_agree(daemon, name)), words)
    checks.that("no violations", daemon.view(name)["violations"] == {})


def parameter(guest: Guest, module: str, name: str) -> int:
    """Return a number among the parameters of a module."""
    return int(guest.must(f"cat /sys/module/{module}/parameters/{name}"))


def begin_rebind(guest: Guest) -> None:
    """Unbind the driver and have it bound at once, by who is no child of the guest's reader."""
    device = guest.must(f"basename {DRIVER_DIRECTORY}/virtio*")
    guest.must(
        f"rm -f /tmp/bound; echo {device} > {DRIVER_DIRECTORY}/unbind;"
        f" ( (echo {device} > {DRIVER_DIRECTORY}/bind && touch /tmp/bound) &)"
    )


def is_bound(guest: Guest) -> bool:
    """Tell whether that ends."""
    guest.run("for i in $(seq 30); do [ -e /tmp/bound ] && break; sleep 1; done")
    return guest.run("[ -e /tmp/bound ]")[0] == 0


def rebind(guest: Guest) -> bool:
    """Unbind the driver and bind it at once; tell whether that ends."""
    begin_rebind(guest)
    return is_bound(guest)


def suspend(guest: Guest) -> bool:
    """Suspend the guest's devices and resume them five seconds later; tell whether that went."""
    guest.must("echo devices > /sys/power/pm_test")
    return guest.run("echo freeze > /sys/power/state", 240)[0] == 0


def check_end_of_grace(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Let the grace period end while a device is being attached."""
    wanted = size_at(guest, 1, 0.5)
    daemon.resize(guest.name, 1, wanted)
    guest.must("echo 1000 > /sys/module/demeter_balloon/parameters/grace_ms")
    guest.must(
        f"insmod /balloon/{FAULT} caller=demeter_balloon functions={FIND_QUEUES} delay_ms=3000"
    )
    bound = rebind(guest)
    checks.that("attaching took longer than grace", parameter(guest, "demeter_fault", "hits") == 1)
    checks.that("a device is attached while grace ends", bound)
    guest.must("rmmod demeter_fault")
    daemon.wait_stage(guest.name, "driven")
    size = daemon.wait_still(guest.name)["tiers"][1]["size_bytes"]
    checks.that("and keeps its pages", size == wanted, f"({size} of {wanted})")


def check_suspension(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Suspend and resume, with success and without."""
    name = guest.name
    wanted = size_at(guest, 1, 0.5)
    daemon.resize(name, 1, wanted)
    suspend(guest)
    daemon.wait_stage(name, "driven")
    size = daemon.wait_still(name)["tiers"][1]["size_bytes"]
    checks.that("the balloon outlives a suspension", size == wanted, f"({size} of {wanted})")

    guest.must(f"insmod /balloon/{FAULT} caller=demeter_balloon functions={FIND_QUEUES} error=-12")
    suspend(guest)
    checks.that("a resume fails", parameter(guest, "demeter_fault", "hits") == 1)
    said = guest.run("dmesg | grep 'cannot go on after the suspension.*; next: '")[1].strip()
    checks.that("the log says so", bool(said))
    held = ""
    limit = time.monotonic() + 20 * PATIENCE
    while held != "0" and time.monotonic() < limit:
        time.sleep(1)
        held = guest.must("cat /sys/module/demeter_balloon/node1/balloon_pages")
    checks.that("after the grace the guest has its pages", held == "0", f"({held} held)")
    checks.that("the device can be bound anew", rebind(guest))
    daemon.wait_stage(name, "driven")
    size = daemon.wait_still(name)["tiers"][1]["size_bytes"]
    checks.that("and is asked for its size again", size == wanted, f"({size} of {wanted})")

    guest.must("cd /sys/module/demeter_fault/parameters; echo 0 > calls; echo 0 > hits")
    suspend(guest)
    checks.that("a resume fails again", parameter(guest, "demeter_fault", "hits") == 1)
    guest.must("rmmod demeter_fault")
    began = time.monotonic()
    guest.must("rmmod demeter_balloon")
    seconds = time.monotonic() - began
    checks.that("rmmod waits for no answer then", seconds < 5 * PATIENCE, f"({seconds:.1f} s)")
    guest.must(f"insmod /balloon/{DRIVER}")
    daemon.wait_stage(name, "driven")
    checks.that("counts agree then", not (words := counts_agree(daemon, name)), words)


def check_long_inflation(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Suspend while the balloon grows for longer than the kernel waits for those who work."""
    name = guest.name
    daemon.resize(name, 1, guest.node_bytes(1))
    wait = "/sys/power/pm_freeze_timeout"
    before = guest.must(f"cat {wait}")
    # A report takes longer to put together than to be answered.
    guest.must(
        f"insmod /balloon/{FAULT} caller=demeter_balloon functions=virtqueue_add_sgs"
        f" count=1000 delay_ms=1000; echo 3000 > {wait}"
    )
    wanted = size_at(guest, 1, 0.25)
    daemon.resize(name, 1, wanted, wait_ms=0)
    keeper.wait_for("a report", lambda: parameter(guest, "demeter_fault", "hits") > 1, 30)
    went = suspend(guest)
    # Else it would have been at its end when it was suspended.
    held = int(guest.must("cat /sys/module/demeter_balloon/node1/balloon_pages"))
    is_short = held * PAGE < guest.node_bytes(1) - wanted
    said = guest.run("dmesg | grep 'refusing to freeze'")[1].strip()
    checks.that("who inflates for long can be suspended", went, said)
    guest.must(f"rmmod demeter_fault; echo {before} > {wait}")
    size = daemon.wait_still(name)["tiers"][1]["size_bytes"]
    checks.that("and goes on after that", is_short and size == wanted, (held, size, wanted))
    words = counts_agree(daemon, name)
    checks.that("counts agree after a suspension meanwhile", not words, words)


# Until it is told to go on: in a guest on a busy host a minute of waiting was over in two seconds.
UNTIL_TOLD = "delay_ms=3600000"


class Hungry:
    """What runs out of node 1's memory while a host cannot be asked; use as a context manager."""

    def __init__(self, daemon: Daemon, guest: Guest) -> None:
        """Begin with a full balloon."""
        self.daemon, self.guest = daemon, guest
        self.wanted = size_at(guest, 1, 0.25)
        daemon.resize(guest.name, 1, self.wanted)
        self.before = told_anew(daemon, guest)
        self.given = 0

    def __enter__(self) -> "Hungry":
        """Leave it little."""
        free_mib = usable_pages(self.guest, "high")[1] * PAGE // MIB
        self.guest.must("mkdir -p /bound && mount -t tmpfs -o size=1g,mpol=bind:1 bound /bound")
        self.guest.must(f"dd if=/dev/zero of=/bound/some bs=1M count={free_mib - 8}")
        return self

    def __exit__(self, *_: object) -> None:
        """Leave all."""
        self.guest.run("rm -f /bound/*; umount /bound; rmdir /bound; rmmod demeter_fault")

    def held(self) -> int:
        """Return how much the balloon has."""
        return int(self.guest.must("cat /sys/module/demeter_balloon/node1/balloon_pages"))

    def eats(self, checks: Checks, what: str) -> None:
        """Take more than there is; the balloon must give it."""
        before = self.held()
        done = self.guest.run("dd if=/dev/zero of=/bound/more bs=1M count=64")
        self.given = before - self.held()
        given_mib = self.given * PAGE // MIB
        # Each time that it is not answered it asks for four times as much: 4, 16, 64 MiB.
        checks.that(what, done[0] == 0 and 16 <= given_mib <= 84, (done, given_mib))

    def told(self, checks: Checks, when: str) -> None:
        """See that the host, when it can be told again, knows all."""
        daemon, name = self.daemon, self.guest.name
        daemon.wait_stage(name, "driven")
        view = daemon.wait_still(name)
        after = told_anew(daemon, self.guest)
        words = counts_agree(daemon, name)
        checks.that(f"counts agree {when}", not words, words)
        grown, kills = (
            after[count] - self.before[count] for count in ("oom_deflated_pages", "oom_kills")
        )
        holds = grown == self.given and kills == 0
        checks.that(f"{when} it is told all of that", holds, (grown, self.given, kills))
        checks.that(f"no violation {when}", view["violations"] == {}, view["violations"])
        tier = daemon.resize(name, 1, self.wanted)
        checks.that(f"{when} sizes change", tier["size_bytes"] == self.wanted, tier["last"])


def go_on(guest: Guest) -> None:
    """Have nothing of a guest wait any longer for the sake of a test."""
    guest.must("echo 0 > /sys/module/demeter_fault/parameters/count")


def check_silent_host(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Run out of memory while the host is silent that is to be told of a full balloon."""

    def hellos() -> int:
        return sum(tier["traffic"]["hellos"] for tier in daemon.view(guest.name)["tiers"])

    hungry = Hungry(daemon, guest)
    # Time to stop the host between HELLO and what belongs to it.
    delay = f"functions=demeter_resync_some {UNTIL_TOLD}"
    guest.must(f"insmod /balloon/{FAULT} caller=demeter_balloon {delay}")
    greeted = hellos() + 2
    worker = daemon.view(guest.name)["worker"]["pid"]
    checks.that("bound anew", rebind(guest))
    keeper.wait_for("HELLO", lambda: hellos() == greeted, 30)
    keeper.wait_for("what follows", lambda: parameter(guest, "demeter_fault", "hits") == 1, 30)
    os.kill(worker, signal.SIGSTOP)
    try:
        go_on(guest)
        with hungry:
            hungry.eats(checks, "a silent host keeps no memory from the guest")
    finally:
        os.kill(worker, signal.SIGCONT)
    hungry.told(checks, "when it speaks again")


def check_hungry_attach(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Run out of memory while a device is being attached."""
    hungry = Hungry(daemon, guest)
    with hungry:
        # Its queues are there, and HELLO is not sent. Waiting keeps a CPU busy.
        delay = f"functions=cancel_delayed_work {UNTIL_TOLD}"
        guest.must("echo 120 > /sys/module/rcupdate/parameters/rcu_cpu_stall_timeout")
        guest.must(f"insmod /balloon/{FAULT} caller=demeter_balloon {delay}")
        begin_rebind(guest)
        keeper.wait_for("queues", lambda: parameter(guest, "demeter_fault", "hits") == 1, 30)
        hungry.eats(checks, "a device that is being attached keeps no memory from the guest")
        late = guest.run("[ -e /tmp/bound ]")[0] == 0
        go_on(guest)
        clock = guest.run("dmesg | grep -i -e tsc -e calibrat")[1] if late else ""
        checks.that("it is not attached before that", not late, clock)
        checks.that("it is then", is_bound(guest))
    hungry.told(checks, "when it is attached")


def check_unknown_kernel(checks: Checks, daemon: Daemon, guest: Guest) -> None:
    """Do without functions that are not exported."""
    guest.must("rmmod demeter_balloon")
    guest.must(f"insmod /balloon/{DRIVER} kernels=5.14")
    said = guest.run("dmesg | grep 'is not among 5.14: .*; next: '")[1].strip()
    checks.that("an unknown kernel is told of", bool(said))
    daemon.wait_stage(guest.name, "driven")
    wanted = size_at(guest, 1, 0.6)
    tier = daemon.resize(guest.name, 1, wanted)
    checks.that("sizes change on it, too", tier["size_bytes"] == wanted, tier["last"])


def faulty_guest(checks: Checks, directory: Path, kernel: str) -> None:
    """Let calls of the driver fail and take long."""
    daemon = Daemon(directory, ["faulty"])
    made = settings(kernel, daemon, "faulty", (192, 512))
    made.files[FAULT] = modules(kernel) / FAULT
    guest = Guest("faulty", directory, made)
    with daemon, guest:
        guest.must(f"insmod /balloon/{DRIVER}")
        daemon.wait_stage("faulty", "driven")
        put_data(guest)
        with checks.part("end of grace"):
            check_end_of_grace(checks, daemon, guest)
        with checks.part("suspension"):
            check_suspension(checks, daemon, guest)
        with checks.part("long inflation"):
            check_long_inflation(checks, daemon, guest)
        with checks.part("silent host"):
            check_silent_host(checks, daemon, guest)
        with checks.part("hungry attach"):
            check_hungry_attach(checks, daemon, guest)
        with checks.part("unknown kernel"):
            check_unknown_kernel(checks, daemon, guest)
        checks.that("data intact after faults", intact(guest))
        words = log_is_clean(guest)
        checks.that("kernel log is clean after faults", not words, words)


def main_guest(checks: Checks, directory: Path, kernel: str, kills: int, seed: int) -> None:
    """Run everything that an honest guest goes through."""
    daemon = Daemon(directory, ["main"])
    made = settings(kernel, daemon, "main", (512, 512))
    made.files[MANAGER] = modules(kernel) / MANAGER
    guest = Guest("main", directory, made)
    with daemon, guest:
        guest.must(f"insmod /balloon/{DRIVER}")
        daemon.wait_stage("main", "driven")
        put_data(guest)
        parts: list[tuple[str, Callable[[], None]]] = [
            ("sizes", lambda: check_sizes(checks, daemon, guest)),
            ("kills", lambda: check_kills(checks, daemon, guest, kills, seed)),
            ("command", lambda: check_command(checks, daemon, guest)),
            ("module", lambda: check_module(checks, daemon, guest)),
            ("manager", lambda: check_manager(checks, daemon, guest)),
            ("free", lambda: check_free(checks, daemon, guest)),
            ("bound", lambda: check_bound(checks, daemon, guest)),
            ("limit", lambda: check_limit(checks, daemon, guest)),
            ("pause", lambda: check_pause(checks, daemon, guest)),
            ("reset", lambda: check_reset(checks, daemon, guest)),
        ]
        for name, part in parts:
            with checks.part(name):
                part()
        checks.that("the daemon stays small", daemon.rss_kib() < 16384, f"({daemon.rss_kib()} KiB)")


def check_policy(checks: Checks, daemon: Daemon, names: list[str]) -> None:
    """Let a policy divide FMEM among real guests, and hand back."""
    pool = 320 * MIB

    def sizes() -> list[int]:
        return [daemon.view(name)["tiers"][0]["size_bytes"] for name in names]

    done = daemon.command("policy", "proportional", "--fmem-pool", "320M", "--interval-ms", "200")
    checks.that("demeter balloon policy", done.returncode == 0, done.stderr.strip())
    limit = time.monotonic() + 60 * PATIENCE
    while sizes() != [pool // 2] * 2 and time.monotonic() < limit:
        time.sleep(0.2)
    checks.that("the policy divides FMEM", sizes() == [pool // 2] * 2, sizes())
    _, entries = daemon.call("GET", f"/v1/vms/{names[0]}/ledger")
    assert isinstance(entries, list)
    asked = [entry for entry in entries if entry["what"] == "asked"]
    checks.that(
        "the ledger says who", asked[-1]["why"].startswith("policy proportional"), asked[-1]
    )
    time.sleep(2)
    _, later = daemon.call("GET", f"/v1/vms/{names[0]}/ledger")
    assert isinstance(later, list)
    again = len([entry for entry in later if entry["what"] == "asked"]) - len(asked)
    checks.that("and is at rest then", again == 0, f"({again} more requests in ten rounds)")
    status, _ = daemon.call("PUT", f"/v1/vms/{names[0]}/tiers/fmem", {"size_bytes": pool})
    checks.that("nobody else may decide meanwhile", status == 409, status)
    daemon.command("policy", "working-set")
    limit = time.monotonic() + 60 * PATIENCE
    while "sizing" not in daemon.view(names[0]) and time.monotonic() < limit:
        time.sleep(0.2)
    check_top(checks, daemon, names, "\n  memory ")
    done = daemon.command("policy", "external")
    tier = daemon.resize(names[0], 0, 192 * MIB)
    checks.that("external decides again", tier["size_bytes"] == 192 * MIB, tier["last"])
    _, text = daemon.call("GET", "/metrics")
    wanted = f'demeter_balloon_size_bytes{{vm="{names[0]}",tier="fmem"}} {192 * MIB}'
    checks.that("metrics say the same", wanted in str(text))


def hostile_guest(checks: Checks, directory: Path, kernel: str) -> None:
    """Let one guest attack the daemon that serves another one too."""
    daemon = Daemon(directory, ["honest", "hostile"])
    guests = []
    for name in ("honest", "hostile"):
        made = settings(kernel, daemon, name, (192, 256))
        made.vcpus = 1
        made.files[HOSTILE] = modules(kernel) / HOSTILE
        guests.append(Guest(name, directory, made))
    honest, hostile = guests
    with daemon, honest, hostile:
        honest.must(f"insmod /balloon/{DRIVER}")
        daemon.wait_stage("honest", "driven")
        put_data(honest)
        wanted = size_at(honest, 1, 0.5)
        daemon.resize("honest", 1, wanted)
        hostile.run(f"insmod /balloon/{HOSTILE}", limit_s=240)
        said = hostile.must("dmesg | grep balloon_hostile | sed 's/^.*balloon_hostile: //'")
        for line in said.splitlines():
            if line.startswith("not ok"):
                print(f"       hostile guest: {line}", flush=True)
        verdict = said.splitlines()[-1]
        passed, failed = (int(number) for number in re.findall(r"\d+", verdict)[:2])
        checks.that("every attack gets its answer", failed == 0 and passed >= 20, verdict)
        view = daemon.view("hostile")
        checks.that("the hostile device is disabled", view["stage"] == "disabled")
        reasons = view["violations"]
        checks.that("violations are told apart", len(reasons) >= 10, reasons)
        view = daemon.view("honest")
        checks.that("the other guest has none", view["violations"] == {}, view["violations"])
        checks.that("its size did not move", view["tiers"][1]["size_bytes"] == wanted)
        back = daemon.resize("honest", 1, honest.node_bytes(1))
        checks.that("and still can", back["size_bytes"] == honest.node_bytes(1), back["last"])
        checks.that("its data is intact", intact(honest))
        checks.that("its kernel log is clean", not (words := log_is_clean(honest)), words)
        small = daemon.rss_kib() < 16384
        checks.that("the daemon is alive and small", daemon.alive() and small, daemon.rss_kib())
        hostile.must("rmmod demeter_balloon_hostile")
        daemon.replug(hostile)
        hostile.must(f"insmod /balloon/{DRIVER}")
        view = daemon.wait_stage("hostile", "driven")
        checks.that("plugged in anew it is served again", view["violations"] == {})
        check_policy(checks, daemon, ["honest", "hostile"])


def main() -> int:
    """Run the suite; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="6.12")
    parser.add_argument("--kills", type=int, default=5, help="kills of the daemon while resizing")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm/demeter-balloon"))
    parser.add_argument("--only", choices=["main", "hostile", "faulty", *LIFE, *SLOW])
    arguments = parser.parse_args()
    end_on_sigterm()
    checks = Checks()
    with own_directory(arguments.directory) as directory:
        if arguments.only in (None, "main"):
            with checks.part("main guest"):
                main_guest(checks, directory, arguments.kernel, arguments.kills, arguments.seed)
        if arguments.only in (None, "hostile"):
            with checks.part("hostile guest"):
                hostile_guest(checks, directory, arguments.kernel)
        if arguments.only in (None, "faulty"):
            with checks.part("faulty guest"):
                faulty_guest(checks, directory, arguments.kernel)
        whole = LIFE | SLOW if os.environ.get("TEST_WHOLE") else LIFE
        for name, guest in (LIFE | SLOW).items():
            if arguments.only == name or (arguments.only is None and name in whole):
                with checks.part(f"{name} guest"):
                    guest(checks, directory, arguments.kernel)
    print(f"balloon: {checks.passed} passed, {checks.failed} failed")
    return 0 if checks.passed and not checks.failed else 1


if __name__ == "__main__":
    sys.exit(main())
