# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What all programs of a run hold of DRAM at one time: ``tree.py MOST_MIB -- COMMAND…``.

Samples the proportional anonymous memory of the command and all that it starts, of programs
that are managed by the pager, and says on standard error what the most was; status 1 above
MOST_MIB, or where nothing was seen.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

PSS = re.compile(r"^Pss_Anon:\s+(\d+) kB", re.MULTILINE)
KIB_OF_MIB = 1024


def children() -> dict[int, list[int]]:
    """Return the processes that each process has started."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(errors="replace")
                parent = int(stat.rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            found.setdefault(parent, []).append(int(entry.name))
    return found


def held_kib(process: int) -> int:
    """Return what a managed process holds of anonymous memory, its share of what is shared."""
    try:
        maps = Path(f"/proc/{process}/maps").read_text(errors="replace")
        if "libdemeter_extmem" not in maps:
            return 0
        found = PSS.search(Path(f"/proc/{process}/smaps_rollup").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def main() -> int:
    """Run the command and watch it."""
    most_mib, command = int(sys.argv[1]), sys.argv[3:]
    run = subprocess.Popen(command)
    most_kib = most_processes = samples = 0
    longest_s = 0.0
    before_s = time.monotonic()
    while run.poll() is None:
        known, tree = children(), [run.pid]
        for process in tree:
            tree += known.get(process, [])
        held = [kib for process in tree if (kib := held_kib(process))]
        most_kib = max(most_kib, sum(held))
        most_processes = max(most_processes, len(held))
        samples += 1
        time.sleep(0.02)
        now_s = time.monotonic()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    held_mib = most_kib // KIB_OF_MIB
    print(
        f"at most {held_mib} MiB in {most_processes} programs, of {most_mib}"
        f" ({samples} looks, {longest_s:.2f} s apart at most; status {run.returncode})",
        file=sys.stderr,
    )
    return 0 if run.returncode == 0 and 0 < most_kib <= most_mib * KIB_OF_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
