# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Where the time of taking memory goes: Demeter's balloon and virtio-mem.

The guest's side is its own function tracer's wall time of some functions, the host's
that of the system calls that drop memory, by ``perf trace``. Sums of one take, medians
of several. A function's time contains that of the functions it calls.
"""

import argparse
import contextlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from demeter_lab.balloon import bench
from demeter_lab.balloon.guest import Guest, GuestError, end_on_sigterm
from demeter_lab.balloon.started import own_directory

TRACING = "/sys/kernel/tracing"
#: Of the guest, as they are traced for each device.
FUNCTIONS = {
    "demeter": (
        "node_work",
        "demeter_take_kernel_pieces",
        "demeter_take_half_free",
        "demeter_take_free_blocks",
        "demeter_take_evacuated",
        "demeter_taken",
        "demeter_report_pages",
        "demeter_reports_collect",
        "demeter_page_store_splice",
        "demeter_refresh_watermarks",
        "demeter_statistics_push",
        "alloc_contig_range_noprof",
        "__lru_add_drain_all",
        "synchronize_rcu_expedited",
        "drain_all_pages",
        "migrate_pages",
    ),
    "virtio-mem": (
        "virtio_mem_run_wq",
        "virtio_mem_fake_offline",
        "virtio_mem_send_request",
        "alloc_contig_range_noprof",
        "__lru_add_drain_all",
        "synchronize_rcu_expedited",
        "drain_all_pages",
        "migrate_pages",
    ),
}
LOADS = ("idle", "loaded")
#: Of the host.
CALLS = "fallocate,madvise"
ENDED = re.compile(r"([\d.]+) us\s+\|\s+(?:([\w.]+)(?: \[\w+\])?\(\);|\} /\* ([\w.]+))")
CALLED = re.compile(r"\(\s*([\d.]+) ms\): .*? (fallocate|madvise)\(")


def prepare(guest: Guest) -> None:
    """Have the guest's tracer ready."""
    guest.must(f"mount -t tracefs tracefs {TRACING}")
    guest.must(f"cd {TRACING} && echo 0 > tracing_on && echo 4096 > buffer_size_kb")


def choose(guest: Guest, method: str) -> None:
    """Trace what that device's driver calls."""
    known = guest.must(f"cut -d' ' -f1 {TRACING}/available_filter_functions | sort -u").split()
    wanted = [name for name in FUNCTIONS[method] if name in known]
    guest.must(
        f"cd {TRACING} && echo nop > current_tracer && echo '{' '.join(wanted)}' > "
        "set_ftrace_filter && echo function_graph > current_tracer && echo 1 > "
        "options/funcgraph-tail"
    )


def traced(guest: Guest) -> dict[str, tuple[float, int]]:
    """Return milliseconds and calls of every function, and forget them."""
    text = guest.must(f"cat {TRACING}/trace; echo > {TRACING}/trace")
    sums: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for took, leaf, closed in ENDED.findall(text):
        before, calls = sums[leaf or closed]
        sums[leaf or closed] = (before + float(took) / 1000, calls + 1)
    return dict(sums)


@contextlib.contextmanager
def watched(pid: int, log: Path) -> Iterator[dict[str, tuple[float, int]]]:
    """Sum up the system calls of a process that drop memory."""
    sums: dict[str, tuple[float, int]] = {}
    # What the last take left must not be read as this one's.
    log.unlink(missing_ok=True)
    process = subprocess.Popen(
        ["perf", "trace", "-e", CALLS, "-p", str(pid), "-o", str(log)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # It says nothing when it has begun.
    time.sleep(1)
    try:
        yield sums
    finally:
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.wait(30)
    if not log.exists():
        raise GuestError("perf trace wrote nothing; next: try it by hand, as root")
    for took, name in CALLED.findall(log.read_text()):
        before, calls = sums.get(f"host: {name}", (0.0, 0))
        sums[f"host: {name}"] = (before + float(took), calls + 1)


def one_take(
    measured: bench.Bench, method: str, pid: int, log: Path
) -> dict[str, tuple[float, int]]:
    """Take and give once; return the take's parts in milliseconds."""
    guest = measured.guest
    call = measured.demeter if method == "demeter" else measured.virtio_mem
    for node in range(2):
        bench.touch(guest, node)
    choose(guest, method)
    with watched(pid, log) as parts:
        guest.must(f"echo > {TRACING}/trace; echo 1 > {TRACING}/tracing_on")
        whole = call(True)
        guest.must(f"echo 0 > {TRACING}/tracing_on")
    parts |= {f"guest: {name}": took for name, took in traced(guest).items()}
    parts["whole"] = (whole * 1000, 1)
    guest.must(f"echo nop > {TRACING}/current_tracer")
    call(False)
    return parts


def show(title: str, takes: list[dict[str, tuple[float, int]]]) -> None:
    """Print medians of the parts."""
    print(title)
    for name in sorted({name for take in takes for name in take}):
        took = [take.get(name, (0.0, 0)) for take in takes]
        spent = statistics.median(part[0] for part in took)
        calls = statistics.median(part[1] for part in took)
        low, high = min(part[0] for part in took), max(part[0] for part in took)
        print(f"  {name:<40} {spent:>8.1f} ms ({low:.1f}-{high:.1f}), {calls:.0f} calls")
    sys.stdout.flush()


def one_case(
    directory: Path, init_on_alloc: int, kernel: str, repeats: int, loads: list[str]
) -> None:
    """Boot one guest; profile it idle and loaded."""
    with bench.all_devices(directory, init_on_alloc, kernel) as (measured, guest, daemon):
        prepare(guest)
        pids = {
            "demeter": daemon.view("bench")["worker"]["pid"],
            "virtio-mem": guest.pid(),
        }
        for load in loads:
            if load == "loaded":
                bench.load(guest)
            for method, pid in pids.items():
                takes = [
                    one_take(measured, method, pid, directory / "perf") for _ in range(repeats + 1)
                ]
                # The first one warms up.
                show(f"init_on_alloc={init_on_alloc}, {load}, {method}:", takes[1:])


def main() -> int:
    """Profile all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="6.12")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--init-on-alloc", type=int, nargs="+", choices=(0, 1), default=[1, 0])
    parser.add_argument("--load", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm/demeter-balloon-profile"))
    arguments = parser.parse_args()
    end_on_sigterm()
    if not shutil.which("perf"):
        raise GuestError("perf is missing; next: install linux-perf")
    for init_on_alloc in arguments.init_on_alloc:
        with own_directory(arguments.directory) as directory:
            one_case(directory, init_on_alloc, arguments.kernel, arguments.repeats, arguments.load)
    return 0


if __name__ == "__main__":
    sys.exit(main())
