#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a guest costs its host, and what the model adds to plain TCG.

usage: testbed/speed.py [--rounds N] [--out DIR] [--demeter FILE]... [--program NAME]...

Each round runs every program under every --demeter in turn: under QEMU alone
(`vm run --roi nothing`) and with the model, then `true`. CPU times are QEMU's, of
COMMAND only, as the manifests tell them; a ratio is taken within a round, so that a
host that gets slower or faster weighs on both sides. The fixed cost is all that is not
COMMAND: wall-clock time of the host, which must be quiet for it, and CPU time.
Give two builds, for example of two work trees, for a before and an after.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

# Memory-bound: 448 MiB, nine of ten accesses to 32 MiB, and so many of them that clearing
# and checksumming the array, which stream, weigh little beside them. Cache-bound: PageRank on a graph
# that fits the modelled last-level cache. Past the L1: 1 MiB at random, where every load
# misses the filter in front of the model and next to none of the host's own caches: the
# worst case.
PROGRAMS = {
    "memory-bound": "gups --footprint 448M --hot 32M --updates 40000000",
    "cache-bound": "pagerank --scale 13 --iterations 400 --tolerance 0",
    "past the L1": "gups --footprint 1M --hot 512K --updates 60000000",
}


class Failed(Exception):
    """A run that gave no figures."""


def run(demeter: Path, out: Path, options: list[str], command: list[str]) -> dict[str, Any]:
    """One guest; `host` of its manifest and the digest of its series."""
    argv = [str(demeter), "vm", "run", *options, "--out", str(out), "--", *command]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(argv)}: {done.stderr.strip() or f'status {done.returncode}'}")
    host: dict[str, Any] = json.loads((out / "manifest.json").read_text())["host"]
    host["digest"] = json.loads((out / "summary.json").read_text())["digest"]
    return host


def spread(values: list[float]) -> str:
    """Least, median, most."""
    return f"{min(values):8.2f} {statistics.median(values):8.2f} {max(values):8.2f}"


def main() -> int:
    """Carry the rounds out and print one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/speed"))
    parser.add_argument("--demeter", type=Path, action="append", default=[])
    parser.add_argument("--program", choices=PROGRAMS, action="append", default=[])
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    builds: list[Path] = options.demeter or [Path("target/release/demeter")]
    programs: list[str] = options.program or list(PROGRAMS)

    rows: dict[tuple[Path, str], list[float]] = defaultdict(list)
    digests: dict[tuple[Path, str], set[str]] = defaultdict(set)
    try:
        for _ in range(options.rounds):
            for name in programs:
                command = ["/demeter/workloads", *PROGRAMS[name].split()]
                for build in builds:
                    plain = run(build, options.out, ["--roi", "nothing"], command)["command_cpu_s"]
                    host = run(build, options.out, [], command)
                    rows[build, f"{name}, plain TCG, CPU s"].append(plain)
                    rows[build, f"{name}, modelled, CPU s"].append(host["command_cpu_s"])
                    rows[build, f"{name}, ratio"].append(host["command_cpu_s"] / plain)
                    digests[build, name].add(host["digest"])
            for build in builds:
                host = run(build, options.out, [], ["true"])
                wall = host["prepare_s"] + host["boot_s"] + host["end_s"]
                rows[build, "all but COMMAND, wall s"].append(wall)
                rows[build, "all but COMMAND, CPU s"].append(host["cpu_s"] - host["command_cpu_s"])
    except (Failed, OSError) as error:
        print(f"speed: error: {error}; next: see that `demeter vm run` works", file=sys.stderr)
        return 1

    print(f"{options.rounds} rounds" + f"{'min':>53} {'median':>8} {'max':>8}")
    for (build, name), values in sorted(rows.items(), key=lambda row: (row[0][1], str(row[0][0]))):
        print(f"{str(build)[-28:]:28} {name:32} {spread(values)}")
    for (build, name), found in digests.items():
        print(f"{str(build)[-28:]:28} {name}, modelled: {len(found)} different outcome(s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
