# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What `working-set` gives back of a real guest's memory, and what that costs the guest.

A guest with demeter.ko, most of whose memory is free or a file that it read once, runs a
program (`demeter-workloads grow`) that needs more for a while and then less. The same
guest is run beside that with its memory left alone. Times are modelled, as the guest saw
them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
exec /demeter/workloads grow --cold /data/cold "$@"
"""


def run_policy(place: Path, out: Path, policy: str, busy_permille: int, sizes: list[int]) -> dict:
    """Run the guest under a policy; return what its program noted."""
    # What a run left that was ended is no results directory.
    shutil.rmtree(out, ignore_errors=True)
    line = [str(program("demeter")), "vm", "run", "--vms", "1", "--policy", policy]
    line += ["--policy-interval", str(INTERVAL_MS), "--tmm", "demeter", "--roi", "self"]
    line += ["--fmem", f"{FMEM_MIB}M", "--smem", f"{SMEM_MIB}M", "--timeout", "3600"]
    # As large as it is to be: what the balloon holds later is what came back.
    line += ["--boot-fmem", f"{FMEM_MIB}M", "--boot-smem", f"{SMEM_MIB}M"]
    line += ["--data", str(place / "data"), "--copy", f"{place / 'grow.sh'}:/tmp/grow.sh"]
    line += ["--out", str(out), "--", "sh", "/tmp/grow.sh"]
    line += ["--sizes", ",".join(f"{mib}M" for mib in sizes)]
    line += ["--phase-ms", str(PHASE_MS), "--busy-permille", str(busy_permille)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=7200, check=False)
    if done.returncode != 0:
        raise GuestError(f"{' '.join(line)}: {done.stderr.strip()}")
    return outcome_of(out / "vm0")


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
    }


def measure(out: Path, place: Path, busy_permille: int, sizes: list[int]) -> dict:
    """Run all; return what belongs into a summary."""
    (place / "data").mkdir()
    (place / "data/cold").write_bytes(os.urandom(COLD_MIB * MIB))
    (place / "grow.sh").write_text(SCRIPT)
    rows = {
        policy: row_of(run_policy(place, out / policy, policy, busy_permille, sizes))
        for policy in POLICIES
    }
    alone, sized = (rows[policy] for policy in POLICIES)
    sized["slower"] = [
        round(then / now - 1, 4)
        for now, then in zip(sized["updates_per_s"], alone["updates_per_s"], strict=True)
    ]
    return {"sizes_mib": sizes, "phase_ms": PHASE_MS, "busy_permille": busy_permille, "rows": rows}


def judge(checks: Checks, row: dict) -> None:
    """Check what is asked of the policy, in every phase."""
    back = min(row["back"])
    checks.that(f"{BACK:.0%} is back within {WITHIN_S:.0f} s", back >= BACK, row["back"])
    checks.that("nobody ran out of memory", row["killed"] == 0, row["killed"])
    longest = row["longest_ms"]
    checks.that("nothing froze", longest < FREEZE_S * 1000, f"({longest} ms)")
    slower = max(row["slower"])
    checks.that(f"not slower by more than {SLOWER:.0%}", slower <= SLOWER, row["slower"])


def table(measured: dict) -> str:
    """Return the table that people read."""
    lines = [
        f"{'policy':<12} {'back 10 s into a phase':>24} {'M/s at work':>20}"
        f" {'slower by':>22} {'longest':>9} {'refaults':>9} {'killed':>7}"
    ]
    for name, row in measured["rows"].items():
        back = ", ".join(f"{part:.1%}" for part in row["back"])
        rates = ", ".join(f"{rate / 1e6:.2f}" for rate in row["updates_per_s"])
        slower = ", ".join(f"{part:.1%}" for part in row.get("slower", []))
        lines.append(
            f"{name:<12} {back:>24} {rates:>20} {slower:>22} {row['longest_ms']:>6.1f} ms"
            f" {row['refaulted_pages']:>9} {row['killed']:>7}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TREE / "out/sizing")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm/demeter-sizing"))
    parser.add_argument("--busy-permille", type=int, default=1000, help="of the time")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES_MIB), help="MiB")
    arguments = parser.parse_args()
    end_on_sigterm()
    cache()
    arguments.out.mkdir(parents=True, exist_ok=True)
    checks = Checks()
    with own_directory(arguments.directory) as place, checks.part("working-set"):
        measured = measure(arguments.out, place, arguments.busy_permille, arguments.sizes)
        (arguments.out / "sizing.json").write_text(json.dumps(measured, indent=2) + "\n")
        print(table(measured))
        row = measured["rows"]["working-set"]
        judge(checks, row)
    print(f"sizing: {checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
