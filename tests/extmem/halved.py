# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs a program as it is, then under the pager with half the memory it took.

usage: halved.py --demeter PATH --swap DIR --scratch DIR [--share PERCENT]
                 [--mode MODE] NAME -- COMMAND…

Both runs must end alike and print the same bytes; the pager must have read pages
back (or the test would show nothing) and must have stayed below its share of DRAM.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

MIB = 1 << 20
# What a process holds besides managed memory: code, small mappings, stacks.
UNMANAGED_BYTES = 64 * MIB
LEAST_DRAM_BYTES = 16 * MIB
LIMIT_S = 600


class Run(NamedTuple):
    """How a run ended; ``peak_bytes`` is of its largest process."""

    status: int
    digest: str
    output_bytes: int
    peak_bytes: int
    seconds: float
    errors: str


def run(command: list[str]) -> Run:
    """Run a command to its end."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        digest = hashlib.sha256()
        out.seek(0)
        while chunk := out.read(MIB):
            digest.update(chunk)
        errors.seek(0)
        return Run(
            process.returncode,
            digest.hexdigest(),
            out.tell(),
            usage.ru_maxrss * 1024,
            time.monotonic() - began,
            errors.read().decode(errors="replace").strip(),
        )


def faults_from_swap(summary: Path) -> tuple[int, int]:
    """Return pages read back from swap or compressed memory, and the peak of DRAM."""
    processes = json.loads(summary.read_text())["processes"]
    names = ("faults_swap", "faults_compressed", "prefetch_used_pages")
    back = sum(one["counters"].get(name, 0) for one in processes for name in names)
    return back, max((one["peak_resident_bytes"] for one in processes), default=0)


def main() -> int:
    """Compare the two runs; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demeter", type=Path, required=True)
    parser.add_argument("--swap", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--share", type=int, default=50)
    parser.add_argument("--mode", default="auto")
    parser.add_argument("name")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    name, command = arguments.name, arguments.command

    native = run(command)
    if native.status != 0 or native.output_bytes == 0:
        print(f"{name}: does not even run without the pager: {native.errors[-500:]}")
        return 1
    dram_bytes = max(native.peak_bytes * arguments.share // 100, LEAST_DRAM_BYTES)
    summary = arguments.scratch / f"{name}.json"
    summary.unlink(missing_ok=True)
    managed = run(
        [
            *(
                str(arguments.demeter),
                "extmem",
                "run",
                "--quiet",
                "--mode",
                arguments.mode,
            ),
            *("--dram", str(dram_bytes), "--swap", str(arguments.swap)),
            *("--swap-size", str(4 * native.peak_bytes), "--json", str(summary)),
            *("--", *command),
        ]
    )
    print(
        f"{name}: {native.peak_bytes // MIB} MiB in {native.seconds:.1f} s; "
        f"with {dram_bytes // MIB} MiB in {managed.seconds:.1f} s, "
        f"largest process {managed.peak_bytes // MIB} MiB"
    )
    wrong = []
    if managed.status != native.status:
        wrong.append(f"ended with status {managed.status}: {managed.errors[-500:]}")
    if managed.digest != native.digest:
        wrong.append("printed something else")
    if managed.peak_bytes > dram_bytes + UNMANAGED_BYTES:
        wrong.append(f"took {managed.peak_bytes // MIB} MiB of {dram_bytes // MIB}")
    try:
        back, peak = faults_from_swap(summary)
        print(
            f"{name}: {back} pages came back, managed memory peaked at {peak // MIB} MiB"
        )
        if back < 1000:
            wrong.append("hardly anything was paged: the test shows nothing")
    except (OSError, ValueError, KeyError, TypeError) as error:
        wrong.append(f"left no summary that can be read: {error}")
    for what in wrong:
        print(f"{name}: FAILED: {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
