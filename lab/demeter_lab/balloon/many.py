# SPDX-License-Identifier: Apache-2.0 OR MIT
"""As many small real guests as fit, under one daemon and two policies.

The guests are all alike, and each checks its memory. A policy begins, some guests are
let go and come back, and each time it is measured when everybody has the size that the
policy wants, what that cost the daemon and its workers, and how alike the sizes are.
Every fact that must hold is a check: what fails fails the command. Times are the host's.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from demeter_lab.balloon.checks import Checks, counts_agree
from demeter_lab.balloon.fleet import Fleet, node_bytes
from demeter_lab.balloon.guest import MIB, PATIENCE, TREE, GuestError, end_on_sigterm
from demeter_lab.balloon.started import own_directory

POLICIES = ("guaranteed", "working-set")
#: Part of all FMEM that there is to divide.
POOL = 0.75
#: Least FMEM of a guest.
FLOOR_MIB = 48
INTERVAL_MS = 250
#: Guests that are let go and come back: one in so many.
LEAVERS = 5
#: Sizes have come to rest if none of all has changed for so long. (A guest that stopped
#: before a size is asked for it again now and then.)
REST_S = 3.0
#: The daemon's cost is measured for so long while nothing changes.
QUIET_S = 10.0
#: Identical guests may differ by this.
FAIR = 0.05


class Cost:
    """Processor time of the daemon and its workers from here on."""

    def __init__(self, fleet: Fleet) -> None:
        """Begin to count."""
        self._fleet = fleet
        self._began = time.monotonic()
        self._before = self._seconds()

    def processes(self) -> list[int]:
        """Return the daemon and the workers that live."""
        workers = [view["worker"].get("pid") for view in self._fleet.daemon.vms()]
        return [self._fleet.daemon.pid(), *(pid for pid in workers if pid)]

    def _seconds(self) -> dict[int, float]:
        ticks = os.sysconf("SC_CLK_TCK")
        used = {}
        for pid in self.processes():
            # What follows the name in parentheses; 14 and 15 of the manual's fields.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used[pid] = (int(fields[11]) + int(fields[12])) / ticks
        return used

    def permille_of_a_processor(self) -> float:
        """Return what all together have used since."""
        now = self._seconds()
        used = sum(seconds - self._before.get(pid, 0) for pid, seconds in now.items())
        return 1000 * used / (time.monotonic() - self._began)


def anonymous_kib(pid: int) -> int:
    """Return the memory that is a process's own."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def sizes_of(views: list[dict]) -> dict[str, list[int]]:
    """Return the sizes of each guest's tiers."""
    return {view["name"]: [tier["size_bytes"] for tier in view["tiers"]] for view in views}


def has_acted(before: dict[str, list[int]], after: dict[str, list[int]]) -> bool:
    """Return whether a guest that was there before and after has another size."""
    return any(before[name] != after[name] for name in before.keys() & after.keys())


class Trial:
    """A fleet under policies."""

    def __init__(self, checks: Checks, fleet: Fleet) -> None:
        """Begin with a fleet that has just been started."""
        self.checks = checks
        self.fleet = fleet
        self.policy = "external"
        self.rows: list[dict[str, object]] = []

    def served(self) -> list[dict]:
        """Return the guests' views."""
        return self.fleet.daemon.vms()

    def at_rest(self, limit_s: float) -> float:
        """Wait until nobody's size changes any more; return when it last did."""
        began = last = time.monotonic()
        before: object = None
        while (now := time.monotonic()) - last < REST_S * PATIENCE:
            views = self.served()
            state = [(view["name"], tier["size_bytes"]) for view in views for tier in view["tiers"]]
            if state != before:
                before, last = state, now
            if now - began > limit_s * PATIENCE:
                raise GuestError(f"no rest within {limit_s * PATIENCE:.0f} s: {state}")
            time.sleep(0.1)
        return last - began

    def step(self, what: str, act: Callable[[], object], limit_s: float = 120) -> None:
        """Do that under the policy; note what followed."""
        before = sizes_of(self.served())
        cost = Cost(self.fleet)
        act()
        seconds = self.at_rest(limit_s)
        changing = cost.permille_of_a_processor()
        views = self.served()
        fmem = [view["tiers"][0]["size_bytes"] for view in views]
        memory = [sum(tier["size_bytes"] for tier in view["tiers"]) for view in views]
        self.rows.append(
            {
                "policy": self.policy,
                "what": what,
                "guests": len(views),
                "seconds": round(seconds, 1),
                "fmem_mib": [round(size / MIB, 1) for size in sorted(fmem)],
                "memory_mib": [round(size / MIB, 1) for size in sorted(memory)],
                "fmem_most_by_least": round(max(fmem) / min(fmem), 4),
                "memory_most_by_least": round(max(memory) / min(memory), 4),
                "cpu_permille": round(changing, 2),
            }
        )
        words = f"{self.policy}, {what}"
        unlike = (max(fmem) / min(fmem) - 1, max(memory) / min(memory) - 1)
        alike = max(unlike) <= FAIR
        detail = f"(FMEM by {unlike[0]:.1%}, all memory by {unlike[1]:.1%})"
        self.checks.that(f"{words}: identical guests within {FAIR:.0%}", alike, detail)
        # Each step takes something from those who stay, or gives them something.
        acted = has_acted(before, sizes_of(views))
        self.checks.that(f"{words}: the policy did something", acted)
        wrong = {view["name"]: view["violations"] for view in views if view["violations"]}
        self.checks.that(f"{words}: no violation", not wrong, wrong or "")
        pool = self.pool_bytes()
        self.checks.that(f"{words}: not more than the pool", sum(fmem) <= pool, sum(fmem) - pool)

    def pool_bytes(self) -> int:
        """Return the FMEM that there is to divide."""
        return int(sum(node_bytes(self.fleet, name)[0] for name in self.fleet.names) * POOL)

    def decide(self, policy: str) -> None:
        """Let that policy decide."""
        wish = {"name": policy, "fmem_pool_bytes": self.pool_bytes(), "interval_ms": INTERVAL_MS}
        status, answer = self.fleet.daemon.call("PUT", "/v1/policy", wish)
        if status not in (200, 204):
            raise GuestError(f"policy {policy}: {status} {answer}")
        self.policy = policy

    def reload(self) -> None:
        """Have the file read anew."""
        self.fleet.write_configuration()
        status, answer = self.fleet.daemon.call("POST", "/v1/reload")
        if status not in (200, 204):
            raise GuestError(f"reload: {status} {answer}")

    def let_go(self, names: list[str]) -> None:
        """Serve these no more; what they have is others' then."""
        for name in names:
            self.fleet.configured.remove(name)
        self.reload()

    def take_back(self, names: list[str]) -> None:
        """Serve them again."""
        self.fleet.configured += names
        self.reload()
        for name in names:
            self.fleet.daemon.wait_stage(name, "driven", 120)

    def under(self, policy: str) -> dict[str, object]:
        """Go through all that is done under a policy; return its cost at rest."""
        leavers = self.fleet.names[:: max(1, min(LEAVERS, len(self.fleet.names) - 1))]
        self.step("begins", lambda: self.decide(policy))
        cost = Cost(self.fleet)
        time.sleep(QUIET_S)
        quiet = cost.permille_of_a_processor() / len(self.fleet.names)
        memory = [anonymous_kib(pid) for pid in cost.processes()]
        self.step(f"{len(leavers)} go", lambda: self.let_go(leavers))
        self.step("and come back", lambda: self.take_back(leavers))
        for name in self.fleet.names:
            self.fleet.wait_checked(name)
        uneven = {
            name: words
            for name in self.fleet.names
            if (words := counts_agree(self.fleet.daemon, name))
        }
        self.checks.that(f"{policy}: host and guests count alike", not uneven, uneven or "")
        return {
            "cpu_permille_a_guest": round(quiet, 3),
            "daemon_kib": memory[0],
            "worker_kib": round(statistics.median(memory[1:])),
        }


def table(summary: dict) -> str:
    """Return the table that people read."""
    lines = [
        f"{summary['guests']} guests of {summary['node_mib']} MiB, up in {summary['boot_s']:.0f} s;"
        f" {summary['pool_mib']} MiB of FMEM to divide",
        f"{'policy':<12} {'what':<14} {'guests':>6} {'rest after':>10}"
        f" {'FMEM, MiB':>15} {'all, MiB':>15} {'unlike':>7} {'cpu':>7}",
    ]
    for row in summary["rows"]:
        fmem, memory = row["fmem_mib"], row["memory_mib"]
        unlike = max(row["fmem_most_by_least"], row["memory_most_by_least"]) - 1
        lines.append(
            f"{row['policy']:<12} {row['what']:<14} {row['guests']:>6} {row['seconds']:>8.1f} s"
            f" {f'{fmem[0]}-{fmem[-1]}':>15} {f'{memory[0]}-{memory[-1]}':>15}"
            f" {unlike:>7.1%} {row['cpu_permille'] / 1000:>7.1%}"
        )
    for policy, cost in summary["costs"].items():
        daemon_mib, worker_mib = cost["daemon_kib"] / 1024, cost["worker_kib"] / 1024
        lines.append(
            f"{policy} at rest: {cost['cpu_permille_a_guest'] / 1000:.3%} of a processor a guest,"
            f" daemon {daemon_mib:.1f} MiB, a worker {worker_mib:.1f} MiB"
        )
    return "\n".join(lines)


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guests", type=int, default=20)
    parser.add_argument("--kernel", default="6.12")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm/demeter-many"))
    parser.add_argument("--out", type=Path, default=TREE / "out/many", help="for table and logs")
    arguments = parser.parse_args()
    if arguments.guests < 2:
        parser.error("fewer than two guests are no fleet; next: --guests 2 or more")
    end_on_sigterm()
    arguments.out.mkdir(parents=True, exist_ok=True)
    checks = Checks()
    summary: dict[str, object] = {}
    with own_directory(arguments.directory) as directory, checks.part("fleet"):
        fleet = Fleet(
            directory,
            arguments.kernel,
            arguments.guests,
            f"--statistics-ms={INTERVAL_MS}",
            keys=f'fmem-floor = "{FLOOR_MIB}M"',
        )
        try:
            began = time.monotonic()
            with fleet:
                trial = Trial(checks, fleet)
                summary = {
                    "guests": arguments.guests,
                    "node_mib": list(fleet.guests["vm0"].settings.node_mib),
                    "boot_s": round(time.monotonic() - began, 1),
                    "pool_mib": round(trial.pool_bytes() / MIB),
                    "rows": trial.rows,
                }
                summary["costs"] = {policy: trial.under(policy) for policy in POLICIES}
        finally:
            fleet.keep_logs(arguments.out)
    if "costs" in summary:
        (arguments.out / "many.json").write_text(json.dumps(summary, indent=2) + "\n")
        print(table(summary))
    print(f"fleet: {checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
