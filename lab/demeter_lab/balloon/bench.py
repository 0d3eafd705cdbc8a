# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How fast memory changes hands, and what guests are worth that were composed so.

Demeter's balloon, virtio-balloon and virtio-mem: all three are in one guest and
take the same amount from it in turns, several times, so that the machine's moods
meet all of them alike. Times are the host's, from the request to the moment when
the device says that it is done. What guests are worth is in composition.py, what
policies are in policies.py.
"""

import argparse
import contextlib
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from demeter_lab.balloon import composition, policies
from demeter_lab.balloon.checks import DRIVER, settings
from demeter_lab.balloon.daemon import Daemon
from demeter_lab.balloon.guest import (
    MIB,
    TREE,
    Guest,
    GuestError,
    Settings,
    cache,
    end_on_sigterm,
    release,
)
from demeter_lab.balloon.started import own_directory

#: What changes hands.
AMOUNT_MIB = 192
#: Memory of the nodes, and of the memory device on node 1.
NODE_MIB = (320, 320)
DEVICE_MIB = 256
#: What the load allocates and frees over and over, on node 1.
LOAD_MIB = 32
GIB = 1 << 30
METHODS = ("demeter", "virtio-balloon", "virtio-mem")


def bench_settings(daemon: Daemon, init_on_alloc: int, kernel: str) -> Settings:
    """Return a guest with all three devices."""
    made = settings(kernel, daemon, "bench", NODE_MIB)
    made.append = f"init_on_alloc={init_on_alloc} memhp_default_state=online_movable"
    made.max_mib = sum(NODE_MIB) + 2 * DEVICE_MIB
    return made


def devices(guest: Guest) -> list[str]:
    """Return the arguments for the two other devices."""
    path = guest.directory / "device"
    backend = f"memory-backend-file,id=md,size={DEVICE_MIB}M,share=on,mem-path={path}"
    return [
        *("-device", "virtio-balloon-pci,id=stock"),
        *("-object", backend),
        *("-device", f"virtio-mem-pci,id=vmem,memdev=md,node=1,requested-size={DEVICE_MIB}M"),
    ]


def touch(guest: Guest, node: int) -> None:
    """Make the host allocate most of the free memory of ``node``.

    Not all of it: a guest without swap thrashes near its watermarks.
    """
    free = guest.must(f"awk '/MemFree/ {{print $4}}' /sys/devices/system/node/node{node}/meminfo")
    mib = int(free) * 3 // 4 // 1024 - LOAD_MIB
    path = f"/data{node}/touch"
    guest.must(f"dd if=/dev/zero of={path} bs=1M count={mib} && rm {path}", limit_s=400)


def wait(what: str, done: Callable[[], bool], limit_s: float = 240) -> float:
    """Return the seconds until ``done``."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > limit_s:
            raise GuestError(f"{what} does not end in {limit_s:.0f} s")
        time.sleep(0.0005)
    return time.monotonic() - began


class Bench:
    """Takes and gives in one guest."""

    def __init__(self, guest: Guest, daemon: Daemon) -> None:
        """Use this guest."""
        self.guest = guest
        self.daemon = daemon
        # Of boot memory only: QEMU leaves virtio-mem's out.
        self.balloon_total = guest.qmp.balloon_actual()

    def demeter(self, take: bool) -> float:
        """Return seconds for Demeter's balloon, all from node 1."""
        # virtio-mem's memory is of this node too.
        size = (NODE_MIB[1] + DEVICE_MIB - (AMOUNT_MIB if take else 0)) * MIB
        began = time.monotonic()
        tier = self.daemon.resize("bench", 1, size, wait_ms=240_000)
        took = time.monotonic() - began
        if tier["size_bytes"] != size:
            raise GuestError(f"demeter stopped at {tier['size_bytes']} of {size}: {tier['last']}")
        return took

    def stock(self, take: bool) -> float:
        """Return seconds for virtio-balloon, from wherever it takes them."""
        value = self.balloon_total - (AMOUNT_MIB * MIB if take else 0)
        qmp = self.guest.qmp
        qmp("balloon", value=value)
        return wait("virtio-balloon", lambda: qmp.balloon_actual() == value)

    def virtio_mem(self, take: bool) -> float:
        """Return seconds for virtio-mem on node 1."""
        value = (DEVICE_MIB - (AMOUNT_MIB if take else 0)) * MIB
        qmp = self.guest.qmp
        path = "/machine/peripheral/vmem"
        qmp("qom-set", path=path, property="requested-size", value=value)
        return wait("virtio-mem", lambda: qmp.number("vmem", "size") == value)

    def measure(self, repeats: int) -> dict[str, dict[str, list[float]]]:
        """Return GiB/s of every repetition, by method and direction."""
        calls = {
            "demeter": self.demeter,
            "virtio-balloon": self.stock,
            "virtio-mem": self.virtio_mem,
        }
        rates: dict[str, dict[str, list[float]]] = {
            method: {"take": [], "give": []} for method in METHODS
        }
        for repeat in range(repeats + 1):
            # Another one begins each time; the first round warms up. Whoever
            # begins finds most pages backed: three repetitions are fair.
            for node in range(2):
                touch(self.guest, node)
            for offset in range(len(METHODS)):
                method = METHODS[(repeat + offset) % len(METHODS)]
                for direction in ("take", "give"):
                    took = calls[method](direction == "take")
                    print(f"       {repeat} {method} {direction}: {took:.3f} s", flush=True)
                    if repeat > 0:
                        rates[method][direction].append(AMOUNT_MIB * MIB / GIB / took)
        return rates


def summary_of(rates: dict[str, dict[str, list[float]]]) -> dict[str, object]:
    """Return medians, spreads, and Demeter's ratios repetition by repetition."""
    rows: dict[str, object] = {}
    for method, by_direction in rates.items():
        rows[method] = {
            direction: {
                "median_gib_per_s": round(statistics.median(values), 4),
                "min_gib_per_s": round(min(values), 4),
                "max_gib_per_s": round(max(values), 4),
            }
            for direction, values in by_direction.items()
        }
    ratios: dict[str, object] = {}
    for other in METHODS[1:]:
        for direction in ("take", "give"):
            pairs = zip(rates["demeter"][direction], rates[other][direction], strict=True)
            values = [mine / theirs for mine, theirs in pairs]
            ratios[f"{direction} / {other}"] = {
                "median": round(statistics.median(values), 2),
                "min": round(min(values), 2),
                "max": round(max(values), 2),
            }
    return {"rates": rows, "ratios": ratios}


@contextlib.contextmanager
def all_devices(
    directory: Path, init_on_alloc: int, kernel: str
) -> Iterator[tuple[Bench, Guest, Daemon]]:
    """Boot one guest with the three devices, each at its full size."""
    daemon = Daemon(directory, ["bench"], "--statistics-ms", "0", keys=",smem={files}/device")
    guest = Guest("bench", directory, bench_settings(daemon, init_on_alloc, kernel))
    guest.settings.arguments = devices(guest)
    with daemon, guest:
        for module in (DRIVER, "virtio_balloon.ko", "virtio_mem.ko"):
            guest.must(f"insmod /balloon/{module}")
        daemon.wait_stage("bench", "driven")
        for node in range(2):
            guest.must(
                f"mkdir -p /data{node} && "
                f"mount -t tmpfs -o size=2g,mpol=bind:{node} data /data{node}"
            )
        wait(
            "virtio-mem's first plug",
            lambda: guest.qmp.number("vmem", "size") == DEVICE_MIB * MIB,
        )
        yield Bench(guest, daemon), guest, daemon


def load(guest: Guest) -> None:
    """Start a program that allocates and frees, on one of the vCPUs."""
    guest.must(
        f"(while :; do dd if=/dev/zero of=/data1/load bs=1M count={LOAD_MIB}; done) "
        ">/dev/null 2>&1 & echo $! > /tmp/load"
    )


def one_case(directory: Path, init_on_alloc: int, kernel: str, repeats: int) -> dict[str, object]:
    """Boot one guest; measure it idle and loaded."""
    result: dict[str, object] = {}
    with all_devices(directory, init_on_alloc, kernel) as (bench, guest, _):
        before = guest.backing_bytes(0)
        bench.stock(True)
        from_fmem = before - guest.backing_bytes(0)
        bench.stock(False)
        result["virtio_balloon_taken_from_fmem"] = round(from_fmem / (AMOUNT_MIB * MIB), 3)
        result["idle"] = summary_of(bench.measure(repeats))
        load(guest)
        result["loaded"] = summary_of(bench.measure(repeats))
        guest.run("kill $(cat /tmp/load)")
    return result


def table(cases: dict[str, dict]) -> str:
    """Return the table that people read."""
    lines = [
        f"{'case':<34} {'GiB/s':>8} {'spread':>15} {'x virtio-balloon':>18} {'x virtio-mem':>16}"
    ]
    for name, case in cases.items():
        for load in ("idle", "loaded"):
            for direction in ("take", "give"):
                row = case[load]["rates"]["demeter"][direction]
                ratios = case[load]["ratios"]

                def told(other: str, ratios: dict = ratios, way: str = direction) -> str:
                    ratio = ratios[f"{way} / {other}"]
                    return f"{ratio['median']:.1f} ({ratio['min']:.1f}-{ratio['max']:.1f})"

                spread = f"{row['min_gib_per_s']:.2f}-{row['max_gib_per_s']:.2f}"
                lines.append(
                    f"{name + ', ' + load + ', ' + direction:<34}"
                    f" {row['median_gib_per_s']:>8.2f} {spread:>15}"
                    f" {told('virtio-balloon'):>18} {told('virtio-mem'):>16}"
                )
    return "\n".join(lines)


def measure_rates(directory: Path, kernel: str, repeats: int) -> dict[str, dict]:
    """Run both cases, each in a directory of its own in that one."""
    cases: dict[str, dict] = {}
    for init_on_alloc in (1, 0):
        with own_directory(directory) as made:
            name = f"init_on_alloc={init_on_alloc}"
            cases[name] = one_case(made, init_on_alloc, kernel, repeats)
    return cases


def main() -> int:
    """Run all cases and write ``summary.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TREE / "out/balloon")
    parser.add_argument("--kernel", default="6.12")
    parser.add_argument("--repeats", type=int, default=6, help="best a multiple of 3")
    parser.add_argument("--updates", type=int, default=30_000_000, help="of GUPS")
    parser.add_argument("--seeds", type=int, default=5, help="of GUPS")
    every = (("methods", composition.METHODS), ("managers", composition.MANAGERS))
    for what, names in every:
        parser.add_argument(f"--{what}", nargs="+", choices=names, default=list(names))
    parser.add_argument("--only", choices=["rates", "composition", "policies"])
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm/demeter-balloon-bench"))
    arguments = parser.parse_args()
    end_on_sigterm()
    accel = Settings().accel
    about = json.loads((cache() / "qemu.json").read_text())
    summary: dict[str, object] = {
        "experiment": "balloon",
        "accelerator": accel,
        "qemu": about["version"],
        "kernel": release(arguments.kernel),
        "host": platform.release(),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "summary.json"
    if arguments.only and path.exists():
        # The other parts stay as they were measured.
        summary = json.loads(path.read_text()) | summary
    if arguments.only in (None, "rates"):
        cases = measure_rates(arguments.directory, arguments.kernel, arguments.repeats)
        summary |= {"amount_mib": AMOUNT_MIB, "repeats": arguments.repeats, "rows": cases}
        print(f"accelerator: {accel}; {AMOUNT_MIB} MiB, {arguments.repeats} repetitions")
        print(table(cases))
    if arguments.only in (None, "composition"):
        measured = composition.measure(
            arguments.out,
            arguments.methods,
            arguments.managers,
            arguments.updates,
            arguments.seeds,
        )
        summary["composition"] = measured
        print(f"GUPS, {arguments.updates} updates, {arguments.seeds} seeds; times modelled")
        print(composition.table(measured))
    if arguments.only in (None, "policies"):
        measured = policies.measure(arguments.out)
        summary["policies"] = measured
        print(f"an hour of alternating load, 1:{policies.SCALE}; times modelled")
        print(policies.table(measured))
    path.write_text(json.dumps(summary, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
