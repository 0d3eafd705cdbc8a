# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Random operations on real guests under one daemon, each guest checking what it keeps.

What an operator, an upgrade and chance do to a host: sizes, policies, guests that come
and go, workers and daemons that are killed, drivers that are loaded anew, guests that
are reset, machines that migrate. Every so often all of it comes to rest, and then every
guest must have the sizes that it is asked for, host and guest must count alike, the host
must have back what they say, and every word that the guests keep must be right. The same
seed does the same. What was drawn and could not be done just then (a size while a policy
decides, a guest to add where none is gone) is counted apart.
"""

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from demeter_lab.balloon.checks import DRIVER, counts_agree
from demeter_lab.balloon.daemon import TIERS
from demeter_lab.balloon.fleet import Fleet, node_bytes
from demeter_lab.balloon.guest import PAGE, GuestError, end_on_sigterm
from demeter_lab.balloon.keeper import wait_for
from demeter_lab.balloon.started import own_directory

POLICIES = ("external", "static", "proportional", "guaranteed", "pressure", "working-set")
#: Parts of a tier that can be asked for when all rests: no guest needs more than the least.
ASKED = (0.6, 1.0)
#: What a call may say that nobody understands.
NONSENSE: tuple[tuple[str, str, object], ...] = (
    ("PUT", "/v1/vms/vm0/tiers/fmem", {"size_bytes": -1}),
    ("PUT", "/v1/vms/vm0/tiers/fmem", {"size_bytes": 1 << 60}),
    ("PUT", "/v1/vms/vm0/tiers/l3", {"size_bytes": 0}),
    ("PUT", "/v1/policy", {"name": "generous", "fmem_pool_bytes": 1, "interval_ms": 100}),
    ("POST", "/v1/vms", {"name": "../vm", "socket": "/tmp/x", "fmem": "/tmp/y"}),
    ("DELETE", "/v1/vms/nobody", None),
    ("GET", "/v1/vms/nobody/ledger", None),
)
#: What a file may have allocated beyond the size of its tier: the halves of huge pages of
#: which the guest has given the other one.
MOST_BEYOND = 0.02
#: The daemon's own memory, whatever was done to it.
MOST_RSS_KIB = 32 << 10


class Soak:
    """What is done, and what is known of it."""

    def __init__(self, fleet: Fleet, seed: int, log: Path) -> None:
        """Begin with a fleet that was just started."""
        self.fleet = fleet
        self.daemon = fleet.daemon
        self.numbers = random.Random(seed)
        self.done: Counter[str] = Counter()
        #: Guests that were added by a call.
        self.added: set[str] = set()
        self.policy = "external"
        #: Of what was done, what could not be done just then.
        self.in_vain: Counter[str] = Counter()
        self._log = log.open("a")
        #: Weights: what is rare costs more or is meant to be rare.
        self.operations: dict[str, tuple[int, Callable[[], object]]] = {
            "resize": (50, self.resize),
            "resize and wait": (5, self.resize_and_wait),
            "ask for little": (2, self.ask_for_little),
            "statistics": (4, self.statistics),
            "nonsense": (3, self.nonsense),
            "kill worker": (8, self.kill_worker),
            "remove": (5, self.remove),
            "add": (5, self.add),
            "reload": (4, self.reload),
            "policy": (5, self.change_policy),
            "kill daemon": (2, lambda: self.restart(signal.SIGKILL)),
            "restart daemon": (1, lambda: self.restart(signal.SIGTERM)),
            "upgrade daemon": (1, self.upgrade),
            "driver anew": (2, self.driver_anew),
            "pause": (3, self.pause),
            "reboot": (1, self.reboot),
            "migrate": (1, self.migrate),
        }
        #: What is being done.
        self._now = ""
        #: Each at least once, however short the run is.
        self._first = list(self.operations)
        self.numbers.shuffle(self._first)

    def served(self) -> list[str]:
        """Return the guests that the daemon knows."""
        return sorted([*self.fleet.configured, *self.added])

    def gone(self) -> list[str]:
        """Return those that it does not."""
        return sorted(set(self.fleet.names) - set(self.served()))

    def somebody(self) -> str:
        """Return one of the guests that are served."""
        return self.numbers.choice(self.served())

    def note(self, **words: object) -> None:
        """Write down what is done."""
        self._log.write(json.dumps(words) + "\n")
        self._log.flush()

    def call(self, method: str, path: str, body: object, *wanted: int) -> object:
        """Call the daemon, and insist on one of these answers."""
        status, answer = self.daemon.call(method, path, body)
        if status not in wanted:
            raise GuestError(f"{method} {path} {body}: {status} {answer}")
        return answer

    def step(self) -> None:
        """Do something, and look whether the daemon still answers."""
        name = self._first.pop() if self._first else self._draw()
        self.note(operation=name, number=self.done.total())
        self._now = name
        self.operations[name][1]()
        self.done[name] += 1
        for guest in self.fleet.guests.values():
            guest.check_alive()
        time.sleep(self.numbers.choice((0, 0, 0, 0.01, 0.05, 0.2)))
        if not self.daemon.alive():
            raise GuestError(f"the daemon is dead after '{name}'")
        views = self.daemon.vms()
        if (names := sorted(view["name"] for view in views)) != self.served():
            raise GuestError(f"after '{name}' {names} are served, not {self.served()}")
        wrong = {view["name"]: view["violations"] for view in views if view["violations"]}
        if wrong:
            raise GuestError(f"after '{name}' honest guests have violations: {wrong}")

    def _draw(self) -> str:
        weights = [weight for weight, _ in self.operations.values()]
        return self.numbers.choices(list(self.operations), weights)[0]

    def ask(self, share: float, wait_ms: int) -> None:
        """Ask one tier of one guest for that part of it."""
        name, node = self.somebody(), self.numbers.randrange(2)
        size = int(node_bytes(self.fleet, name)[node] * share) // PAGE * PAGE
        self.note(name=name, node=node, size=size, wait_ms=wait_ms)
        path = f"/v1/vms/{name}/tiers/{TIERS[node]}"
        wish = {"size_bytes": size, "wait_ms": wait_ms, "why": "soak"}
        # While a policy decides nobody else may, nor of a guest that is not connected.
        status, answer = self.daemon.call("PUT", path, wish)
        allowed = (200, 409) if self.policy == "external" else (409,)
        if status not in allowed or (status == 409 and "next" not in answer):
            raise GuestError(f"PUT {path} {wish} under {self.policy}: {status} {answer}")
        self.in_vain[self._now] += status == 409

    def resize(self) -> None:
        """Ask for a size, and go on."""
        self.ask(self.numbers.uniform(0.4, 1), 0)

    def resize_and_wait(self) -> None:
        """Ask for a size, and wait a little."""
        self.ask(self.numbers.uniform(0.4, 1), 300)

    def ask_for_little(self) -> None:
        """Ask for a size that the guest cannot do with."""
        self.ask(self.numbers.uniform(0, 0.1), 0)

    def statistics(self) -> None:
        """Ask a guest for its statistics, and for all that is shown."""
        self.daemon.call("POST", f"/v1/vms/{self.somebody()}/statistics")
        self.call("GET", "/metrics", None, 200)
        self.call("GET", f"/v1/vms/{self.somebody()}/ledger", None, 200)

    def nonsense(self) -> None:
        """Say what nobody understands."""
        method, path, body = self.numbers.choice(NONSENSE)
        status, answer = self.daemon.call(method, path, body)
        if not 400 <= status < 500 or not isinstance(answer, dict) or "next" not in answer:
            raise GuestError(f"{method} {path} {body}: {status} {answer}")

    def plugged(self, name: str) -> None:
        """Wait until a guest's device is in, and driven.

        QEMU 11.1.3 ends at assertions of its own if a device's other side goes away in
        the moment in which the guest starts it (``memory_region_del_eventfd``), or is not
        there when a guest's driver looks at it (``vhost_dev_get_config``).
        """
        self.daemon.wait_stage(name, "driven", 100)

    def restart(self, how: signal.Signals) -> None:
        """End the daemon in that way, and start it."""
        for name in self.served():
            self.plugged(name)
        self.fleet.restart(how)

    def kill_worker(self) -> None:
        """Kill what serves a guest."""
        name = self.somebody()
        self.note(name=name)
        self.plugged(name)
        self.daemon.kill_worker(name)

    def remove(self) -> None:
        """Let a guest go that is served; one stays."""
        if len(self.served()) < 2:
            self.in_vain[self._now] += 1
            return
        name = self.somebody()
        self.note(name=name, added=name in self.added)
        self.plugged(name)
        if name in self.added:
            self.added.remove(name)
            self.call("DELETE", f"/v1/vms/{name}", None, 200, 204)
        else:
            self.fleet.configured.remove(name)
            self.reload()

    def add(self) -> None:
        """Serve a guest again, by a call or by the file."""
        if not (gone := self.gone()):
            self.in_vain[self._now] += 1
            return
        name, by_call = self.numbers.choice(gone), self.numbers.random() < 0.5
        self.note(name=name, by_call=by_call)
        if by_call:
            self.added.add(name)
            self.call("POST", "/v1/vms", self.fleet.description(name), 200, 201)
        else:
            self.fleet.configured.append(name)
            self.reload()

    def reload(self) -> None:
        """Have the file read anew, whatever changed in it."""
        self.fleet.write_configuration()
        self.call("POST", "/v1/reload", None, 200, 204)

    def change_policy(self) -> None:
        """Let another policy decide, about a pool of another size."""
        # Sizes can be asked for under one of them alone: half of the time it is that.
        others = [name for name in POLICIES if name != "external"]
        name = "external" if self.numbers.random() < 0.5 else self.numbers.choice(others)
        self.set_policy(name, self.numbers.uniform(0.6, 1))

    def set_policy(self, name: str, part: float) -> None:
        """Let that policy decide about that part of all FMEM."""
        self.note(policy=name, part=part)
        pool = sum(node_bytes(self.fleet, guest)[0] for guest in self.fleet.names)
        wish = {"name": name, "fmem_pool_bytes": int(pool * part), "interval_ms": 100}
        self.call("PUT", "/v1/policy", wish, 200, 204)
        self.policy = name

    def upgrade(self) -> None:
        """Exchange the program, have a worker die before the restart, and restart."""
        self.fleet.install()
        self.kill_worker()
        self.restart(signal.SIGTERM)

    def driver_anew(self) -> None:
        """Unload and load a guest's driver."""
        guest = self.fleet.guests[self.somebody()]
        self.note(name=guest.name)
        self.plugged(guest.name)
        guest.must("rmmod demeter_balloon", 240)
        guest.must(f"insmod /balloon/{DRIVER}")

    def pause(self) -> None:
        """Stop a machine and continue it, one whose device has its daemon.

        QEMU 11.1.3 ends at an assertion where it continues without (``vhost_dev_start``).
        """
        name = self.somebody()
        self.note(name=name)
        self.plugged(name)
        guest = self.fleet.guests[name]
        guest.qmp("stop")
        time.sleep(self.numbers.uniform(0, 0.3))
        guest.qmp("cont")

    def reboot(self) -> None:
        """Reset a guest; what it checks begins anew."""
        name = self.somebody()
        self.note(name=name)
        self.plugged(name)
        self.fleet.reboot(name)

    def migrate(self) -> None:
        """Send a guest to another QEMU, as an operator does: unplug, migrate, plug.

        Its host, the same one here, knows it by other files from then on.
        """
        name = self.somebody()
        self.note(name=name, added=name in self.added)
        self.plugged(name)
        self.fleet.migrate(name)
        if name in self.added:
            self.call("DELETE", f"/v1/vms/{name}", None, 200, 204)
            self.call("POST", "/v1/vms", self.fleet.description(name), 200, 201)
        else:
            self.reload()
        self.fleet.plug(name)
        self.plugged(name)
        self.fleet.wait_checked(name)

    def rest(self) -> None:
        """Let all come to rest; then all must be as asked."""
        self.note(operation="rest")
        self.set_policy("external", 1)
        while self.gone():
            self.add()
        for name in self.fleet.names:
            self.daemon.wait_still(name, 150)
        # What was squeezed into one tier must have somewhere to go before that shrinks.
        whole = {name: node_bytes(self.fleet, name) for name in self.fleet.names}
        self._have(whole)
        wanted = {}
        for name in self.fleet.names:
            sizes = [
                int(size * self.numbers.uniform(*ASKED)) // PAGE * PAGE
                for size in node_bytes(self.fleet, name)
            ]
            wanted[name] = sizes
        self._have(wanted)
        for name in self.fleet.names:
            if words := counts_agree(self.daemon, name):
                raise GuestError(f"{name}: {words}")
        for name, sizes in wanted.items():
            self._is_back(name, sizes)
        for name in self.fleet.names:
            self.fleet.wait_checked(name)
        if self.daemon.rss_kib() > MOST_RSS_KIB:
            raise GuestError(f"the daemon has grown to {self.daemon.rss_kib()} KiB")

    def _is_back(self, name: str, sizes: list[int]) -> None:
        """Insist that the host has what a guest has given, by its files' blocks."""
        guest = self.fleet.guests[name]
        for node, size in enumerate(sizes):
            most = size + int(guest.node_bytes(node) * MOST_BEYOND)
            if (has := guest.backing_bytes(node)) > most:
                raise GuestError(f"{name}: node {node} has {has} bytes of {size} allocated")

    def _have(self, wanted: dict[str, list[int]]) -> None:
        """Give all guests these sizes at once; each must have them."""
        for name, sizes in wanted.items():
            for node, size in enumerate(sizes):
                self.daemon.resize(name, node, size, wait_ms=0)
        for name, sizes in wanted.items():
            self._has(name, sizes)

    def _has(self, name: str, sizes: list[int]) -> None:
        def there() -> bool:
            tiers = self.daemon.view(name)["tiers"]
            return [tier["size_bytes"] for tier in tiers] == sizes

        try:
            wait_for("its sizes", there, 60)
        except GuestError as error:
            raise GuestError(f"{name} wants {sizes}: {error}: {self.daemon.view(name)}") from None


def settled_descriptors(fleet: Fleet) -> int:
    """Return how many descriptors the daemon has, once what it has begun is done."""
    least = fleet.descriptors()
    for _ in range(10):
        time.sleep(0.1)
        least = min(least, fleet.descriptors())
    return least


def soak(fleet: Fleet, operations: int, seed: int, every: int, log: Path) -> Soak:
    """Do so many operations; return what was done."""
    work = Soak(fleet, seed, log)
    work.rest()
    fleet.restart(signal.SIGTERM)
    work.rest()
    before = settled_descriptors(fleet)
    began = time.monotonic()
    while work.done.total() < operations:
        try:
            for _ in range(min(every, operations - work.done.total())):
                work.step()
            work.rest()
        except (GuestError, OSError) as error:
            raise GuestError(f"seed {seed}, operation {work.done.total()}: {error}") from error
        after = settled_descriptors(fleet)
        if after > before + len(fleet.names):
            raise GuestError(f"the daemon has {after} descriptors, not {before}")
        seconds = time.monotonic() - began
        words = f"{work.done.total()} operations in {seconds:.0f} s"
        print(f"       {words}, {work.in_vain.total()} of them in vain", flush=True)
    return work


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--guests", type=int, default=6)
    parser.add_argument("--seed", type=int, help="of what is done (default: another each time)")
    parser.add_argument("--every", type=int, default=50, help="operations before all rests")
    parser.add_argument("--kernel", default="6.12")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm/demeter-soak"))
    parser.add_argument("--log", type=Path, default=Path("out/soak"), help="what was done")
    arguments = parser.parse_args()
    end_on_sigterm()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"soak: seed {seed}, {arguments.operations} operations, {arguments.guests} guests")
    arguments.log.mkdir(parents=True, exist_ok=True)
    log = arguments.log / "operations.jsonl"
    log.unlink(missing_ok=True)
    # Of an earlier run, with more guests perhaps.
    for old in [*arguments.log.glob("*.console"), *arguments.log.glob("*.qemu")]:
        old.unlink()
    failed, done, in_vain = "", Counter[str](), Counter[str]()
    with own_directory(arguments.directory) as directory:
        fleet = Fleet(
            directory,
            arguments.kernel,
            arguments.guests,
            "--statistics-ms=250",
            "--worker-young-ms=0",
        )
        try:
            with fleet:
                work = soak(fleet, arguments.operations, seed, arguments.every, log)
                done, in_vain = work.done, work.in_vain
        except (GuestError, OSError) as error:
            failed = str(error)
        finally:
            fleet.keep_logs(arguments.log)
    for name, times in sorted(done.items()):
        vain = f", {in_vain[name]} of them in vain" if in_vain[name] else ""
        print(f"ok     {times:6} {name}{vain}")
    if failed:
        print(f"FAILED {failed}; next: --seed {seed}, and {arguments.log}")
    print(f"soak: {done.total()} passed, {1 if failed else 0} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
