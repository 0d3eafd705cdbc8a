# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What `working-set` gives back of a real guest's memory, and what that costs the guest.

A guest with demeter.ko, most of whose memory is free or a file that it read once, runs a
program (`demeter-workloads grow`) that needs more for a while and then less. The same
guest is run beside that with its memory left alone. Times are modelled, as the guest saw
them.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from demeter_lab.balloon.checks import Checks
from demeter_lab.balloon.daemon import program
from demeter_lab.balloon.guest import MIB, TREE, GuestError, cache, end_on_sigterm
from demeter_lab.balloon.policies import outcome_of
from demeter_lab.balloon.started import own_directory

#: The first one leaves the guest alone.
POLICIES = ("static", "working-set")
FMEM_MIB, SMEM_MIB = 128, 640
COLD_MIB = 256
SIZES_MIB = (96, 256, 96)
PHASE_MS = 11_000
#: By so much it grows in a second.
PACE_MIB = 32
INTERVAL_MS = 250
#: What is asked for: this part within this time, and so much slower at most.
BACK, WITHIN_S, SLOWER = 0.9, 10.0, 0.01
#: Nothing done for so long is a freeze.
FREEZE_S = 0.1
#: In the guest: the file is to be in the page cache, not mapped past it. The root is, and kswapd
#: counts that as reclaimed anew whenever it looks at inodes there that nobody has open, so that it
#: never gives up (docs/results/balloon.md); no guest whose root is a disk has that.
SCRIPT = """umount /data && mount -t erofs -o ro /dev/pmem1 /data || exit 3
echo 0 >/proc/sys/vm/vfs_cache_pressure || exit 3
[ "$1" = 0 ] || echo "$1" >/proc/sys/vm/min_free_kbytes || exit 3
shift
exec /demeter/workloads grow --cold /data/cold "$@"
"""


@dataclass(frozen=True)
class Load:
    """What the guest is and does."""

    busy_permille: int
    #: Of the array, one after the other.
    sizes_mib: list[int]
    #: All of its memory, and of what it does there, is so many times as large.
    scale: int
    #: What its kernel keeps free; 0: as the testbed sets it, 4 MiB.
    min_free_kib: int
    #: Runs under each policy.
    repetitions: int


def run_policy(place: Path, out: Path, policy: str, load: Load) -> dict:
    """Run the guest under a policy; return what its program noted."""
    fmem_mib, smem_mib = FMEM_MIB * load.scale, SMEM_MIB * load.scale
    # What a run left that was ended is no results directory.
    shutil.rmtree(out, ignore_errors=True)
    line = [str(program("demeter")), "vm", "run", "--vms", "1", "--policy", policy]
    line += ["--policy-interval", str(INTERVAL_MS), "--tmm", "demeter", "--roi", "self"]
    line += ["--fmem", f"{fmem_mib}M", "--smem", f"{smem_mib}M", "--timeout", "3600"]
    # As large as it is to be: what the balloon holds later is what came back.
    line += ["--boot-fmem", f"{fmem_mib}M", "--boot-smem", f"{smem_mib}M"]
    line += ["--data", str(place / "data"), "--copy", f"{place / 'grow.sh'}:/tmp/grow.sh"]
    line += ["--out", str(out), "--", "sh", "/tmp/grow.sh", str(load.min_free_kib)]
    line += ["--sizes", ",".join(f"{mib * load.scale}M" for mib in load.sizes_mib)]
    line += ["--pace", f"{PACE_MIB * load.scale}M"]
    line += ["--phase-ms", str(PHASE_MS), "--busy-permille", str(load.busy_permille)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=7200, check=False)
    if done.returncode != 0:
        raise GuestError(f"{' '.join(line)}: {done.stderr.strip()}")
    outcome = outcome_of(out / "vm0")
    told = json.loads((out / "vm0/balloon.json").read_text())["guest"]["statistics"]
    outcome["taken_back_pages"] = told["oom_deflated_pages"]
    return outcome


def row_of(outcome: dict) -> dict[str, object]:
    """Return the figures of a run."""
    samples = outcome["samples"]
    first, last = samples[0], samples[-1]
    needless = sum(first["free_bytes"]) + outcome["cold_bytes"]

    def back(sample: dict) -> float:
        """Return what the host has back, of what the guest had no use for."""
        # Since then the array has grown, or shrunk.
        without_use = needless - (sample["array_bytes"] - first["array_bytes"])
        return (sum(first["node_bytes"]) - sum(sample["node_bytes"])) / without_use

    at = [
        max((s for s in samples if s["seconds"] <= seconds), key=lambda s: s["seconds"])
        for seconds in (
            number * PHASE_MS / 1000 + WITHIN_S for number in range(len(outcome["phases"]))
        )
    ]
    return {
        "needless_mib": round(needless / MIB),
        "back": [round(back(sample), 3) for sample in at],
        "updates_per_s": [
            round(phase["updates"] / phase["busy_seconds"]) for phase in outcome["phases"]
        ],
        "longest_ms": round(max(p["longest_seconds"] for p in outcome["phases"]) * 1000, 1),
        "refaulted_pages": last["refaulted_pages"] - first["refaulted_pages"],
        "killed": last["killed"] - first["killed"],
        # What its driver took back to avoid that.
        "taken_back_pages": outcome["taken_back_pages"],
    }


def measure(out: Path, place: Path, load: Load) -> dict:
    """Run all; return what belongs into a summary."""
    (place / "data").mkdir()
    with (place / "data/cold").open("wb") as cold:
        for _ in range(COLD_MIB * load.scale):
            cold.write(os.urandom(MIB))
    (place / "grow.sh").write_text(SCRIPT)
    runs: dict[str, list[dict[str, Any]]] = {policy: [] for policy in POLICIES}
    for number in range(load.repetitions):
        # The policies take turns, so that whatever else goes on here meets both.
        for policy in POLICIES:
            row = row_of(run_policy(place, out / f"{number}" / policy, policy, load))
            runs[policy].append(row)
            print(f"{number + 1:>2} {policy:<12} {line_of(row)}", flush=True)
    measured = {"phase_ms": PHASE_MS, **asdict(load), "runs": runs}
    return measured | {"slower": slower(*(runs[policy] for policy in POLICIES))}


def slower(alone: list[dict], sized: list[dict]) -> list[dict[str, float]]:
    """Return for each phase by how much the sized guest was slower, and how well that is known.

    One run says little: how much of the hot part comes to lie in FMEM differs by a tenth between
    two runs of a guest that is left alone. So means of all runs are compared; ``error`` is the
    standard error of their ratio; a single run has none that is known, and counts as it is.
    """
    phases = []
    for at in range(len(alone[0]["updates_per_s"])):
        rates = [[run["updates_per_s"][at] for run in runs] for runs in (alone, sized)]
        before, now = (statistics.mean(rate) for rate in rates)
        error = 0.0
        if len(alone) > 1:
            parts = [statistics.stdev(r) / statistics.mean(r) / len(r) ** 0.5 for r in rates]
            error = before / now * math.hypot(*parts)
        phases.append({"by": round(before / now - 1, 4), "error": round(error, 4)})
    return phases


def judge(checks: Checks, sized: list[dict], by: list[dict[str, float]]) -> None:
    """Check what is asked of the policy, in every phase of every run, and of the speed in all."""
    back = [min(run["back"]) for run in sized]
    checks.that(f"{BACK:.0%} is back within {WITHIN_S:.0f} s", min(back) >= BACK, back)
    lacked = [(run["killed"], run["taken_back_pages"]) for run in sized]
    checks.that("nobody ran out of memory", set(lacked) == {(0, 0)}, lacked)
    longest = max(run["longest_ms"] for run in sized)
    checks.that("nothing froze", longest < FREEZE_S * 1000, f"({longest} ms)")
    worst = max(phase["by"] for phase in by)
    checks.that(f"not slower by more than {SLOWER:.0%}", worst <= SLOWER, by)
    if any(abs(phase["by"] - SLOWER) < 2 * phase["error"] for phase in by):
        print("       runs differ by so much that more of them could say something else")


HEAD = (
    f"   {'policy':<12} {'back 10 s into a phase':>24} {'M/s at work':>20}"
    f" {'longest':>9} {'refaults':>9} {'killed':>7} {'saved':>7}"
)


def line_of(row: dict) -> str:
    """Return the figures of a run below the head."""
    back = ", ".join(f"{part:.1%}" for part in row["back"])
    rates = ", ".join(f"{rate / 1e6:.2f}" for rate in row["updates_per_s"])
    return (
        f"{back:>24} {rates:>20} {row['longest_ms']:>6.1f} ms"
        f" {row['refaulted_pages']:>9} {row['killed']:>7} {row['taken_back_pages']:>7}"
    )


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TREE / "out/sizing")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm/demeter-sizing"))
    parser.add_argument("--busy-permille", type=int, default=1000, help="of the time")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES_MIB), help="MiB")
    parser.add_argument("--scale", type=int, default=1, help="all memory so many times as large")
    parser.add_argument(
        "--min-free-kib", type=int, default=0, help="the kernel's own reserve; 0: 4096"
    )
    parser.add_argument("--repetitions", type=int, default=5, help="runs under each policy")
    arguments = parser.parse_args()
    if min(arguments.scale, arguments.repetitions) < 1:
        parser.error("--scale and --repetitions begin at 1")
    load = Load(
        busy_permille=arguments.busy_permille,
        sizes_mib=arguments.sizes,
        scale=arguments.scale,
        min_free_kib=arguments.min_free_kib,
        repetitions=arguments.repetitions,
    )
    end_on_sigterm()
    cache()
    arguments.out.mkdir(parents=True, exist_ok=True)
    checks = Checks()
    print(HEAD, flush=True)
    with own_directory(arguments.directory) as place, checks.part("working-set"):
        measured = measure(arguments.out, place, load)
        (arguments.out / "sizing.json").write_text(json.dumps(measured, indent=2) + "\n")
        means = ", ".join(f"{p['by']:.1%} (± {p['error']:.1%})" for p in measured["slower"])
        print(f"slower in the mean of {load.repetitions}: {means}")
        judge(checks, measured["runs"]["working-set"], measured["slower"])
    print(f"sizing: {checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
