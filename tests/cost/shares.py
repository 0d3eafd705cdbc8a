# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Hold what a manager took of a guest's CPU, in the last quarter, to a bound.

usage: shares.py COMPARISON SAMPLER MOST_PERCENT MOST_LOSS_PERCENT

COMPARISON is the output of `demeter vm compare` with the rows `none` and `demeter`. By
how much less work was done than under `none` is held to the second bound.
"""

import json
import sys
from pathlib import Path

#: What the module says of itself leaves out entries of interrupts, switches to the worker
#: and back, and the kernel's timers; so far may it be from what is counted. Seen is 0.11.
UNTOLD_PERCENT = 0.15
#: Of each fault of touch it leaves out some of the kernel's way to the module and back, for which
#: it adds 0.6 us (FAULT_UNSEEN_NS). They are taken to come evenly, one in four in the quarter.
#: Seen are 0.4 and 1.2 us beyond the above.
UNTOLD_FAULT_NS = 1500


def main(
    comparison: Path, sampler: str, most_percent: float, most_loss_percent: float
) -> int:
    """Print both shares and the loss; return 0 if they keep the bounds and the shares agree."""
    none, demeter = (
        json.loads((comparison / row / "summary.json").read_text())
        for row in ("none", "demeter")
    )
    with_it, without = demeter["last_quarter"], none["last_quarter"]
    records = with_it["record_share"]
    told = 100 * (with_it["manager_share"] + records)
    counted = 100 * (with_it["kernel_share"] - without["kernel_share"] + records)
    files = demeter["manager_files"]
    samples = int(files["stats/samples"])
    print(f"{comparison.name}: {told:.3f} % by its own word, {counted:.3f} % counted")
    print(
        f"  at most {most_percent} %; {samples} samples, {files['stats/epochs']} epochs"
    )
    loss = 100 * (1 - with_it["work_per_s"] / without["work_per_s"])
    fmem = [f"{100 * part['fmem_share']:.1f}" for part in (with_it, without)]
    print(
        f"  at most {most_loss_percent} %: {loss:.2f} % less work done, {fmem[0]} % of it from FMEM for {fmem[1]}"
    )
    wrong = []
    if files["sampler"] != sampler:
        wrong.append(f"the sampler is {files['sampler']}, not {sampler}")
    if samples < 100:
        wrong.append("next to nothing was sampled")
    # Nothing at all would mean that nothing was managed, or measured.
    if not 0 < told <= most_percent:
        wrong.append("its own word is not within the bound")
    if not 0 < counted <= most_percent:
        wrong.append("what was counted is not within the bound")
    faults = int(files["stats/touch/touched"]) / 4
    untold = UNTOLD_PERCENT + 100 * faults * UNTOLD_FAULT_NS / 1e9 / with_it["time_s"]
    if abs(told - counted) > untold:
        wrong.append(f"the two do not agree: {untold:.3f} % may be untold")
    if loss > most_loss_percent:
        wrong.append("the program lost more work than it may")
    for line in wrong:
        print(f"  {line}", file=sys.stderr)
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:])))
